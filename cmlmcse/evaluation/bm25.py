"""BM25 (Robertson et al. 1994): the search by words that every encoder is measured against."""

import re
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import CountVectorizer

WORD = re.compile(r"\w+")
K1, B = 0.9, 0.4  # as in Anserini, whose figures BEIR reports


class BM25:
    """An index of some passages: lower case, words of letters and digits, no stemming, no list of stop words.

    Args:
        passages: the texts.
    """

    def __init__(self, passages: Iterable[str]) -> None:
        self._counter = CountVectorizer(token_pattern=WORD.pattern)
        texts = list(passages)
        self._words = csr_matrix((0, len(texts)))  # of passages without any word
        if not any(WORD.search(text) for text in texts):
            return
        counts = self._counter.fit_transform(texts).astype(np.float64).tocsc()  # (C, W)
        lengths = np.asarray(counts.sum(axis=1)).ravel()  # (C,)
        found = np.diff(counts.indptr)  # (W,) passages with each word
        self._weights = np.log1p((len(lengths) - found + 0.5) / (found + 0.5))
        saturation = K1 * (1 - B + B * lengths / lengths.mean())  # (C,)
        counts.data = counts.data / (counts.data + saturation[counts.indices])
        self._words = counts.T.tocsr()  # (W, C)

    def scores(self, queries: list[str]) -> NDArray[np.float64]:
        """(Q, C) the score of each passage, 0 where it has no word of the query."""
        if not self._words.shape[0]:
            return np.zeros((len(queries), self._words.shape[1]))
        asked = self._counter.transform(queries) > 0  # (Q, W)
        return (asked.multiply(self._weights[None, :]).tocsr() @ self._words).toarray()
