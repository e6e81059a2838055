"""RankEncoder's similarity (Seonwoo et al. 2023): two sentences are alike if they rank a corpus alike."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from cmlmcse.common.errors import InputError
from cmlmcse.common.vectors import unit

from .encoding import EncodeOnce, MappedEncoder
from .whitening import file_sentences

SEED = 0  # of the choice of sentences, the same for every model
TASKS_OF_PAIRS = ("sts", "stsb_dev")


def append_ranks(vectors: np.ndarray, corpus: NDArray[np.float32], weight: float) -> NDArray[np.float32]:
    """(N, H) vectors → (N, H + C) that also hold how each ranks the C vectors of a corpus, by cosine.

    The cosine of two of them is (1 − w) · the cosine of the vectors + w · Spearman's correlation of their rankings (the
    paper's Eq. 7). So everything that takes cosines can take them.

    Args:
        vectors: (N, H).
        corpus: (C, H), of length 1.
        weight: w, from 0 to 1.
    """
    own = unit(vectors)
    found = np.empty((len(own), own.shape[1] + len(corpus)), np.float32)
    found[:, : own.shape[1]] = np.sqrt(1 - weight) * own
    for row, vector in zip(found, own, strict=True):
        ranks = rankdata(corpus @ vector)  # (C,)
        row[own.shape[1] :] = np.sqrt(weight) * unit((ranks - ranks.mean())[None])
    return found


def with_ranks(
    encode: EncodeOnce, data: dict[str, Any], file: str, count: int, weight: float
) -> tuple[MappedEncoder, dict[str, Any]]:
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
    vectors = unit(encode.encode_uncached(corpus))  # (C, H)
    return MappedEncoder(encode, partial(append_ranks, corpus=vectors, weight=weight)), settings
