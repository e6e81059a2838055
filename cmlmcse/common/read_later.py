"""A number on a GPU that is read later, so that nobody waits for it."""

import torch
from torch import Tensor


class ReadLater:
    """A number of the device. On a GPU it is copied to the host while the GPU goes on.

    Reading the tensor itself would wait until the GPU has done everything that was asked of it in the meantime, such as
    the next forward pass. :meth:`value` waits for the copy alone.

    Args:
        number: a tensor of one element.
    """

    def __init__(self, number: Tensor) -> None:
        self.copy, self.copied = number, None
        if number.device.type == "cuda":
            self.copy = torch.empty(number.shape, dtype=number.dtype, pin_memory=True)
            self.copy.copy_(number, non_blocking=True)
            self.copied = torch.cuda.Event()
            self.copied.record()

    def value(self) -> float:
        """The number."""
        if self.copied is not None:
            self.copied.synchronize()
        return float(self.copy)
