"""The bootstrap: how much does a figure depend on the items that happened to be tested? (Efron & Tibshirani 1993)"""

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 1000  # the ends of a 95 % interval then rest on 25 samples each
MAX_VALUES = 1 << 21  # values of resampled items in memory at a time: 16 MiB


class OfSamples(Protocol):
    """What has a score for samples of its items."""

    def resampled(self, values: NDArray[np.float64], rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """(N,) values of the items, and (R, N) samples of them, with repetitions → (R,) the score of each sample."""


def resampled(
    rng: np.random.Generator,
    count: int,
    statistic: Callable[[NDArray[np.int64]], NDArray[np.float64]],
    resamples: int = RESAMPLES,
) -> NDArray[np.float64]:
    """(R,) a figure of bootstrap samples. It is computed for a block of them at a time; the rows that are drawn do not
    depend on the size of the blocks.

    Args:
        rng: draws the samples.
        count: N, the number of items.
        statistic: (B, N) rows of the items of some samples → (B,) the figure of each.
        resamples: R, the number of samples.
    """
    size = max(MAX_VALUES // count, 1)
    blocks = (min(size, resamples - start) for start in range(0, resamples, size))
    return np.concatenate([statistic(rng.integers(count, size=(block, count))) for block in blocks])


def ends(samples: NDArray[np.float64]) -> tuple[float, float]:
    """The ends of the 95 % interval, from (R,) the figures of the samples; NaN if one of them is."""
    low, high = np.percentile(samples, (2.5, 97.5))
    return float(low), float(high)


def interval(score: OfSamples, before: NDArray[np.float64], after: NDArray[np.float64]) -> tuple[float, float]:
    """The 95 % interval of a score's change. A sample has the same items before and after.

    Args:
        score: gives the score of each sample.
        before, after: (N,) values of each item.
    """
    return ends(
        resampled(
            np.random.default_rng(0),
            len(before),
            lambda rows: score.resampled(after, rows) - score.resampled(before, rows),
        )
    )
