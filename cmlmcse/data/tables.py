"""A file of texts as Arrow tables: one row per text, in order, with the text column and every other column.

Of a folder or a Markdown file each row is a passage (folder.py), and of a table if it is asked for.

No row is dropped. Training drops blank rows (text.py), but encoding and searching keep them, so that row i stays row i.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow
from pyarrow import compute, types

from cmlmcse.common.errors import InputError

from .folder import cut_text
from .lines import is_number
from .row_blocks import FILE, TEXT, TITLE, kind_of, known_schema, read_blocks, row_count
from .unchanged import Version, check_unchanged, unchanged, version_of

# Of a table's passage, the number of the row that it is from, from 0: the first of these names that is free.
ROW_COLUMNS = ("document", "document_row")
JSON = b"cmlmcse.json"  # in the metadata of a column whose values are JSON, because they have several types
EXACT = 1 << 53  # whole numbers up to this one are exact in float64
TABLE_ROWS = 2048  # rows of a table in memory
TABLE_BYTES = 1 << 28  # of the columns that passages repeat


@dataclass(frozen=True)
class TextFile:
    """A file of texts that was read once and found whole.

    Attributes:
        path: a .csv, .tsv, .json or .jsonl (one object per line) or .parquet file; a Markdown file or a folder of
            text files, whose passages are the rows; any other file holds one text per line. All files but .parquet
            may be compressed: .gz, .bz2, .xz, .zst.
        text_column: the column of the texts.
        schema: all columns with their types.
        rows: number of rows.
        title_column: the column of the titles, if they are to be read.
        file_column: if the rows are passages, the column that says from which file, or row of a table, each one is.
        cut: whether the texts of a table are cut into passages, each of which is a row.
        version: what differs if the file or the folder changed after it was found whole.
    """

    path: Path
    text_column: str
    schema: pyarrow.Schema
    rows: int
    version: Version
    title_column: str | None = None
    file_column: str | None = None
    cut: bool = False

    def tables(self) -> Iterator[pyarrow.Table]:
        """All rows in order, at most `TABLE_ROWS` at a time, every table with the columns of `schema`.

        Raises:
            InputError: the file cannot be read, or it changed. A change of a folder is seen when all is read.
        """
        start, is_file = 0, self.path.is_file()
        with unchanged(self.path, self.version):
            for columns in read_blocks(self.path, TABLE_ROWS):
                missing = [None] * row_count(columns)
                fields = [field for field in self.schema if not (self.cut and field.name == self.file_column)]
                arrays = [_as_field(columns.get(field.name, missing), field) for field in fields]
                table = pyarrow.table(arrays, schema=pyarrow.schema(fields))
                if is_file:  # to look at all files of a folder takes longer
                    self.check_unchanged()
                yield from self._cut(table, start) if self.cut else [table]
                start += len(table)

    def check_unchanged(self) -> None:
        """Check that the file or the folder is as it was when it was found whole.

        Raises:
            InputChanged: it is not.
        """
        check_unchanged(self.path, self.version)

    def _cut(self, table: pyarrow.Table, start: int) -> Iterator[pyarrow.Table]:
        """The passages of a table whose first row has the number `start`, with all columns of their rows."""
        passages = [cut_text(text) for text in self.texts(table)]
        texts = [passage for each in passages for passage in each]
        rows = np.repeat(np.arange(len(table)), [len(each) for each in passages])
        numbers = pyarrow.array(start + np.arange(len(table)), pyarrow.int64())
        others = table.drop_columns([self.text_column])  # the texts are not repeated
        others = others.append_column(str(self.file_column), numbers)
        size = max(1, min(TABLE_ROWS, TABLE_BYTES * len(table) // (others.nbytes + 1)))
        for part in (slice(first, first + size) for first in range(0, len(rows), size)):
            cut = others.take(rows[part]).append_column(self.text_column, pyarrow.array(texts[part], pyarrow.string()))
            yield cut.select(self.schema.names)

    def texts(self, table: pyarrow.Table) -> list[str]:
        """The texts of a table; a missing text becomes an empty one."""
        return [text or "" for text in table[self.text_column].to_pylist()]

    def state(self) -> list[str | int]:
        """Values that differ between two files or folders, or if one changed."""
        return [*self.version, self.rows]

    def titled_texts(self, table: pyarrow.Table) -> list[str]:
        """The texts of a table, each behind its title if titles are read."""
        texts = self.texts(table)
        return with_titles(table[self.title_column].to_pylist(), texts) if self.title_column else texts


def with_titles(titles: Iterable[str | None], texts: Iterable[str]) -> list[str]:
    """Each title and text as one text, joined as in BEIR: a space between, no white space around."""
    return [f"{title or ''} {text}".strip() for title, text in zip(titles, texts, strict=True)]


def rows_of(table: pyarrow.Table, names: Iterable[str | None]) -> Iterator[tuple[str, ...]]:
    """The values of some columns, row by row; empty where a value is missing, or where a name is None."""
    columns = [table[name].to_pylist() if name else [None] * len(table) for name in names]
    yield from zip(*(["" if value is None else str(value) for value in column] for column in columns), strict=True)


def plain_rows(table: pyarrow.Table) -> list[dict[str, Any]]:
    """The rows of a table as Python values, with those of several types as the file has them."""
    rows = table.to_pylist()
    for name in (field.name for field in table.schema if _is_json(field)):
        for row in rows:
            row[name] = None if row[name] is None else json.loads(row[name])
    return rows


def scan(
    path: Path,
    text_column: str | None = None,
    title_column: str | None = None,
    titles: bool = False,
    all_columns: bool = True,
    passages: bool = False,
    as_json: bool = False,
) -> TextFile:
    """Read a file once, so that an error in it is found before the work starts; twice to count its passages.

    Args:
        path: the file, or a folder of text files, whose titles are read.
        text_column: the column of the texts (default: `text`, or the only column of strings).
        title_column: the column of the titles (default: titles are not read).
        titles: read titles from the column `title` by default, if there is one.
        all_columns: read every column as what it holds. Else other columns whose values have several types are left
            out, or read `as_json`.
        passages: cut the texts into passages (:func:`cut_text`). A column of :data:`ROW_COLUMNS` then has the
            number of the row that a passage is from. The passages of a folder are as they are.
        as_json: read them too; :func:`plain_rows` gives their values.

    Raises:
        InputError: the file is missing, cannot be read or is not UTF-8, or there is no such column.
    """
    if not (path.is_file() or path.is_dir()):
        raise InputError(f"{path}: expected a file or a folder of texts, found none; fix the name")
    kind, version = kind_of(path), version_of(path)
    for option, column in (("--text_column", text_column), ("--title_column", title_column)):
        if column is not None and kind in ("lines", "passages"):
            raise InputError(f"{option} expects a table (.csv, .tsv, .jsonl, .parquet), found {path}; drop it")
    fields, mixed, wordy, rows = _read_columns(path)
    known = {*fields, *mixed}
    title = title_column or (
        TITLE if (titles or kind == "passages") and TITLE in known and text_column != TITLE else None
    )
    guessed = text_column is None and TEXT not in known  # then a column that is mixed may be the text
    for name, reason in mixed.items():
        if all_columns or guessed or name in (text_column or TEXT, title):
            advice = "fix it, or give --text_column" if guessed and not all_columns else "fix it"
            raise InputError(f"{path}: expected one type of value in the column {name}, found {reason}; {advice}")
    if not known or (kind == "passages" and not rows):
        raise InputError(f"{path}: expected rows of texts, found none; give a file with text in it")
    if as_json:  # no text, so that they are not taken for one
        fields |= {name: pyarrow.field(name, pyarrow.binary(), metadata={JSON: b""}) for name in mixed}
    schema = pyarrow.schema([field for name, field in fields.items() if as_json or name not in mixed])
    column = _choose_column(path, schema, text_column, wordy - {title})
    if title_column is not None:
        _check_column(path, schema, title_column, "--title_column")
        if title_column == column:
            raise InputError(f"{path}: --title_column expects another column than that of the texts, found {column}")
    source = TextFile(path, column, schema, rows, version, title, FILE if kind == "passages" else None)
    return _as_passages(source) if passages and kind != "passages" else source


class _Columns(NamedTuple):
    """The columns of a file, and the kinds of their values.

    Attributes:
        fields: column → type.
        mixed: column → what it holds, for the columns whose values have no common type.
        wordy: the names of the columns that hold more than numbers.
        rows: the number of rows.
    """

    fields: dict[str, pyarrow.Field]
    mixed: dict[str, str]
    wordy: set[str]
    rows: int


def _read_columns(path: Path) -> _Columns:
    """Read a file to its end for the types of its columns."""
    fields, mixed, rows = {field.name: field for field in known_schema(path)}, {}, 0
    kind, wordy, large = kind_of(path), set(fields), set()
    for columns in read_blocks(path, TABLE_ROWS):
        rows += row_count(columns)
        for name, values in columns.items():
            if kind != "csv" or (name not in wordy and not all(map(is_number, values))):
                wordy.add(name)
            try:
                array = _array(values)
                fields[name] = _merged(fields.get(name), pyarrow.field(name, array.type))
                if _has_large(array):
                    large.add(name)
            except (pyarrow.ArrowException, OverflowError) as error:
                mixed[name] = " ".join(str(error).split())
    mixed |= {name: f"fractions, and whole numbers above {EXACT:,}" for name in large
              if types.is_floating(fields[name].type)}  # fmt: skip
    return _Columns(fields, mixed, wordy, rows)


def _as_passages(source: TextFile) -> TextFile:
    """The same file with its texts cut into passages.

    Raises:
        InputError: it has columns of both names under which the number of a passage's row can be written.
    """
    name = next((each for each in ROW_COLUMNS if each not in source.schema.names), None)
    if name is None:
        raise InputError(
            f"{source.path}: --passages writes the number of a passage's row as the column {' or '.join(ROW_COLUMNS)}, "
            "found columns of both names; rename one"
        )
    fields = [*source.schema, pyarrow.field(name, pyarrow.int64())]
    for place, field in enumerate(fields):
        if field.name == source.text_column or types.is_string_view(field.type):  # whose rows Arrow cannot repeat
            fields[place] = pyarrow.field(field.name, pyarrow.string())
    schema = pyarrow.schema(fields)
    cut = replace(source, schema=schema, file_column=name, cut=True)
    return replace(cut, rows=sum(map(len, cut.tables())))


def read_ranges(tables: Iterator[pyarrow.Table], ranges: Iterable[range]) -> Iterator[pyarrow.Table]:
    """Yield one table per range of rows. The ranges must ascend and not overlap."""
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


def _merged(known: pyarrow.Field | None, found: pyarrow.Field) -> pyarrow.Field:
    """One field for the values of two blocks of a column.

    Raises:
        ArrowException: no type holds both.
    """
    if known is None:
        return found
    both = [pyarrow.schema([field]) for field in (known, found)]
    return pyarrow.unify_schemas(both, promote_options="permissive").field(0)


def _has_large(array: Any) -> bool:
    """Whether a column has whole numbers that no column of fractions can hold."""
    if not types.is_integer(array.type):
        return False
    bounds = compute.min_max(array)
    return any(abs(bounds[name].as_py() or 0) > EXACT for name in ("min", "max"))


def _array(values: Any, kind: pyarrow.DataType | None = None) -> Any:
    """A column as an Arrow array, cast to the type `kind` if it is given."""
    if isinstance(values, list):
        return pyarrow.array(values, kind)
    return values if kind is None else values.cast(kind)


def _is_json(field: pyarrow.Field) -> bool:
    """Whether the values of a column are JSON."""
    return JSON in (field.metadata or {})


def _as_field(values: Any, field: pyarrow.Field) -> Any:
    """A column as an Arrow array of a field's type."""
    if _is_json(field):
        values = [None if value is None else json.dumps(value).encode() for value in values]
    return _array(values, field.type)


def is_text(kind: pyarrow.DataType) -> bool:
    """Whether a column of this type holds texts."""
    kind = kind.value_type if types.is_dictionary(kind) else kind
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)


def no_column(source: str | Path, wanted: str, names: Sequence[str], option: str) -> InputError:
    """The error for a table without a column: the columns that it has, and the option that names another one."""
    found = ", ".join(names) or "none"
    return InputError(f"{source}: expected a column {wanted}, found the columns {found}; give {option} NAME")


def _choose_column(path: Path, schema: pyarrow.Schema, wanted: str | None, wordy: set[str]) -> str:
    """The column of the texts. Without a wish: `text`, or the only column of strings among the `wordy`.

    Raises:
        InputError: there is no such column, it holds no text, or the choice is ambiguous.
    """
    if wanted is None and TEXT not in schema.names:
        strings = [field.name for field in schema if is_text(field.type) and field.name in wordy]
        if len(strings) != 1:
            raise no_column(path, TEXT, schema.names, "--text_column")
        return strings[0]
    return _check_column(path, schema, wanted or TEXT, "--text_column")


def _check_column(path: Path, schema: pyarrow.Schema, name: str, option: str) -> str:
    """The name of a column, which must be there and hold texts.

    Raises:
        InputError: it is not there, or holds something else.
    """
    if name not in schema.names:
        raise no_column(path, name, schema.names, option)
    if not is_text(schema.field(name).type):
        raise InputError(f"{path}: expected text in the column {name}, found {schema.field(name).type}")
    return name
