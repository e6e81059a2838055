"""How many texts are copies of others; of a large text, in a sample."""

import numpy as np
from datasets import Dataset
from numpy.typing import NDArray

SAMPLE = 1_000_000  # texts that are compared: 8 MB of hashes
BLOCK = 1000  # rows that are read at once


def share_of_copies(rows: Dataset) -> tuple[float, int]:
    """The share of the texts, from 0 to 1, that are equal to an earlier one; and how many texts were compared.

    Of more than `SAMPLE` texts it compares blocks that are spread over all. A copy outside of them is not seen, so the
    share of all texts may be larger.
    """
    step = -(-len(rows) // SAMPLE)
    table = rows.select_columns("text").with_format("arrow")
    found: list[NDArray[np.int64]] = []
    for start in range(0, len(rows), BLOCK * step):
        texts = table[start : start + BLOCK]["text"].to_pylist()
        found.append(np.array([hash(text) for text in texts], np.int64))
    hashes = np.concatenate(found)
    return (len(hashes) - len(np.unique(hashes))) / len(hashes), len(hashes)
