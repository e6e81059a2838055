"""Padding-free computation: the real tokens of a batch in one row, padded only inside attention.

All linear layers, norms and dropouts of a block see a row of S real tokens. Attention alone needs to know which
tokens belong together: the tokens are laid out on a (B, T) grid there (or go to a variable-length kernel) and come
back as a row. The function is registered with transformers' `AttentionInterface`, so its blocks run unforked.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .dropout import drop

try:
    from transformers import AttentionInterface
except ImportError as error:
    raise ImportError(
        "this model's code needs transformers 4.51 or newer; upgrade, or load the model with sentence-transformers, "
        "which needs no code"
    ) from error

try:  # PyTorch 2.10 and newer
    from torch.nn.attention import varlen

    varlen_attn: Any = varlen.varlen_attn
except ImportError:
    varlen_attn = None

PACKED_ATTENTION = f"{__name__}.packed_attention"  # another copy of this code, loaded beside it, has its own


class Packing:
    """Where S packed tokens stand on a grid of B rows and T columns.

    Attributes:
        slots: (S,) index of each token in the flattened grid, row by row.
        lengths: (B,) number of tokens in each row.
        shape: (B, T) of the grid.
    """

    def __init__(self, slots: Tensor, lengths: Tensor, shape: tuple[int, int]) -> None:
        self.slots, self.lengths, self.shape = slots, lengths, shape
        self._mask: Tensor | None = None
        self._bounds: Tensor | None = None

    @classmethod
    def from_lengths(cls, lengths: Tensor, total: int, width: int) -> "Packing":
        """Rows of `lengths` (B,) tokens, left-aligned; `total` = their sum and `width` = their maximum are known
        to the host, so nothing waits for the device."""
        rows = torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths, output_size=total)
        starts = lengths.cumsum(0) - lengths  # (B,)
        positions = torch.arange(total, device=lengths.device) - starts[rows]  # (S,)
        return cls(rows * width + positions, lengths, (len(lengths), width))

    @classmethod
    def from_mask(cls, attention_mask: Tensor) -> "Packing":
        """The tokens where `attention_mask` (B, T) is not 0, holes and left padding included.

        Raises:
            ValueError: a row without any token, which has no embedding.
        """
        mask = attention_mask != 0  # (B, T)
        lengths = mask.sum(dim=1)  # (B,)
        if not bool((lengths > 0).all()):
            row = int((lengths == 0).nonzero()[0])
            raise ValueError(f"every row needs at least one token, found none in row {row}: check attention_mask")
        packing = cls(mask.flatten().nonzero().flatten(), lengths, (mask.shape[0], mask.shape[1]))
        packing._mask = mask
        return packing

    @property
    def full(self) -> bool:
        """Whether the grid has no hole, so that packing and padding are the same layout."""
        return len(self.slots) == self.shape[0] * self.shape[1]

    @property
    def mask(self) -> Tensor:
        """(B, T) True where a token stands; computed once."""
        if self._mask is None:
            grid = torch.zeros(self.shape[0] * self.shape[1], dtype=torch.bool, device=self.slots.device)
            self._mask = grid.index_fill(0, self.slots, True).view(self.shape)
        return self._mask

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

    def pack(self, grid: Tensor) -> Tensor:
        """(B, T, …) → (S, …): the real tokens alone."""
        flat = grid.flatten(0, 1)  # (B·T, …)
        return flat if self.full else flat.index_select(0, self.slots)

    def unpack(self, tokens: Tensor) -> Tensor:
        """(S, …) → (B, T, …) with zeros where no token stands."""
        if self.full:
            return tokens.unflatten(0, self.shape)
        grid = tokens.new_zeros(self.shape[0] * self.shape[1], *tokens.shape[1:])
        return grid.index_copy(0, self.slots, tokens).unflatten(0, self.shape)

    def mean(self, tokens: Tensor) -> Tensor:
        """(S, H) → (B, H): the average of each row's tokens."""
        sums = tokens.new_zeros(self.shape[0], tokens.shape[1]).index_add(0, self.rows, tokens)
        return sums / self.lengths.unsqueeze(1)


class Selection:
    """The M tokens of a packed row that a last block still has to compute, and their own packing.

    Attributes:
        index: (M,) positions in the packed row, ascending.
        packing: their layout, at most `width` of them in a row; rows without any are allowed.
    """

    def __init__(self, index: Tensor, packing: Packing) -> None:
        self.index, self.packing = index, packing

    @classmethod
    def all_tokens(cls, packing: Packing) -> "Selection":
        """Every token."""
        return cls(torch.arange(len(packing.slots), device=packing.slots.device), packing)

    @classmethod
    def first_tokens(cls, packing: Packing) -> "Selection":
        """Position 0 of every row."""
        size = packing.shape[0]
        slots = torch.arange(size, device=packing.slots.device)
        return cls(packing.starts, Packing(slots, torch.ones_like(packing.lengths), (size, 1)))


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packing: Packing,
    selection: Selection | None = None,
    bias: Tensor | None = None,
    sliding_window: int | None = None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """Bidirectional attention of packed tokens within their own rows: the one place that pads, and decides whether.

    A GPU's variable-length kernel needs no padding, but has no dropout; so it serves inference, the frozen extractor
    and backbones without attention dropout. Everything else is padded here, on any device.

    Args:
        query: (1, heads, M, D) of the selected tokens (default: of all).
        key, value: (1, heads, S, D), laid out as `packing` says.
        attention_mask: ignored; `packing` holds the same information.
        bias: (1, heads, T, T) added to the scores of query and key column.
        sliding_window: how many columns away a token is no longer seen.

    Returns:
        (1, M, heads, D) and None, as transformers' attention functions do.
    """
    queries = packing if selection is None else selection.packing
    if sliding_window is not None and sliding_window >= packing.shape[1]:
        sliding_window = None
    if dropout == 0.0 and bias is None and sliding_window is None and has_varlen_kernel(query, scaling):
        tokens = [states[0].transpose(0, 1) for states in (query, key, value)]  # 3 × (M or S, heads, D)
        longest = queries.shape[1], packing.shape[1]
        return varlen_attn(*tokens, queries.bounds, packing.bounds, *longest).unsqueeze(0), None
    grid_query = queries.unpack(query[0].transpose(0, 1)).transpose(1, 2)  # (B, heads, Q, D)
    grid_key = packing.unpack(key[0].transpose(0, 1)).transpose(1, 2)  # (B, heads, T, D)
    grid_value = packing.unpack(value[0].transpose(0, 1)).transpose(1, 2)  # (B, heads, T, D)
    mask = grid_mask(packing, selection, None if bias is None else bias.to(query.dtype), sliding_window)
    if dropout and query.device.type == "cpu":
        context = attention_with_dropout(grid_query, grid_key, grid_value, mask, dropout, scaling)
    else:
        context = nn.functional.scaled_dot_product_attention(
            grid_query, grid_key, grid_value, attn_mask=mask, dropout_p=dropout, scale=scaling
        )
    return queries.pack(context.transpose(1, 2)).unsqueeze(0), None  # (1, M, heads, D)


def grid_mask(
    packing: Packing, selection: Selection | None, bias: Tensor | None, sliding_window: int | None
) -> Tensor | None:
    """What the queries of the grid see: None for everything, else (B or 1, heads or 1, Q or 1, T), boolean, or with a
    `bias` what is added to the scores."""
    mask = None if packing.full else packing.mask[:, None, None, :]  # (B, 1, 1, T)
    if bias is None and sliding_window is None:
        return mask
    keys = torch.arange(packing.shape[1], device=packing.slots.device)  # (T,)
    queries, columns = packing, keys[None]  # (1, T)
    if selection is not None:
        queries = selection.packing
        columns = queries.unpack(packing.columns.index_select(0, selection.index))  # (B, Q)
    if sliding_window is not None:
        near = (columns[:, :, None] - keys).abs() < sliding_window  # (B or 1, Q, T)
        if not queries.full:  # where no query stands, seeing nothing would be a softmax of nothing: NaN
            near = near | ~queries.mask[:, :, None]
        mask = near[:, None] if mask is None else mask & near[:, None]
    if bias is None:
        return mask
    if selection is not None:
        bias = bias[0][:, columns].transpose(0, 1)  # (B, heads, Q, T)
    return bias if mask is None else bias.masked_fill(~mask, float("-inf"))


def has_varlen_kernel(query: Tensor, scaling: float | None) -> bool:
    """Whether PyTorch's variable-length attention takes these queries: half precision, on a GPU of the Ampere
    generation or newer, heads of at most 256, the usual scale (older releases take no other)."""
    return (
        varlen_attn is not None
        and query.is_cuda
        and query.dtype in (torch.float16, torch.bfloat16)
        and query.shape[-1] <= 256
        and scaling in (None, query.shape[-1] ** -0.5)
        and torch.cuda.get_device_capability(query.device) >= (8, 0)
    )


def attention_with_dropout(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, scaling: float | None
) -> Tensor:
    """`scaled_dot_product_attention` with the dropout of dropout.py, for a CPU, whose fused kernels have none."""
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = (query * scaling) @ key.transpose(-1, -2)  # (B, heads, Q, T)
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=scores.dtype).masked_fill(~mask, float("-inf"))
    if mask is not None:
        scores = scores + mask
    weights = scores.softmax(dim=-1)
    return drop(weights, dropout) @ value  # (B, heads, Q, D)


AttentionInterface.register(PACKED_ATTENTION, packed_attention)


def pack_sequences(sequences: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Token lists → the host-side form of a packed batch: `input_ids` (S,), `lengths` (B,), `width`."""
    lengths = [len(sequence) for sequence in sequences]
    return {
        "input_ids": torch.tensor([token for sequence in sequences for token in sequence], dtype=torch.long),
        "lengths": torch.tensor(lengths, dtype=torch.long),
        "width": max(lengths),
    }
