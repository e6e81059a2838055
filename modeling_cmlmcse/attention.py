"""Attention of packed tokens within their own rows: on a grid of rows and columns, or in a variable-length kernel.

The function is registered with transformers' `AttentionInterface`, so that its blocks run unforked.
"""

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

    A GPU's variable-length kernel needs no padding (variable_length.py). Everything else is padded here, on any device.

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
    whole = selection is None or selection.visible is None
    if bias is None and sliding_window is None and whole and not packing.padded:
        kernel = find_kernel(query, dropout, scaling, empty_rows=selection is not None and not grids[0].full)
        if kernel is not None:
            bounds, longest = (grids[0].bounds, grids[1].bounds), (grids[0].shape[1], grids[1].shape[1])
            return kernel(query, key, value, bounds, longest, dropout)
    mask = grid_mask(packing, selection, None if bias is None else bias.to(query.dtype), sliding_window, query.dtype)
    if dropout and query.device.type == "cpu" and not torch.compiler.is_compiling():
        return attention_with_dropout(query, key, value, mask, grids, dropout, scaling)
    move = on_grids if query.device.type == "cpu" else on_grids_together
    query, key, value = move(query, key, value, grids)
    context = nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=dropout, scale=scaling
    )
    return grids[0].pack(context.transpose(1, 2))


def on_grids(
    query: Tensor, key: Tensor, value: Tensor, grids: tuple[Packing, Packing]
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries (M, heads, D), keys and values (S, heads, D) → (B, heads, Q, D) and 2 × (B, heads, T, D); `grids` are
    the queries' and the keys' own."""
    of_queries, of_keys = grids
    return (
        of_queries.unpack(query).transpose(1, 2),
        of_keys.unpack(key).transpose(1, 2),
        of_keys.unpack(value).transpose(1, 2),
    )


def on_grids_together(
    query: Tensor, key: Tensor, value: Tensor, grids: tuple[Packing, Packing]
) -> tuple[Tensor, Tensor, Tensor]:
    """As :func:`on_grids`, in fewer operations: what has the same grid is moved there in one piece. It copies more,
    and so is for GPUs, which wait for operations to be asked for rather than for copies."""
    of_queries, of_keys = grids
    if of_keys.full:
        return on_grids(query, key, value, grids)
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


def attention_with_dropout(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    grids: tuple[Packing, Packing],
    dropout: float,
    scaling: float,
) -> Tensor:
    """(M, heads, D) queries, (S, heads, D) keys and values → (M, heads, D), with the dropout of dropout.py.

    For CPUs: their fused attention kernels have no dropout.
    """
    if torch.is_autocast_enabled("cpu"):
        query, key, value = (states.to(torch.get_autocast_dtype("cpu")) for states in (query, key, value))
    return _AttentionWithDropout.apply(query, key, value, mask, grids, dropout, scaling)


class _AttentionWithDropout(torch.autograd.Function):
    """Attention with dropout that keeps little for the backward pass: the packed tokens, and one byte for each
    attention weight. The backward pass computes the grids and the weights again, as FlashAttention does (Dao et al.
    2022, §3.1)."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None,
        grids: tuple[Packing, Packing], dropout: float, scaling: float,
    ) -> Tensor:  # fmt: skip
        queries, keys, values = on_grids(query, key, value, grids)
        weights = _attention_weights(queries, keys, mask, scaling)  # (B, heads, Q, T)
        kept, ctx.factor = sample_keep_mask(weights.shape, dropout)
        ctx.save_for_backward(query, key, value, mask, kept)
        ctx.grids, ctx.scaling = grids, scaling
        context = weights.mul_(scaled_mask(kept, ctx.factor, weights.dtype)) @ values  # (B, heads, Q, D)
        return grids[0].pack(context.transpose(1, 2))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, mask, kept = ctx.saved_tensors
        of_queries, of_keys = ctx.grids
        queries, keys, values = on_grids(query, key, value, ctx.grids)
        grad_context = of_queries.unpack(gradient).transpose(1, 2)  # (B, heads, Q, D)
        weights = _attention_weights(queries, keys, mask, ctx.scaling)
        scale = scaled_mask(kept, ctx.factor, weights.dtype)
        grad_values = (weights * scale).transpose(-1, -2) @ grad_context  # (B, heads, T, D)
        grad_weights = (grad_context @ values.transpose(-1, -2)).mul_(scale)
        grad_scores = torch._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
        grad_queries = (grad_scores @ keys).mul_(ctx.scaling)
        grad_keys = (grad_scores.transpose(-1, -2) @ queries).mul_(ctx.scaling)
        grad_mask = grad_scores.sum_to_size(mask.shape) if mask is not None and ctx.needs_input_grad[3] else None
        on_grid = ((of_queries, grad_queries), (of_keys, grad_keys), (of_keys, grad_values))
        to_tokens = (grid.pack(states.transpose(1, 2)) for grid, states in on_grid)
        return *to_tokens, grad_mask, None, None, None


def _attention_weights(query: Tensor, key: Tensor, mask: Tensor | None, scaling: float) -> Tensor:
    """Softmax of the scaled scores, (B, heads, Q, T)."""
    scores = (query * scaling) @ key.transpose(-1, -2)
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=scores.dtype).masked_fill(~mask, float("-inf"))
    return (scores if mask is None else scores + mask.to(scores.dtype)).softmax(dim=-1)


AttentionInterface.register(PACKED_ATTENTION, packed_attention)
