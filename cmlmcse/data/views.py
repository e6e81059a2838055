"""Views of a document: the two texts that the contrastive loss pulls together. They are found by name in `VIEWS`.

A view is a pure function of the document's tokens and two random generators. `shared` starts in the same state for all
views of a document in one epoch, so that views can agree, for example on a cut. `own` differs between the views. The
negatives of a document are other documents of the batch. In a folder of few files, or a single Markdown file, each
passage is a document (collection.py), so passages of one file can be negatives of one another: search must tell them
apart, and a single file has no others.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cmlmcse.common.errors import InputError

from .telling_words import LEAST_LETTERS, TellingWords

WINDOW = 256  # tokens of a document that one epoch reads (Contriever §5: chunks of 256 tokens)
CROP_SHARE = (0.1, 0.5)  # of the window (the README of Contriever's code; its appendix A.1 has 0.05 to 0.5)
MIN_PIECE = 5  # tokens; a shorter piece says too little to be a positive
MANY = 0.1  # share of documents that give one text twice above which users are warned; a few do no harm
CUT_SHARE = (0.2, 0.8)  # where neighbours are cut, as a share of the window: both have something to say
ASKED_WORDS = (2, 7)  # words of a query: users type a few
ASKED_TOKENS = (8, 32)  # tokens of a passage that asks, a short sentence or a long one


class Pieces(NamedTuple):
    """A tokenised document without special tokens.

    Attributes:
        title: empty if it has none.
        body: the text.
        words: which words of a document are telling, for the view `words`.
    """

    title: list[int]
    body: list[int]
    words: TellingWords | None = None


View = Callable[[Pieces, int, int, np.random.Generator, np.random.Generator], list[int] | None]
"""(document, view 0 or 1, most tokens, shared, own) → the tokens of the view, or None if the document cannot give it.
Whether it is None does not depend on the view."""


def dropout(
    document: Pieces, view: int, limit: int, shared: np.random.Generator, own: np.random.Generator
) -> list[int]:
    """Both views are the start of the text; they differ by dropout alone (SimCSE)."""
    return document.body[:limit]


def crops(
    document: Pieces, view: int, limit: int, shared: np.random.Generator, own: np.random.Generator
) -> list[int] | None:
    """Two independent crops of one window of the text, 10 to 50 % of it each (Contriever)."""
    if len(document.body) < 2 * MIN_PIECE:
        return None
    window = cut_window(document.body, WINDOW, shared)
    length = max(MIN_PIECE, int(len(window) * own.uniform(*CROP_SHARE)))
    start = own.integers(len(window) - length + 1)
    return window[start : start + length][:limit]


def neighbours(
    document: Pieces, view: int, limit: int, shared: np.random.Generator, own: np.random.Generator
) -> list[int] | None:
    """Two spans that touch: the text before and after a random cut (coCondenser §3.2 draws spans of one document)."""
    if len(document.body) < 2 * MIN_PIECE:
        return None
    window = cut_window(document.body, min(WINDOW, 2 * limit), shared)
    low, high = (int(len(window) * share) for share in CUT_SHARE)
    cut = int(shared.integers(low, high + 1))
    cut = min(max(cut, MIN_PIECE), len(window) - MIN_PIECE)
    return window[cut:][:limit] if view else window[:cut][-limit:]


def title_body(
    document: Pieces, view: int, limit: int, shared: np.random.Generator, own: np.random.Generator
) -> list[int] | None:
    """The title, and the start of the body."""
    if not document.title or not document.body:
        return None
    return (document.body if view else document.title)[:limit]


def words(
    document: Pieces, view: int, limit: int, shared: np.random.Generator, own: np.random.Generator
) -> list[int] | None:
    """Two to seven telling words of the document, in their order, as a user would type them; and a passage.

    A word is drawn by its weight (:class:`TellingWords`), so that every epoch asks with others.
    """
    telling, weights = telling_words(document)
    if not telling:
        return None
    if view:
        return passage(document, limit, own)
    count = min(int(own.integers(ASKED_WORDS[0], ASKED_WORDS[1] + 1)), len(telling))
    chosen = np.sort(own.choice(len(telling), count, replace=False, p=weights / weights.sum()))
    return [token for place in chosen for token in telling[place]][:limit]


def telling_words(document: Pieces) -> tuple[list[list[int]], NDArray[np.float64]]:
    """The telling words of the title and the start of the body, and the weight of each."""
    assert document.words is not None
    return document.words.of([*document.title, *document.body[:WINDOW]][:WINDOW])


def sentence(
    document: Pieces, view: int, limit: int, shared: np.random.Generator, own: np.random.Generator
) -> list[int] | None:
    """A short piece of the body, as long as a sentence; and a passage, which may hold it (ICT, Lee et al. 2019, keeps
    the sentence in a tenth of its passages)."""
    if len(document.body) < 2 * MIN_PIECE:
        return None
    if view:
        return passage(document, limit, own)
    return cut_window(document.body, min(int(own.integers(*ASKED_TOKENS)), limit), own)


def passage(document: Pieces, limit: int, rng: np.random.Generator) -> list[int]:
    """A piece of the body, half of the time its start; and before it, half of the time, the title. A user's documents
    are encoded from their title on."""
    title = document.title if rng.random() < 0.5 else []
    room = max(limit - len(title), MIN_PIECE)
    body = document.body[:room] if rng.random() < 0.5 else cut_window(document.body, room, rng)
    return [*title, *body][:limit]


def cut_window(tokens: list[int], length: int, rng: np.random.Generator) -> list[int]:
    """At most `length` consecutive tokens, at a random place."""
    start = int(rng.integers(max(len(tokens) - length, 0) + 1))
    return tokens[start : start + length]


VIEWS: dict[str, View] = {
    "dropout": dropout,
    "crops": crops,
    "neighbours": neighbours,
    "title_body": title_body,
    "words": words,
    "sentence": sentence,
}


def view_names(names: str) -> list[str]:
    """The views that `a+b+…` names.

    Raises:
        InputError: one of the names is unknown.
    """
    for name in names.split("+"):
        if name not in VIEWS:
            raise InputError(
                f"views must be one of {', '.join(VIEWS)}, or several joined by +, or search by itself, found "
                f"{name!r}; choose one of them"
            )
    return names.split("+")


class DocumentViews:
    """Makes the views of a document.

    With several names (`a+b`) each document draws one of them in each epoch. A document that cannot give a view gives
    crops instead, and a document too short for crops gives its text twice.

    Args:
        names: names in `VIEWS`, joined by +.
        limit: the most tokens of a view, without special tokens.
        words: the telling words of the text; only the view `words` needs them (:func:`needs_words`).

    Raises:
        InputError: an unknown name.
    """

    def __init__(self, names: str, limit: int, words: TellingWords | None = None) -> None:
        self.views = [VIEWS[name] for name in view_names(names)]
        self.limit, self.words = limit, words

    def __call__(self, document: Pieces, view: int, shared: np.random.Generator, own: np.random.Generator) -> list[int]:
        """The tokens of view 0 or 1, without special tokens."""
        document = document._replace(words=self.words)
        chosen = self.views[int(shared.integers(len(self.views)))] if len(self.views) > 1 else self.views[0]
        for candidate in (chosen, crops):
            tokens = candidate(document, view, self.limit, shared, own)
            if tokens is not None:
                return tokens
        return dropout(document, view, self.limit, shared, own)

    def repeats(self, document: Pieces, seed: int) -> bool:
        """Whether the two views that the document draws by the seed are the same text."""
        first, second = (
            self(document, view, np.random.default_rng(seed), np.random.default_rng([seed, view])) for view in (0, 1)
        )
        return first == second


def check_words(documents: Iterable[Pieces]) -> None:
    """Check that some document can give the view `words`.

    Raises:
        InputError: none has a telling word.
    """
    if not any(telling_words(document)[0] for document in documents):
        raise InputError(
            f"views words expects words of at least {LEAST_LETTERS} letters that stand in several documents, found "
            "none; add text, or choose the views crops"
        )


def needs_words(names: str) -> bool:
    """Whether one of the views reads the telling words."""
    return "words" in view_names(names)


def check_views(names: str, documents: int, titles: int, longest: int) -> None:
    """Check that the text can give the views at all.

    Args:
        names: the field `views`.
        documents: how many documents there are.
        titles: how many have a title and a body.
        longest: tokens of the longest body.

    Raises:
        InputError: no document can give one of the views.
    """
    for name in view_names(names):
        if name == "title_body" and titles == 0:
            raise InputError(
                f"views title_body expects documents with a title and another text, found none among {documents}; set "
                "title_column, or choose the views crops"
            )
        if name in ("crops", "neighbours", "sentence") and longest < 2 * MIN_PIECE:
            raise InputError(
                f"views {name} expects documents of at least {2 * MIN_PIECE} tokens, found none among {documents}; "
                "choose the views dropout, or put blank lines between documents instead of after each sentence"
            )
