"""Random masking of a sentence for the conditional masked-language model."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Masking(NamedTuple):
    """How to mask: of the chosen tokens 80 % become [MASK], 10 % a random token, 10 % stay (Devlin et al. 2019;
    CMLM-CSE says "randomly masked", InfoCSE's code does 80/10/10)."""

    probability: float
    mask_token_id: int
    vocab_size: int
    special_token_ids: frozenset[int]


class MaskedTokens(NamedTuple):
    """A masked sentence: `tokens` (L,), the chosen `positions` (M,) in ascending order, their true `labels` (M,)."""

    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    labels: NDArray[np.int64]


def mask_tokens(tokens: NDArray[np.int64], masking: Masking, rng: np.random.Generator) -> MaskedTokens:
    """Choose each token (L,) but the special ones with `probability`, and mask it; a pure function.

    A sentence can end without any masked token, as in BERT's and InfoCSE's code.
    """
    ordinary = np.array([token not in masking.special_token_ids for token in tokens.tolist()], dtype=bool)
    chosen = (rng.random(len(tokens)) < masking.probability) & ordinary
    positions = np.flatnonzero(chosen)
    labels = tokens[positions]
    fate = rng.random(len(positions))
    replaced = np.where(fate < 0.8, masking.mask_token_id, rng.integers(masking.vocab_size, size=len(positions)))
    masked = tokens.copy()
    masked[positions] = np.where(fate < 0.9, replaced, labels)
    return MaskedTokens(masked, positions, labels)
