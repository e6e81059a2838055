"""The seconds that adapt has worked in a folder. They are kept in a file, so that a later call adds to them."""

import json
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cmlmcse.common.files import replace_json

from .files import REQUEST, SECONDS
from .processes import Train


class Clock:
    """The time of this call and of earlier ones, for a `with` block.

    It is kept after each run that was trained, and at the end of the block, also where that is stopped. A call that is
    killed loses its seconds since its last run.

    Args:
        folder: the output folder. Until a request is kept there, it belongs to no command, and nothing is written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.started = folder, time.perf_counter()
        path = folder / SECONDS
        self.earlier = float(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else 0.0

    def __enter__(self) -> "Clock":
        return self

    def __exit__(self, *_: object) -> None:
        self.keep()

    def seconds(self) -> float:
        """The seconds of all calls until now."""
        return round(self.earlier + time.perf_counter() - self.started, 1)

    def keep(self) -> None:
        """Write the seconds to the folder, for a later call."""
        if (self.folder / REQUEST).exists():
            replace_json(self.folder / SECONDS, self.seconds())

    def around(self, train: Train) -> Train:
        """What trains a run, and then keeps the seconds."""

        def timed(words: list[str], start_values: NDArray[np.float64] | None) -> None:
            train(words, start_values)
            self.keep()

        return timed
