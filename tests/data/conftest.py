"""Reading a file of training text."""

from pathlib import Path
from typing import Any

import pytest

from cmlmcse.data.text import load_sentences
from support.text import Load


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Load a file and return its sentences; the cache lies beside it."""

    def run(path: str | Path, text_column: str | None = None, **kwargs: Any) -> list[str]:
        rows = load_sentences(str(path), text_column, cache_dir=str(tmp_path / "cache"), **kwargs)
        assert rows.column_names in (["text"], None)
        return [row["text"] for row in rows if list(row) == ["text"]]

    return run
