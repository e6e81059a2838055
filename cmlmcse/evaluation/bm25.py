"""BM25 (Robertson et al. 1994): the search by words that every encoder is measured against, alone and beside it."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, groupby
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cmlmcse.data.words import is_unspaced, overlapping_pairs

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

FIRST = "word"  # a passage before the others, so that passages without any word have a vocabulary too
OTHER = ""  # stands for every word that no query has
K1, B = 0.9, 0.4  # as in Anserini, whose figures BEIR reports
BLOCK = 2048  # passages whose scores are dense at once
# Of BM25, divided by the query's best, beside a cosine. Chosen on the labels of CACM, CISI and MED with
# all-MiniLM-L6-v2; NPL and SciFact, which were not looked at, gain 6 and 7 points of nDCG@10 (benchmarks/hybrids.json).
WEIGHT = 0.2
# For a model that finds less than BM25. With it the small backbone, adapted, has 48.7 and 45.2 of nDCG@10, the means
# of five and of three collections; with 0.2 41.7 and 38.2, BM25 alone 45.6 and 41.7 (benchmarks/hybrids-small.json).
WEIGHT_FOR_WEAK = 1


class BM25:
    """An index of some passages: lower case, words of letters and digits, no stemming, no list of stop words.

    In Chinese and Japanese two neighbouring characters are a word, and a query of one character finds it too.

    Args:
        passages: the texts.
        queries: index the words of these alone, for a large corpus. Others only count towards a passage's length.

    Attributes:
        counts: (C, W) how much each passage has of each word, saturated, from 0 to 1.
    """

    def __init__(self, passages: Iterable[str], queries: Iterable[str] | None = None) -> None:
        from sklearn.feature_extraction.text import CountVectorizer  # takes long to import, and most runs need no BM25

        letters = CountVectorizer(token_pattern=r"\w+").build_analyzer()

        def asking(text: str, single: bool = False) -> list[str]:
            return overlapping_pairs(letters(text), single) if is_unspaced(text) else letters(text)

        words = partial(asking, single=True)
        self._counter = CountVectorizer(analyzer=words)
        if queries is not None:
            asked = {word for query in queries for word in asking(query)}
            self._counter = CountVectorizer(analyzer=lambda text: [w if w in asked else OTHER for w in words(text)])
        counted = self._counter.fit_transform(chain([FIRST], passages))  # (1 + C, W)
        self._asker = CountVectorizer(analyzer=asking, vocabulary=self._counter.vocabulary_)
        counts = counted[1:].astype(np.float64)  # (C, W)
        lengths = np.asarray(counts.sum(axis=1)).ravel()  # (C,)
        found = counts.getnnz(axis=0)  # (W,) passages with each word
        self._weights = np.log1p((len(lengths) - found + 0.5) / (found + 0.5))
        if OTHER in self._counter.vocabulary_:
            self._weights[self._counter.vocabulary_[OTHER]] = 0  # no word that a query can be found by
        mean = lengths.sum() / max(len(lengths), 1)
        saturation = K1 * (1 - B + B * lengths / max(mean, 1e-9))  # (C,)
        counts.data /= counts.data + np.repeat(saturation, np.diff(counts.indptr))
        self.counts: csr_matrix = counts

    def scores(self, queries: list[str]) -> NDArray[np.float64]:
        """(Q, C) the score of each passage, 0 where it has no word of the query."""
        return (self.weights(queries) @ self.counts.T).toarray()

    def weights(self, queries: list[str]) -> "csr_matrix":
        """(Q, W) the weight of each word that a query has: a score is its product with the passage's `counts`."""
        asked = self._asker.transform(queries) > 0
        return asked.multiply(self._weights[None, :]).tocsr()


class BM25OfFiles:
    """BM25 of passages, each plus that of the whole file that it is from. The words of a query may stand far apart in a
    file, and a passage alone does not show that the others are there. On TIME, 423 news articles, this adds 5 to 10
    points of nDCG@10 to passages of 80 words (benchmarks/passage-words.json).

    Args:
        passages: an index of them.
        files: an index of the whole files.
        owners: (C,) the place of each passage's file.
    """

    def __init__(self, passages: BM25, files: BM25, owners: NDArray[np.int64]) -> None:
        self._parts = (passages, files)
        self.counts: csr_matrix = _beside(passages.counts, files.counts[owners])

    def weights(self, queries: list[str]) -> "csr_matrix":
        """(Q, W) as :meth:`BM25.weights`, the words of passages before those of files."""
        return _beside(*(part.weights(queries) for part in self._parts))


def _beside(left: "csr_matrix", right: "csr_matrix") -> "csr_matrix":
    """(N, V) and (N, W) → (N, V + W)."""
    from scipy.sparse import hstack

    return hstack([left, right]).tocsr()


def index_words(
    read: Callable[[], Iterable[tuple[str, ...]]], queries: list[str], by_file: bool
) -> "BM25 | BM25OfFiles":
    """An index of the words of some queries in passages, and in the files that they are from.

    Args:
        read: yields the file, the title and the text of each passage, those of a file one after another.
        queries: whose words are indexed.
        by_file: whether the passages are from files.
    """
    passages = BM25((f"{title} {text}" for _, title, text in read()), queries)
    if not by_file:
        return passages
    sizes = []

    def files() -> Iterator[str]:
        for _, rows in groupby(read(), key=itemgetter(0)):
            _, titles, texts = zip(*rows, strict=True)
            sizes.append(len(texts))
            yield " ".join([*dict.fromkeys(titles), *texts])  # a title that every passage has counts once

    index = BM25(files(), queries)
    return BM25OfFiles(passages, index, np.repeat(np.arange(len(sizes)), sizes))


class BM25Shares:
    """The BM25 scores of some queries, each divided by the query's best over all passages: from 0 to 1.

    A search by both scores a passage with its cosine + `WEIGHT` · this share.

    Args:
        index: of the passages.
        queries: the texts.
    """

    def __init__(self, index: BM25 | BM25OfFiles, queries: list[str]) -> None:
        self._queries, self._passages = index.weights(queries), index.counts  # (Q, W), (C, W)
        best = np.zeros(len(queries))
        for start in range(0, self._passages.shape[0], BLOCK):
            best = np.maximum(best, self(slice(start, start + BLOCK)).max(axis=1))
        factors = 1 / np.where(best > 0, best, 1)
        self._queries = self._queries.multiply(factors[:, None]).tocsr()

    def __call__(self, passages: slice, queries: slice = slice(None)) -> NDArray[np.float64]:
        """(q, B) the shares of some passages, for all queries or some."""
        return (self._queries[queries] @ self._passages[passages].T).toarray()
