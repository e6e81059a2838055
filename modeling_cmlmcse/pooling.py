"""Poolings: hidden states of packed tokens → one vector a sentence, found by name in `POOLINGS`."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from .packing import Packing


class Pooling(NamedTuple):
    """`pool` maps the block outputs (first block first, each (S, H)) and their packing to (B, H); `first_token` says
    that only position 0 of the last block is read, so that the block need not compute the others."""

    pool: Callable[[Sequence[Tensor], Packing], Tensor]
    first_token: bool = False


def pool_cls(outputs: Sequence[Tensor], packing: Packing) -> Tensor:
    """The last block's [CLS]; (B, H) already where the block computed position 0 only."""
    last = outputs[-1]
    return last if last.shape[0] == packing.shape[0] else last.index_select(0, packing.starts)


def pool_avg(outputs: Sequence[Tensor], packing: Packing) -> Tensor:
    """The mean over the tokens of the last block."""
    return packing.mean(outputs[-1])


def pool_avg_top2(outputs: Sequence[Tensor], packing: Packing) -> Tensor:
    """The mean over the tokens of the last two blocks."""
    return packing.mean((outputs[-1] + outputs[-2]) / 2)


def pool_avg_first_last(outputs: Sequence[Tensor], packing: Packing) -> Tensor:
    """The mean over the tokens of the first and the last block: the first *block*, not the embedding layer."""
    return packing.mean((outputs[0] + outputs[-1]) / 2)


POOLINGS: dict[str, Pooling] = {
    "cls": Pooling(pool_cls, first_token=True),  # through the training head at inference too (supervised SimCSE)
    "cls_before_pooler": Pooling(pool_cls, first_token=True),  # the raw [CLS] at inference (unsupervised SimCSE)
    "avg": Pooling(pool_avg),
    "avg_top2": Pooling(pool_avg_top2),
    "avg_first_last": Pooling(pool_avg_first_last),
}
