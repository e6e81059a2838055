"""A random order of all rows for an epoch: an exact permutation that depends only on (seed, epoch), in blocks.

Small corpora are shuffled by numpy, with a table of 4 bytes per row. With more than `TABLE_ROWS` rows, the table and
the time to shuffle it before the first batch would become large. Then the order is computed by a Feistel network
(Black & Rogaway 2002, "Ciphers with Arbitrary Finite Domains"), which needs no table: it maps a position to a row.
"""

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

TABLE_ROWS = 1 << 20  # 4 MB and 0.1 s
BLOCK = 1 << 16  # rows at a time
ROUNDS = 8  # 4 suffice for a pseudorandom permutation if the round function is random (Luby & Rackoff 1988)


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
    """Like `permuted`, with constant memory for any number of rows."""
    side = np.uint64(math.isqrt(rows - 1) + 1)  # side² ≥ rows; a position is a pair of numbers below `side`
    keys = np.random.default_rng([seed, epoch]).integers(2**64, size=ROUNDS, dtype=np.uint64)
    for start in range(0, rows, BLOCK):
        positions = feistel(np.arange(start, min(start + BLOCK, rows), dtype=np.uint64), side, keys)
        while (outside := positions >= rows).any():  # cycle walking: permute again until it is a row
            positions[outside] = feistel(positions[outside], side, keys)
        yield positions.astype(np.int64)


def feistel(positions: NDArray[np.uint64], side: np.uint64, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A permutation of 0 … side² - 1, applied to `positions` (N,). Every round is invertible, so it is exact."""
    left, right = positions // side, positions % side
    for key in keys:
        left, right = right, (left + splitmix64(right + key) % side) % side
    return left * side + right


def splitmix64(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele et al. 2014), modulo 2⁶⁴: every output bit depends on every input bit."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
