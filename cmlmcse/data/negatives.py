"""Hard negatives without labels: the nearest other rows of the text, found by exact search and drawn for each epoch.

The idea is that of sentence-transformers' `mine_hard_negatives`: what is too near may mean the same, so a margin leaves
it out. Here the search goes block by block, so that memory does not grow with the square of the text. And the cosines
are those of the vectors minus their mean: a plain backbone's vectors all point one way, so that any two of them have
nearly the same cosine (0.99 for [CLS] of assets/bert-mini-en), and no margin would fit two models.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .random_streams import NEGATIVES, CounterGenerator

QUERIES, CANDIDATES = 1024, 8192  # rows compared at once: 8 million cosines, 32 MB
NO_ROW = -1


def nearest_below(
    vectors: NDArray[np.float32], mean: NDArray[np.float32], most: float, count: int, device: torch.device
) -> Iterator[tuple[NDArray[np.int32], NDArray[np.float32]]]:
    """For each row its nearest other rows whose cosine is at most `most`, by exact search, in blocks of rows.

    Args:
        vectors: (N, H), perhaps in a file; a block of them is in memory at a time.
        mean: (H,) what is subtracted from each.
        most: the largest cosine that counts.
        count: C, how many rows to find.
        device: where to compare.

    Yields:
        (B, C) rows of the next B rows, nearest first, `NO_ROW` where there are no more; and (B,) cosines of each row
        with its nearest other row, whatever it is.
    """
    for start in range(0, len(vectors), QUERIES):
        queries = unit_block(vectors[start : start + QUERIES], mean, device)  # (B, H)
        own = torch.arange(start, start + len(queries), device=device)[:, None]  # (B, 1)
        best = queries.new_full((len(queries), count), -torch.inf)  # (B, C)
        rows = own.new_full((len(queries), count), NO_ROW)  # (B, C)
        nearest = queries.new_full((len(queries),), -torch.inf)  # (B,)
        for first in range(0, len(vectors), CANDIDATES):
            cosines = queries @ unit_block(vectors[first : first + CANDIDATES], mean, device).T  # (B, b)
            here = torch.arange(first, first + cosines.shape[1], device=device)  # (b,)
            cosines.masked_fill_(here == own, -torch.inf)
            nearest = torch.maximum(nearest, cosines.amax(dim=1))
            cosines.masked_fill_(cosines > most, -torch.inf)
            found, places = cosines.topk(min(count, len(here)), dim=1)  # (B, C) each
            best, kept = torch.cat([best, found], dim=1).topk(count, dim=1)
            rows = torch.cat([rows, here[places]], dim=1).gather(1, kept)
        rows.masked_fill_(best == -torch.inf, NO_ROW)
        yield rows.int().cpu().numpy(), nearest.cpu().numpy()


def unit_block(vectors: NDArray[np.float32], mean: NDArray[np.float32], device: torch.device) -> Tensor:
    """(B, H) minus (H,), of length 1, on the device."""
    return nn.functional.normalize(torch.from_numpy(vectors - mean).to(device), dim=1)


def mean_of(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """(N, H), perhaps in a file → (H,)."""
    starts = range(0, len(vectors), CANDIDATES)
    total = sum(vectors[start : start + CANDIDATES].sum(axis=0, dtype=np.float64) for start in starts)
    return np.asarray(total / len(vectors), np.float32)


class MinedNegatives:
    """The hard negatives of the rows of a text, each drawn anew in every epoch.

    Args:
        path: .npy (N, C) of each row's candidates, nearest first, `NO_ROW` where there are no more; each row has at
            least `count`.
        count: how many a row gets.
        seed: the seed of the draws.
    """

    def __init__(self, path: Path, count: int, seed: int) -> None:
        self.path, self.count = path, count
        self._random = CounterGenerator(seed)

    def of(self, epochs_and_rows: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """B rows, each with its epoch → their hard negatives in the same epochs, `count` of each row in turn: a pure
        function of the seed, the epoch and the row."""
        candidates = np.load(self.path, mmap_mode="r")[[row for _, row in epochs_and_rows]]  # (B, C)
        found = []
        for (epoch, row), known in zip(epochs_and_rows, candidates, strict=True):
            known = known[known != NO_ROW]
            if len(known) > self.count:
                known = self._random.at(epoch, row, NEGATIVES).choice(known, self.count, replace=False)
            found += [(epoch, int(each)) for each in known]
        return found
