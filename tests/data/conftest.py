"""Reading a file of training text."""

from pathlib import Path
from typing import Any

import pytest

from cmlmcse.data.text import load_sentences
from support.text import Load


@pytest.fixture(autouse=True)
def own_cache(cache: Path) -> Path:
    """Each test reads its files into an empty cache."""
    return cache


@pytest.fixture
def load() -> Load:
    """Load a file and return its sentences."""

    def run(path: str | Path, text_column: str | None = None, **kwargs: Any) -> list[str]:
        rows = load_sentences(str(path), text_column, **kwargs)
        assert rows.column_names in (["text"], None)
        return [row["text"] for row in rows if list(row) == ["text"]]

    return run
