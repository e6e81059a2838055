"""A packed batch of masked sentences, and the fusion blocks that read it."""

from typing import Any, NamedTuple

from torch import Tensor

from .backbone import Module, run_blocks
from .packing import Packing, Selection


class MaskedBatch(NamedTuple):
    """Masked sentences (`masked` as in :class:`AuxiliaryObjective`) and how they are packed.

    Attributes:
        tokens: (S,) the packed row.
        packing: the layout of the packed row.
        positions: (M,) indices of the masked tokens in it.
        chosen: the layout of the masked tokens.
    """

    tokens: Tensor
    packing: Packing
    positions: Tensor
    chosen: Packing

    @classmethod
    def of(cls, masked: dict[str, Any]) -> "MaskedBatch":
        """From a batch's `masked`."""
        tokens, positions = masked["input_ids"], masked["mlm_positions"]
        packing = Packing.from_lengths(masked["lengths"], len(tokens), masked["width"])
        return cls(
            tokens, packing, positions, Packing.from_lengths(masked["mlm_counts"], len(positions), masked["mlm_width"])
        )


def fuse(fusion: Module, sentences: Tensor, features: Tensor, batch: MaskedBatch) -> Tensor:
    """The states (M, H) of the masked tokens after the fusion blocks, which read [h ; H_k[1:]].

    Args:
        fusion: the blocks.
        sentences: (B, H) the vectors h, which replace position 0.
        features: (S, H) the tokens at layer k.
        batch: the masked sentences.
    """
    conditioned = features.index_copy(0, batch.packing.starts, sentences.to(features.dtype))
    return run_blocks(fusion, conditioned, batch.packing, Selection(batch.positions, batch.chosen))[-1]
