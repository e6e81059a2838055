"""Random masking of a sentence for masked-language modelling: of single tokens, or of whole words."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase


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
    chosen = (rng.random(len(tokens)) < masking.probability) & ordinary_tokens(tokens, masking)
    return replace_tokens(tokens, np.flatnonzero(chosen), masking, rng)


def mask_words(
    tokens: NDArray[np.int64], masking: Masking, continuing: NDArray[np.bool_], rng: np.random.Generator
) -> MaskedTokens:
    """Choose each word with `probability`, all of its tokens, and mask them; a pure function.

    80/10/10 is decided for each token by itself, as in BERT's whole-word masking: choosing spans is one thing,
    replacing tokens another.

    Args:
        continuing: (V,) whether a token of the vocabulary goes on with the word before it (:func:`continuing_tokens`).
    """
    ordinary = ordinary_tokens(tokens, masking)
    after_special = np.concatenate([[True], ~ordinary[:-1]])
    words = np.cumsum(~continuing[tokens] | ~ordinary | after_special) - 1  # (L,) the word of each token
    chosen = (rng.random(words[-1] + 1) < masking.probability)[words] & ordinary
    return replace_tokens(tokens, np.flatnonzero(chosen), masking, rng)


def ordinary_tokens(tokens: NDArray[np.int64], masking: Masking) -> NDArray[np.bool_]:
    """(L,) whether each token is not a special one."""
    return np.array([token not in masking.special_token_ids for token in tokens.tolist()], dtype=bool)


def replace_tokens(
    tokens: NDArray[np.int64], positions: NDArray[np.int64], masking: Masking, rng: np.random.Generator
) -> MaskedTokens:
    """Put [MASK] or a random token at the chosen positions (M,), or leave them, 80/10/10."""
    labels = tokens[positions]
    draw = rng.random(len(positions))
    replaced = np.where(draw < 0.8, masking.mask_token_id, rng.integers(masking.vocab_size, size=len(positions)))
    masked = tokens.copy()
    masked[positions] = np.where(draw < 0.9, replaced, labels)
    return MaskedTokens(masked, positions, labels)


def continuing_tokens(tokenizer: PreTrainedTokenizerBase) -> NDArray[np.bool_]:
    """(V,) which tokens go on with the word before them: those that a WordPiece marks (`##`), or, where the vocabulary
    marks the beginning of a word instead (`Ġ`, `▁`), those without that mark: punctuation is then of the word."""
    tokens = [token or "" for token in tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))]
    for mark in ("Ġ", "▁"):
        if sum(token.startswith(mark) for token in tokens) > 1:  # one alone may be a character as any other
            return np.array([not token.startswith(mark) for token in tokens])
    return np.array([token.startswith("##") and len(token) > 2 for token in tokens])
