"""Dropout that is cheap on a CPU, in time and in memory.

PyTorch's CPU dropout draws each element separately and keeps a number for each until the backward pass. Here 64 random
bits decide four elements, in about half the time (benchmarks/operations.py), and one byte is kept for each. On other
devices PyTorch's dropout is used.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn

LEVELS = 1 << 16  # an element is dropped with probability round(p · 65,536) / 65,536
# The modules that :func:`without_dropout_in_threads` has switched off, and how many of its users each one has now.
_users: dict[nn.Module, int] = {}
SWITCHING = Lock()
if hasattr(os, "register_at_fork"):  # a forked process has no thread that would let go of a lock that is held
    os.register_at_fork(after_in_child=lambda: globals().update(SWITCHING=Lock()))


def drop(input: Tensor, p: float) -> Tensor:
    """Each element 0 with probability p, else divided by 1 − p, so that its expectation stays.

    It draws from PyTorch's default CPU generator, so `torch.manual_seed` and a saved generator state reproduce it.
    Compiled code gets PyTorch's dropout, which the compiler fuses with neighbouring operations.
    """
    if torch.compiler.is_compiling():
        return nn.functional.dropout(input, p)
    return _Drop.apply(input, *sample_keep_mask(input.shape, p))


def sample_keep_mask(shape: torch.Size, p: float) -> tuple[Tensor, float]:
    """A boolean for each element, true where it is kept, and the factor 1 / (1 − p) that scales the kept ones."""
    dropped = min(max(round(p * LEVELS), 0), LEVELS)
    count = shape.numel()
    words = torch.empty((count + 3) // 4, dtype=torch.int64, device="cpu").random_(-(1 << 63), None)
    bits = words.view(torch.int16)[:count].view(shape)
    kept = (bits >= dropped - LEVELS // 2) if dropped < LEVELS else torch.zeros_like(bits, dtype=torch.bool)
    return kept, LEVELS / max(LEVELS - dropped, 1)


def scaled_mask(kept: Tensor, factor: float, dtype: torch.dtype) -> Tensor:
    """The mask as multipliers: `factor` where an element is kept, else 0."""
    return kept.to(dtype).mul_(factor)


@contextmanager
def without_dropout(module: nn.Module) -> Iterator[None]:
    """Switch off every dropout of a module, and afterwards back on what was on. Gradients flow as before. It can be
    compiled, and is for one thread."""
    trained = [each for each in module.modules() if each.training]
    try:
        for each in trained:
            each.training = False
        yield
    finally:
        for each in trained:
            each.training = True


@contextmanager
def without_dropout_in_threads(module: nn.Module) -> Iterator[None]:
    """The same for several threads with one module: the last one that leaves switches back on."""
    with SWITCHING:
        switched = [each for each in module.modules() if each.training or each in _users]
        for each in switched:
            each.training = False
            _users[each] = _users.get(each, 0) + 1
    try:
        yield
    finally:
        with SWITCHING:
            for each in switched:
                _users[each] -= 1
                if not _users[each]:
                    del _users[each]
                    each.training = True


class _Drop(torch.autograd.Function):
    """(…) and (…) boolean → `factor` times the kept elements. The backward pass needs the boolean alone."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, kept: Tensor, factor: float) -> Tensor:
        ctx.save_for_backward(kept)
        ctx.factor = factor
        return input * scaled_mask(kept, factor, input.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        (kept,) = ctx.saved_tensors
        return gradient * scaled_mask(kept, ctx.factor, gradient.dtype), None, None


def dropout_forward(self: nn.Dropout, input: Tensor) -> Tensor:
    """The `forward` of a dropout layer, with :func:`drop` on a CPU."""
    if not self.training or self.p == 0.0 or input.device.type != "cpu":
        return nn.Dropout.forward(self, input)
    return drop(input, self.p)


dropout_forward.__name__ = "forward"  # a pickled or copied layer finds its method by this name


class Dropout(nn.Dropout):
    """`nn.Dropout` with :func:`drop` on a CPU."""

    forward = dropout_forward
