"""Frozen weights in checkpoints. They never change, so their file is written once, and later checkpoints link to it.

A checkpoint with frozen weights has two shards, as transformers calls the parts of a large model: the weights that
train, and those that do not. The second shard of a later checkpoint is another name (a hard link) of the earlier one's
file. It takes no time and no space, and yet each checkpoint is whole, may be copied alone, and stays when others are
removed. On a file system without hard links the shard is written again.
"""

import json
import os
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from modeling_cmlmcse import CMLMCSEForSentenceEmbedding

TRAINED, FROZEN = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def frozen_names(model: CMLMCSEForSentenceEmbedding) -> set[str]:
    """The names of the weights that training leaves as they are: those of a frozen extractor or generator. With LoRA
    the backbone's do not count: a checkpoint holds merged weights."""
    auxiliary = model.auxiliary.named_parameters(prefix="auxiliary")
    return {name for name, weight in auxiliary if not weight.requires_grad}


def add_frozen(folder: Path, frozen: dict[str, Tensor], earlier: Path | None) -> None:
    """Make a folder of the weights that train one of all weights, in place.

    Args:
        folder: where `save_pretrained` has written the weights that train.
        frozen: the others.
        earlier: a checkpoint of this run with the same frozen weights, if there is one.
    """
    (folder / SAFE_WEIGHTS_NAME).rename(folder / TRAINED)
    if earlier is None or not linked(earlier / FROZEN, folder / FROZEN):
        save_file({name: weight.contiguous() for name, weight in frozen.items()}, folder / FROZEN, {"format": "pt"})
    weight_map: dict[str, str] = {}
    size = 0
    for shard in (TRAINED, FROZEN):
        size += (folder / shard).stat().st_size
        with safe_open(folder / shard, "pt") as file:
            weight_map |= dict.fromkeys(file.keys(), shard)
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    (folder / SAFE_WEIGHTS_INDEX_NAME).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def linked(file: Path, name: Path) -> bool:
    """Give a file another name; false if it is not there, or if its file system has no hard links."""
    try:
        os.link(file, name)
    except OSError:
        return False
    return True


def checkpoint_weights(folder: Path) -> dict[str, Tensor]:
    """All weights of a checkpoint, in one file or in shards."""
    return {
        name: weight for file in sorted(folder.glob("model*.safetensors")) for name, weight in load_file(file).items()
    }
