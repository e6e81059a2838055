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
    """(N, …) → (W·N, …), process after process; every process must have the same N, as Accelerate's loaders give."""
    return _GatherRows.apply(rows) if processes() > 1 else rows


def own_rows(gathered: Tensor) -> Tensor:
    """(W·N, …) → (N, …): the rows of this process."""
    return gathered.chunk(processes())[rank()]


def mean_over_processes(total: Tensor, count: int) -> Tensor:
    """The mean of Σ count terms of which `total` is the sum of this process's, for gradients that are averaged: the
    mean over the processes of what this returns is that mean. Without any term it is zero, with a graph."""
    if processes() == 1:
        return total / max(count, 1)
    counts = torch.tensor(count, device=total.device)
    dist.all_reduce(counts)
    return total * processes() / counts.clamp(min=1)
