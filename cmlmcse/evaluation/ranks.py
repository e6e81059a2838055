"""RankEncoder's similarity (Seonwoo et al. 2023): two sentences are alike if they rank a corpus alike."""

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from cmlmcse.common.errors import InputError
from cmlmcse.common.vectors import unit

from .encoding import EncodeOnce
from .whitening import file_sentences

SEED = 0  # of the choice of sentences, the same for every model
TASKS_OF_PAIRS = ("sts", "stsb_dev")


class RankedEncoder(EncodeOnce):
    """An encoder whose vectors also hold how their sentence ranks a corpus: N texts → (N, H + C).

    The cosine of two of them is (1 − w) · the cosine of the sentences + w · Spearman's correlation of their rankings
    of the C sentences of the corpus, by cosine (the paper's Eq. 7). So everything that takes cosines can take them.
    They are long and are not kept: what is kept are the encoder's own.

    Args:
        whole: the encoder.
        corpus: the C sentences.
        weight: w, from 0 to 1.
    """

    def __init__(self, whole: EncodeOnce, corpus: list[str], weight: float) -> None:
        self._whole, self._corpus, self._weight, self.prompts = whole, corpus, weight, whole.prompts

    @cached_property
    def bare(self) -> EncodeOnce:
        """The encoder without its default prompt."""
        inner = self._whole.bare
        return self if inner is self._whole else RankedEncoder(inner, self._corpus, self._weight)

    @cached_property
    def _vectors(self) -> NDArray[np.float32]:
        """(C, H) the corpus, of length 1."""
        return unit(self._whole.encode_uncached(self._corpus))

    def prepare(self, sentences: Iterable[str]) -> EncodeOnce:
        """As in :class:`EncodeOnce`."""
        self._whole.prepare(sentences)
        return self

    def encode_uncached(self, sentences: list[str]) -> np.ndarray:
        """Texts → (N, H + C), not kept."""
        return self._with_ranks(self._whole.encode_uncached(sentences))

    def __call__(self, sentences: list[str]) -> np.ndarray:
        """Texts → (N, H + C)."""
        return self._with_ranks(self._whole(sentences))

    def _with_ranks(self, vectors: np.ndarray) -> NDArray[np.float32]:
        """(N, H) → (N, H + C)."""
        own = unit(vectors)
        found = np.empty((len(own), own.shape[1] + len(self._vectors)), np.float32)
        found[:, : own.shape[1]] = np.sqrt(1 - self._weight) * own
        for row, vector in zip(found, own, strict=True):
            ranks = rankdata(self._vectors @ vector)  # (C,)
            row[own.shape[1] :] = np.sqrt(self._weight) * unit((ranks - ranks.mean())[None])
        return found


def with_ranks(
    encode: EncodeOnce, data: dict[str, Any], file: str, count: int, weight: float
) -> tuple[RankedEncoder, dict[str, Any]]:
    """An encoder with rankings, and its settings for the results.

    Args:
        encode: the encoder.
        data: the data of the evaluated tasks, by name.
        file: the corpus, a text in any format of training text.
        count: how many of its distinct sentences are ranked, drawn with a fixed seed.
        weight: w.

    Raises:
        InputError: a task that is not about pairs, or a corpus of fewer than two sentences.
    """
    if others := [task for task in data if task not in TASKS_OF_PAIRS]:
        raise InputError(
            f"--rank_corpus expects the tasks {' and '.join(TASKS_OF_PAIRS)} alone, found {others[0]}; leave it out"
        )
    sentences = file_sentences(file)
    if len(sentences) < 2:
        raise InputError(f"--rank_corpus expects at least 2 different sentences, found {len(sentences)} in {file}")
    chosen = np.random.default_rng(SEED).permutation(len(sentences))[:count]
    corpus = [sentences[place] for place in np.sort(chosen)]
    settings = {"rank_corpus": Path(file).name, "rank_sentences": len(corpus), "rank_weight": weight}
    return RankedEncoder(encode, corpus, weight), settings
