"""Augmentations for the contrastive loss. They are found by name in `AUGMENTATIONS`; `a+b` applies a, then b.

An augmentation takes the word pieces of a sentence without special tokens (L,) and a random generator, and returns at
least one word piece. It is a pure function of its arguments. Some augmentations also need the id of [DEL], a list of
synonyms or the field `deletion_rate`. :func:`build_augmentation` gives them these.

CLEAR's figures are for texts of 512 tokens. Percentages of the tokens are rounded down, and short sentences
have fewer spans: see :func:`spans`.
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


class Augmented(NamedTuple):
    """How the views of a sentence are augmented.

    Attributes:
        augment: what changes the word pieces.
        both: whether both views are augmented, each with its own random numbers (CLEAR), or the second one alone. A
            hard negative is never augmented.
        limit: the maximum number of tokens of an augmented sentence.
    """

    augment: Augmentation
    both: bool = False
    limit: int = 512

    def changes(self, view: int) -> bool:
        """Whether a view is augmented."""
        return view == 1 or (view == 0 and self.both)


DEL_TOKEN = "[DEL]"
REPETITION_RATE = 0.32  # CMLM-CSE §4.3.2 (2): "repeating 32% of the words"
DELETION_RATE = 0.1  # Contriever's released script; TSDAE §3.2 deletes 0.6
DELETED_PERCENT = 70  # CLEAR §4.1: del-word, best of 30 to 90
SUBSTITUTED_PERCENT = 30  # CLEAR §4.1: subs
SPANS = 5  # CLEAR §4.1: 5 spans for del-span, 5 pairs of spans for reorder, each span is 5 % of the text


def repeat_tokens(tokens: Tokens, rng: np.random.Generator) -> Tokens:
    """Repeat 32 % of the tokens, rounded down; each copy follows its token (CMLM-CSE Table 3, word repetition)."""
    chosen = rng.choice(len(tokens), size=int(REPETITION_RATE * len(tokens)), replace=False)
    counts = np.ones(len(tokens), dtype=np.int64)
    counts[chosen] = 2
    return np.repeat(tokens, counts)


def drop_one_token(tokens: Tokens, rng: np.random.Generator) -> Tokens:
    """Delete one token; a one-token sentence stays as it is (CMLM-CSE Table 3, drop one word)."""
    return np.delete(tokens, rng.integers(len(tokens))) if len(tokens) > 1 else tokens


def delete_tokens(tokens: Tokens, rng: np.random.Generator, rate: float = DELETION_RATE) -> Tokens:
    """Delete each token with this probability; one stays at least (Contriever §3.1, TSDAE §3.2)."""
    kept = rng.random(len(tokens)) >= rate
    kept[rng.integers(len(tokens))] |= not kept.any()
    return tokens[kept]


def no_augmentation(tokens: Tokens, rng: np.random.Generator) -> Tokens:
    """Return the sentence unchanged: the views differ only by dropout (SimCSE)."""
    return tokens


def delete_words(tokens: Tokens, rng: np.random.Generator, deleted: int) -> Tokens:
    """Replace 70 % of the tokens by [DEL]; adjacent [DEL] become one (CLEAR §3.3 and §4.1, del-word)."""
    chosen = rng.choice(len(tokens), size=len(tokens) * DELETED_PERCENT // 100, replace=False)
    return delete(tokens, chosen, deleted)


def delete_spans(tokens: Tokens, rng: np.random.Generator, deleted: int) -> Tokens:
    """Replace 5 spans of 5 % of the tokens by [DEL] each; adjacent [DEL] become one (CLEAR §3.3, §4.1, del-span)."""
    count, length = spans(len(tokens))
    return delete(tokens, draw_spans(len(tokens), count, length, rng), deleted)


def reorder_spans(tokens: Tokens, rng: np.random.Generator) -> Tokens:
    """Swap 5 pairs of spans of 5 % of the tokens; a one-token sentence stays as it is (CLEAR §3.3, §4.1, reorder)."""
    if len(tokens) < 2:
        return tokens
    pairs, length = spans(len(tokens))
    drawn = rng.permutation(draw_spans(len(tokens), 2 * pairs, length, rng))  # (2P, length)
    order = np.arange(len(tokens))
    order[drawn] = np.roll(drawn, pairs, axis=0)
    return tokens[order]


def substitute_words(tokens: Tokens, rng: np.random.Generator, synonyms: Synonyms) -> Tokens:
    """Replace 30 % of the tokens by a synonym (CLEAR §3.3 and §4.1, subs).

    Only whole-word tokens with synonyms can be chosen. If fewer than 30 % of the tokens qualify, all of them are.
    """
    whole = np.flatnonzero(synonyms.whole_words(tokens))
    replaceable = [position for position in whole if int(tokens[position]) in synonyms.table]
    count = min(len(replaceable), len(tokens) * SUBSTITUTED_PERCENT // 100)
    pieces = [[token] for token in tokens.tolist()]
    for position in rng.choice(np.asarray(replaceable, dtype=np.int64), size=count, replace=False):
        choices = synonyms.table[int(tokens[position])]
        pieces[position] = choices[rng.integers(len(choices))]
    return np.array([token for piece in pieces for token in piece], dtype=tokens.dtype)


def spans(length: int) -> tuple[int, int]:
    """The number of spans in a sentence of `length` tokens, and the tokens of each span.

    From 20 tokens on: 5 spans of 5 %. In a shorter sentence one token is already more than 5 %, so each span is one
    token, and the spans cover a quarter of the sentence, but at least one token.
    """
    return min(SPANS, max(1, length // 4)), max(1, length // 20)


def draw_spans(total: int, count: int, length: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw the positions (count, length) of spans that do not overlap, in ascending order, uniformly."""
    starts = np.sort(rng.choice(total - count * (length - 1), size=count, replace=False))  # as if a span were one token
    starts = starts + np.arange(count) * (length - 1)
    return starts[:, None] + np.arange(length)


def delete(tokens: Tokens, chosen: NDArray[np.int64], deleted: int) -> Tokens:
    """Replace the chosen positions by [DEL]; a sentence that would lose all of its words stays as it is.

    Adjacent [DEL] become one, because their number would tell the views apart (CLEAR §3.3).
    """
    marked = tokens.copy()
    marked[chosen.ravel()] = deleted
    gone = marked == deleted
    if gone.all():
        return tokens
    return marked[~(gone & np.append(False, gone[:-1]))]


@dataclass
class Chain:
    """Several augmentations, applied in order."""

    steps: list[Augmentation]

    def __call__(self, tokens: Tokens, rng: np.random.Generator) -> Tokens:
        for step in self.steps:
            tokens = step(tokens, rng)
        return tokens


class Entry(NamedTuple):
    """An augmentation and its parameter besides (tokens, rng), if any: `deleted` (the id of [DEL]), `synonyms` or
    `rate` (`deletion_rate`)."""

    augment: Callable[..., Tokens]
    needs: str | None = None


AUGMENTATIONS: dict[str, Entry] = {
    "none": Entry(no_augmentation),
    "repeat_tokens": Entry(repeat_tokens),
    "drop_one_token": Entry(drop_one_token),
    "delete_tokens": Entry(delete_tokens, needs="rate"),
    "del_word": Entry(delete_words, needs="deleted"),
    "del_span": Entry(delete_spans, needs="deleted"),
    "reorder": Entry(reorder_spans),
    "substitute": Entry(substitute_words, needs="synonyms"),
}


def augmentations_of(name: str) -> list[Entry]:
    """The augmentations that `a+b+…` names.

    Raises:
        InputError: one of the names is unknown. The message lists the known ones.
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
    """Check that an augmentation can be built, before any slow work starts.

    Raises:
        InputError: the augmentation is unknown, or it needs synonyms and their file is missing or malformed.
    """
    if any(unit.needs == "synonyms" for unit in augmentations_of(name)):
        read_synonyms(synonyms)


def uses_deletion_token(name: str) -> bool:
    """Whether an augmentation uses [DEL].

    Raises:
        InputError: the augmentation is unknown.
    """
    return any(unit.needs == "deleted" for unit in augmentations_of(name))


def add_deletion_token(name: str, tokenizer: PreTrainedTokenizerBase) -> None:
    """Add [DEL] to the tokenizer if an augmentation uses it and the tokenizer lacks it.

    Raises:
        InputError: the augmentation is unknown.
    """
    if uses_deletion_token(name):
        tokenizer.add_tokens(DEL_TOKEN, special_tokens=True)


def deletion_token(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The id of [DEL]; None if the tokenizer has none."""
    return tokenizer.get_vocab().get(DEL_TOKEN)


def build_augmentation(
    name: str,
    tokenizer: PreTrainedTokenizerBase,
    synonyms: str | None = None,
    deletion_rate: float = DELETION_RATE,
) -> Augmentation:
    """Build an augmentation by its name, or several joined as `a+b`.

    Args:
        name: names in `AUGMENTATIONS`, joined by +.
        tokenizer: the tokenizer of the sentences, with [DEL] if needed (:func:`add_deletion_token`).
        synonyms: the JSON file that `substitute` reads.
        deletion_rate: the probability with which `delete_tokens` deletes a token.

    Raises:
        InputError: the augmentation is unknown, the tokenizer lacks [DEL], or the file of synonyms is missing or
            malformed.
    """
    steps: list[Augmentation] = []
    for unit in augmentations_of(name):
        if unit.needs == "deleted":
            deleted = deletion_token(tokenizer)
            if deleted is None:
                raise InputError(f"{name} expects the token {DEL_TOKEN}, found none; add it to the tokenizer")
            steps.append(partial(unit.augment, deleted=deleted))
        elif unit.needs == "synonyms":
            steps.append(partial(unit.augment, synonyms=load_synonyms(synonyms, tokenizer)))
        elif unit.needs == "rate":
            steps.append(partial(unit.augment, rate=deletion_rate))
        else:
            steps.append(unit.augment)
    return steps[0] if len(steps) == 1 else Chain(steps)
