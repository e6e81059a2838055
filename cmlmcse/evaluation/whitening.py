"""Whitening of sentence embeddings: a linear map behind any encoder, fitted on sentences."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import PCA

from cmlmcse.common.errors import InputError

from .encoding import EncodeOnce, MappedEncoder
from .sts_data import Pairs, sentences_of

TARGET = "the evaluated sentences"


@dataclass(frozen=True)
class Whitening:
    """x → (x − μ) U Λ^(−1/2), where U Λ Uᵀ is the covariance of the fitted embeddings (Su et al. 2021, §3, Alg. 1).

    Applied to the fitted embeddings it gives mean 0 and covariance I. Attributes: `mean` (H,), `kernel` (H, K).
    """

    mean: NDArray[np.float64]
    kernel: NDArray[np.float64]

    @classmethod
    def fit(cls, vectors: np.ndarray, dimensions: int | None = None) -> "Whitening":
        """Fit on (M, H) embeddings, and keep the K directions of largest variance.

        Args:
            vectors: (M, H).
            dimensions: K (default: all directions with non-zero variance, usually H if M > H).

        Raises:
            InputError: K is above the number of directions with non-zero variance, or that number is 0.
        """
        vectors = np.asarray(vectors, np.float64)
        if not np.isfinite(vectors).all():
            raise InputError("whitening expects finite embeddings, found NaN or infinity; check the model")
        mean = vectors.mean(axis=0)  # (H,); PCA's own centring of tall data is inaccurate if the mean is large
        with np.errstate(invalid="ignore"):  # PCA also divides by the total variance, which may be zero
            pca = PCA().fit(vectors - mean)
        variances = pca.explained_variance_ * (len(vectors) - 1) / len(vectors)  # (min(M, H),), descending, biased
        rank = int((variances > variances[0] * vectors.shape[1] * np.finfo(np.float64).eps).sum())
        wanted = dimensions or max(rank, 1)
        if wanted > rank:
            raise InputError(
                f"--whitening expects {len(vectors)} fitted embeddings that vary in at least {wanted} dimensions, "
                f"found {rank}; lower it or fit on more sentences"
            )
        return cls(mean, pca.components_[:wanted].T / np.sqrt(variances[:wanted]))  # (H,), (H, K)

    def __call__(self, vectors: np.ndarray) -> NDArray[np.float32]:
        """(N, H) → (N, K)."""
        return ((np.asarray(vectors, np.float64) - self.mean) @ self.kernel).astype(np.float32)


def whiten(
    encode: EncodeOnce, data: dict[str, Any], dimensions: int | None = None, file: str | None = None
) -> tuple[MappedEncoder, dict[str, Any]]:
    """An encoder with a whitening behind it, and its settings for the results.

    One map serves all tasks. Su et al. fit one map for each data set, on all its splits ("target"), or one map on SNLI
    and MNLI ("NLI"). SimCSE's and CMLM-CSE's tables quote "NLI": for that, give the NLI sentences as `file`.

    Args:
        encode: the encoder.
        data: the evaluated tasks' data; without `file` the map is fitted on their distinct sentences.
        dimensions: as in :meth:`Whitening.fit`.
        file: text to fit on instead, in any format of training text.

    Raises:
        InputError: a task without sentence pairs and no file; as :meth:`Whitening.fit`.
    """
    sentences = target_sentences(data) if file is None else file_sentences(file)
    whitening = Whitening.fit(encode(sentences), dimensions)
    settings = {
        "whitening": whitening.kernel.shape[1],
        "whitening_fitted_on": TARGET if file is None else Path(file).name,
        "whitening_sentences": len(sentences),
    }
    return MappedEncoder(encode, whitening), settings


def target_sentences(data: dict[str, Any]) -> list[str]:
    """The distinct sentences of all pairs in the tasks' data.

    Raises:
        InputError: the data of a task are not sentence pairs.
    """
    found: list[str] = []
    for task, content in data.items():
        sentences = sentences_of(pairs_in(content))
        if not sentences:
            raise InputError(
                f"--whitening is fitted on sentence pairs, found none in the task {task}; name the text to fit on with "
                "--whitening_file, or leave the task out"
            )
        found += sentences
    return list(dict.fromkeys(found))


def pairs_in(data: Any) -> Iterator[Pairs]:
    """All sets of pairs in a task's data, at any depth."""
    if isinstance(data, Pairs):
        yield data
    elif isinstance(data, (dict, list, tuple)):
        for item in data.values() if isinstance(data, dict) else data:
            yield from pairs_in(item)


def file_sentences(file: str) -> list[str]:
    """The distinct sentences of a text file."""
    from cmlmcse.data.text import load_sentences

    return list(dict.fromkeys(load_sentences(file, None, False)["text"]))
