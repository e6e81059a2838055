"""Vectors of length 1, whose products are cosines; and the check that vectors are numbers."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import InputError


def unit(vectors: NDArray[Any]) -> NDArray[Any]:
    """(N, H) → (N, H) of length 1, in the same precision; zero vectors stay zero. Lengths are computed in fp32 at
    least, because fp16 overflows above 256."""
    wide = vectors.astype(np.result_type(vectors, np.float32), copy=False)
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)  # (N, 1)
    return (wide / np.where(lengths == 0, 1, lengths)).astype(vectors.dtype, copy=False)


def check_finite(vectors: NDArray[Any]) -> None:
    """Check that a model's embeddings are numbers.

    Raises:
        InputError: one is not, because the model's weights are damaged or overflow.
    """
    if not np.isfinite(vectors).all():
        raise InputError(
            "MODEL: expected finite embeddings, found NaN or infinity; its weights are damaged, or too large for fp16"
        )
