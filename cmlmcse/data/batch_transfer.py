"""How a batch gets from a data worker to the trainer."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Batch(dict[str, Any]):
    """A batch whose tensors, all (N,) int64, cross to another process as one.

    PyTorch hands over each tensor in shared memory of its own: with the seven of a masked batch that takes longer than
    to make it (docs/results/large-corpora.md).
    """

    def __reduce__(self) -> tuple[Any, ...]:
        tensors: list[Tensor] = []

        def place(tensor: Tensor) -> slice:
            start = sum(map(len, tensors))
            tensors.append(tensor)
            return slice(start, start + len(tensor))

        layout = _replaced(dict(self), Tensor, place)
        return _whole_batch, (layout, torch.cat(tensors))


def _whole_batch(layout: dict[str, Any], tokens: Tensor) -> Batch:
    """A batch again, of one tensor and where each one's part of it is."""
    return Batch(_replaced(layout, slice, tokens.__getitem__))


def _replaced(value: Any, kind: type, function: Callable[[Any], Any]) -> Any:
    """The same dictionaries and lists with `function` of each object of a kind in its place."""
    if isinstance(value, kind):
        return function(value)
    if isinstance(value, dict):
        return {name: _replaced(item, kind, function) for name, item in value.items()}
    return [_replaced(item, kind, function) for item in value] if isinstance(value, list) else value
