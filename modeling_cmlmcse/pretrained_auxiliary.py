"""A pre-trained auxiliary network: the fusion layers that `--stage pretrain` saves beside a backbone."""

import os
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers.modeling_utils import safe_open
from transformers.utils import cached_file, logging

from .pooling import POOLINGS

logger = logging.get_logger(__name__)

AUXILIARY_NETWORK = "auxiliary_network.safetensors"
DEPTHS = ("lexical_layers", "fusion_layers")


def find_file(source: str | os.PathLike[str], name: str) -> str | None:
    """The path of a file in a folder or Hub repository, None if it is not there."""
    missing_is_none = {f"_raise_exceptions_for_{what}": False for what in ("missing_entries", "gated_repo")}
    missing_is_none["_raise_exceptions_for_connection_errors"] = False
    try:
        return cached_file(source, name, **missing_is_none)
    except OSError:  # neither a folder nor a repository
        return None


class PretrainedAuxiliary(NamedTuple):
    """The fusion layers in a folder or Hub repository that also holds the backbone and the head they belong to.

    Attributes:
        source: the folder or Hub name.
        path: the file of their weights.
        depths: `lexical_layers`, whose output they were trained on, and `fusion_layers`, their number.
        pooling: the sentence vector that they were trained with; None if the file does not say.
    """

    source: str
    path: str
    depths: dict[str, int]
    pooling: str | None

    @classmethod
    def find(cls, source: str | os.PathLike[str]) -> "PretrainedAuxiliary | None":
        """The auxiliary network of a folder or Hub name, None if it has none.

        Raises:
            ValueError: a file without the depths.
        """
        path = find_file(source, AUXILIARY_NETWORK)
        if path is None:
            return None
        with safe_open(path, framework="pt") as file:
            found = file.metadata() or {}
        if not all(found.get(name, "").isdigit() for name in DEPTHS):
            raise ValueError(
                f"{AUXILIARY_NETWORK} must name its {' and '.join(DEPTHS)}, found {found} in {source}; pre-train it "
                "again with --stage pretrain"
            )
        return cls(str(source), path, {name: int(found[name]) for name in DEPTHS}, found.get("pooling"))

    @classmethod
    def choose(cls, fusion_init: str, backbone: str) -> "PretrainedAuxiliary | None":
        """The auxiliary network that `fusion_init` asks for: that beside the backbone (`pretrained`), or that of a
        folder or Hub name if it has one; None for every other way to start.

        Raises:
            ValueError: the backbone has none.
        """
        if fusion_init in ("last", "next", "random"):
            return None
        network = cls.find(backbone if fusion_init == "pretrained" else fusion_init)
        if network is None and fusion_init == "pretrained":
            raise ValueError(
                f"fusion_init 'pretrained' expects {AUXILIARY_NETWORK} beside the backbone, found none in {backbone}; "
                "pre-train with --stage pretrain first, or choose fusion_init last"
            )
        return network

    def check(self, fields: dict[str, Any]) -> dict[str, int]:
        """The depths, which those that `fields` name must equal.

        Raises:
            ValueError: another depth is asked for.
        """
        for name, depth in self.depths.items():
            if fields.get(name) not in (None, depth):
                raise ValueError(
                    f"{name} must be {depth}, which the auxiliary network of {self.source} was pre-trained with, found "
                    f"{fields[name]}; set it to {depth}, or choose another fusion_init"
                )
        return self.depths

    @torch.no_grad()
    def load_into(self, fusion: nn.Module, pooling: str) -> None:
        """Load its weights into fusion layers that will get the sentence vector of `pooling`. Warn if they were trained
        with another one.

        Raises:
            ValueError: layers of another shape or kind.
        """
        with safe_open(self.path, framework="pt") as file:
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dictionary)
        try:
            fusion.load_state_dict(weights)
        except RuntimeError as error:
            reason = str(error).splitlines()[-1].strip()
            raise ValueError(
                f"the auxiliary network of {self.source} must have the backbone's kind and width, found {reason}; "
                "choose the backbone that it was pre-trained with"
            ) from error
        if self.pooling is not None and not POOLINGS[pooling].reads_as(POOLINGS.get(self.pooling)):
            logger.warning(
                f"the auxiliary network of {self.source} was trained with the pooling {self.pooling} and has to "
                f"adapt to {pooling}: set pooling to {self.pooling}, or pre-train with --pooling {pooling}."
            )
