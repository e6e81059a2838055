"""Label-free criteria: does a model find the other part of a document among the parts of thousands of others?

Documents that training never sees give queries and answers. The candidates are passages of the same text, so they are
near neighbours. The passages are short and drawn from the whole document, so that a good model does not find all.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from datasets import Dataset
from numpy.typing import NDArray

from cmlmcse.common.errors import InputError
from cmlmcse.data.collection import MIN_DOCUMENTS, letters

from .retrieval import unit
from .sts import Encode, EncodeOnce

QUERY_WORDS = 16  # a query is short, as a user's is
PASSAGE_WORDS = 32  # of an answer and of every other candidate
SHORTENED_SHARE = 0.4  # of the words that a shortened query keeps (TSDAE deletes 60 %)
MAX_CANDIDATES = 2000  # passages of 32 words: some seconds for a small model on a CPU
ENOUGH_QUERIES = 100  # the first criterion with so many is chosen
MIN_QUERIES = 20  # held-out documents that can give a query; a fifth of the fewest documents


class Question(NamedTuple):
    """A query and the passage that answers it; for a document that gives no query, the passage alone."""

    query: str | None
    passage: str


@dataclass(frozen=True)
class Criterion:
    """Queries from held-out documents, and the passages among which each must find its own.

    Attributes:
        name: the name in `CRITERIA`.
        title: what it measures, in words.
        queries: Q texts.
        candidates: C different passages.
        answers: (Q,) the position of each query's passage among the candidates.
    """

    name: str
    title: str
    queries: list[str]
    candidates: list[str]
    answers: NDArray[np.int64]

    def values(self, encode: Encode) -> NDArray[np.float64]:
        """(Q,) reciprocal ranks of the answers by cosine, in per cent. Equal cosines share the mean of their ranks."""
        once = EncodeOnce.of(encode)
        return reciprocal_ranks(unit(once(self.queries)) @ unit(once(self.candidates)).T, self.answers)

    def summary(self, values: NDArray[np.float64], items: NDArray[np.int64] | None = None) -> float:
        """The mean reciprocal rank in per cent; with `items` that of a sample of the queries."""
        return float(np.mean(values if items is None else values[items]))

    def score(self, encode: Encode) -> float:
        """The mean reciprocal rank of the answers, in per cent."""
        return self.summary(self.values(encode))

    def bm25(self) -> NDArray[np.float64]:
        """(Q,) reciprocal ranks that BM25 gives, in per cent (k1 0.9, b 0.4, no stemming)."""
        from sklearn.feature_extraction.text import CountVectorizer

        counter = CountVectorizer(token_pattern=r"\w+")
        counts = counter.fit_transform(self.candidates).astype(np.float64).tocsc()  # (C, W)
        lengths = np.asarray(counts.sum(axis=1)).ravel()  # (C,)
        found = np.diff(counts.indptr)  # (W,) passages with each word
        weights = np.log1p((len(self.candidates) - found + 0.5) / (found + 0.5))
        saturation = 0.9 * (1 - 0.4 + 0.4 * lengths / lengths.mean())  # (C,)
        counts.data = counts.data / (counts.data + saturation[counts.indices])
        asked = counter.transform(self.queries) > 0  # (Q, W)
        scores = (asked.multiply(weights[None, :]).tocsr() @ counts.T.tocsr()).toarray()  # (Q, C)
        return reciprocal_ranks(scores, self.answers)

    def halves(self, seed: int) -> tuple["Criterion", "Criterion"]:
        """Two criteria with half of the queries each and all candidates: one to choose by, one to confirm it."""
        order = np.random.default_rng([seed, 2]).permutation(len(self.queries))
        first, second = (np.sort(part) for part in np.array_split(order, 2))
        return self.only(first), self.only(second)

    def only(self, rows: NDArray[np.int64]) -> "Criterion":
        """The criterion with some of its queries."""
        queries = [self.queries[row] for row in rows]
        return Criterion(self.name, self.title, queries, self.candidates, self.answers[rows])


def reciprocal_ranks(scores: NDArray[np.float64], answers: NDArray[np.int64]) -> NDArray[np.float64]:
    """(Q, C) scores → (Q,) 100 / rank of each answer. Of equally scored candidates the rank is the mean."""
    own = scores[np.arange(len(answers)), answers][:, None]  # (Q, 1)
    better = (scores > own).sum(axis=1)
    equal = (scores == own).sum(axis=1) - 1
    return 100 / (1 + better + equal / 2)


Ask = Callable[[str, str, np.random.Generator], Question | None]


def ask_title(title: str, text: str, rng: np.random.Generator) -> Question | None:
    """The title asks for a passage of the body."""
    words = text.split()
    if not words:
        return None
    usable = letters(title) != letters(text) and len(title.split()) > 1 and len(words) >= QUERY_WORDS
    return Question(title if usable else None, passage(words, PASSAGE_WORDS, rng))


def ask_half(title: str, text: str, rng: np.random.Generator) -> Question | None:
    """A passage of one half of the text asks for a passage of the other half."""
    words = text.split()
    if not words:
        return None
    if len(words) < QUERY_WORDS:
        return Question(None, passage(words, PASSAGE_WORDS, rng))
    halves = words[: len(words) // 2], words[len(words) // 2 :]
    asked = int(rng.integers(2))
    return Question(passage(halves[asked], QUERY_WORDS, rng), passage(halves[1 - asked], PASSAGE_WORDS, rng))


def ask_neighbour(title: str, text: str, rng: np.random.Generator) -> Question | None:
    """A line asks for the next line of its document."""
    lines = [line for line in text.split("\n") if len(line.split()) > 2]
    if not lines:
        return None
    if len(lines) < 2:
        return Question(None, lines[0])
    chosen = int(rng.integers(len(lines) - 1))
    return Question(lines[chosen], lines[chosen + 1])


def ask_shortened(title: str, text: str, rng: np.random.Generator) -> Question | None:
    """A passage that lost 60 % of its words asks for the whole passage."""
    words = passage(text.split(), PASSAGE_WORDS, rng).split()
    if not words:
        return None
    kept = np.sort(rng.permutation(len(words))[: max(1, round(len(words) * SHORTENED_SHARE))])
    query = " ".join(words[place] for place in kept)
    return Question(query if len(words) >= 5 else None, " ".join(words))


def passage(words: list[str], length: int, rng: np.random.Generator) -> str:
    """At most `length` consecutive words, at a random place."""
    start = int(rng.integers(max(len(words) - length, 0) + 1))
    return " ".join(words[start : start + length])


CRITERIA: dict[str, tuple[str, Ask]] = {
    "title_body": ("a title finds a passage of its text", ask_title),
    "halves": ("a passage finds another passage of its document", ask_half),
    "neighbours": ("a line finds the line after it", ask_neighbour),
    "shortened": ("a passage with 60 % of its words deleted finds the whole passage", ask_shortened),
}


def build_criterion(name: str, held_out: Dataset, others: Dataset, seed: int) -> Criterion | None:
    """A criterion on a text; None if the held-out documents give fewer than `MIN_QUERIES` queries.

    Args:
        name: a name in `CRITERIA`.
        held_out: documents that training never sees (:func:`hold_out`); each may give a query.
        others: documents that only add candidates.
        seed: the seed of the passages.
    """
    title, ask = CRITERIA[name]
    asked = questions(held_out, ask, seed, name)
    room = max(MAX_CANDIDATES - len(held_out), 0)
    if len(others) > room:
        others = others.select(np.sort(np.random.default_rng([seed, 3]).choice(len(others), room, replace=False)))
    asked_queries = [question for question in asked if question.query]
    if len(asked_queries) < MIN_QUERIES:
        return None
    rows: dict[str, int] = {}
    for question in [*asked, *questions(others, ask, seed, name)]:
        rows.setdefault(question.passage, len(rows))
    answers = np.array([rows[question.passage] for question in asked_queries])
    return Criterion(name, title, [question.query or "" for question in asked_queries], list(rows), answers)


def questions(documents: Dataset, ask: Ask, seed: int, name: str) -> list[Question]:
    """What each document asks. It depends only on the seed, the criterion and the document's own text."""
    found = []
    for row in documents:
        rng = np.random.default_rng([seed, zlib.crc32(name.encode()), zlib.crc32(row["text"].encode())])
        found.append(ask(row["title"], row["text"], rng))
    return [question for question in found if question is not None]


def choose_criterion(held_out: Dataset, others: Dataset, seed: int) -> Criterion:
    """The first criterion of `CRITERIA` with at least `ENOUGH_QUERIES` queries, or with a query for half of the
    held-out documents; if there is none, the one with the most queries.

    Raises:
        InputError: no criterion has enough queries.
    """
    built = [build_criterion(name, held_out, others, seed) for name in CRITERIA]
    found = [criterion for criterion in built if criterion is not None]
    for criterion in found:
        if len(criterion.queries) >= min(ENOUGH_QUERIES, len(held_out) / 2):
            return criterion
    if not found:
        raise InputError(
            f"a label-free score expects documents of some words, found fewer than {MIN_QUERIES} of {len(held_out)} "
            f"with enough; give at least {MIN_DOCUMENTS} longer texts, or set dev_set to none"
        )
    return max(found, key=lambda criterion: len(criterion.queries))
