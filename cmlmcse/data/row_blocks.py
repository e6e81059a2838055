"""Reads a file of texts in blocks of rows: plain text, CSV, JSON Lines, Parquet, and the passages of a folder.

text.py reads such tables for training, and by another reader: the library `datasets`. It copies the one column of texts
to the disk, so that a text larger than the memory can be shuffled; it streams, and reads the Hub. It accepts a row with
too few fields, and two columns of one name. Here both are errors, because every row and column is kept.
"""

import codecs
import contextlib
import csv
import io
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

from cmlmcse.common.errors import InputError

from .folder import files_in, has_passages, read_passages
from .lines import check_separator, check_utf8, read_lines, readable, suffix_of

TEXT = "text"
TITLE = "title"
FILE = "file"  # of a folder's passage


def kind_of(path: Path) -> str:
    """The kind of reader that a file needs, by its suffix, or that a folder needs."""
    if has_passages(path):
        return "passages"
    readers = {".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}
    return readers.get(suffix_of(path), "lines")


def known_schema(path: Path) -> pyarrow.Schema:
    """The columns that are known before any row is read.

    Raises:
        InputError: the file cannot be read, or has two columns of one name.
    """
    known = {"lines": (TEXT,), "passages": (FILE, TITLE, TEXT)}
    if (kind := kind_of(path)) != "parquet":
        return pyarrow.schema([(name, pyarrow.string()) for name in known.get(kind, ())])
    with open_parquet(path) as file:
        schema = file.schema_arrow.remove_metadata()
    check_names(path, schema.names)
    return schema


def check_names(path: Path, names: list[str]) -> None:
    """Check that each column of a table has a name of its own, because rows are kept by these names.

    Raises:
        InputError: two have the same one.
    """
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise InputError(f"{path}: expected each column once, found {twice[0]!r} twice; rename one")


@contextlib.contextmanager
def open_parquet(path: Path) -> Iterator[parquet.ParquetFile]:
    """Open a .parquet, to be read inside the block.

    Raises:
        InputError: it cannot be read.
    """
    try:
        with parquet.ParquetFile(path) as file:
            yield file
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{path}: expected a Parquet file, found one that cannot be read ({error})") from error


def read_blocks(path: Path, size: int) -> Iterator[dict[str, Any]]:
    """Yield blocks of `size` rows as columns by name: lists or Arrow arrays.

    Raises:
        InputError: the file cannot be read.
    """
    kind = kind_of(path)
    if kind == "parquet":
        with open_parquet(path) as file:
            for batch in file.iter_batches(batch_size=size):
                yield dict(zip(batch.schema.names, batch.columns, strict=True))
        return
    if kind == "lines":
        lines = read_lines(str(path), blank=True)
        while block := list(islice(lines, size)):
            yield {TEXT: block}
        return
    readers: dict[str, Callable[[Path], Iterator[dict[str, Any]]]]
    readers = {"passages": _passages, "csv": _csv_rows, "json": _json_rows}
    if kind != "passages":
        check_utf8(str(path))
    rows = readers[kind](path)
    while row_block := list(islice(rows, size)):
        names = dict.fromkeys(name for row in row_block for name in row)
        yield {name: [row.get(name) for row in row_block] for name in names}


def row_count(columns: dict[str, Any]) -> int:
    """The number of rows in columns from :func:`read_blocks`."""
    return len(next(iter(columns.values()), []))


def _passages(path: Path) -> Iterator[dict[str, str]]:
    """Yield the passages of a folder's files or of a Markdown file, each with its title and the name of its file."""
    for file in files_in(str(path)):
        below = Path(file).relative_to(path).as_posix() if path.is_dir() else path.name
        name = os.fsencode(below).decode("utf-8", "replace")
        yield from ({FILE: name, TITLE: title, TEXT: text} for title, text in read_passages(file))


def _csv_rows(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of a .csv, or of a .tsv, which has no quoting. Every value is text. Several empty columns
    without a name, as the commas that spreadsheets leave at the end of each line make them, are left out."""
    csv.field_size_limit(2**31 - 1)  # a document may exceed the module's default of 128 KiB
    tabs = suffix_of(path) == ".tsv"
    style: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if tabs else {"strict": True}
    with readable(str(path)) as file, io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
        reader = csv.reader(text, **style)
        header = next(reader, [])
        nameless = [place for place, name in enumerate(header) if not name]
        nameless = nameless if len(nameless) > 1 else []
        named = [place for place in range(len(header)) if place not in nameless]
        check_names(path, [header[place] for place in named])
        if len(header) == 1:
            check_separator(str(path), header[0], tabs)
        try:
            for row in reader:
                if row and len(row) != len(header):
                    raise InputError(
                        f"{path}: expected {len(header)} fields in line {reader.line_num}, as in the header, found "
                        f"{len(row)}; put quotes round text with commas"
                    )
                if found := [row[place] for place in nameless if row and row[place]]:
                    raise InputError(
                        f"{path}: expected a name for each column that has text, found {found[0][:40]!r} in one "
                        f"without in line {reader.line_num}; name the column, or remove it"
                    )
                if row:
                    yield {header[place]: row[place] for place in named}
        except csv.Error as error:
            raise InputError(f"{path}: expected CSV, found line {reader.line_num}: {error}; fix it") from error


def _json_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSON Lines file, or of a .json file that holds a list of them; blank lines are skipped."""
    if (listed := _json_list(path)) is not None:
        for place, row in enumerate(listed, start=1):
            yield _checked(path, row, f"row {place}")
        return
    with readable(str(path)) as file:
        for number, line in enumerate(file, start=1):
            line = line.removeprefix(codecs.BOM_UTF8)
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise InputError(f"{path}: expected one JSON object per line, found line {number}: {error}") from error
            yield _checked(path, row, f"line {number}", escaped=b"\\u" in line)


def _json_list(path: Path) -> list[Any] | None:
    """The content of a .json file that begins as a list; None for other files."""
    if suffix_of(path) != ".json":
        return None
    with readable(str(path)) as file:
        head = file.read(1 << 10)
        if not head.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"["):
            return None
        try:
            listed: list[Any] = json.loads((head + file.read()).decode("utf-8-sig"))
        except ValueError as error:
            raise InputError(f"{path}: expected a JSON list of objects, found {error}; fix it") from error
    return listed


def _checked(path: Path, row: Any, where: str, escaped: bool = True) -> dict[str, Any]:
    """A row of JSON, which must be an object of whole characters. `escaped`: whether it has `\\u` escapes at all.

    Raises:
        InputError: it is something else.
    """
    if escaped and not _well_formed(row):
        raise InputError(f"{path}: expected text in {where}, found half of a character (\\ud800 to \\udfff); fix it")
    if not isinstance(row, dict):
        raise InputError(f"{path}: expected one JSON object per line, found {type(row).__name__} in {where}")
    return row


def _well_formed(row: Any) -> bool:
    """Whether the strings of a JSON value are text: no half of a pair of surrogates."""
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True
