"""An encoder whose scores are known."""

import zlib

import numpy as np


def fake_encode(sentences: list[str]) -> np.ndarray:
    """A vector for each text that depends on nothing but the text."""
    return np.stack([np.random.default_rng(zlib.crc32(text.encode())).normal(size=5) for text in sentences])
