"""An order of all rows for an epoch: an exact permutation, known from (seed, epoch) alone, handed out in blocks.

Small corpora are shuffled by numpy, whose table of the order takes 4 bytes a row. Beyond `TABLE_ROWS` that table, and
the time to shuffle it before the first batch, would grow with the corpus; there the order is a Feistel network
(Black & Rogaway 2002, "Ciphers with Arbitrary Finite Domains"), which computes any place of it from the place alone.
"""

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

TABLE_ROWS = 1 << 20  # 4 MB and 0.1 s
BLOCK = 1 << 16  # rows at a time
ROUNDS = 8  # 4 suffice for a pseudorandom permutation where the round function is random (Luby & Rackoff 1988)


def permuted(rows: int, seed: int, epoch: int) -> Iterator[NDArray[np.int64]]:
    """0 … rows - 1 in random order, each exactly once, in blocks (at most `BLOCK`,)."""
    if rows <= TABLE_ROWS:
        order = np.arange(rows, dtype=np.uint32)
        np.random.default_rng([seed, epoch]).shuffle(order)
        for start in range(0, rows, BLOCK):
            yield order[start : start + BLOCK].astype(np.int64)
    else:
        yield from permuted_without_table(rows, seed, epoch)


def permuted_without_table(rows: int, seed: int, epoch: int) -> Iterator[NDArray[np.int64]]:
    """As `permuted`, in constant memory for any number of rows."""
    side = np.uint64(math.isqrt(rows - 1) + 1)  # a place is a pair of numbers below `side`, for side² ≥ rows
    keys = np.random.default_rng([seed, epoch]).integers(2**64, size=ROUNDS, dtype=np.uint64)
    for start in range(0, rows, BLOCK):
        places = feistel(np.arange(start, min(start + BLOCK, rows), dtype=np.uint64), side, keys)
        while (outside := places >= rows).any():  # of side² ≥ rows places: go on to the next until it is a row
            places[outside] = feistel(places[outside], side, keys)
        yield places.astype(np.int64)


def feistel(places: NDArray[np.uint64], side: np.uint64, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A permutation of 0 … side² - 1, applied to `places` (N,): each round can be undone, whatever is added."""
    left, right = places // side, places % side
    for key in keys:
        left, right = right, (left + scrambled(right + key) % side) % side
    return left * side + right


def scrambled(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele et al. 2014), modulo 2⁶⁴: every bit depends on every bit."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
