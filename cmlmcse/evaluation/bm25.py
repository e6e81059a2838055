"""BM25 (Robertson et al. 1994): the search by words that every encoder is measured against."""

from collections.abc import Iterable
from itertools import chain

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

FIRST = "word"  # a passage before the others, so that passages without any word have a vocabulary too
K1, B = 0.9, 0.4  # as in Anserini, whose figures BEIR reports


class BM25:
    """An index of some passages: lower case, words of letters and digits, no stemming, no list of stop words.

    Args:
        passages: the texts.
    """

    def __init__(self, passages: Iterable[str]) -> None:
        from sklearn.feature_extraction.text import CountVectorizer  # takes long to import, and most runs need no BM25

        self._counter = CountVectorizer(token_pattern=r"\w+")
        counted = self._counter.fit_transform(chain([FIRST], passages))  # (1 + C, W)
        counts = counted[1:].astype(np.float64).tocsc()  # (C, W)
        lengths = np.asarray(counts.sum(axis=1)).ravel()  # (C,)
        found = np.diff(counts.indptr)  # (W,) passages with each word
        self._weights = np.log1p((len(lengths) - found + 0.5) / (found + 0.5))
        saturation = K1 * (1 - B + B * lengths / max(lengths.mean(), 1e-9))  # (C,)
        counts.data = counts.data / (counts.data + saturation[counts.indices])
        self._words = counts.T.tocsr()  # (W, C)

    def scores(self, queries: list[str]) -> NDArray[np.float64]:
        """(Q, C) the score of each passage, 0 where it has no word of the query."""
        return (self.weights(queries) @ self._words).toarray()

    def weights(self, queries: list[str]) -> csr_matrix:
        """(Q, W) the weight of each word that a query has: a score is its product with the passage's `counts`."""
        asked = self._counter.transform(queries) > 0
        return asked.multiply(self._weights[None, :]).tocsr()

    @property
    def counts(self) -> csr_matrix:
        """(C, W) how much each passage has of each word, saturated, from 0 to 1."""
        return self._words.T.tocsr()
