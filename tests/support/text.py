"""Texts of the tests' words, and how tables are compared."""

import re

import numpy as np

from support.tiny import WORDS


def one_space(text: str) -> str:
    """A text with its Markdown tables without the spaces that line up their columns."""
    return re.sub(" +", " ", text)


def random_sentences(count: int, seed: int = 0) -> list[str]:
    """Of 0 to 30 words."""
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, size=rng.integers(31))) for _ in range(count)]
