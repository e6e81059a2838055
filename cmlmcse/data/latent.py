"""Latent semantic analysis (Deerwester et al. 1990): vectors that know which words stand together in one text.

A collection's own words say what its documents are about, rare terms and all, without a label and without a model.
"""

from collections.abc import Iterable
from itertools import chain

import numpy as np
from numpy.typing import NDArray

LSA = "lsa"  # its name among teachers
FIRST = "two words"  # a text before the others, so that texts without any word have a vocabulary too
COMPONENTS = 256  # of 128, 256 and 512 beside all-MiniLM-L6-v2; 512 was no better and takes twice as long
FITTED = 20_000  # texts that a space is fitted to at most: a minute on one core


class LatentSpace:
    """TF-IDF weights of words, and their singular vectors.

    A word counts 1 + log(how often) · log-inverse document frequency; no stemming, no list of stop words.

    Args:
        texts: what the space is fitted to.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        from sklearn.decomposition import TruncatedSVD  # takes long to import, and most runs need no latent space
        from sklearn.feature_extraction.text import TfidfVectorizer

        self._weights = TfidfVectorizer(token_pattern=r"\w+", sublinear_tf=True, dtype=np.float32)
        weighted = self._weights.fit_transform(chain([FIRST], texts))  # (1 + N, W); `FIRST`: perhaps no text has a word
        self.size = min(COMPONENTS, *weighted.shape)
        self._space = TruncatedSVD(self.size, random_state=0).fit(weighted)

    def __call__(self, texts: list[str]) -> NDArray[np.float32]:
        """(N, K) vectors; zeros for a text without a known word."""
        return np.asarray(self._space.transform(self._weights.transform(texts)), np.float32)
