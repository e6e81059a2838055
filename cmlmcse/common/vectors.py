"""Vectors of length 1, whose products are cosines."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def unit(vectors: NDArray[Any]) -> NDArray[Any]:
    """(N, H) → (N, H) of length 1, in the same precision; zero vectors stay zero."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)  # (N, 1)
    return vectors / np.where(lengths == 0, 1, lengths).astype(vectors.dtype)
