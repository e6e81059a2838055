"""The rows of a corpus that are nearest to each query: an exact search, which holds one block of rows at a time."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray

from cmlmcse.common.vectors import check_finite, unit

from .corpus import Block

DECIMALS = 6  # of a score: its last bits depend on the batch

Shares = Callable[[slice], NDArray[np.float64]]
"""B rows of the corpus → (Q, B), what BM25 gives them for each query, from 0 to 1."""


class BestRows:
    """The best rows of Q queries so far.

    Attributes:
        values: name → (Q, at most K): the number of a row in the corpus, its score, and the parts of the score.
        content: the columns of these rows by their number.
    """

    def __init__(self, queries: int, top_k: int, parts: Iterable[str]) -> None:
        self.top_k, self.names = top_k, ["row", "score", *parts]
        self.values = {name: np.empty((queries, 0), int if name == "row" else float) for name in self.names}
        self.content: dict[int, dict[str, Any]] = {}

    def add(self, start: int, table: pyarrow.Table, scores: dict[str, NDArray[np.float64]]) -> None:
        """Take the rows from `start` on where they are better. If two scores are equal, the earlier row stays first.

        Args:
            start: the number of the first row.
            table: the columns of B rows.
            scores: name → (Q, B), the score and its parts.
        """
        count = scores["score"].shape[1]
        rows = np.broadcast_to(np.arange(start, start + count), scores["score"].shape)  # (Q, B)
        block = {"row": rows, **{name: np.round(values, DECIMALS) for name, values in scores.items()}}
        joined = {name: np.concatenate([self.values[name], block[name]], axis=1) for name in self.names}
        best = np.argsort(-joined["score"], axis=1, kind="stable")[:, : self.top_k]
        self.values = {name: np.take_along_axis(values, best, 1) for name, values in joined.items()}
        kept = sorted(set(self.values["row"].ravel().tolist()))
        new = [row for row in kept if row >= start]
        columns = table.take(np.array(new, int) - start).to_pylist() if table.num_columns else [{}] * len(new)
        self.content = {row: self.content[row] for row in kept if row < start} | dict(zip(new, columns, strict=True))

    def of_query(self, query: int) -> list[dict[str, Any]]:
        """The rows of a query, best first, without those whose score is −∞."""
        places = [place for place, score in enumerate(self.values["score"][query]) if np.isfinite(score)]
        return [
            {
                "rank": place + 1,
                **{name: round(self.values[name][query, place].item(), DECIMALS) for name in self.names},
                "columns": self.content[self.values["row"][query, place]],
            }
            for place in places
        ]


def nearest_rows(
    queries: NDArray[np.floating],
    blocks: Iterable[Block],
    top_k: int,
    shares: Shares | None = None,
    weight: float = 0.0,
) -> list[list[dict[str, Any]]]:
    """The `top_k` rows nearest to each query, by cosine. If two scores are equal, the earlier row comes first. A row
    without text is never among them.

    Args:
        queries: embeddings of the queries (Q, H).
        blocks: the corpus in blocks.
        top_k: rows per query.
        shares: the BM25 shares of the rows; the score is then the cosine + `weight` · share.
        weight: the weight of the shares.

    Returns:
        For each query, nearest first: `rank` from 1, `row` from 0, `score`, `columns`; with shares `cosine` and `bm25`.

    Raises:
        InputError: an embedding is not finite.
    """
    check_finite(queries)
    queries = unit(queries)
    best = BestRows(len(queries), top_k, ["cosine", "bm25"] if shares else [])
    start = 0
    for table, vectors, blank in blocks:
        check_finite(vectors)
        scores = {"score": queries @ unit(vectors).T}  # (Q, B)
        if shares:
            bm25 = shares(slice(start, start + len(vectors)))
            scores = {"score": scores["score"] + weight * bm25, "cosine": scores["score"], "bm25": bm25}
        scores["score"] = np.where(blank, -np.inf, scores["score"])
        best.add(start, table, scores)
        start += len(vectors)
    return [best.of_query(query) for query in range(len(queries))]
