"""Rows and means over all processes, with exact gradients; everything is the identity on one process.

Gradients are averaged over the W processes (as DDP and FSDP do). A loss that is a mean over the rows of all processes
is therefore computed as a mean over this process's rows against everybody's columns, and the gradient of a gathered row
is the sum over the processes that used it: the average is then the gradient of one process with the whole batch.
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
    """(N, …) on each process → (W·N, …) on all; backward sums the gradients that the processes have for a row."""

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


def gather_rows(rows: Tensor) -> Tensor:
    """(N, …) → (W·N, …), process after process.

    Raises:
        RuntimeError: the processes have different N, which Accelerate's loaders never give them (see `even_batches` in
            training/arguments.py); on a GPU as a failed assertion of the device, so that no step waits for it.
    """
    if processes() == 1:
        return rows
    most = torch.tensor([len(rows), -len(rows)], device=rows.device)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    torch._assert_async(most.sum() == 0, f"all processes must have as many rows, {len(rows)} as here; pad the batches")
    return _GatherRows.apply(rows)


def own_rows(gathered: Tensor) -> Tensor:
    """(W·N, …) → (N, …): the rows of this process."""
    return gathered.chunk(processes())[rank()]


def mean_count(count: int, device: torch.device) -> Tensor | float:
    """The number of terms by which to divide a sum of this process's terms, for gradients that are averaged: the mean
    of `count` over the processes. The mean over the processes of what comes out is then the mean over all terms.
    Never zero: without any term the sum is zero, and stays it."""
    if processes() == 1:
        return max(count, 1)
    counts = torch.tensor(count, device=device)
    dist.all_reduce(counts)
    return counts.clamp(min=1) / processes()
