"""BM25 (Robertson et al. 1994): the search by words that every encoder is measured against, alone and beside it."""

from array import array
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cmlmcse.data.search_words import SEARCH_WORDS, SearchWords

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

FIRST = "word"  # a passage before the others, so that passages without any word have a vocabulary too
OTHER = ""  # stands for every word that no query has
K1, B = 0.9, 0.4  # as in Anserini, whose figures BEIR reports
BLOCK = 2048  # passages whose scores are dense at once
# Of BM25, divided by the query's best, beside a cosine: the best of 0.2, 0.3 and 0.4 on the labels of CACM, CISI and
# MED with all-MiniLM-L6-v2. On NPL and SciFact it gains 8 and 9 points of nDCG@10 (docs/results/search-words.md).
WEIGHT = 0.3
# For a model that finds less than BM25. With it assets/encoder-mini-en has 52.6 and 48.4 of nDCG@10, the means of five
# and of three collections; with 0.3 51.7 and 47.0, BM25 alone 50.7 and 45.7 (benchmarks/records/hybrids-encoder.json).
WEIGHT_FOR_WEAK = 1


class BM25:
    """An index of some passages by their words (data/search_words.py).

    Args:
        passages: the texts.
        queries: index the words of these alone, for a large corpus. Others only count towards a passage's length.
        words: how texts become words.

    Attributes:
        counts: (C, W) how much each passage has of each word, saturated, from 0 to 1.
    """

    def __init__(
        self, passages: Iterable[str], queries: Iterable[str] | None = None, words: SearchWords = SEARCH_WORDS
    ) -> None:
        from sklearn.feature_extraction.text import CountVectorizer  # takes long to import, and most runs need no BM25

        self._counter = CountVectorizer(analyzer=words.of_text)
        if queries is not None:
            asked = {word for query in queries for word in words.of_query(query)}
            self._counter = CountVectorizer(
                analyzer=lambda text: [word if word in asked else OTHER for word in words.of_text(text)]
            )
        counted = self._counter.fit_transform(chain([FIRST], passages))[1:]  # (C, W)
        self._asker = CountVectorizer(analyzer=words.of_query, vocabulary=self._counter.vocabulary_)
        self._read(counted)

    def _read(self, counted: "csr_matrix") -> None:
        """Keep what the index needs of how often each passage has each word (C, W)."""
        self.counts, self._weights = self._saturated(counted)

    def _saturated(self, counted: "csr_matrix") -> tuple["csr_matrix", NDArray[np.float64]]:
        """How often each text has each word (C, W) → how much it has of it, from 0 to 1; the weight of each word."""
        counts = counted.astype(np.float64)
        lengths = np.asarray(counts.sum(axis=1)).ravel()  # (C,)
        found = counts.getnnz(axis=0)  # (W,) texts with each word
        weights = np.log1p((len(lengths) - found + 0.5) / (found + 0.5))
        if OTHER in self._counter.vocabulary_:
            weights[self._counter.vocabulary_[OTHER]] = 0  # no word that a query can be found by
        mean = lengths.sum() / max(len(lengths), 1)
        saturation = K1 * (1 - B + B * lengths / max(mean, 1e-9))  # (C,)
        counts.data /= counts.data + np.repeat(saturation, np.diff(counts.indptr))
        return counts, weights

    def scores(self, queries: list[str]) -> NDArray[np.float64]:
        """(Q, C) the score of each passage, 0 where it has no word of the query."""
        return self.products(self.asked(queries), slice(None)).toarray()

    def asked(self, queries: list[str]) -> "csr_matrix":
        """(Q, W) which words a query has."""
        return (self._asker.transform(queries) > 0).astype(np.float64)

    def weights(self, queries: list[str]) -> "csr_matrix":
        """(Q, W) the weight of each word that a query has: a score is its product with the passage's `counts`."""
        return _weighted(self.asked(queries), self._weights)

    def products(self, asked: "csr_matrix", passages: slice) -> "csr_matrix":
        """(Q, B) the scores of some passages; `asked` from :meth:`asked`."""
        return _weighted(asked, self._weights) @ self.counts[passages].T


def _weighted(asked: "csr_matrix", weights: NDArray[np.float64]) -> "csr_matrix":
    """(Q, W) which words a query has, times the weight of each word (W,)."""
    return asked.multiply(weights[None, :]).tocsr()


class BM25OfFiles(BM25):
    """BM25 of passages. A passage that has a word of the query also gets the score of its whole file.

    The words of a query may stand far apart in a file, and a passage alone does not show that the others are there. On
    TIME, 423 news articles, this adds points of nDCG@10 to passages of 80 words (docs/results/passages.md).

    Args:
        rows: the file, the title and the text of each passage.
        queries: the texts of the queries; only their words are indexed.
    """

    def __init__(self, rows: Iterable[tuple[str, ...]], queries: Iterable[str]) -> None:
        places: dict[str, int] = {}
        self._owners = array("q")  # (C,) the place of each passage's file

        def texts() -> Iterator[str]:
            for file, title, text in rows:
                self._owners.append(places.setdefault(file, len(places)))
                yield f"{title} {text}"

        super().__init__(texts(), queries)

    def _read(self, counted: "csr_matrix") -> None:
        from scipy.sparse import csr_matrix

        super()._read(counted)
        count = len(self._owners)
        shape = (max(self._owners, default=-1) + 1, count)  # which the matrix cannot tell where no passage is
        membership = csr_matrix((np.ones(count), (self._owners, np.arange(count))), shape)  # (F, C)
        self._files, self._file_weights = self._saturated((membership @ counted).tocsr())

    def products(self, asked: "csr_matrix", passages: slice) -> "csr_matrix":
        """(Q, B) the scores of some passages."""
        own = super().products(asked, passages)
        places, of_passages = np.unique(self._owners[passages], return_inverse=True)
        files = _weighted(asked, self._file_weights) @ self._files[places].T  # (Q, the files of these passages)
        return own + files[:, of_passages].multiply(own > 0).tocsr()


class BM25Shares:
    """The BM25 scores of some queries, each divided by the query's best over all passages: from 0 to 1.

    A search by both scores a passage with its cosine + `WEIGHT` · this share.

    Args:
        index: the BM25 index of the passages.
        queries: the texts of the queries.
        own: (Q,) the passage that is the query itself, -1 for none. It is never found, so never the best.
    """

    def __init__(self, index: BM25, queries: list[str], own: NDArray[np.int64] | None = None) -> None:
        self._index, self._asked = index, index.asked(queries)  # (Q, W)
        self._best = np.ones(len(queries))
        best = np.zeros(len(queries))
        for start in range(0, index.counts.shape[0], BLOCK):
            scores = self(slice(start, start + BLOCK))  # (Q, B)
            if own is not None:
                inside = np.flatnonzero((start <= own) & (own < start + BLOCK))
                scores[inside, own[inside] - start] = 0
            best = np.maximum(best, scores.max(axis=1))
        self._best = np.where(best > 0, best, 1)

    def __call__(self, passages: slice, queries: slice = slice(None)) -> NDArray[np.float64]:
        """(q, B) the shares of some passages, for all queries or some."""
        return self._index.products(self._asked[queries], passages).toarray() / self._best[queries, None]
