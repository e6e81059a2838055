"""LoRA: the backbone's weights stay as they are, and small matrices beside them are trained (Hu et al. 2021).

The matrices are those of the PEFT library. Checkpoints hold merged weights, so that they load as all others do, and
beside them the matrices themselves in `ADAPTER`, so that a run goes on from them to the bit.
"""

from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from cmlmcse.common.errors import InputError
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from modeling_cmlmcse.backbone import blocks

from .frozen_weights import checkpoint_weights

ADAPTER = "adapter.safetensors"
ALPHA = 2  # times the rank: lora_alpha. The product is then doubled; a common choice, which was not tuned here
MARK = ".lora_"  # in the names of PEFT's matrices
WRAPPED = ".base_layer."  # in the names of the weights beside them


def add_lora(model: CMLMCSEForSentenceEmbedding, rank: int) -> None:
    """Put matrices of this rank beside every linear layer of the backbone's blocks, and freeze the backbone, in place.

    The training head and the auxiliary networks train as without LoRA.

    Raises:
        InputError: PEFT is not installed.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise InputError("lora_r expects the package peft, found none; install it: pip install peft") from error
    backbone: Any = model.backbone
    layers: Any = blocks(backbone)
    inside = {id(module) for module in layers.modules() if isinstance(module, nn.Linear)}
    names = [name for name, module in backbone.named_modules() if id(module) in inside]
    inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=ALPHA * rank, target_modules=names), backbone)


def has_lora(model: nn.Module) -> bool:
    """Whether :func:`add_lora` was called on the model."""
    return any(MARK in name for name, _ in model.named_parameters())


def wrapped_layers(model: nn.Module) -> dict[str, Any]:
    """The linear layers with matrices beside them, by name."""
    return {name: module for name, module in model.named_modules() if hasattr(module, "get_delta_weight")}


def merged_weights(model: nn.Module) -> dict[str, Tensor]:
    """The weights by their names without LoRA, each with the product of its matrices added."""
    state = {name.replace(WRAPPED, "."): value for name, value in model.state_dict().items() if MARK not in name}
    for name, layer in wrapped_layers(model).items():
        state[f"{name}.weight"] = state[f"{name}.weight"] + layer.get_delta_weight("default")
    return state


def merge_lora(model: nn.Module) -> None:
    """Add the products to the weights and remove the matrices, in place."""
    for name, layer in wrapped_layers(model).items():
        layer.merge()
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, layer.get_base_layer())


def save_adapter(model: nn.Module, folder: Path) -> None:
    """Write the matrices."""
    matrices = {name: value.contiguous() for name, value in model.state_dict().items() if MARK in name}
    save_file(matrices, folder / ADAPTER)


def load_lora_checkpoint(model: nn.Module, folder: Path) -> None:
    """Load the matrices of a checkpoint, and all its other weights that train.

    Raises:
        InputError: the checkpoint has no matrices, or matrices of another rank.
    """
    if not (folder / ADAPTER).is_file():
        raise InputError(f"{folder}: expected a checkpoint of a run with lora_r, found none; leave lora_r out")
    weights = checkpoint_weights(folder)
    trained = {name: value for name, value in weights.items() if not name.startswith("backbone.")}
    try:
        model.load_state_dict({**load_file(folder / ADAPTER), **trained}, strict=False)
    except RuntimeError as error:
        raise InputError(f"{folder}: expected matrices of this run's lora_r, found others; set the same one") from error
