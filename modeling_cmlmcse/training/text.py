"""Where training sentences come from: text, tables, a Wikipedia dump or a Hub dataset, one sentence a row."""

import bz2
import codecs
import contextlib
import glob
import gzip
import hashlib
import io
import json
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, TypeAlias

import datasets
import pandas
import pyarrow
from datasets import Dataset, Features, IterableDataset, Value
from datasets.exceptions import DatasetsError
from pyarrow import parquet

from ..errors import InputError
from . import wikipedia

FEATURES = Features({"text": Value("string")})
FORMATS = {".txt": "text", ".csv": "csv", ".tsv": "tsv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}
KNOWN = ".txt, .csv, .tsv, .json, .jsonl (also .gz, .bz2, .xz, .zst), .parquet, .xml.bz2 (a Wikipedia dump)"
CHUNK = 1 << 20  # bytes read at a time
HEAD_ROWS = 1000  # rows looked at to learn what a table's columns hold
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?")
_READERS = ("text", "csv", "json", "pandas", "parquet", "arrow", "xml", "webdataset", "generator")  # of datasets
_CORRUPT = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, OSError)

Sentences: TypeAlias = Dataset | IterableDataset


def load_sentences(
    train_file: str,
    text_column: str | None = None,
    streaming: bool = False,
    cache_dir: str | None = None,
    split: str = "train",
    data_files: str | None = None,
) -> Sentences:
    """Return the non-empty rows of a file, or of the `split` of a Hub dataset, as a dataset of one column, "text".

    Raises:
        InputError: the source is missing, unreadable, empty, not UTF-8 or malformed, or has no such column.
    """
    kind = source_kind(train_file)
    if kind in ("text", "wikipedia") and text_column not in (None, "text"):
        raise _no_column(train_file, f"column {text_column!r}", ["text"])
    try:
        with _quiet():
            if kind in ("text", "wikipedia"):
                sentences = _generated(kind, train_file, streaming, cache_dir)
            elif kind == "hub":
                sentences = _from_hub(train_file, text_column, streaming, cache_dir, split, data_files)
            else:
                sentences = _from_table(kind, train_file, text_column, streaming, cache_dir)
            first = next(iter(sentences.take(1)), None)
    except InputError:
        raise
    except (DatasetsError, ValueError, pyarrow.ArrowException) as error:
        raise _mended(kind, train_file, error) from error
    if first is None:
        raise _no_rows(train_file)
    return sentences


def fingerprint(path: str) -> dict[str, str | int]:
    """Return what tells a source again in a record: a local file's name, size and SHA-256, or a dataset's id."""
    if not os.path.exists(path):
        return {"dataset": path}
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return {"file": os.path.basename(path), "bytes": os.path.getsize(path), "sha256": digest.hexdigest()}


def source_kind(path: str) -> str:
    """Return the reader for a path: "text", "csv", "tsv", "json", "parquet", "wikipedia" or "hub".

    Raises:
        InputError: it is neither a readable, non-empty file of a known suffix nor a dataset's id.
    """
    name = os.path.basename(path).lower()
    stem, compression = _stem(name)
    kind = FORMATS.get(os.path.splitext(stem)[1])
    if kind == "parquet" and compression:
        kind = None
    if kind is None and compression != ".zst" and re.search(r".\.xml\b", name):
        kind = "wikipedia"
    if not os.path.exists(path):
        if kind is None and _HUB_ID.fullmatch(path) and path not in _READERS:
            return "hub"
        raise InputError(f"{path}: expected a file or a Hub dataset id (owner/name), found neither; mend it")
    if os.path.isdir(path):
        raise InputError(f"{path}: expected a file, found a directory; name a file in it")
    if kind is None:
        raise InputError(f"{path}: unknown suffix, expected one of {KNOWN}; rename or convert the file")
    if os.path.getsize(path) == 0:
        raise InputError(f"{path}: expected sentences, found an empty file; give a file with text in it")
    return kind


def _stem(name: str) -> tuple[str, str]:
    """Split a compression's suffix off a file name."""
    stem, suffix = os.path.splitext(name)
    return (stem, suffix) if suffix.lower() in (".gz", ".bz2", ".xz", ".zst") else (name, "")


def _open(path: str) -> BinaryIO:
    """Open a file, decompressed if its suffix says so."""
    openers: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, "": open}
    suffix = _stem(path)[1].lower()
    if suffix == ".zst":
        try:
            import zstandard
        except ImportError:
            raise InputError(f"{path}: .zst needs a decoder, which was not found; pip install zstandard") from None
        return io.BufferedReader(zstandard.open(path, "rb"))
    return openers[suffix](path, "rb")


@contextlib.contextmanager
def _readable(path: str) -> Iterator[BinaryIO]:
    """Open a file so that a truncated or corrupt one raises an InputError."""
    try:
        with _open(path) as file:
            yield file
    except InputError:
        raise
    except Exception as error:
        if not isinstance(error, _CORRUPT) and type(error).__name__ != "ZstdError":
            raise
        detail = str(error) or type(error).__name__
        raise InputError(
            f"{path}: expected a whole, readable file, found it truncated or corrupt ({detail}); fetch it again"
        ) from error


def _not_utf8(path: str, offset: int, byte: int) -> InputError:
    """Return the error for a byte which is not UTF-8."""
    return InputError(
        f"{path}: expected UTF-8 text, found byte 0x{byte:02x} at offset {offset}; convert it, as in "
        "`iconv -f latin1 -t utf-8`"
    )


def check_utf8(path: str) -> None:
    """Read a file in chunks to see that it is whole and UTF-8.

    Raises:
        InputError: it is corrupt, or not UTF-8 (names the byte's offset in the decompressed text).
    """
    decoder, done = codecs.getincrementaldecoder("utf-8")(), 0
    with _readable(path) as file:
        while True:
            chunk = file.read(CHUNK)
            pending = len(decoder.getstate()[0])
            try:
                decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError as error:
                raise _not_utf8(path, done - pending + error.start, error.object[error.start]) from None
            done += len(chunk)
            if not chunk:
                return


def read_lines(path: str) -> Iterator[str]:
    """Yield the non-blank lines of a text file: a line ends at a line feed only, its carriage return is dropped.

    Raises:
        InputError: the file is corrupt or not UTF-8.
    """
    offset = 0
    with _readable(path) as file:
        for raw in file:
            start = len(codecs.BOM_UTF8) if offset == 0 and raw.startswith(codecs.BOM_UTF8) else 0
            try:
                line = raw[start:].decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise _not_utf8(path, offset + start + error.start, error.object[error.start]) from None
            offset += len(raw)
            if line.strip():
                yield line


def _read_dump(path: str) -> Iterator[str]:
    """Yield the sentences of a Wikipedia dump, with its errors as InputErrors."""
    with _readable(path) as file:
        try:
            yield from wikipedia.read_dump(file)
        except (SyntaxError, ValueError, AttributeError) as error:  # ElementTree's ParseError is a SyntaxError
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"{path}: expected a Wikipedia dump (pages-articles), found another thing ({error}); fetch one"
            ) from error


def _rows(kind: str, path: str, version: int, sha256: str) -> Iterator[dict[str, str]]:
    """Yield a generated dataset's rows; `version` and `sha256` only make the cache's key."""
    for text in read_lines(path) if kind == "text" else _read_dump(path):
        yield {"text": text}


def _generated(kind: str, path: str, streaming: bool, cache_dir: str | None) -> Sentences:
    """Return the dataset of a text file or a dump, cached by the file's content."""
    arguments = {"kind": kind, "path": os.path.abspath(path), "version": wikipedia.VERSION}
    if streaming:
        return IterableDataset.from_generator(_rows, features=FEATURES, gen_kwargs=arguments | {"sha256": ""})
    arguments["sha256"] = fingerprint(path)["sha256"]
    return Dataset.from_generator(_rows, features=FEATURES, cache_dir=cache_dir, gen_kwargs=arguments)


def _from_table(kind: str, path: str, text_column: str | None, streaming: bool, cache_dir: str | None) -> Sentences:
    """Return the dataset of a .csv, .tsv, .json, .jsonl or .parquet file through datasets' own reader."""
    options: dict[str, Any] = {}
    if kind != "parquet":
        check_utf8(path)
    if kind in ("csv", "tsv"):
        options, strings = _csv_options(kind, path)
        column: str | None = _choose_column(path, list(options["features"]), strings, text_column)
    elif kind == "parquet":
        column = _parquet_column(path, text_column)
        options["columns"] = [column]
    else:
        column = text_column
    name = "csv" if kind == "tsv" else kind
    file = glob.escape(os.path.abspath(path))  # datasets reads a name as a pattern
    rows = datasets.load_dataset(
        name, data_files=file, split="train", streaming=streaming, cache_dir=cache_dir, **options
    )
    return _one_column(rows, path, column)


def _csv_options(kind: str, path: str) -> tuple[dict[str, Any], list[str]]:
    """Return the reader's options, every column a string, and the names of the columns that hold strings."""
    options = {"sep": "\t", "quoting": 3} if kind == "tsv" else {"sep": ",", "quoting": 0}  # no quoting in .tsv
    options |= {"keep_default_na": False}  # "NA" and "null" are words
    with _readable(path) as file:
        head = pandas.read_csv(file, encoding="utf-8-sig", nrows=HEAD_ROWS, **options)
    if not isinstance(head.index, pandas.RangeIndex):
        raise _malformed(kind, path, "rows have more fields than the header; put quotes round text with commas")
    names = [str(name) for name in head.columns]
    strings = [str(name) for name in head.columns if pandas.api.types.is_string_dtype(head[name])]
    return options | {"features": Features(dict.fromkeys(names, Value("string")))}, strings


def _parquet_column(path: str, text_column: str | None) -> str:
    """Return the text column of a .parquet file by its schema."""
    schema = parquet.read_schema(path)
    types = Features.from_arrow_schema(schema)
    return _choose_column(path, list(types), [name for name in types if _is_string(types[name])], text_column)


def _is_string(feature: object) -> bool:
    """Tell whether a column's type is text."""
    return isinstance(feature, Value) and feature.dtype in ("string", "large_string", "string_view")


def _mended(kind: str, path: str, error: BaseException) -> InputError:
    """Return the InputError for what datasets raised: its innermost cause."""
    while error.__cause__ is not None and not isinstance(error, InputError):
        error = error.__cause__
    if isinstance(error, InputError):
        return error
    if "corresponds to no data" in str(error):  # what datasets says of a file without rows
        return _no_rows(path)
    return _malformed(kind, path, error)


def _no_rows(path: str) -> InputError:
    """Return the error for a source without text."""
    return InputError(f"{path}: expected sentences, found no non-empty row; give a file with text in it")


def _malformed(kind: str, path: str, detail: object) -> InputError:
    """Return the error for a file which its reader refuses, with the line where that can be found out."""
    where = _bad_json_line(path) if kind == "json" else ""
    found = where or " ".join(str(detail).split())
    return InputError(f"{path}: expected well-formed {kind}, found {found}; mend it")


def _bad_json_line(path: str) -> str:
    """Return the line of the first row of a JSON Lines file (or in a JSON list) that is not JSON, and why."""
    with _readable(path) as file:
        whole = file.read(1 << 10).lstrip(codecs.BOM_UTF8).lstrip().startswith(b"[")
    with _readable(path) as file:
        for number, line in enumerate([file.read()] if whole else file, start=1):
            try:
                json.loads(line.decode("utf-8-sig") or "null") if line.strip() else None
            except ValueError as error:
                at = error.lineno + number - 1 if isinstance(error, json.JSONDecodeError) else number
                return f"line {at}: {error.msg if isinstance(error, json.JSONDecodeError) else error}"
    return ""


def _from_hub(
    dataset: str, text_column: str | None, streaming: bool, cache_dir: str | None, split: str, data_files: str | None
) -> Sentences:
    """Return a split of a Hub dataset, or of one file in it."""
    try:
        rows = datasets.load_dataset(
            dataset, data_files=data_files, split=split, streaming=streaming, cache_dir=cache_dir
        )
        return _one_column(rows, dataset, text_column)
    except InputError:
        raise
    except (DatasetsError, OSError, ValueError, RuntimeError) as error:
        cause = " ".join(str(error).split())
        raise InputError(
            f"{dataset}: expected a file or a Hub dataset with the split {split!r}, found no such file, and "
            f"the dataset could not be loaded ({cause}); check the name and the network"
        ) from error


def _choose_column(source: str, names: list[str], strings: list[str], wanted: str | None) -> str:
    """Return the wanted column, else "text", else the only column of strings."""
    if wanted is not None:
        if wanted not in names:
            raise _no_column(source, f"column {wanted!r}", names)
        return wanted
    if "text" in names:
        return "text"
    if len(strings) != 1:
        raise _no_column(source, 'a column "text" or a single column of strings', names)
    return strings[0]


def _no_column(source: str, expected: str, names: list[str]) -> InputError:
    """Return the error for a column which is not there."""
    return InputError(f"{source}: expected {expected}, found the columns {', '.join(names)}; set text_column")


def _one_column(rows: Sentences, source: str, wanted: str | None) -> Sentences:
    """Return the text column alone, without rows that are null or blank."""
    features = rows.features
    if features is None:  # a stream that has not been looked at
        head = list(rows.take(HEAD_ROWS // 10))
        names = list(dict.fromkeys(name for row in head for name in row))
        strings = [name for name in names if any(isinstance(row.get(name), str) for row in head)]
    else:
        names, strings = list(features), [name for name in features if _is_string(features[name])]
    column = _choose_column(source, names, strings, wanted)
    if column not in strings:
        raise InputError(f"{source}: expected text in column {column!r}, found another type; set text_column")
    options = {} if isinstance(rows, IterableDataset) else {"desc": "Dropping blank rows"}
    return rows.map(
        _clean, batched=True, remove_columns=names, features=FEATURES, fn_kwargs={"column": column}, **options
    )


def _clean(batch: dict[str, list[str | None]], column: str) -> dict[str, list[str]]:
    """Keep the rows of a batch that have text, without line ends at their end."""
    return {"text": [text.rstrip("\r\n") for text in batch[column] if text and text.strip()]}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence datasets' own error log: what it says is in the InputError."""
    level = datasets.logging.get_verbosity()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    try:
        yield
    finally:
        datasets.logging.set_verbosity(level)
