"""How a label-free criterion scores: whether each query finds its answer among the passages of thousands of others."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from modeling_cmlmcse.prompts import DOCUMENT, QUERY

from .bm25 import BM25, WEIGHT
from .encoding import Encode, EncodeOnce, encode_as
from .retrieval import exact_unit

# Times chance, below which a score is near it. All starts in benchmarks/records/adapting*.json have 1.25 or more, plain
# backbones too.
NEAR_CHANCE = 1.2


def chance(candidates: int) -> float:
    """The score, 0 to 100, of a model that ranks so many candidates by chance."""
    return float(np.mean(100 / np.log2(1 + np.arange(1, candidates + 1))))


def near_chance(score: float, candidates: int, finished: bool) -> str:
    """A sentence, if a score without labels is near that of chance; else nothing.

    Args:
        score: of the start, 0 to 100.
        candidates: the passages among which it has to find an answer.
        finished: whether the start is a finished encoder, and not a plain backbone.
    """
    by_chance = chance(candidates)
    if score >= NEAR_CHANCE * by_chance:
        return ""
    advice = (
        "The documents may be too similar to each other, or the model does not fit their language."
        if finished
        else "Choose a model made for the language of the text, or a finished encoder."
    )
    return (
        f"The start's score of {score:.2f} is near chance, which gives {by_chance:.2f} among {candidates:,} passages: "
        f"it finds hardly anything in this text. {advice}"
    )


class MeanOfDocuments:
    """A score that is the mean of a value for each document."""

    def summary(self, values: NDArray[np.float64]) -> float:
        """The mean over the documents."""
        return float(np.mean(values))

    def resampled(self, values: NDArray[np.float64], rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """(R, D) samples of the documents → (R,) the mean of each."""
        return values[rows].mean(axis=1)


@dataclass(frozen=True)
class Criterion(MeanOfDocuments):
    """Questions about D held-out documents, and the passages among which each query must find its answer.

    Attributes:
        name: the name in `CRITERIA`.
        title: what it measures, in words.
        queries: Q texts, perhaps several for a document.
        candidates: C different passages.
        answers: (Q,) the position of each query's answer among the candidates.
        asked: (Q,) the document of each query, 0 … D − 1.
        owners: (C,) the document of each candidate; -1 for documents that ask nothing.
        rows: (D,) the row of each document among the held-out ones, ascending.
        held_out: how many documents are held out.
    """

    name: str
    title: str
    queries: list[str]
    candidates: list[str]
    answers: NDArray[np.int64]
    asked: NDArray[np.int64]
    owners: NDArray[np.int64]
    rows: NDArray[np.int64]
    held_out: int

    def values(self, encode: Encode) -> NDArray[np.float64]:
        """(D,) the mean gain of each document's queries, with cosine as the score (:meth:`gains`)."""
        return self.gains(self.cosines(encode))

    def score(self, encode: Encode) -> float:
        """The mean gain over the documents, 0 to 100."""
        return self.summary(self.values(encode))

    def cosines(self, encode: Encode) -> NDArray[np.float64]:
        """(Q, C) cosines of the queries and the candidates, each with the encoder's own prompt."""
        once = EncodeOnce.of(encode)
        queries, candidates = encode_as(once, QUERY, self.queries), encode_as(once, DOCUMENT, self.candidates)
        return exact_unit(queries) @ exact_unit(candidates).T

    def gains(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """(Q, C) scores → (D,) the mean of 100 / log2(1 + rank) over each document's queries.

        That is nDCG × 100 without a cut-off, for one right answer. Equal scores share the mean of their ranks.
        """
        gains = 100 / np.log2(1 + self.ranks(self.without_siblings(scores)))
        return np.bincount(self.asked, gains) / np.bincount(self.asked)

    def without_siblings(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """(Q, C) scores, with -inf for the passages of a query's own document that are not its answer."""
        siblings = self.owners[None, :] == self.asked[:, None]
        siblings[np.arange(len(self.answers)), self.answers] = False
        return np.where(siblings, -np.inf, scores)

    def ranks(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """(Q, C) scores → (Q,) the rank of each answer, from 1."""
        own = scores[np.arange(len(self.answers)), self.answers][:, None]  # (Q, 1)
        return 1 + (scores > own).sum(axis=1) + ((scores == own).sum(axis=1) - 1) / 2

    def bm25(self) -> NDArray[np.float64]:
        """(D,) the gains of BM25."""
        return self.gains(BM25(self.candidates).scores(self.queries))

    def hybrid(self, encode: Encode) -> NDArray[np.float64]:
        """(D,) the gains of the cosine and `WEIGHT` · BM25, divided by the best of those that a query may find."""
        words = BM25(self.candidates).scores(self.queries)  # (Q, C)
        best = self.without_siblings(words).max(axis=1, keepdims=True)
        return self.gains(self.cosines(encode) + WEIGHT * words / np.where(best > 0, best, 1))

    @property
    def documents(self) -> int:
        """D, the documents that ask."""
        return int(self.asked.max()) + 1

    def halves(self, seed: int) -> tuple["Criterion", "Criterion"]:
        """Two criteria with half of the documents each and all candidates: one to choose by, one to confirm it.

        The held-out documents are split, so that what chooses in one criterion confirms in none.
        """
        order = np.random.default_rng([seed, 2]).permutation(self.held_out)
        first = np.isin(self.rows, order[: (self.held_out + 1) // 2])
        return self.only(np.flatnonzero(first)), self.only(np.flatnonzero(~first))

    def only(self, documents: NDArray[np.int64]) -> "Criterion":
        """The criterion with the queries of some documents; the others only add candidates.

        Args:
            documents: ascending numbers of documents.
        """
        numbers = np.full(self.documents + 1, -1)  # the last one is for owners of -1
        numbers[documents] = np.arange(len(documents))
        rows = np.flatnonzero(numbers[self.asked] >= 0)
        return replace(
            self,
            queries=[self.queries[row] for row in rows],
            answers=self.answers[rows],
            asked=numbers[self.asked[rows]],
            owners=numbers[self.owners],
            rows=self.rows[documents],
        )
