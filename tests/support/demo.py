"""What the tests of the demo share. The demo's folder is put on the path, as where it runs."""

import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from support.paths import ROOT
from support.tiny import WORDS

sys.path.insert(0, str(ROOT / "demo"))
import encoding

HOSTILE = (
    "<script>alert(1)</script> cat",
    "**bold** _it_ [a](javascript:alert(1)) dog",
    "{{value}} ${1+1} `tree` @children",
    "<img src=x onerror=alert(1)> mat",
    "&lt;b&gt; \"quoted\" 'big'",
)
LINES = [f"{word} sat on the {word}" for word in WORDS[60:]]


class Counting:
    """Stands in for a model: a vector by the letters of a text; remembers its batches."""

    def __init__(self, seconds: float = 0.0, letters: str = "aeiounr") -> None:
        self.batches: list[list[str]] = []
        self.ways: set[str] = set()
        self.threads: set[int] = set()
        self.seconds, self.letters = seconds, letters

    def __call__(self, texts: Sequence[str], way: str = encoding.PLAIN) -> np.ndarray:
        """(N, 7) unit vectors."""
        self.batches.append(list(texts))
        self.ways.add(way)
        self.threads.add(threading.get_ident())
        time.sleep(self.seconds)
        if "fail" in texts:
            raise RuntimeError("no memory")
        vectors = np.array([[text.count(letter) + 0.1 for letter in self.letters] for text in texts], np.float32)
        return encoding.unit(vectors)


def write(path: Path, content: bytes) -> Path:
    """A file."""
    path.write_bytes(content)
    return path
