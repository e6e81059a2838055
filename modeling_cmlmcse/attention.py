"""Attention of packed tokens within their own rows: on a padded grid, row by row, or in a variable-length kernel.

The function is registered with transformers' `AttentionInterface`, so that its blocks run unforked.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .dropout import sample_keep_mask, scaled_mask
from .packing import Packing, Selection
from .variable_length import find_kernel

try:
    from transformers import AttentionInterface
except ImportError as error:
    raise ImportError(
        "this model's code needs transformers 4.51 or newer; upgrade, or load the model with sentence-transformers, "
        "which needs no code"
    ) from error

# Attention weights of a row (heads · T²) from which a CPU takes one row after another: nothing is copied or computed
# for padding then, and the weights stay in its caches. Shorter rows are faster together (benchmarks/attention.py).
ROW_WEIGHTS = 6_000
GRAIN = 32_768  # numbers that PyTorch gives a thread at least; several threads share a row only if it has as many each

PACKED_ATTENTION = f"{__name__}.packed_attention"  # a second loaded copy of this code registers its own


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """:func:`token_attention` in the form of transformers' attention functions.

    Args:
        query, key, value: (S, D, heads), what a block of transformers makes of states (S, H) without a batch dimension;
            or (1, heads, S, D), what it makes of (1, S, H).
        attention_mask: ignored; `packing` holds the same information.
        options: the further arguments of :func:`token_attention`, among others.

    Returns:
        (S, heads, D) or (1, S, heads, D), and None.
    """
    if query.dim() == 3:
        return token_attention(*(states.transpose(1, 2) for states in (query, key, value)), **options), None
    states = (states.squeeze(0).transpose(0, 1) for states in (query, key, value))
    return token_attention(*states, **options).unsqueeze(0), None


def token_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    packing: Packing,
    selection: Selection | None = None,
    bias: Tensor | None = None,
    sliding_window: int | None = None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **_: object,
) -> Tensor:
    """Bidirectional attention of packed tokens within their own rows: the one place that decides whether to pad.

    A GPU's variable-length kernel needs no padding (variable_length.py), and neither does a CPU that takes one long row
    after another. Everything else is padded here, on any device.

    Args:
        query: (M, heads, D) of the selected tokens (default: of all).
        key, value: (S, heads, D), laid out as `packing` says.
        bias: (1, heads, T, T) added to the scores of query and key column.
        sliding_window: how many columns away a token is no longer seen.

    Returns:
        (M, heads, D).
    """
    grids = packing if selection is None else selection.packing, packing
    if sliding_window is not None and not packing.padded and sliding_window >= packing.shape[1]:
        sliding_window = None
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    whole = bias is None and (selection is None or selection.visible is None) and not packing.padded
    if whole and sliding_window is None:
        kernel = find_kernel(query, dropout, scaling, empty_rows=selection is not None and not grids[0].full)
        if kernel is not None:
            bounds, longest = (grids[0].bounds, grids[1].bounds), (grids[0].shape[1], grids[1].shape[1])
            return kernel(query, key, value, bounds, longest, dropout)
    eager_cpu = query.device.type == "cpu" and not torch.compiler.is_compiling()
    layout, mask = GridLayout(grids), None
    if eager_cpu and whole and (sliding_window is None or selection is None) and has_long_rows(packing, query.shape[1]):
        layout = RowLayout(grids, sliding_window)
    else:
        added = None if bias is None else bias.to(query.dtype)
        mask = grid_mask(packing, selection, added, sliding_window, query.dtype)
    if dropout and eager_cpu:
        return attention_with_dropout(query, key, value, mask, layout, dropout, scaling)
    attend = partial(nn.functional.scaled_dot_product_attention, dropout_p=dropout, scale=scaling)
    if query.device.type == "cpu":
        return layout.join([attend(*block) for block in split_blocks(layout, query, key, value, mask)], 0)
    context = attend(*on_grids_together(query, key, value, grids), mask)
    return grids[0].pack(context.transpose(1, 2))


def has_long_rows(packing: Packing, heads: int) -> bool:
    """Whether a CPU is faster with one row after another than with all of them on a grid.

    It depends on the number of threads, and with it what dropout draws. The rule for several threads was not measured.
    """
    threads = torch.get_num_threads()
    return heads * packing.shape[1] ** 2 >= (ROW_WEIGHTS if threads == 1 else GRAIN * threads)


def on_grids_together(
    query: Tensor, key: Tensor, value: Tensor, grids: tuple[Packing, Packing]
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries (M, heads, D), keys and values (S, heads, D) → (B, heads, Q, D) and 2 × (B, heads, T, D), in few
    operations: what has the same grid is moved there in one piece. It copies more than :class:`GridLayout`, and so is
    for GPUs, which wait for operations to be asked for rather than for copies."""
    of_queries, of_keys = grids
    if of_keys.full:
        keys, values = (of_keys.unpack(states).transpose(1, 2) for states in (key, value))
        return of_queries.unpack(query).transpose(1, 2), keys, values
    alike = (key, value) if of_queries is not of_keys else (query, key, value)
    grid = of_keys.unpack(torch.stack(alike, dim=1))  # (B, T, 2 or 3, heads, D)
    *others, keys, values = grid.permute(2, 0, 3, 1, 4).unbind()  # (B, heads, T, D) each
    return others[0] if others else of_queries.unpack(query).transpose(1, 2), keys, values


def grid_mask(
    packing: Packing, selection: Selection | None, bias: Tensor | None, sliding_window: int | None, dtype: torch.dtype
) -> Tensor | None:
    """What the queries of the grid may see.

    None means everything. Otherwise (B or 1, heads or 1, Q or 1, T) numbers of `dtype` that are added to the scores, or
    a boolean mask where it holds for one block alone.
    """
    if bias is None and sliding_window is None and (selection is None or selection.visible is None):
        return None if packing.full else packing.added_mask(dtype)
    mask = None if packing.full else packing.mask[:, None, None, :]  # (B, 1, 1, T)
    if selection is not None and selection.visible is not None:
        visible = selection.visible[:, None]  # (B, 1, Q, T)
        mask = visible if mask is None else mask & visible
    if bias is None and sliding_window is None:
        return mask
    keys = torch.arange(packing.shape[1], device=packing.slots.device)  # (T,)
    queries, columns = packing, keys[None]  # (1, T)
    if selection is not None:
        queries = selection.packing
        columns = queries.unpack(packing.columns.index_select(0, selection.index))  # (B, Q)
    if sliding_window is not None:
        near = (columns[:, :, None] - keys).abs() < sliding_window  # (B or 1, Q, T)
        if not queries.full:  # an empty place may see all: a softmax over nothing would be NaN
            near = near | ~queries.mask[:, :, None]
        mask = near[:, None] if mask is None else mask & near[:, None]
    if bias is None:
        return mask
    if selection is not None:
        bias = bias[0][:, columns].transpose(0, 1)  # (B, heads, Q, T)
    return bias if mask is None else bias.masked_fill(~mask, float("-inf"))


class GridLayout:
    """Attention of all rows at once, on their grids.

    Args:
        grids: the queries' and the keys' own.
    """

    def __init__(self, grids: tuple[Packing, Packing]) -> None:
        self.grids = grids

    def split(self, states: Tensor, side: int) -> list[Tensor]:
        """(S, heads, D) of the queries (side 0) or the keys (side 1) → blocks (b, heads, T, D)."""
        return [self.grids[side].unpack(states).transpose(1, 2)]

    def join(self, blocks: list[Tensor], side: int) -> Tensor:
        """What :meth:`split` has split."""
        return self.grids[side].pack(blocks[0].transpose(1, 2))

    def masks(self, mask: Tensor | None) -> list[Tensor | None]:
        """The mask of each block."""
        return [mask]


class RowLayout(GridLayout):
    """Attention of one row after another, without padding.

    Args:
        grids: the queries' and the keys' own.
        sliding_window: how many columns away a token is no longer seen.
    """

    def __init__(self, grids: tuple[Packing, Packing], sliding_window: int | None = None) -> None:
        super().__init__(grids)
        self.lengths = [grid.lengths.tolist() for grid in grids]
        self.sliding_window = sliding_window

    def split(self, states: Tensor, side: int) -> list[Tensor]:
        return [row.transpose(0, 1)[None] for row in states.split(self.lengths[side])]

    def join(self, blocks: list[Tensor], side: int) -> Tensor:
        return torch.cat([block[0].transpose(0, 1) for block in blocks])

    def masks(self, mask: Tensor | None) -> list[Tensor | None]:
        if self.sliding_window is None:
            return [None] * len(self.lengths[1])
        rows = self.grids[1].columns.split(self.lengths[1])  # (T,) of each row
        return [(columns[:, None] - columns).abs() < self.sliding_window for columns in rows]


def attention_with_dropout(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    layout: GridLayout,
    dropout: float,
    scaling: float,
) -> Tensor:
    """(M, heads, D) queries, (S, heads, D) keys and values → (M, heads, D), with the dropout of dropout.py.

    For CPUs: their fused attention kernels have no dropout.
    """
    if torch.is_autocast_enabled("cpu"):
        query, key, value = (states.to(torch.get_autocast_dtype("cpu")) for states in (query, key, value))
    return _AttentionWithDropout.apply(query, key, value, mask, layout, dropout, scaling)


class _AttentionWithDropout(torch.autograd.Function):
    """Attention with dropout that keeps little for the backward pass: the packed tokens, and one byte for each
    attention weight. The backward pass computes the blocks and the weights again, as FlashAttention does (Dao et al.
    2022, §3.1)."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None,
        layout: GridLayout, dropout: float, scaling: float,
    ) -> Tensor:  # fmt: skip
        contexts, kept = [], []
        for queries, keys, values, seen in split_blocks(layout, query, key, value, mask):
            weights = _attention_weights(queries, keys, seen, scaling)  # (b, heads, Q, T)
            keep, ctx.factor = sample_keep_mask(weights.shape, dropout)
            kept.append(keep)
            contexts.append(weights.mul_(scaled_mask(keep, ctx.factor, weights.dtype)) @ values)  # (b, heads, Q, D)
        ctx.save_for_backward(query, key, value, mask, *kept)
        ctx.layout, ctx.scaling = layout, scaling
        return layout.join(contexts, 0)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, mask, *kept = ctx.saved_tensors
        layout, grad_mask = ctx.layout, None
        found: list[tuple[Tensor, Tensor, Tensor]] = []
        blocks = zip(split_blocks(layout, query, key, value, mask), kept, layout.split(gradient, 0), strict=True)
        for (queries, keys, values, seen), keep, grad_context in blocks:
            weights = _attention_weights(queries, keys, seen, ctx.scaling)
            scale = scaled_mask(keep, ctx.factor, weights.dtype)
            grad_values = (weights * scale).transpose(-1, -2) @ grad_context  # (b, heads, T, D)
            grad_weights = (grad_context @ values.transpose(-1, -2)).mul_(scale)
            grad_scores = torch._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
            grad_queries = (grad_scores @ keys).mul_(ctx.scaling)
            grad_keys = (grad_scores.transpose(-1, -2) @ queries).mul_(ctx.scaling)
            found.append((grad_queries, grad_keys, grad_values))
            if mask is not None and ctx.needs_input_grad[3]:
                grad_mask = grad_scores.sum_to_size(mask.shape)
        to_queries, to_keys, to_values = map(list, zip(*found, strict=True))
        to_tokens = layout.join(to_queries, 0), layout.join(to_keys, 1), layout.join(to_values, 1)
        return *to_tokens, grad_mask, None, None, None


def split_blocks(
    layout: GridLayout, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor | None]]:
    """Queries, keys, values and mask of each block."""
    states = (layout.split(each, side) for each, side in ((query, 0), (key, 1), (value, 1)))
    return zip(*states, layout.masks(mask), strict=True)


def _attention_weights(query: Tensor, key: Tensor, mask: Tensor | None, scaling: float) -> Tensor:
    """Softmax of the scaled scores, (B, heads, Q, T)."""
    scores = (query * scaling) @ key.transpose(-1, -2)
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=scores.dtype).masked_fill(~mask, float("-inf"))
    return (scores if mask is None else scores + mask.to(scores.dtype)).softmax(dim=-1)


AttentionInterface.register(PACKED_ATTENTION, packed_attention)
