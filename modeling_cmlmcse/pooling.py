"""Poolings: hidden states of packed tokens → one vector a sentence, found by name in `POOLINGS`.

An entry says all that training, export and the model card need to know of a pooling.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

from torch import Tensor

from .packing import Packing


def first_token(states: Tensor, packing: Packing) -> Tensor:
    """(S, H) → (B, H): each sentence's [CLS]. (B, H) stays where the last block computed nothing else."""
    return states if states.shape[0] == packing.shape[0] else states.index_select(0, packing.starts)


def mean_of_tokens(states: Tensor, packing: Packing) -> Tensor:
    """(S, H) → (B, H): the mean over each sentence's tokens."""
    return packing.mean(states)


def marked_token(states: Tensor, packing: Packing) -> Tensor:
    """(S, H) → (B, H): each sentence's last [MASK]. (B, H) stays where the last block computed nothing else."""
    if states.shape[0] == packing.shape[0]:
        return states
    assert packing.marks is not None
    return states.index_select(0, packing.marks)


@dataclass(frozen=True)
class Pooling:
    """How a sentence becomes one vector.

    Attributes:
        tokens: (S, H) states of the tokens and their packing → (B, H).
        mode: what sentence-transformers calls this in its `Pooling` module: `cls`, `mean`, …; it has no `mask`, so the
            folder brings a module.
        layers: the blocks whose outputs are averaged first; 0 is the first *block*, not the embedding layer.
        keeps_head: whether the embedding goes through the training head at inference too.
    """

    tokens: Callable[[Tensor, Packing], Tensor]
    mode: str
    layers: tuple[int, ...] = (-1,)
    keeps_head: bool = False

    @property
    def reads_first_token_only(self) -> bool:
        """Whether only position 0 of the last block is read, so that the block need not compute the others."""
        return self.tokens is first_token and self.layers == (-1,)

    @property
    def usual_head(self) -> str:
        """The training head unless another is chosen: `mlp` for [CLS], else `none`, as in SimCSE's code."""
        return "mlp" if self.keeps_head or self.reads_first_token_only or self.reads_mask else "none"

    @property
    def reads_mask(self) -> bool:
        """Whether it reads the state of the mask token of a template, which the tokenizer adds."""
        return self.tokens is marked_token

    def reads_as(self, other: "Pooling | None") -> bool:
        """Whether the vector before the training head is the same."""
        return other is not None and (self.tokens, self.layers) == (other.tokens, other.layers)

    def pool(self, outputs: Sequence[Tensor], packing: Packing) -> Tensor:
        """The outputs of all blocks, first block first, each (S, H) → (B, H)."""
        chosen = [outputs[layer] for layer in self.layers]
        states = reduce(Tensor.add, chosen) / len(chosen) if len(chosen) > 1 else chosen[0]
        return self.tokens(states, packing)


POOLINGS: dict[str, Pooling] = {
    "cls": Pooling(first_token, "cls", keeps_head=True),  # supervised SimCSE's evaluation
    "cls_before_pooler": Pooling(first_token, "cls"),  # unsupervised SimCSE's evaluation
    "prompt": Pooling(marked_token, "mask"),  # PromptBERT's evaluation
    "avg": Pooling(mean_of_tokens, "mean"),
    "avg_top2": Pooling(mean_of_tokens, "mean", layers=(-1, -2)),
    "avg_first_last": Pooling(mean_of_tokens, "mean", layers=(0, -1)),
}
