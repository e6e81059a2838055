"""Random numbers of a training row that depend only on the seed, the epoch, the row and a stream's number.

Masks and augmentations of the first two views use the streams 0 to 3.
"""

import numpy as np

MASKS = 1  # of a sequence in pre-training, and of the first view
NEGATIVES = 15  # which mined negatives a row gets
DOCUMENT_VIEWS = 16  # and above


class CounterGenerator:
    """A random generator whose draws depend only on the seed, the epoch and row of an example, and a stream's number.

    One generator is reset for each use, because creating a new one takes longer than masking a sentence.
    """

    def __init__(self, seed: int) -> None:
        self._philox = np.random.Philox(key=seed)
        self._generator, self._start = np.random.Generator(self._philox), self._philox.state

    def at(self, epoch: int, row: int, stream: int) -> np.random.Generator:
        """The generator at the start of a stream. It is valid until the next call."""
        counter = self._start["state"]["counter"]
        counter[:] = 0, epoch, row, stream  # drawing advances [0]
        self._philox.state = self._start
        return self._generator
