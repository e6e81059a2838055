"""The rows of a corpus that are nearest to each query: an exact search, which holds one block of rows at a time."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import pyarrow
from numpy.typing import NDArray

from cmlmcse.common.vectors import check_finite, unit
from cmlmcse.data.tables import plain_rows

from .corpus import Block

DECIMALS = 6  # of a score: its last bits depend on the batch

Shares = Callable[[slice], NDArray[np.float64]]
"""B rows of the corpus → (Q, B), what BM25 gives them for each query, from 0 to 1."""


class Nearest(NamedTuple):
    """What is nearest to a query, best first. Each result has `rank` from 1, `row` from 0, `score`, `columns`; with
    BM25 `cosine` and `bm25`.

    Attributes:
        rows: the rows.
        texts: the best row of each text. It has `copies` too, how many other rows have its text.
    """

    rows: list[dict[str, Any]]
    texts: list[dict[str, Any]]


class BestRows:
    """The rows of Q queries so far that are among the K best ones, or are the best ones of the K best texts.

    Attributes:
        held: for each query the numbers of these rows in the corpus, their texts, their scores, and the parts of the
            scores, best first.
        content: the columns of these rows by their number.
        texts: the number of the text of each row so far, block by block: 8 bytes a row.
    """

    def __init__(self, queries: int, top_k: int, parts: Iterable[str]) -> None:
        self.top_k, self.names = top_k, ["row", "score", *parts]
        kinds = {"row": np.int64, "text": np.int64}
        self.held = [{name: np.empty(0, kinds.get(name, float)) for name in ("text", *self.names)}] * queries
        self.content: dict[int, dict[str, Any]] = {}
        self.texts: list[NDArray[np.int64]] = []

    def add(
        self, start: int, table: pyarrow.Table, texts: NDArray[np.int64], scores: dict[str, NDArray[np.float64]]
    ) -> None:
        """Take the rows from `start` on where they are better. If two scores are equal, the earlier row stays first.

        Args:
            start: the number of the first row.
            table: the columns of B rows.
            texts: (B,) the numbers of their texts.
            scores: name → (Q, B), the score and its parts.
        """
        self.texts.append(texts)
        rounded = {name: np.round(values, DECIMALS) for name, values in scores.items()}
        for query, held in enumerate(self.held):
            better = np.flatnonzero(rounded["score"][query] > self._last(held))
            new = {"row": start + better, "text": texts[better]}
            new |= {name: values[query, better] for name, values in rounded.items()}
            if len(better):
                self.held[query] = self._best({name: np.concatenate([held[name], new[name]]) for name in held})
        kept = sorted({row for held in self.held for row in held["row"].tolist()})
        added = [row for row in kept if row >= start]
        taken = table.take(np.array(added, int) - start) if table.num_columns else None
        columns = [{}] * len(added) if taken is None else plain_rows(taken)
        self.content = {row: self.content[row] for row in kept if row < start} | dict(zip(added, columns, strict=True))

    def _last(self, held: dict[str, NDArray[Any]]) -> float:
        """The score of the last of the K best texts, which a row must pass; −∞ if there are fewer."""
        full = len(np.unique(held["text"])) == self.top_k
        return held["score"][-1] if full else -np.inf

    def _best(self, rows: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Those rows of a query that are held."""
        order = np.argsort(-rows["score"], kind="stable")
        kept = np.union1d(np.arange(len(order))[: self.top_k], firsts(rows["text"][order])[: self.top_k])
        return {name: values[order[kept]] for name, values in rows.items()}

    def nearest(self) -> list[Nearest]:
        """What is nearest to each query."""
        texts, counts = np.unique(np.concatenate([np.empty(0, np.int64), *self.texts]), return_counts=True)
        return [self._nearest(held, counts[np.searchsorted(texts, held["text"])]) for held in self.held]

    def _nearest(self, held: dict[str, NDArray[Any]], counts: NDArray[np.int64]) -> Nearest:
        """What is nearest to a query, by its rows and how many rows have their texts."""
        results = [
            {
                **{name: round(held[name][place].item(), DECIMALS) for name in self.names},
                "columns": self.content[held["row"][place]],
            }
            for place in range(len(held["row"]))
        ]
        texts = [results[place] | {"copies": counts[place].item() - 1} for place in firsts(held["text"])]
        return Nearest(ranked(results[: self.top_k]), ranked(texts))


def ranked(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Results, best first, with their ranks."""
    return [{"rank": rank, **result} for rank, result in enumerate(results, 1)]


def firsts(texts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The places where a text stands for the first time, in order."""
    return np.sort(np.unique(texts, return_index=True)[1])


def nearest_rows(
    queries: NDArray[np.floating],
    blocks: Iterable[Block],
    top_k: int,
    shares: Shares | None = None,
    weight: float = 0.0,
) -> list[Nearest]:
    """The `top_k` rows and the `top_k` texts nearest to each query, by cosine. If two scores are equal, the earlier row
    comes first. A row without text is never among them.

    Args:
        queries: embeddings of the queries (Q, H).
        blocks: the corpus in blocks.
        top_k: rows and texts per query.
        shares: the BM25 shares of the rows; the score is then the cosine + `weight` · share.
        weight: the weight of the shares.

    Raises:
        InputError: an embedding is not finite.
    """
    check_finite(queries)
    queries = unit(queries)
    best = BestRows(len(queries), top_k, ["cosine", "bm25"] if shares else [])
    start = 0
    for table, vectors, blank, texts in blocks:
        check_finite(vectors)
        scores = {"score": queries @ unit(vectors).T}  # (Q, B)
        if shares:
            bm25 = shares(slice(start, start + len(vectors)))
            scores = {"score": scores["score"] + weight * bm25, "cosine": scores["score"], "bm25": bm25}
        scores["score"] = np.where(blank, -np.inf, scores["score"])
        numbers = np.arange(start, start + len(vectors)) if texts is None else texts  # else each is a text of its own
        best.add(start, table, numbers, scores)
        start += len(vectors)
    return best.nearest()
