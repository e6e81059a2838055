"""Columns that may have titles and are not read."""

import json

import pytest

from cmlmcse.data.titles import unread_titles


@pytest.mark.parametrize(("row", "named"), [
    ({"body": "the cat sat", "n": 3}, None),  # the only column of strings is read
    ({"text": "the cat sat", "name": "a cat", "n": [1, 2], "code": "x1", "file": "a b.md"}, "name"),
    ({"text": "the cat sat", "a": "one cat", "b": "two cats"}, "a, b"),
    ({"text": "the cat sat", "mixed": None}, None),
])  # fmt: skip
def test_columns_that_may_have_titles(row, named, tmp_path) -> None:
    """They have texts of several words, and are neither the column that is read nor that of the files."""
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{json.dumps(row)}\n" * 3)
    found = unread_titles(path, "text", "file")
    assert found.startswith(f"{path}: the column text is read, not {named}; if one" if named else "")
    assert bool(found) is (named is not None)
