"""What several processes of one run agree on; everything is the identity on one process."""

from collections.abc import Iterable
from typing import Any

import torch.distributed as dist
from torch import nn

from modeling_cmlmcse.distributed import processes


def shutdown_process_group() -> None:
    """End the work together, which every process calls after the last thing that they do together: one that exits with
    its connections open may be aborted, and the launcher then stops those that still write."""
    if processes() > 1:
        dist.barrier()
        dist.destroy_process_group()


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
