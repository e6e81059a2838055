"""Searches without labels: queries made from documents, and the passages that a teacher finds for them.

A query is a document's title, one of its sentences, or a few of its telling words. Its own document is no answer: the
teacher's ranking of the *other* documents is what can be learned from it.
"""

import re
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from datasets import Dataset
from numpy.typing import NDArray

from .tables import with_titles
from .words import is_unspaced, split_words

SEARCH = "search"  # the name in the field `views`
LEXICAL = "bm25"  # a teacher that is no model: search by words
SEARCHED = 5_000  # documents at most: a teacher reads the first 64 tokens of each in about a minute of a laptop's core
QUERIES_EACH = 4  # of a document; 800 documents then give 50 batches of 64 different searches
FOUND = 30  # passages of a query that are drawn from
FIRST_FOUND = 3  # half of the draws are among these, so that a batch has good answers and fair ones
WORDS = (3, 8)  # words of a query, as users type them
BLOCK = 512  # queries compared with all passages at once: 5,000 of them are 10 MB
LEAST_WORDS = 5  # of a sentence that can ask
LEAST_TITLE = 2  # words of a title that can ask
LEAST_LETTERS = 3  # of a word of a query

_WORD = re.compile(r"\w+")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])(?![」』）])|(?<=[。！？][」』）])")


class Queries(NamedTuple):
    """Q queries, and the document (Q,) that each was made from."""

    texts: list[str]
    owners: NDArray[np.int64]


def make_queries(documents: Dataset, seed: int, most: int | None = None) -> Queries:
    """`QUERIES_EACH` queries of every document that has words, without repetitions, or at most `most` of them.

    Args:
        documents: columns "title" and "text".
        seed: the seed of the random draws.
        most: the largest number of queries; if there are more, this many are drawn from all of them.
    """
    texts = with_titles(documents["title"], documents["text"])
    words = [Counter(asking_words(text)) for text in texts]
    found = Counter(word for each in words for word in each)
    queries: list[str] = []
    owners: list[int] = []
    for row, (title, text, counted) in enumerate(zip(documents["title"], documents["text"], words, strict=True)):
        rng = np.random.default_rng([seed, 7, row])
        sentences = [each for each in _SENTENCE_END.split(text) if len(split_words(each)) >= LEAST_WORDS]
        titles = [title] if len(split_words(title)) >= LEAST_TITLE else []
        asked = {query_of(titles, sentences, counted, found, len(texts), rng) for _ in range(QUERIES_EACH)} - {""}
        queries += sorted(asked)
        owners += [row] * len(asked)
    if most is not None and most < len(queries):
        rows = np.sort(np.random.default_rng([seed, 9]).choice(len(queries), most, replace=False))
        queries, owners = [queries[row] for row in rows], [owners[row] for row in rows]
    return Queries(queries, np.asarray(owners, np.int64))


def asking_words(text: str) -> list[str]:
    """The words of a text that a query may have: of three letters and more, or of two characters of Chinese and
    Japanese."""
    words = [word for each in _WORD.findall(text.lower()) for word in split_words(each)]
    return [word for word in words if len(word) >= LEAST_LETTERS or (len(word) == 2 and is_unspaced(word))]


def query_of(
    titles: list[str],
    sentences: list[str],
    words: Counter[str],
    found: Counter[str],
    documents: int,
    rng: np.random.Generator,
) -> str:
    """One query of a document: its title, a sentence or some words, one kind as likely as another; empty if it has
    none."""
    kinds = [kind for kind in (titles, sentences, list(words)) if kind]
    if not kinds:
        return ""
    chosen = kinds[int(rng.integers(len(kinds)))]
    if chosen is not kinds[-1] or not words:
        return chosen[int(rng.integers(len(chosen)))]
    weights = np.array([np.log1p(words[word]) * np.log((documents + 1) / found[word]) for word in chosen])
    count = min(int(rng.integers(WORDS[0], WORDS[1] + 1)), len(chosen))
    places = np.sort(rng.choice(len(chosen), count, replace=False, p=weights / weights.sum()))
    return " ".join(chosen[place] for place in places)


def draw_passages(
    search: Callable[[slice], NDArray[np.floating]], owners: NDArray[np.int64], passages: int, seed: int
) -> NDArray[np.int64]:
    """For each query one of the `FOUND` passages that a search finds first, the query's own document left out.

    Args:
        search: some of the Q queries → (q, N) the similarity of every passage.
        owners: (Q,) the document of each query.
        passages: the number N of passages.
        seed: the seed of the random draws.

    Returns:
        (Q,) rows of the passages.
    """
    rng = np.random.default_rng([seed, 8])
    drawn = np.empty(len(owners), np.int64)
    count = min(FOUND, passages - 1)
    first = min(FIRST_FOUND, count)
    for start in range(0, len(owners), BLOCK):
        rows = slice(start, start + BLOCK)
        own, scores = owners[rows], search(rows).copy()
        scores[np.arange(len(own)), own] = -np.inf
        nearest = np.argsort(-scores, axis=1, kind="stable")[:, :count]  # (q, C)
        places = np.where(
            rng.random(len(own)) < 0.5,
            rng.integers(first, size=len(own)),
            rng.integers(min(first, count - 1), count, size=len(own)),
        )
        drawn[rows] = nearest[np.arange(len(own)), places]
    return drawn
