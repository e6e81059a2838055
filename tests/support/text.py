"""Texts of the tests' words, tables of them, and how printed tables are compared."""

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from support.tiny import WORDS

Load = Callable[..., list[str]]


def one_space(text: str) -> str:
    """A text with its Markdown tables without the spaces that line up their columns."""
    return re.sub(" +", " ", text)


def write_records(path: Path, records: list[dict[str, Any]]) -> str:
    """Rows with the same columns, in the format of the path's suffix."""
    if path.suffix == ".parquet":
        pandas.DataFrame(records).to_parquet(path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    else:
        with path.open("w", newline="") as file:
            options: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if path.suffix == ".tsv" else {}
            writer = csv.DictWriter(file, list(records[0]), **options)
            writer.writeheader()
            writer.writerows(records)
    return str(path)


def random_sentences(count: int, seed: int = 0) -> list[str]:
    """Of 0 to 30 words."""
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, size=rng.integers(31))) for _ in range(count)]


def put(path: Path, content: str | bytes) -> Path:
    """Write a file and return its path."""
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path
