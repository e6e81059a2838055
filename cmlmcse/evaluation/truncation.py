"""Embeddings cut to their first dimensions, as Matryoshka training makes them usable (Kusupati et al. 2022)."""

from collections.abc import Iterable
from functools import cached_property

import numpy as np

from cmlmcse.common.errors import InputError

from .encoding import EncodeOnce


class TruncatedEncoder(EncodeOnce):
    """An encoder that remembers its vectors, with these cut: N texts → (N, K). Cut vectors are not scaled again.

    Args:
        whole: the encoder.
        size: K.
    """

    def __init__(self, whole: EncodeOnce, size: int) -> None:
        self._whole, self._size, self.prompts = whole, size, whole.prompts

    @cached_property
    def bare(self) -> EncodeOnce:
        """The encoder without its default prompt."""
        return self if self._whole.bare is self._whole else TruncatedEncoder(self._whole.bare, self._size)

    def prepare(self, sentences: Iterable[str]) -> EncodeOnce:
        """As in :class:`EncodeOnce`."""
        self._whole.prepare(sentences)
        return self

    def encode_uncached(self, sentences: list[str]) -> np.ndarray:
        """Texts → (N, K), not kept."""
        return self._cut(self._whole.encode_uncached(sentences))

    def __call__(self, sentences: list[str]) -> np.ndarray:
        """Texts → (N, K)."""
        return self._cut(self._whole(sentences))

    def _cut(self, vectors: np.ndarray) -> np.ndarray:
        """(N, H) → (N, K).

        Raises:
            InputError: K is above H.
        """
        check_size(self._size, vectors.shape[1])
        return vectors[:, : self._size]


def check_size(size: int, width: int) -> None:
    """Check that vectors can be cut to a size.

    Raises:
        InputError: they have fewer dimensions.
    """
    if size > width:
        raise InputError(f"--truncate_dim must be at most {width}, the model's, found {size}; lower it")
