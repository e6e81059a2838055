"""Padding-free computation: the real tokens of a batch in one row, padded at most inside attention.

All linear layers, norms and dropouts of a block see one row of S real tokens. Only attention (attention.py) needs to
know which tokens belong together.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


class Packing:
    """The places of S packed tokens on a grid of B rows and T columns.

    Attributes:
        slots: (S,) index of each token in the flattened grid, row by row.
        lengths: (B,) number of tokens in each row.
        shape: (B, T) of the grid.
        given_positions: (S,) position of each token for the position embeddings, where it is not counted from the S
            tokens: the caller chose it, or it counts tokens that the mask hides.
        counts_columns: whether the position of a token is its column for every kind of backbone.
        marks: (B,) index in the packed row of the token that a pooling reads, where it reads one of each row.
    """

    padded = False  # whether places without a real token count as tokens too

    def __init__(self, slots: Tensor, lengths: Tensor, shape: tuple[int, int]) -> None:
        self.slots, self.lengths, self.shape = slots, lengths, shape
        self.given_positions: Tensor | None = None
        self.counts_columns = False
        self.marks: Tensor | None = None
        self._mask: Tensor | None = None
        self._added_masks: dict[torch.dtype, Tensor] = {}
        self._bounds: Tensor | None = None

    @classmethod
    def from_lengths(cls, lengths: Tensor, total: int, width: int) -> "Packing":
        """Rows of `lengths` (B,) tokens, left-aligned. The host passes `total`, their sum, and `width`, their maximum,
        so that nothing waits for the device."""
        rows = torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths, output_size=total)
        starts = lengths.cumsum(0) - lengths  # (B,)
        positions = torch.arange(total, device=lengths.device) - starts[rows]  # (S,)
        return cls(rows * width + positions, lengths, (len(lengths), width))

    @classmethod
    def from_mask(cls, attention_mask: Tensor) -> "Packing":
        """The tokens where `attention_mask` (B, T) is not 0, holes and left padding included.

        Compiled and exported code gets a :class:`PaddedPacking`, whose shapes do not depend on the data.

        Raises:
            ValueError: a row without any token, which has no embedding.
        """
        mask = attention_mask != 0  # (B, T)
        if torch.compiler.is_compiling():
            return PaddedPacking(mask)
        lengths = mask.sum(dim=1)  # (B,)
        if not bool((lengths > 0).all()):
            row = int((lengths == 0).nonzero()[0])
            raise ValueError(f"every row needs at least one token, found none in row {row}: check attention_mask")
        packing = cls(mask.flatten().nonzero().flatten(), lengths, (mask.shape[0], mask.shape[1]))
        packing._mask = mask
        return packing

    @property
    def full(self) -> bool:
        """Whether the grid has no empty place, so that packed and padded layout are the same."""
        return len(self.slots) == self.shape[0] * self.shape[1]

    @property
    def mask(self) -> Tensor:
        """(B, T) True where a token stands; computed once."""
        if self._mask is None:
            grid = torch.zeros(self.shape[0] * self.shape[1], dtype=torch.bool, device=self.slots.device)
            self._mask = grid.index_fill(0, self.slots, True).view(self.shape)
        return self._mask

    def added_mask(self, dtype: torch.dtype) -> Tensor:
        """(B, 1, 1, T) what attention adds to the scores of a column: 0 where a token stands, else −inf; computed once.

        Its rows lie a multiple of 8 numbers apart. A GPU's kernel would else copy it so for every block.
        """
        if dtype not in self._added_masks:
            size, width = self.shape
            apart = torch.full((size, width + -width % 8), -torch.inf, dtype=dtype, device=self.slots.device)
            self._added_masks[dtype] = apart[:, :width].masked_fill_(self.mask, 0.0)[:, None, None]
        return self._added_masks[dtype]

    @property
    def rows(self) -> Tensor:
        """(S,) the row of each token."""
        return self.slots // self.shape[1]

    @property
    def columns(self) -> Tensor:
        """(S,) the column of each token."""
        return self.slots % self.shape[1]

    @property
    def bounds(self) -> Tensor:
        """(B + 1,) int32: where each row begins in the packed row, and where the last one ends; computed once."""
        if self._bounds is None:
            self._bounds = nn.functional.pad(self.lengths.cumsum(0), (1, 0)).int()
        return self._bounds

    @property
    def starts(self) -> Tensor:
        """(B,) index in the packed row of each grid row's first token."""
        return self.lengths.cumsum(0) - self.lengths

    def last_of_rows(self, chosen: Tensor) -> Tensor:
        """(S,) booleans → (B,) index in the packed row of each row's last chosen token; −1 where there is none."""
        places = torch.arange(len(chosen), device=chosen.device).where(chosen, -1)  # (S,)
        return places.new_full((self.shape[0],), -1).scatter_reduce(0, self.rows, places, "amax")

    def pack(self, grid: Tensor) -> Tensor:
        """(B, T, …) → (S, …): the real tokens alone."""
        flat = grid.flatten(0, 1)  # (B·T, …)
        return flat if self.full else flat.index_select(0, self.slots)

    def unpack(self, tokens: Tensor) -> Tensor:
        """(S, …) → (B, T, …) with zeros where no token stands."""
        if self.full:
            return tokens.unflatten(0, self.shape)
        grid = tokens.new_zeros(self.shape[0] * self.shape[1], *tokens.shape[1:])
        grid.index_put_((self.slots,), tokens)  # index_copy_ would keep the tokens for the backward pass
        return grid.unflatten(0, self.shape)

    def mean(self, tokens: Tensor) -> Tensor:
        """(S, H) → (B, H): the average of each row's tokens. Half precision is added up in fp32: a GPU would round each
        sum, and fp16 overflows."""
        exact = tokens.to(torch.promote_types(tokens.dtype, torch.float32))
        sums = exact.new_zeros(self.shape[0], tokens.shape[1]).index_add(0, self.rows, exact)
        return (sums / self.lengths.unsqueeze(1)).to(tokens.dtype)


class PaddedPacking(Packing):
    """A padded batch in the form of a packing: all B·T places count as tokens, and the mask says which are real.

    Args:
        mask: (B, T) True where a token is real.
    """

    padded = True

    def __init__(self, mask: Tensor) -> None:
        size, width = mask.shape
        super().__init__(torch.arange(size * width, device=mask.device), mask.sum(dim=1), (size, width))
        self._mask = mask

    @property
    def full(self) -> bool:
        return False

    def added_mask(self, dtype: torch.dtype) -> Tensor:
        """The boolean mask, which compiled code turns into numbers by itself, for any T."""
        return self.mask[:, None, None, :]  # (B, 1, 1, T)

    @property
    def starts(self) -> Tensor:
        size, width = self.shape
        return self.mask.int().argmax(dim=1) + torch.arange(size, device=self.slots.device) * width

    def pack(self, grid: Tensor) -> Tensor:
        return grid.flatten(0, 1)

    def unpack(self, tokens: Tensor) -> Tensor:
        grid = tokens.unflatten(0, self.shape)
        return grid.where(self.mask.view(*self.shape, *[1] * (grid.dim() - 2)), 0.0)

    def mean(self, tokens: Tensor) -> Tensor:
        sums = self.unpack(tokens).sum(dim=1, dtype=torch.promote_types(tokens.dtype, torch.float32))
        return (sums / self.lengths.unsqueeze(1)).to(tokens.dtype)


class Selection:
    """The M tokens of a packed row that a last block still has to compute, and their own packing.

    Attributes:
        index: (M,) positions in the packed row, ascending.
        packing: their layout, at most `width` of them in a row; rows without any are allowed.
        states: (M, H) what they ask with, where that is not their own state in the packed row.
        visible: (B, M′, T) True where one of a row's tokens may see a column of its row; None: all of it.
    """

    def __init__(
        self, index: Tensor, packing: Packing, states: Tensor | None = None, visible: Tensor | None = None
    ) -> None:
        self.index, self.packing, self.states, self.visible = index, packing, states, visible

    def of(self, hidden: Tensor) -> Tensor:
        """(S, H) states of all tokens → (M, H) those of the selected ones."""
        return hidden.index_select(0, self.index) if self.states is None else self.states

    @classmethod
    def all_tokens(cls, packing: Packing) -> "Selection":
        """Every token."""
        return cls(torch.arange(len(packing.slots), device=packing.slots.device), packing)

    @classmethod
    def first_tokens(cls, packing: Packing) -> "Selection":
        """Position 0 of every row."""
        return cls.one_of_each(packing, packing.starts)

    @classmethod
    def one_of_each(cls, packing: Packing, index: Tensor) -> "Selection":
        """One token of every row, (B,) positions in the packed row."""
        size = packing.shape[0]
        slots = torch.arange(size, device=packing.slots.device)
        return cls(index, Packing(slots, torch.ones_like(packing.lengths), (size, 1)))


def pack_sequences(sequences: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Token lists → the host-side form of a packed batch: `input_ids` (S,), `lengths` (B,), `width`."""
    lengths = [len(sequence) for sequence in sequences]
    whole: dict[str, Any] = {"dtype": torch.long, "device": "cpu"}
    return {
        "input_ids": torch.tensor([token for sequence in sequences for token in sequence], **whole),
        "lengths": torch.tensor(lengths, **whole),
        "width": max(lengths),
    }
