"""The precision that a GPU computes in."""

import torch

from .errors import InputError


def check_bf16(advice: str) -> None:
    """Check that the GPU computes in bf16, and does not emulate it.

    Args:
        advice: what the user can do instead, for the message.

    Raises:
        InputError: the GPU emulates bf16.
    """
    if not torch.cuda.is_bf16_supported(including_emulation=False):
        name = torch.cuda.get_device_name()
        raise InputError(f"bf16 expects a GPU of the Ampere generation or newer, found {name}; {advice}")
