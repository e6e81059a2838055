"""How far a long piece of work is: a bar on a terminal, else a plain line now and then, for a log."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

EVERY = 30  # seconds between two lines


@contextmanager
def progress(total: int, what: str, unit: str, shown: bool = True) -> "Iterator[Bar | Lines]":
    """Show on stderr how much of a piece of work is done, inside the block.

    Args:
        total: how many there are to do.
        what: the name of the work, which begins the line.
        unit: what is counted, in the plural.
        shown: whether this process shows it.
    """
    if not (shown and sys.stderr.isatty()):
        yield Lines(total, what, unit, shown)
        return
    from transformers.utils import logging

    with logging.tqdm(total=total, desc=what, unit=f" {unit}") as bar:
        yield Bar(bar)


@contextmanager
def without_bars() -> Iterator[None]:
    """Show no progress bars of datasets, transformers and huggingface_hub inside the block. Afterwards each library
    shows them as before."""
    import datasets
    from huggingface_hub import utils as hub
    from transformers.utils import logging

    restore = (
        datasets.disable_progress_bars if datasets.are_progress_bars_disabled() else datasets.enable_progress_bars,
        logging.enable_progress_bar if logging.is_progress_bar_enabled() else logging.disable_progress_bar,
        # last, because transformers switches those of the Hub too
        hub.disable_progress_bars if hub.are_progress_bars_disabled() else hub.enable_progress_bars,
    )
    datasets.disable_progress_bars()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        for switch in restore:
            switch()


class Bar:
    """A progress bar on a terminal."""

    def __init__(self, bar: Any) -> None:
        self.bar = bar

    def add(self, count: int) -> None:
        """Count what was done."""
        self.bar.update(count)


class Lines:
    """Plain lines: how much of all is done, and about how long the rest takes. The first one comes after :data:`EVERY`
    seconds, so short work has none."""

    def __init__(self, total: int, what: str, unit: str, shown: bool) -> None:
        self.total, self.what, self.unit, self.shown = total, what, unit, shown
        self.done, self.began = 0, time.monotonic()
        self.said = self.began

    def add(self, count: int) -> None:
        """Count what was done, and print a line if the last one is long ago."""
        self.done += count
        now = time.monotonic()
        if not self.shown or now - self.said < EVERY or self.done >= self.total:
            return
        self.said = now
        rest = duration((now - self.began) / self.done * (self.total - self.done))
        done = f"{self.done:,} of {self.total:,} {self.unit}"
        print(f"{self.what}: {done}, about {rest} left", file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """A time in the unit in which a reader thinks of it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"
