"""A file of texts as Arrow tables: its text column and every other column, a row a text, in order; no row is dropped.

Training drops blank rows (text.py). A file that is encoded or searched keeps them, so that row i stays row i.
"""

import codecs
import csv
import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet, types

from cmlmcse.common.errors import InputError

from .lines import check_utf8, read_lines, readable, split_compression

TEXT = "text"
TABLE_ROWS = 2048  # rows of a table in memory


@dataclass(frozen=True)
class TextFile:
    """A file of texts that has been read once and is whole.

    Attributes:
        path: a .csv, .tsv, .json or .jsonl (an object a line) or .parquet file; any other holds a text a line. All but
            .parquet may be compressed: .gz, .bz2, .xz, .zst.
        text_column: the column of the texts.
        schema: all columns with their types.
        rows: how many.
    """

    path: Path
    text_column: str
    schema: pyarrow.Schema
    rows: int

    def tables(self) -> Iterator[pyarrow.Table]:
        """All rows in order, `TABLE_ROWS` at a time, every table with the columns of `schema`."""
        for columns in _read(self.path):
            missing = [None] * _rows(columns)
            arrays = [_array(columns.get(field.name, missing), field.type) for field in self.schema]
            yield pyarrow.table(arrays, schema=self.schema)

    def texts(self, table: pyarrow.Table) -> list[str]:
        """The texts of a table; one that is missing is empty."""
        return [text or "" for text in table[self.text_column].to_pylist()]


def scan(path: Path, text_column: str | None = None) -> TextFile:
    """Read a file once, so that a fault in it shows before the work.

    Args:
        path: the file.
        text_column: the column of the texts (default: `text`, or the only column of strings).

    Raises:
        InputError: no such file, one that cannot be read or is not UTF-8, or no such column.
    """
    if not path.is_file():
        raise InputError(f"{path}: expected a file of texts, found {'a folder' if path.is_dir() else 'none'}")
    kind = _kind(path)
    if text_column is not None and kind == "lines":
        raise InputError(f"--text_column expects a table (.csv, .tsv, .jsonl, .parquet), found {path}; drop it")
    schema, rows = _empty_schema(path), 0
    for columns in _read(path):
        rows += _rows(columns)
        try:
            schema = pyarrow.unify_schemas([schema, _schema(columns)], promote_options="permissive")
        except pyarrow.ArrowException as error:
            reason = " ".join(str(error).split())
            raise InputError(f"{path}: expected one type of value in a column, found {reason}; fix it") from error
    return TextFile(path, _choose_column(path, schema, text_column), schema, rows)


def read_ranges(tables: Iterator[pyarrow.Table], ranges: Iterable[range]) -> Iterator[pyarrow.Table]:
    """The rows of each range, a table each; the ranges ascend and do not overlap."""
    table, start = next(tables, None), 0
    for wanted in ranges:
        pieces = []
        while table is not None:
            stop = start + len(table)
            offset = max(wanted.start - start, 0)
            if offset < len(table):
                pieces.append(table.slice(offset, min(wanted.stop, stop) - start - offset))
            if stop >= wanted.stop:
                break
            table, start = next(tables, None), stop
        yield pyarrow.concat_tables(pieces)


def _kind(path: Path) -> str:
    """The reader of a file by its name."""
    suffix = Path(split_compression(path.name.lower())[0]).suffix
    return {".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}.get(suffix, "lines")


def _empty_schema(path: Path) -> pyarrow.Schema:
    """The columns that are known without a row."""
    if _kind(path) != "parquet":
        return pyarrow.schema([(TEXT, pyarrow.string())] if _kind(path) == "lines" else [])
    try:
        return parquet.read_schema(path).remove_metadata()
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{path}: expected a Parquet file, found one that cannot be read ({error})") from error


def _read(path: Path) -> Iterator[dict[str, Any]]:
    """Columns by name, `TABLE_ROWS` rows at a time: lists, or Arrow's arrays.

    Raises:
        InputError: the file cannot be read.
    """
    kind = _kind(path)
    if kind == "parquet":
        try:
            with parquet.ParquetFile(path) as file:
                for batch in file.iter_batches(batch_size=TABLE_ROWS):
                    yield dict(zip(batch.schema.names, batch.columns, strict=True))
        except (pyarrow.ArrowException, OSError) as error:
            raise InputError(f"{path}: expected a Parquet file, found one that cannot be read ({error})") from error
        return
    if kind == "lines":
        lines = read_lines(str(path), blank=True)
        while block := list(islice(lines, TABLE_ROWS)):
            yield {TEXT: block}
        return
    check_utf8(str(path))
    rows = _csv_rows(path) if kind == "csv" else _json_rows(path)
    while some := list(islice(rows, TABLE_ROWS)):
        names = dict.fromkeys(name for row in some for name in row)
        yield {name: [row.get(name) for row in some] for name in names}


def _csv_rows(path: Path) -> Iterator[dict[str, str]]:
    """The rows of a .csv, or of a .tsv, which has no quotes; every value is text."""
    csv.field_size_limit(2**31 - 1)  # a document may be longer than the 128 KiB that the module allows
    tabs = ".tsv" in path.name.lower()
    style: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if tabs else {"strict": True}
    with readable(str(path)) as file, io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
        reader = csv.reader(text, **style)
        header = next(reader, [])
        try:
            for row in reader:
                if row and len(row) != len(header):
                    raise InputError(
                        f"{path}: expected {len(header)} fields in line {reader.line_num}, as in the header, found "
                        f"{len(row)}; put quotes round text with commas"
                    )
                if row:
                    yield dict(zip(header, row, strict=True))
        except csv.Error as error:
            raise InputError(f"{path}: expected CSV, found line {reader.line_num}: {error}; fix it") from error


def _json_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSON Lines file; blank lines are none."""
    with readable(str(path)) as file:
        for number, line in enumerate(file, start=1):
            line = line.removeprefix(codecs.BOM_UTF8)
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise InputError(f"{path}: expected a JSON object a line, found line {number}: {error}") from error
            if not isinstance(row, dict):
                raise InputError(f"{path}: expected a JSON object a line, found {type(row).__name__} in line {number}")
            yield row


def _rows(columns: dict[str, Any]) -> int:
    """The rows of columns as :func:`_read` gives them."""
    return len(next(iter(columns.values()), []))


def _schema(columns: dict[str, Any]) -> pyarrow.Schema:
    """The names and types of columns."""
    return pyarrow.schema([(name, _array(values).type) for name, values in columns.items()])


def _array(values: Any, kind: pyarrow.DataType | None = None) -> Any:
    """A column as Arrow's array, of a type if one is given."""
    if isinstance(values, list):
        return pyarrow.array(values, kind)
    return values if kind is None else values.cast(kind)


def _is_text(kind: pyarrow.DataType) -> bool:
    """Whether a column of this type holds texts."""
    kind = kind.value_type if types.is_dictionary(kind) else kind
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)


def _choose_column(path: Path, schema: pyarrow.Schema, wanted: str | None) -> str:
    """The column of the texts.

    Raises:
        InputError: there is no such column, it holds no text, or several could be meant.
    """
    found = ", ".join(schema.names) or "none"
    strings = [field.name for field in schema if _is_text(field.type)]
    if wanted is None and TEXT not in schema.names:
        if len(strings) != 1:
            raise InputError(f"{path}: expected a column {TEXT}, found the columns {found}; give --text_column")
        return strings[0]
    name = wanted or TEXT
    if name not in schema.names:
        raise InputError(f"{path}: expected a column {name}, found the columns {found}; see --text_column")
    if name not in strings:
        raise InputError(f"{path}: expected text in the column {name}, found {schema.field(name).type}")
    return name
