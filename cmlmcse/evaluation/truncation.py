"""Embeddings cut to their first dimensions, as Matryoshka training makes them usable (Kusupati et al. 2022)."""

import numpy as np

from cmlmcse.common.errors import InputError

from .encoding import EncodeOnce, MappedEncoder


def truncated(whole: EncodeOnce, size: int) -> MappedEncoder:
    """The encoder with its vectors cut: N texts → (N, K), K = `size`. Cut vectors are not scaled again.

    Raises:
        InputError: when it encodes, if K is above H.
    """

    def cut(vectors: np.ndarray) -> np.ndarray:
        check_size(size, vectors.shape[1])
        return vectors[:, :size]

    return MappedEncoder(whole, cut)


def check_size(size: int, width: int) -> None:
    """Check that vectors can be cut to a size.

    Raises:
        InputError: they have fewer dimensions.
    """
    if size > width:
        raise InputError(f"--truncate_dim must be at most {width}, the model's, found {size}; lower it")
