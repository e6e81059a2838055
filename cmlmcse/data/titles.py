"""Columns of a table that are not read but may have titles."""

from pathlib import Path

from .row_blocks import read_blocks

FIRST = 200  # rows that are looked at


def unread_titles(path: Path, text_column: str, file_column: str | None = None) -> str:
    """A sentence that names the columns of a file that are not read but may have titles; empty if there is none. Their
    first values mostly have several words, as titles have, and no names of files.

    Args:
        path: the file.
        text_column: the column that is read. If there is none of this name, the only column of strings is read, and
            no other one can have titles.
        file_column: a column of names of files.

    Raises:
        InputError: the file cannot be read.
    """
    columns = next(read_blocks(path, FIRST), {})
    others: list[str] = []
    for name, values in columns.items():
        texts = [value for value in (values if isinstance(values, list) else values.to_pylist()) if value]
        several = sum(isinstance(value, str) and len(value.split()) > 1 for value in texts)
        if name not in (text_column, file_column) and several > len(texts) / 2:
            others.append(name)
    if not others or text_column not in columns:
        return ""
    return (
        f"{path}: the column {text_column} is read, not {', '.join(others)}; if one has titles, "
        f"--title_column {others[0]} puts each before its text"
    )
