"""Random masking for masked-language modelling, of single tokens or of whole words."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase


class Masking(NamedTuple):
    """How to mask. Of the chosen tokens, 80 % become [MASK], 10 % become a random token, and 10 % stay as they are
    (Devlin et al. 2019; CMLM-CSE says "randomly masked", InfoCSE's code does 80/10/10)."""

    probability: float
    mask_token_id: int
    vocab_size: int
    special_token_ids: frozenset[int]

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, probability: float) -> "Masking":
        """With the tokens of this tokenizer."""
        return cls(probability, tokenizer.mask_token_id, len(tokenizer), frozenset(tokenizer.all_special_ids))


class MaskedTokens(NamedTuple):
    """A masked sentence: `tokens` (L,), the chosen `positions` (M,) in ascending order, their true `labels` (M,)."""

    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    labels: NDArray[np.int64]


def mask_tokens(tokens: NDArray[np.int64], masking: Masking, rng: np.random.Generator) -> MaskedTokens:
    """Choose each token (L,) with `probability`, except special tokens, and mask the chosen ones; a pure function.

    It can happen that no token of a sentence is chosen, as in BERT's and InfoCSE's code.
    """
    chosen = (rng.random(len(tokens)) < masking.probability) & ordinary_tokens(tokens, masking)
    return replace_tokens(tokens, np.flatnonzero(chosen), masking, rng)


def mask_words(
    tokens: NDArray[np.int64], masking: Masking, continuing: NDArray[np.bool_], rng: np.random.Generator
) -> MaskedTokens:
    """Choose each word with `probability`, and mask all of its tokens; a pure function.

    80/10/10 is drawn for each token separately, as in BERT's whole-word masking: tokens are chosen by word, but
    replaced one by one.

    Args:
        continuing: (V,) whether a token of the vocabulary continues the preceding word (:func:`continuing_tokens`).
    """
    ordinary = ordinary_tokens(tokens, masking)
    after_special = np.concatenate([[True], ~ordinary[:-1]])
    words = np.cumsum(~continuing[tokens] | ~ordinary | after_special) - 1  # (L,) index of each token's word
    chosen = (rng.random(words[-1] + 1) < masking.probability)[words] & ordinary
    return replace_tokens(tokens, np.flatnonzero(chosen), masking, rng)


def ordinary_tokens(tokens: NDArray[np.int64], masking: Masking) -> NDArray[np.bool_]:
    """(L,) whether each token is not a special token."""
    return np.array([token not in masking.special_token_ids for token in tokens.tolist()], dtype=bool)


def replace_tokens(
    tokens: NDArray[np.int64], positions: NDArray[np.int64], masking: Masking, rng: np.random.Generator
) -> MaskedTokens:
    """Replace the chosen positions (M,) by [MASK] or a random token, or keep them: 80/10/10."""
    labels = tokens[positions]
    draw = rng.random(len(positions))
    replaced = np.where(draw < 0.8, masking.mask_token_id, rng.integers(masking.vocab_size, size=len(positions)))
    masked = tokens.copy()
    masked[positions] = np.where(draw < 0.9, replaced, labels)
    return MaskedTokens(masked, positions, labels)


def continuing_tokens(tokenizer: PreTrainedTokenizerBase) -> NDArray[np.bool_]:
    """(V,) which tokens continue the preceding word.

    WordPiece marks these tokens with `##`. Other vocabularies mark the first token of a word (`Ġ`, `▁`): then every
    token without that mark continues a word, and punctuation belongs to the preceding word.
    """
    tokens = [token or "" for token in tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))]
    for mark in ("Ġ", "▁"):
        if sum(token.startswith(mark) for token in tokens) > 1:  # a single one may be an ordinary character
            return np.array([not token.startswith(mark) for token in tokens])
    return np.array([token.startswith("##") and len(token) > 2 for token in tokens])
