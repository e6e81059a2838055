"""The files by which sentence-transformers computes the same embeddings: modules.json and the folders that it names."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from .configuration_cmlmcse import CMLMCSEConfig
from .pooling import POOLINGS

MODES = {  # key of sentence-transformers' pooling configuration → its name for the mode
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
}
OWN_POOLING = "MaskPooling"
HEAD = "projection.dense."  # the head's weights in a model's file


def write_sentence_transformers(
    config: CMLMCSEConfig, weights: Mapping[str, Tensor], folder: Path, similarity: str = "cosine"
) -> None:
    """Write them, with names that old and new sentence-transformers read.

    Args:
        config: the model's configuration.
        weights: the model's weights by name; only a pooling that keeps the head reads them.
        folder: where the model is.
        similarity: the function that compares its embeddings.
    """
    size, depth = config.hidden_size, config.backbone_config.num_hidden_layers
    pooling = POOLINGS[config.pooling]
    modules = [("", "Transformer")]
    if pooling.layers != (-1,):
        chosen = torch.zeros(depth, device="cpu")
        chosen[list(pooling.layers)] = 1.0
        fields = {"word_embedding_dimension": size, "layer_start": 1, "num_hidden_layers": depth}
        modules.append(write_module(folder, len(modules), "WeightedLayerPooling", fields, {"layer_weights": chosen}))
    if pooling.reads_mask:  # no pooling of the library's own
        fields = {"mask_token_id": config.mask_token_id, "word_embedding_dimension": size}
        modules.append(write_module(folder, len(modules), OWN_POOLING, fields))
    else:
        modes = {key: mode == pooling.mode for key, mode in MODES.items()}
        modules.append(write_module(folder, len(modules), "Pooling", {"word_embedding_dimension": size, **modes}))
    if pooling.keeps_head:
        fields = {"in_features": size, "out_features": size, "bias": True}
        fields["activation_function"] = "torch.nn.modules.activation.Tanh"
        head = {name: weights[HEAD + name].detach().cpu().contiguous() for name in ("weight", "bias")}
        tensors = {f"linear.{name}": tensor for name, tensor in head.items()}
        modules.append(write_module(folder, len(modules), "Dense", fields, tensors))
    if config.normalize:
        modules.append(write_module(folder, len(modules), "Normalize", {}))
    write_json(
        folder / "modules.json",
        [{"idx": i, "name": str(i), "path": path, "type": module_type(kind)} for i, (path, kind) in enumerate(modules)],
    )
    prompts = {"prompts": config.prompts, "default_prompt_name": config.default_prompt_name} if config.prompts else {}
    write_json(folder / "config_sentence_transformers.json", {**prompts, "similarity_fn_name": similarity})


def module_type(kind: str) -> str:
    """The class of a module, as modules.json names it: the library's, or one in the folder's own code."""
    return f"mask_pooling.{kind}" if kind == OWN_POOLING else f"sentence_transformers.models.{kind}"


def write_module(
    folder: Path, index: int, kind: str, fields: dict[str, Any], weights: dict[str, Tensor] | None = None
) -> tuple[str, str]:
    """One module in its own folder; returns (path, kind)."""
    path = f"{index}_{kind}"
    (folder / path).mkdir(exist_ok=True)
    write_json(folder / path / "config.json", fields)
    if weights is not None:
        save_file(weights, folder / path / "model.safetensors")
    return path, kind


def write_json(path: Path, content: Any) -> None:
    """Write indented JSON with a newline at the end."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
