"""Communication between the processes of one run. With a single process they change nothing."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from modeling_cmlmcse.distributed import processes

BUCKET = 25 * 2**20  # bytes of a message, as in DDP

Value = TypeVar("Value")

_kept = False


@contextmanager
def kept_process_group() -> Iterator[None]:
    """Keep the connections of a run that ends inside the block, for the next one. Every process enters it."""
    global _kept
    _kept = True
    try:
        yield
    finally:
        _kept = False


def shutdown_process_group() -> None:
    """Wait for all processes, then close their connections. Every process calls this after its last communication.

    A process that exits with open connections may be aborted. The launcher then stops the others, even while they
    write files.
    """
    if processes() > 1:
        dist.barrier()
        if not _kept:
            dist.destroy_process_group()


def sums_over_processes(values: dict[str, float]) -> dict[str, float]:
    """The sum of each named number over the processes. A number that a process lacks counts as 0."""
    if processes() == 1:
        return values
    everyone: list[Any] = [None] * processes()
    dist.all_gather_object(everyone, values)
    return {name: sum(found.get(name, 0.0) for found in everyone) for found in everyone for name in found}


def from_first_process(value: Value) -> Value:
    """The first process's value, returned on every process. It can be any object that pickle takes."""
    if processes() == 1:
        return value
    values: list[Any] = [value]
    dist.broadcast_object_list(values)
    return values[0]


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Replace every gradient by its mean over the processes, as DDP does in its backward pass: in few messages, with
    little more memory."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    for bucket in buckets(gradients):
        together = torch.cat([gradient.flatten() for gradient in bucket])
        dist.all_reduce(together)
        means = together.div_(processes()).split([gradient.numel() for gradient in bucket])
        for gradient, mean in zip(bucket, means, strict=True):
            gradient.copy_(mean.view_as(gradient))


def buckets(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors of one type in their order, as many as fit into `BUCKET` bytes, at least one."""
    bucket: list[Tensor] = []
    for tensor in tensors:
        full = sum(each.nbytes for each in bucket) + tensor.nbytes > BUCKET
        if bucket and (full or tensor.dtype != bucket[0].dtype):
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket
