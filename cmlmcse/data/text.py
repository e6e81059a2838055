"""Load training sentences from text files, tables, Wikipedia dumps and Hub datasets, one sentence per row."""

import codecs
import contextlib
import glob
import hashlib
import itertools
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pandas
import pyarrow
from datasets import Dataset, Features, IterableDataset, Value
from datasets.exceptions import DatasetsError
from pyarrow import parquet

from cmlmcse.common.errors import InputError
from cmlmcse.common.files import update_from_file

from . import wikipedia
from .columns import BLOCK_ROWS, HEAD_ROWS, SCORE, STRING, Columns, Sentences, check_texts, choose_columns, only_columns
from .folder import files_in
from .lines import VERSION, check_separator, check_utf8, read_documents, read_lines, readable, split_compression
from .tables import is_text

FEATURES = Features({"text": STRING})
FORMATS = {".txt": "text", ".csv": "csv", ".tsv": "tsv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}
KNOWN = ".txt, .csv, .tsv, .json, .jsonl (also .gz, .bz2, .xz, .zst), .parquet, .xml.bz2 (a Wikipedia dump)"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?")
# Readers of the library `datasets`; these names are not ids on the Hub.
_READERS = ("text", "csv", "json", "pandas", "parquet", "arrow", "xml", "webdataset", "generator")


def load_sentences(
    train_file: str,
    text_column: str | None = None,
    streaming: bool = False,
    data_files: str | None = None,
    positive_column: str | None = None,
    negative_column: str | None = None,
    documents: bool = False,
    score_column: str | None = None,
) -> Sentences:
    """Return the non-empty rows of a file, or of a Hub dataset's training split, as a dataset of one column, "text".

    With `documents` a row of a text file or a dump is a document with one sentence per line. In other sources each row
    is a document in any case.

    If `positive_column` or `negative_column` is given, a table's rows also have the columns "positive" and "negative".
    A row is dropped if one of its texts is missing. With `score_column` they have a number in the column "score".

    Raises:
        InputError: the source is missing, unreadable, empty, not UTF-8 or malformed, or has no such column; a row has
            no finite number as its score.
    """
    kind = source_kind(train_file)
    labels = {"positive": positive_column, "negative": negative_column, SCORE: score_column}
    columns = {"text": text_column} | {name: column for name, column in labels.items() if column is not None}
    if kind in ("text", "wikipedia"):
        choose_columns(train_file, ["text"], ["text"], columns)
    try:
        with _quiet():
            if kind in ("text", "wikipedia"):
                sentences = _generated(kind, train_file, streaming, documents)
            elif kind == "hub":
                sentences = _from_hub(train_file, columns, streaming, data_files)
            else:
                sentences = _from_table(kind, train_file, columns, streaming)
            first = next(iter(sentences.take(1)), None)
    except InputError:
        raise
    except (DatasetsError, ValueError, pyarrow.ArrowException) as error:
        raise as_text_error(kind, train_file, error) from error
    if first is None:
        raise _no_rows(train_file)
    return sentences


def fingerprint_text(path: str) -> dict[str, str | int]:
    """Return what identifies a source in a record: the name, size and SHA-256 of a local file, or the id of a dataset.
    For a folder it is the name, and the number, size and SHA-256 of the text files that are read of it.

    Raises:
        InputError: a folder holds no text file.
    """
    if not os.path.exists(path):
        return {"dataset": path}
    name, files = os.path.basename(os.path.abspath(path)), files_in(path) if os.path.isdir(path) else [path]
    digest = hashlib.sha256()
    for each in files:
        if os.path.isdir(path):
            digest.update(os.path.relpath(each, path).encode() + b"\0")
        update_from_file(digest, each)
    kind: dict[str, str | int] = {"folder": name, "files": len(files)} if os.path.isdir(path) else {"file": name}
    return {**kind, "bytes": sum(map(os.path.getsize, files)), "sha256": digest.hexdigest()}


def source_kind(path: str) -> str:
    """Return the reader for a path: "text", "csv", "tsv", "json", "parquet", "wikipedia" or "hub".

    Raises:
        InputError: the path is neither a readable, non-empty file with a known suffix nor a dataset's id.
    """
    name = os.path.basename(path).lower()
    stem, compression = split_compression(name)
    kind = FORMATS.get(os.path.splitext(stem)[1])
    if kind == "parquet" and compression:
        kind = None
    if kind is None and compression != ".zst" and re.search(r".\.xml\b", name):
        kind = "wikipedia"
    if not os.path.exists(path):
        if kind is None and _HUB_ID.fullmatch(path) and path not in _READERS:
            return "hub"
        raise InputError(f"{path}: expected a file or a Hub dataset id (owner/name), found neither; fix the name")
    if os.path.isdir(path):
        raise InputError(f"{path}: expected a file, found a directory; name a file in it")
    if kind is None:
        raise InputError(f"{path}: unknown suffix, expected one of {KNOWN}; rename or convert the file")
    if os.path.getsize(path) == 0:
        raise InputError(f"{path}: expected sentences, found an empty file; give a file with text in it")
    return kind


def read_articles(path: str) -> Iterator[list[str]]:
    """Yield the sentences of each article of a Wikipedia dump. Its errors become InputErrors."""
    with readable(path) as file:
        try:
            yield from wikipedia.read_articles(file)
        except (SyntaxError, ValueError, AttributeError) as error:  # ElementTree's ParseError is a SyntaxError
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"{path}: expected a Wikipedia dump (pages-articles), found something else ({error}); download one"
            ) from error


def file_state(path: str) -> dict[str, str | int]:
    """Return what shows, without reading a file, whether it changed: its path, size and modification time."""
    status = os.stat(path)
    return {"path": os.path.abspath(path), "bytes": status.st_size, "changed_ns": status.st_mtime_ns}


def _check_once(path: str) -> None:
    """Check that a file is UTF-8, unless the cache records that it passed before: a large file is checked only once."""
    key = hashlib.sha256(json.dumps([VERSION, file_state(path)]).encode()).hexdigest()
    mark = Path(datasets.config.HF_DATASETS_CACHE) / "cmlmcse-checked" / key
    if not mark.exists():
        check_utf8(path)
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()


def _rows(kind: str, path: str, version: int, documents: bool = False, **state: int) -> Iterator[dict[str, str]]:
    """Yield the rows of a generated dataset. `version` and `state` are used only for the cache key."""
    texts: Iterator[str]
    if documents:
        texts = map("\n".join, read_documents(path) if kind == "text" else filter(None, read_articles(path)))
    else:
        texts = read_lines(path) if kind == "text" else itertools.chain.from_iterable(read_articles(path))
    for text in texts:
        yield {"text": text}


def _generated(kind: str, path: str, streaming: bool, documents: bool) -> Sentences:
    """Return the dataset of a text file or a dump, cached by the file's path, size and modification time."""
    version = VERSION if kind == "text" else wikipedia.VERSION
    arguments = {"kind": kind, "version": version, "documents": documents, **file_state(path)}
    if streaming:
        return IterableDataset.from_generator(_rows, features=FEATURES, gen_kwargs=arguments)
    return Dataset.from_generator(_rows, features=FEATURES, gen_kwargs=arguments, writer_batch_size=BLOCK_ROWS)


def _from_table(kind: str, path: str, columns: Columns, streaming: bool) -> Sentences:
    """Return the dataset of a .csv, .tsv, .json, .jsonl or .parquet file with the reader of `datasets`."""
    options: dict[str, Any] = {}
    if kind != "parquet":
        _check_once(path)
    if kind in ("csv", "tsv"):
        options, strings = _csv_options(kind, path)
        columns = choose_columns(path, list(options["features"]), strings, columns)
    elif kind == "parquet":
        options, columns = _parquet_options(path, columns)
    name = "csv" if kind == "tsv" else kind
    file = glob.escape(os.path.abspath(path))  # `datasets` treats a name as a pattern
    rows = datasets.load_dataset(name, data_files=file, split="train", streaming=streaming, **options)
    return only_columns(rows, path, columns)


def _csv_options(kind: str, path: str) -> tuple[dict[str, Any], list[str]]:
    """Return the reader's options, every column a string, and the names of the columns that hold strings."""
    options = {"sep": "\t", "quoting": 3} if kind == "tsv" else {"sep": ",", "quoting": 0}  # no quoting in .tsv
    options |= {"keep_default_na": False}  # "NA" and "null" are words
    with readable(path) as file:
        head = pandas.read_csv(file, encoding="utf-8-sig", nrows=HEAD_ROWS, **options)
    if not isinstance(head.index, pandas.RangeIndex):
        raise _malformed(kind, path, "rows have more fields than the header; put quotes round text with commas")
    names = [str(name) for name in head.columns]
    if len(names) == 1:
        check_separator(path, names[0], kind == "tsv")
    strings = [str(name) for name in head.columns if pandas.api.types.is_string_dtype(head[name])]
    return options | {"features": Features(dict.fromkeys(names, Value("string")))}, strings


def _parquet_options(path: str, columns: Columns) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the reader's options and the columns, which are chosen by the file's schema. `datasets` gets the types of
    these alone: a type that it does not know may be another column's."""
    schema = parquet.read_schema(path)
    strings = [field.name for field in schema if is_text(field.type)]
    chosen = choose_columns(path, schema.names, strings, columns)
    check_texts(path, chosen, strings)
    names = list(dict.fromkeys(chosen.values()))
    features = Features.from_arrow_schema(pyarrow.schema([schema.field(name) for name in names]))
    return {"columns": names, "features": features}, chosen


def as_text_error(kind: str, path: str, error: BaseException) -> InputError:
    """Return the InputError for an exception of `datasets`, with its innermost cause."""
    while error.__cause__ is not None and not isinstance(error, InputError):
        error = error.__cause__
    if isinstance(error, InputError):
        return error
    if "corresponds to no data" in str(error):  # the message of `datasets` for a file without rows
        return _no_rows(path)
    return _malformed(kind, path, error)


def _no_rows(path: str) -> InputError:
    """Return the error for a source without text."""
    return InputError(f"{path}: expected sentences, found no non-empty row; give a file with text in it")


def _malformed(kind: str, path: str, detail: object) -> InputError:
    """Return the error for a file that its reader refuses. For JSON it names the line."""
    where = _bad_json_line(path) if kind == "json" else ""
    found = where or " ".join(str(detail).split())
    return InputError(f"{path}: expected well-formed {kind}, found {found}; fix the file")


def _bad_json_line(path: str) -> str:
    """Return the line of the first row of a JSON Lines file (or in a JSON list) that is not JSON, and why."""
    with readable(path) as file:
        whole = file.read(1 << 10).lstrip(codecs.BOM_UTF8).lstrip().startswith(b"[")
    with readable(path) as file:
        for number, line in enumerate([file.read()] if whole else file, start=1):
            try:
                json.loads(line.decode("utf-8-sig") or "null") if line.strip() else None
            except ValueError as error:
                at = error.lineno + number - 1 if isinstance(error, json.JSONDecodeError) else number
                return f"line {at}: {error.msg if isinstance(error, json.JSONDecodeError) else error}"
    return ""


def _from_hub(dataset: str, columns: Columns, streaming: bool, data_files: str | None) -> Sentences:
    """Return the training split of a Hub dataset, or of one file in it."""
    try:
        rows = datasets.load_dataset(dataset, data_files=data_files or None, split="train", streaming=streaming)
        return only_columns(rows, dataset, columns)
    except InputError:
        raise
    except (DatasetsError, OSError, ValueError, RuntimeError) as error:
        cause = " ".join(str(error).split())
        raise InputError(
            f"{dataset}: expected a path, found no such file or folder here, and as a Hub dataset with the split "
            f"'train' it could not be loaded ({cause}); check the name, and for a dataset the network"
        ) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the error log of `datasets`: the InputError repeats its content."""
    level = datasets.logging.get_verbosity()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    try:
        yield
    finally:
        datasets.logging.set_verbosity(level)
