"""Dropout whose random bits are cheap on a CPU.

PyTorch's CPU dropout draws every element from a distribution of its own. Here 64 random bits decide four elements, in
less than half the time (benchmarks/operations.py). On other devices PyTorch's dropout is used.
"""

import torch
from torch import Tensor, nn

LEVELS = 1 << 16  # an element is dropped with probability round(p · 65,536) / 65,536


def dropout_noise(like: Tensor, p: float) -> Tensor:
    """Factors of the shape of `like`: 0 with probability p, else 1 / (1 − p), so that the expectation is 1.

    Drawn from PyTorch's default CPU generator: `torch.manual_seed` and a saved generator state reproduce them.
    """
    dropped = min(max(round(p * LEVELS), 0), LEVELS)
    count = like.numel()
    words = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(1 << 63), None)
    bits = words.view(torch.int16)[:count].view(like.shape)
    keep = (bits >= dropped - LEVELS // 2) if dropped < LEVELS else torch.zeros_like(bits)
    return keep.to(like.dtype).mul_(LEVELS / max(LEVELS - dropped, 1))


class Dropout(nn.Dropout):
    """`nn.Dropout` with :func:`dropout_noise` on a CPU."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or self.p == 0.0 or input.device.type != "cpu":
            return super().forward(input)
        return input * dropout_noise(input, self.p)


def use_cheap_dropout(module: nn.Module) -> None:
    """Put :class:`Dropout` in the place of every `nn.Dropout` of a module."""
    for parent in list(module.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Dropout:
                setattr(parent, name, Dropout(child.p))
