"""Small sets in BEIR's format, and encoders for them."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

HEADER = "query-id\tcorpus-id\tscore\n"


def write(
    root: Path, corpus: Iterable[Any], queries: Iterable[Any], qrels: Iterable[tuple], name: str = "tiny"
) -> Path:
    """A set in BEIR's format under the data folder `root`; passages and queries as (id, text)."""
    folder = root / "beir" / name
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    for file, rows in (("corpus.jsonl", corpus), ("queries.jsonl", queries)):
        lines = (json.dumps({"_id": found, "text": text}) + "\n" for found, text in rows)
        (folder / file).write_text("".join(lines))
    (folder / "qrels" / "test.tsv").write_text(HEADER + "".join("\t".join(map(str, row)) + "\n" for row in qrels))
    return folder


def at_angle(texts: list[str]) -> np.ndarray:
    """A text that ends in a number of degrees → the vector in that direction, of some length."""
    angles = np.radians([float(text.split()[-1]) for text in texts])
    return 3 * np.stack([np.cos(angles), np.sin(angles)], axis=1)


def hashed(texts: list[str]) -> np.ndarray:
    """A vector of 32 numbers for each text that depends on nothing but the text."""
    digests = b"".join(hashlib.blake2b(text.encode(), digest_size=64).digest() for text in texts)
    return np.frombuffer(digests, np.int16).reshape(-1, 32).astype(np.float32)
