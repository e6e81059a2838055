"""Rows and means over all processes, with exact gradients. On one process everything is the identity.

DDP and FSDP average gradients over the W processes. So each process computes its loss as the mean over its own rows,
against the columns of all processes. The gradient of a gathered row is the sum over the processes that used it. The
average is then the gradient that one process would compute for the whole batch.
"""

import torch
import torch.distributed as dist
from torch import Tensor


def processes() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """This process among them."""
    return dist.get_rank() if processes() > 1 else 0


class _GatherRows(torch.autograd.Function):
    """(N, …) on each process → (W·N, …) on all. The backward pass sums the processes' gradients of each row."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, rows: Tensor) -> Tensor:
        gathered = [torch.empty_like(rows) for _ in range(processes())]
        dist.all_gather(gathered, rows.contiguous())
        return torch.cat(gathered)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *gradients: Tensor) -> Tensor:
        (gradient,) = gradients
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient.chunk(processes())[rank()]


def gather_rows(rows: Tensor, dim: int = 0) -> Tensor:
    """(N, …) → (W·N, …), process after process; rows are counted along `dim`.

    Raises:
        RuntimeError: the processes have different N. Accelerate's loaders never give them that (`even_batches`). On a
            GPU it is a failed device assertion, so that no step waits for the check.
    """
    if processes() == 1:
        return rows
    count = rows.shape[dim]
    most = torch.full((2,), count, device=rows.device)  # made on the device: a copy of numbers would wait
    most[1].neg_()
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    torch._assert_async(most.sum() == 0, f"all processes must have as many rows, {count} as here; pad the batches")
    return _GatherRows.apply(rows.transpose(0, dim)).transpose(0, dim)


def own_rows(gathered: Tensor, dim: int = 0) -> Tensor:
    """(W·N, …) → (N, …): the rows of this process; they are counted along `dim`."""
    return gathered if processes() == 1 else gathered.chunk(processes(), dim)[rank()]


def mean_count(count: int, device: torch.device) -> Tensor | float:
    """The mean of `count` over the processes, by which each process divides the sum of its own terms.

    Averaged over the processes, the results are the mean over all terms. Clamped above zero to avoid dividing by zero.
    """
    if processes() == 1:
        return max(count, 1)
    counts = torch.full((), count, device=device)
    dist.all_reduce(counts)
    return counts.clamp(min=1) / processes()
