"""Augmentations of the contrastive side, found by name in `AUGMENTATIONS`; `a+b` is first a, then b.

Each takes the word pieces of a sentence without special tokens (L,) and a random generator, and returns at least
one of them. It is a pure function of its arguments. What an augmentation needs beside them, the id of [DEL] or a
list of synonyms, it gets when it is built from a tokenizer and the synonyms' file (:func:`build_augmentation`).

CLEAR's are measured on 512 tokens. Shares are rounded down, and a short sentence has fewer spans: see :func:`spans`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from cmlmcse.common.errors import InputError

from .synonyms import Synonyms, load_synonyms, read_synonyms

Tokens = NDArray[np.int32]
Augmentation = Callable[[Tokens, np.random.Generator], Tokens]

DEL_TOKEN = "[DEL]"
REPETITION_RATE = 0.32  # CMLM-CSE §4.3.2 (2): "repeating 32% of the words"
DELETED_PERCENT = 70  # CLEAR §4.1: del-word, best of 30 to 90
SUBSTITUTED_PERCENT = 30  # CLEAR §4.1: subs
SPANS = 5  # CLEAR §4.1: 5 spans for del-span, 5 pairs of spans for reorder, each of 5 % of the text


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


def delete_words(tokens: Tokens, rng: np.random.Generator, deleted: int) -> Tokens:
    """Replace 70 % of the tokens by [DEL], neighbours by one (CLEAR §3.3 and §4.1, del-word)."""
    chosen = rng.choice(len(tokens), size=len(tokens) * DELETED_PERCENT // 100, replace=False)
    return delete(tokens, chosen, deleted)


def delete_spans(tokens: Tokens, rng: np.random.Generator, deleted: int) -> Tokens:
    """Replace 5 spans of 5 % of the tokens by one [DEL] each, neighbours by one (CLEAR §3.3 and §4.1, del-span)."""
    count, length = spans(len(tokens))
    return delete(tokens, draw_spans(len(tokens), count, length, rng), deleted)


def reorder_spans(tokens: Tokens, rng: np.random.Generator) -> Tokens:
    """Swap 5 pairs of spans of 5 % of the tokens; a single token stays (CLEAR §3.3 and §4.1, reorder)."""
    if len(tokens) < 2:
        return tokens
    pairs, length = spans(len(tokens))
    drawn = rng.permutation(draw_spans(len(tokens), 2 * pairs, length, rng))  # (2P, length)
    order = np.arange(len(tokens))
    order[drawn] = np.roll(drawn, pairs, axis=0)
    return tokens[order]


def substitute_words(tokens: Tokens, rng: np.random.Generator, synonyms: Synonyms) -> Tokens:
    """Replace 30 % of the tokens by a synonym (CLEAR §3.3 and §4.1, subs).

    Only a token that is a word by itself and has synonyms can be chosen; if those are fewer, all of them are.
    """
    known = [place for place in np.flatnonzero(synonyms.whole_words(tokens)) if int(tokens[place]) in synonyms.table]
    count = min(len(known), len(tokens) * SUBSTITUTED_PERCENT // 100)
    pieces = [[token] for token in tokens.tolist()]
    for place in rng.choice(np.asarray(known, dtype=np.int64), size=count, replace=False):
        found = synonyms.table[int(tokens[place])]
        pieces[place] = found[rng.integers(len(found))]
    return np.array([token for piece in pieces for token in piece], dtype=tokens.dtype)


def spans(length: int) -> tuple[int, int]:
    """How many spans, and of how many tokens, in a sentence of `length` tokens: 5 of 5 %, or, as a token is more than
    5 % of less than 20, fewer of one token: a quarter of the sentence, but at least one."""
    return min(SPANS, max(1, length // 4)), max(1, length // 20)


def draw_spans(total: int, count: int, length: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """(count, length) the places of spans that do not overlap, in ascending order, any choice as likely as another."""
    starts = np.sort(rng.choice(total - count * (length - 1), size=count, replace=False))  # as if of one token
    starts = starts + np.arange(count) * (length - 1)
    return starts[:, None] + np.arange(length)


def delete(tokens: Tokens, chosen: NDArray[np.int64], deleted: int) -> Tokens:
    """Replace the chosen places by [DEL], and neighbouring [DEL] by one, lest their number tell the views apart
    (CLEAR §3.3); a sentence that would lose its last word stays as it is."""
    marked = tokens.copy()
    marked[chosen.ravel()] = deleted
    gone = marked == deleted
    if gone.all():
        return tokens
    return marked[~(gone & np.append(False, gone[:-1]))]


@dataclass
class Chain:
    """Augmentations one after the other."""

    steps: list[Augmentation]

    def __call__(self, tokens: Tokens, rng: np.random.Generator) -> Tokens:
        for step in self.steps:
            tokens = step(tokens, rng)
        return tokens


class Unit(NamedTuple):
    """An augmentation, and which parameter it takes beside (tokens, rng): `deleted`, the id of [DEL], or `synonyms`."""

    augment: Callable[..., Tokens]
    needs: str | None = None


AUGMENTATIONS: dict[str, Unit] = {
    "none": Unit(no_augmentation),
    "repeat_tokens": Unit(repeat_tokens),
    "drop_one_token": Unit(drop_one_token),
    "del_word": Unit(delete_words, needs="deleted"),
    "del_span": Unit(delete_spans, needs="deleted"),
    "reorder": Unit(reorder_spans),
    "substitute": Unit(substitute_words, needs="synonyms"),
}


def augmentation_units(name: str) -> list[Unit]:
    """The units of `a+b+…`.

    Raises:
        InputError: one of them is unknown; the message lists the known ones.
    """
    names = name.split("+")
    for part in names:
        if part not in AUGMENTATIONS:
            raise InputError(
                f"augmentation must be one of {', '.join(AUGMENTATIONS)}, or several joined by +, found {part!r}; "
                "choose one of them"
            )
    return [AUGMENTATIONS[part] for part in names]


def check_augmentation(name: str, synonyms: str | None) -> None:
    """See that an augmentation can be built, before anything that takes time.

    Raises:
        InputError: an unknown augmentation, or no usable file of synonyms for one that reads it.
    """
    if any(unit.needs == "synonyms" for unit in augmentation_units(name)):
        read_synonyms(synonyms)


def add_deletion_token(name: str, tokenizer: PreTrainedTokenizerBase) -> None:
    """Add [DEL] to the tokenizer if an augmentation uses it; one that has it already stays as it is.

    Raises:
        InputError: an unknown augmentation.
    """
    if any(unit.needs == "deleted" for unit in augmentation_units(name)):
        tokenizer.add_tokens(DEL_TOKEN, special_tokens=True)


def deletion_token(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The id of [DEL]; None if the tokenizer has none."""
    return tokenizer.get_vocab().get(DEL_TOKEN)


def build_augmentation(name: str, tokenizer: PreTrainedTokenizerBase, synonyms: str | None = None) -> Augmentation:
    """An augmentation by its name, or several as `a+b`.

    Args:
        name: names in `AUGMENTATIONS`, joined by +.
        tokenizer: of the tokens; see :func:`add_deletion_token`.
        synonyms: the JSON file that `substitute` reads.

    Raises:
        InputError: an unknown augmentation, no [DEL], or no usable file of synonyms.
    """
    steps: list[Augmentation] = []
    for unit in augmentation_units(name):
        if unit.needs == "deleted":
            deleted = deletion_token(tokenizer)
            if deleted is None:
                raise InputError(f"{name} expects the token {DEL_TOKEN}, found none; add it to the tokenizer")
            steps.append(partial(unit.augment, deleted=deleted))
        elif unit.needs == "synonyms":
            steps.append(partial(unit.augment, synonyms=load_synonyms(synonyms, tokenizer)))
        else:
            steps.append(unit.augment)
    return steps[0] if len(steps) == 1 else Chain(steps)
