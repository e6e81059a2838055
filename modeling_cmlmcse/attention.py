"""Attention of packed tokens within their own rows: on a padded grid, row by row, or in a variable-length kernel.

The function is registered with transformers' `AttentionInterface`, so that its blocks run unforked.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .dropout import sample_keep_mask
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
# Keys of a row from which its products gain from half precision. For fewer, the kernel that oneDNN makes for each new
# shape costs more than it saves, and fp32, which needs none, is twice as fast (benchmarks/attention.py).
LEAST_HALF = 128
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

    Raises:
        ValueError: no packing, because the encoder was called by itself.
    """
    if "packing" not in options:
        raise ValueError(
            "this encoder is a part of a CMLMCSEForSentenceEmbedding and expects packed tokens, found a padded batch; "
            "call the whole model, or export it and load the export with AutoModel for a plain encoder"
        )
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
    if eager_cpu and torch.is_autocast_enabled("cpu"):
        query, key, value = (states.to(torch.get_autocast_dtype("cpu")) for states in (query, key, value))
    layout, mask = GridLayout(grids), None
    if eager_cpu and whole and (sliding_window is None or selection is None) and has_long_rows(packing, query.shape[1]):
        layout = RowLayout(grids, sliding_window)
    else:
        added = None if bias is None else bias.to(query.dtype)
        mask = grid_mask(packing, selection, added, sliding_window, query.dtype)
    if dropout and eager_cpu:
        return attention_with_dropout(query, key, value, mask, layout, dropout, scaling)
    attend = partial(nn.functional.scaled_dot_product_attention, dropout_p=dropout, scale=scaling)
    if eager_cpu:
        return attention_of_blocks(attend, query, key, value, mask, layout)
    context = attend(*on_grids_together(query, key, value, grids), mask)
    return grids[0].pack(context.transpose(1, 2))


def has_long_rows(packing: Packing, heads: int) -> bool:
    """Whether a CPU is faster with one row after another than with all of them on a grid.

    It depends on the number of threads, and with it what dropout draws. With two threads a step of BERT-base size took
    the same time either way at 32 tokens; other lengths were not measured with several threads.
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
    """The mask that says which tokens each query of the grid may see.

    None means all tokens. Otherwise (B or 1, heads or 1, Q or 1, T) numbers of `dtype` that are added to the scores, or
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
        """The inverse of :meth:`split`: blocks (b, heads, T, D) → (S, heads, D)."""
        return self.grids[side].pack(blocks[0].transpose(1, 2))

    def masks(self, mask: Tensor | None) -> list[Tensor | None]:
        """The mask of each block."""
        return [mask]

    def weights(self, heads: int) -> list[torch.Size]:
        """The shape of each block's attention weights, (b · heads, Q, T)."""
        return [torch.Size((heads * self.grids[1].shape[0], self.grids[0].shape[1], self.grids[1].shape[1]))]


class RowLayout(GridLayout):
    """Attention of one row after another, without padding; of short rows in fp32 rather than bf16.

    Args:
        grids: the queries' and the keys' own.
        sliding_window: how many columns away a token is no longer seen.
    """

    def __init__(self, grids: tuple[Packing, Packing], sliding_window: int | None = None) -> None:
        super().__init__(grids)
        self.lengths: list[list[int]] = [grid.lengths.tolist() for grid in grids]
        self.sliding_window = sliding_window

    def split(self, states: Tensor, side: int) -> list[Tensor]:
        short = [keys < LEAST_HALF for keys in self.lengths[1]]
        half = states.dtype == torch.bfloat16
        if half and all(short):  # the usual case: one conversion
            states, half = states.float(), False
        rows = states.transpose(0, 1)[None].split(self.lengths[side], dim=2)
        return [row.float() if half and is_short else row for row, is_short in zip(rows, short, strict=True)]

    def join(self, blocks: list[Tensor], side: int) -> Tensor:
        return torch.cat([block[0].transpose(0, 1) for block in blocks])

    def masks(self, mask: Tensor | None) -> list[Tensor | None]:
        if self.sliding_window is None:
            return [None] * len(self.lengths[1])
        rows = self.grids[1].columns.split(self.lengths[1])  # (T,) of each row
        return [(columns[:, None] - columns).abs() < self.sliding_window for columns in rows]

    def weights(self, heads: int) -> list[torch.Size]:
        return [torch.Size((heads, queries, keys)) for queries, keys in zip(*self.lengths, strict=True)]


def attention_of_blocks(
    attend: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, layout: GridLayout
) -> Tensor:
    """(M, heads, D) queries, (S, heads, D) keys and values → (M, heads, D): PyTorch's attention of each block.

    For CPUs. With gradients it computes in fp32: PyTorch's bf16 takes up to seven times as long for short rows, and
    about as long for rows of 512 (benchmarks/attention.py).
    """
    precision = query.dtype
    if precision == torch.bfloat16 and torch.is_grad_enabled() and query.requires_grad:
        query, key, value = (states.float() for states in (query, key, value))
        mask = mask.float() if mask is not None and mask.dtype == precision else mask
    with torch.autocast("cpu", enabled=False):  # it would go back to half precision
        contexts = [attend(*block) for block in split_blocks(layout, query, key, value, mask)]
    return layout.join(contexts, 0).to(precision)


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
    with torch.autocast("cpu", enabled=False):  # it would run softmax in fp32, and convert each product's inputs
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
        shapes = layout.weights(query.shape[1])
        keep, factor = sample_keep_mask(torch.Size([sum(shape.numel() for shape in shapes)]), dropout)
        ctx.save_for_backward(query, key, value, mask, keep)
        ctx.layout, ctx.scaling, ctx.factor, ctx.shapes = layout, scaling, factor, shapes
        contexts = []
        blocks = _flat_blocks(layout, (query, 0), (key, 1), (value, 1))
        for (queries, keys, values), seen, kept in zip(
            blocks, layout.masks(mask), _split_kept(keep, shapes), strict=True
        ):
            weights = _attention_weights(queries, keys, seen, query.shape[1], scaling)  # (b · heads, Q, T)
            contexts.append(torch.bmm(weights.mul_(kept), values))  # (b · heads, Q, D)
        return _join_flat(layout, contexts, 0, query, factor)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, mask, keep = ctx.saved_tensors
        layout, heads, grad_mask = ctx.layout, query.shape[1], None
        found: list[tuple[Tensor, Tensor, Tensor]] = []
        blocks = _flat_blocks(layout, (query, 0), (key, 1), (value, 1), (gradient, 0))
        for (queries, keys, values, grad_context), seen, kept in zip(
            blocks, layout.masks(mask), _split_kept(keep, ctx.shapes), strict=True
        ):
            weights = _attention_weights(queries, keys, seen, heads, ctx.scaling)
            grad_weights = torch.bmm(grad_context, values.transpose(1, 2)).mul_(kept)  # (b · heads, Q, T)
            grad_scores = torch._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
            grad_values = torch.bmm(weights.mul_(kept).transpose(1, 2), grad_context)  # (b · heads, T, D)
            grad_keys = torch.bmm(grad_scores.transpose(1, 2), queries)
            found.append((torch.bmm(grad_scores, keys), grad_keys, grad_values))
            if mask is not None and ctx.needs_input_grad[3]:
                grad_mask = ctx.factor * grad_scores.unflatten(0, (-1, heads)).sum_to_size(mask.shape)
        to_queries, to_keys, to_values = zip(*found, strict=True)
        grad_query = _join_flat(layout, to_queries, 0, query, ctx.factor * ctx.scaling)
        grad_key = _join_flat(layout, to_keys, 1, query, ctx.factor * ctx.scaling)
        return grad_query, grad_key, _join_flat(layout, to_values, 1, query, ctx.factor), grad_mask, None, None, None


def _flat_blocks(layout: GridLayout, *states: tuple[Tensor, int]) -> Iterator[list[Tensor]]:
    """The states (S, heads, D), each with its side, of one block after another: (b · heads, T, D)."""
    for blocks in zip(*(layout.split(each, side) for each, side in states), strict=True):
        yield [block.flatten(0, 1) for block in blocks]


def _join_flat(layout: GridLayout, blocks: Sequence[Tensor], side: int, like: Tensor, scale: float) -> Tensor:
    """Blocks (b · heads, T, D) → (S, heads, D), times `scale`, in the precision of `like`, which has as many heads."""
    joined = layout.join([block.unflatten(0, (-1, like.shape[1])) for block in blocks], side)
    return joined.mul_(scale).to(like.dtype)


def _split_kept(keep: Tensor, shapes: list[torch.Size]) -> Iterator[Tensor]:
    """The dropout mask of all attention weights → that of each block, (b · heads, Q, T)."""
    parts = keep.split([shape.numel() for shape in shapes])
    return (part.view(shape) for part, shape in zip(parts, shapes, strict=True))


def split_blocks(
    layout: GridLayout, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor | None]]:
    """Queries, keys, values and mask of each block."""
    states = (layout.split(each, side) for each, side in ((query, 0), (key, 1), (value, 1)))
    return zip(*states, layout.masks(mask), strict=True)


def _attention_weights(query: Tensor, key: Tensor, mask: Tensor | None, heads: int, scaling: float) -> Tensor:
    """Softmax of the scaled scores of a block, (b · heads, Q, T)."""
    scores = torch.baddbmm(query.new_empty(1), query, key.transpose(1, 2), beta=0, alpha=scaling)
    if mask is None:
        return scores.softmax(dim=-1)
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=scores.dtype, device=mask.device).masked_fill(~mask, float("-inf"))
    return (scores.unflatten(0, (-1, heads)) + mask.to(scores.dtype)).softmax(dim=-1).flatten(0, 1)


AttentionInterface.register(PACKED_ATTENTION, packed_attention)
