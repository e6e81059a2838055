"""The transfer of a batch from a data worker to the trainer's process."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Batch(dict[str, Any]):
    """A batch whose (N,) int64 tensors are sent to another process as one tensor; others are sent as they are.

    PyTorch sends each tensor in its own shared memory. For the seven tensors of a masked batch that takes longer than
    making the batch (docs/results/large-corpora.md).
    """

    def __reduce__(self) -> tuple[Any, ...]:
        tensors: list[Tensor] = []

        def append(tensor: Tensor) -> Tensor | slice:
            if tensor.dtype != torch.int64:
                return tensor
            start = sum(map(len, tensors))
            tensors.append(tensor)
            return slice(start, start + len(tensor))

        layout = _map_nested(dict(self), Tensor, append)
        return _rebuild_batch, (layout, torch.cat(tensors))


def _rebuild_batch(layout: dict[str, Any], tokens: Tensor) -> Batch:
    """Rebuild a batch from the joined tensor and a layout, in which a slice stands for each tensor."""
    return Batch(_map_nested(layout, slice, tokens.__getitem__))


def _map_nested(value: Any, kind: type, function: Callable[[Any], Any]) -> Any:
    """Copy nested dicts and lists, with `function` applied to each object of type `kind`."""
    if isinstance(value, kind):
        return function(value)
    if isinstance(value, dict):
        return {name: _map_nested(item, kind, function) for name, item in value.items()}
    return [_map_nested(item, kind, function) for item in value] if isinstance(value, list) else value
