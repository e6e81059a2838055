"""Values on a GPU that are read later, so that nobody waits for them."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor


class ReadLater:
    """A tensor of the device that the host will read. On a GPU it is copied while the GPU goes on.

    Reading the tensor itself would wait until the GPU has done everything that was asked of it in the meantime, such as
    the next forward pass. :meth:`value` waits for the copy alone.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.copy, self.copied = tensor, None
        if tensor.device.type == "cuda":
            self.copy = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
            self.copy.copy_(tensor, non_blocking=True)
            self.copied = torch.cuda.Event()
            self.copied.record(torch.cuda.current_stream(tensor.device))  # the tensor's GPU need not be the current one

    def value(self) -> Tensor:
        """The tensor, on the host if it was on a GPU."""
        if self.copied is not None:
            self.copied.synchronize()
        return self.copy


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device. A GPU gets it from pinned memory, while the host goes on."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def read_behind(tensors: Iterable[Tensor]) -> Iterator[Tensor]:
    """Tensors of the device → the same on the host. Each is read after the next one was asked for, so that a GPU has
    work meanwhile."""
    before: ReadLater | None = None
    for tensor in tensors:
        later = ReadLater(tensor)
        if before is not None:
            yield before.value()
        before = later
    if before is not None:
        yield before.value()
