"""From vectors and human scores to the numbers of a results file."""

import logging
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from .metrics import STSCorrelation

logger = logging.getLogger(__name__)

COSINE_DECIMALS = 8  # float32 vectors have seven


def cosine(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """(N, H) and (N, H) → (N,) cosine similarities in float64, 0 for a zero vector.

    They are rounded, so that pairs of equal sentences are ties. Else the last bit would rank them, in another order in
    each process: on STS12, which has 79 such pairs, that moved one subset by 0.07 points, and the year by 0.001.
    """
    first, second = first.astype(np.float64), second.astype(np.float64)
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)  # (N,)
    return np.round((first * second).sum(axis=1) / np.where(norms == 0, 1, norms), COSINE_DECIMALS)  # (N,)


def correlation(predictions: np.ndarray, references: np.ndarray, what: str) -> dict[str, float | None]:
    """`spearman` and `pearson` in per cent; None, with a warning, if not defined.

    Args:
        predictions, references: (N,).
        what: the name of the data, for the warning.
    """
    values = STSCorrelation().compute(predictions=predictions, references=references)
    if not all(math.isfinite(value) for value in values.values()):
        logger.warning("%s: no correlation, the similarities are constant or not finite", what)
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def spearman(cosines: NDArray[np.float64], gold: NDArray[np.float64]) -> NDArray[np.float64]:
    """(B, N) and (B, N) → (B,) Spearman correlations, average ranks for ties; NaN where one side is constant."""
    first, second = (stats.rankdata(values, axis=1) for values in (cosines, gold))
    first, second = (ranks - ranks.mean(axis=1, keepdims=True) for ranks in (first, second))
    norms = np.sqrt(np.square(first).sum(axis=1) * np.square(second).sum(axis=1))
    return np.divide((first * second).sum(axis=1), norms, out=np.full(len(norms), np.nan), where=norms > 0)


def rounded(value: float | None) -> float | None:
    """Four decimals, as in results files; None for NaN and infinity, which JSON cannot hold."""
    return None if value is None or not math.isfinite(value) else round(float(value), 4)


def average(values: Sequence[float | None], weights: Sequence[int] | None = None) -> float | None:
    """The (weighted) mean; None if any value is None."""
    present = [value for value in values if value is not None]
    return rounded(np.average(present, weights=weights)) if len(present) == len(values) else None
