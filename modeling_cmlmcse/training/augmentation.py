"""Augmentations of the contrastive side, found by name in `AUGMENTATIONS`.

Each takes the word pieces of a sentence without special tokens (L,) and a random generator, and returns at least
one word piece. It is a pure function of its arguments.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int32]
REPETITION_RATE = 0.32  # CMLM-CSE §4.3.2 (2): "repeating 32% of the words"


def repeat_tokens(tokens: Tokens, rng: np.random.Generator) -> Tokens:
    """Repeat 32 % of the tokens, rounded down, each right after itself (CMLM-CSE Table 3, word repetition)."""
    chosen = rng.choice(len(tokens), size=int(REPETITION_RATE * len(tokens)), replace=False)
    counts = np.ones(len(tokens), dtype=np.int64)
    counts[chosen] = 2
    return np.repeat(tokens, counts)


def drop_one_token(tokens: Tokens, rng: np.random.Generator) -> Tokens:
    """Delete one token; a single token stays (CMLM-CSE Table 3, drop one word)."""
    return np.delete(tokens, rng.integers(len(tokens))) if len(tokens) > 1 else tokens


def no_augmentation(tokens: Tokens, rng: np.random.Generator) -> Tokens:
    """The sentence as it is: the views differ by dropout alone (SimCSE)."""
    return tokens


AUGMENTATIONS: dict[str, Callable[[Tokens, np.random.Generator], Tokens]] = {
    "none": no_augmentation,
    "repeat_tokens": repeat_tokens,
    "drop_one_token": drop_one_token,
}
