"""Rows and means over all processes, with exact gradients; everything is the identity on one process.

Gradients are averaged over the W processes (as DDP and FSDP do). A loss that is a mean over the rows of all processes
is therefore computed as a mean over this process's rows against everybody's columns, and the gradient of a gathered row
is the sum over the processes that used it: the average is then the gradient of one process with the whole batch.
"""

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


def processes() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def leave() -> None:
    """End the work together, which every process calls after the last thing that they do together: one that exits with
    its connections open may be aborted, and the launcher then stops those that still write."""
    if processes() > 1:
        dist.barrier()
        dist.destroy_process_group()


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


def sums_over_processes(values: dict[str, float]) -> dict[str, float]:
    """The sums over the processes of named numbers, of which a process may lack some."""
    if processes() == 1:
        return values
    everyone: list[Any] = [None] * processes()
    dist.all_gather_object(everyone, values)
    return {name: sum(found.get(name, 0.0) for found in everyone) for found in everyone for name in found}


def from_first_process(value: float) -> float:
    """The first process's value on all of them."""
    if processes() == 1:
        return value
    values: list[Any] = [value]
    dist.broadcast_object_list(values)
    return values[0]


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Replace every gradient by its mean over the processes, as DDP does within its own backward pass."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    waiting = [dist.all_reduce(gradient, async_op=True) for gradient in gradients]
    for gradient, work in zip(gradients, waiting, strict=True):
        work.wait()
        gradient.div_(processes())
