"""Retrieval sets in BEIR's format, from a data folder or the Hub. A set is checked fully before encoding starts."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cmlmcse.common.errors import InputError

from .data_checks import not_utf8
from .sts_data import MissingData, data_root, hub_errors

FILES = ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv")
QRELS_HEADER = ("query-id", "corpus-id", "score")
HUB_NAME = "scifact"  # the set fetched without --data_dir; one of the smallest of the papers' sets
HUB, HUB_QRELS = "BeIR/scifact", "BeIR/scifact-qrels"

Rows = Callable[[], Iterable[tuple[str, Any]]]
"""Each call iterates over all rows of a file or table: (the row's place, for messages; its content)."""


@dataclass(frozen=True)
class RetrievalSet:
    """One set (Thakur et al. 2021, §3). Memory holds the ids of the passages; their texts stay on disk.

    Attributes: `passages`, id → position in the corpus (about 150 bytes a passage); `queries`, id → text; `qrels`,
    query → passage → relevance, only for queries that have a relevant passage; `rows`, reads the corpus.
    """

    passages: dict[str, int]
    queries: dict[str, str]
    qrels: dict[str, dict[str, int]]
    rows: Rows

    def texts(self) -> Iterator[str]:
        """The passages' texts, one at a time, in the order of the corpus."""
        return (passage_text(where, row) for where, row in self.rows())


def load_retrieval(data_dir: str | None) -> dict[str, RetrievalSet | None]:
    """Every folder under `beir/`; None for a folder with a missing file. Without `data_dir`: SciFact from the Hub.

    Raises:
        InputError: no such folder, a malformed or contradictory set, no Hub; `MissingData` if no set is complete.
    """
    if data_dir is None:
        return {HUB_NAME: from_hub()}
    folders = set_folders(data_dir)
    if all(map(missing_files, folders)):
        root = Path(data_dir) / "beir"
        lines = missing_retrieval(data_dir, {folder.name: None for folder in folders})
        raise MissingData("; ".join(lines) or f"retrieval: no set under {root}, expected such as {root / 'scifact'}")
    return {folder.name: None if missing_files(folder) else from_folder(folder) for folder in folders}


def missing_retrieval(data_dir: str | None, data: dict[str, RetrievalSet | None]) -> list[str]:
    """One line for each set with missing files."""
    folders = set_folders(data_dir) if data_dir else []
    return [
        f"retrieval {folder.name}: no {', '.join(map(str, missing_files(folder)))}"
        for folder in folders
        if folder.name in data and data[folder.name] is None
    ]


def set_folders(data_dir: str) -> list[Path]:
    """The folders under `beir/`, sorted by name.

    Raises:
        InputError: the data folder does not exist.
    """
    return sorted(path for path in data_root(data_dir, "beir").glob("*") if path.is_dir() and path.name[0] != ".")


def missing_files(folder: Path) -> list[Path]:
    """The files of a set that do not exist."""
    return [folder / name for name in FILES if not (folder / name).is_file()]


def from_folder(folder: Path) -> RetrievalSet:
    """One set from its three files.

    Raises:
        InputError: as :func:`check_set`; a line that is not JSON, or that does not have three columns.
    """
    corpus, queries, qrels = (folder / name for name in FILES)
    return check_set(
        str(folder), lambda: read_json_lines(corpus), lambda: read_json_lines(queries), lambda: read_qrels(qrels)
    )


def from_hub() -> RetrievalSet:
    """SciFact from the Hub's two datasets, memory-mapped.

    Raises:
        InputError: the Hub cannot be reached; as :func:`check_set`.
    """
    from datasets import load_dataset

    with hub_errors(HUB, "beir"):
        corpus, queries = (load_dataset(HUB, part, split=part) for part in ("corpus", "queries"))
        qrels = load_dataset(HUB_QRELS, split="test")
    return check_set(
        f"Hub dataset {HUB}",
        lambda: hub_rows(f"Hub dataset {HUB}, corpus", corpus),
        lambda: hub_rows(f"Hub dataset {HUB}, queries", queries),
        lambda: (
            (where, [str(row.get(name)) for name in QRELS_HEADER])
            for where, row in hub_rows(f"Hub dataset {HUB_QRELS}", qrels)
        ),
    )


def check_set(source: str, corpus: Rows, queries: Rows, qrels: Rows) -> RetrievalSet:
    """Read a set, and check that ids are unique and that the qrels name only known queries and passages.

    Raises:
        InputError: a check fails, the corpus is empty, or no query has a relevant passage.
    """
    passages: dict[str, int] = {}
    for where, row in corpus():
        passages[unique_id(where, row, passages)] = len(passages)
        passage_text(where, row)
    if not passages:
        raise InputError(f"{source}: expected passages, found an empty corpus; restore it")
    texts: dict[str, str] = {}
    for where, row in queries():
        texts[unique_id(where, row, texts)] = text_field(where, row, "text")
    relevance: dict[str, dict[str, int]] = {}
    for where, (query, passage, score) in qrels():
        _check_known(where, query, texts, "query")
        _check_known(where, passage, passages, "passage")
        judged, value = relevance.setdefault(query, {}), parse_score(where, score)
        if judged.setdefault(passage, value) != value:
            raise InputError(
                f"{where}: expected one score for a passage, found another one on an earlier line; remove one of them"
            )
    scored = {query: judged for query, judged in relevance.items() if max(judged.values()) > 0}
    if not scored:
        raise InputError(f"{source}: expected a query with a relevant passage, found none; check the qrels")
    return RetrievalSet(passages, {query: texts[query] for query in scored}, scored, corpus)


def _check_known(where: str, found: str, known: dict[str, Any], what: str) -> None:
    """Refuse an id that is not in the set."""
    if found not in known:
        raise InputError(f"{where}: expected the id of a {what}, found {found!r}; take all files from one release")


def unique_id(where: str, row: Any, known: dict[str, Any]) -> str:
    """The `_id` of a row of the corpus or of the queries; it must differ from all earlier ones."""
    if not isinstance(row, dict):
        raise InputError(f"{where}: expected a JSON object with _id and text, found {type(row).__name__}; fix the line")
    found = row.get("_id")
    if not isinstance(found, str) or not found:
        raise InputError(f"{where}: expected a text as _id, found {found!r}; fix the line")
    if found in known:
        raise InputError(f"{where}: expected each _id once, found {found!r} again; remove one of the two")
    return found


def text_field(where: str, row: dict[str, Any], key: str) -> str:
    """The string at a key of a row."""
    found = row.get(key)
    if not isinstance(found, str):
        raise InputError(f"{where}: expected a text as {key}, found {found!r}; fix the line")
    return found


def passage_text(where: str, row: dict[str, Any]) -> str:
    """title + " " + text without surrounding white space, as in BEIR; the title may be missing."""
    title = "" if row.get("title") is None else text_field(where, row, "title")
    return f"{title} {text_field(where, row, 'text')}".strip()


def parse_score(where: str, text: str) -> int:
    """The relevance score of a qrels row."""
    try:
        return int(text)
    except ValueError:
        raise InputError(f"{where}: expected a whole number as score, found {text!r}; fix the line") from None


def hub_rows(source: str, table: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """The rows of a Hub dataset, each with its place."""
    return ((f"{source}, row {number}", row) for number, row in enumerate(table))


def read_lines(path: Path) -> Iterator[tuple[str, str]]:
    """The lines of a file, each with its place, read one at a time. Blank lines are skipped.

    Raises:
        InputError: it cannot be read, or is not UTF-8.
    """
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield f"{path}, line {number}", line.decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise not_utf8(f"{path}, line {number}", error) from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error


def read_json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    """The objects of a JSON lines file, each with its place.

    Raises:
        InputError: a line is not JSON.
    """
    for where, line in read_lines(path):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise InputError(
                f"{where}: expected a JSON object, found something else ({error}); fix the line"
            ) from error
        yield where, row


def read_qrels(path: Path) -> Iterator[tuple[str, list[str]]]:
    """The rows of a qrels file (query id, passage id, score), each with its place.

    Raises:
        InputError: a wrong header, or a row without three columns.
    """
    lines = ((where, line.split("\t")) for where, line in read_lines(path))
    where, header = next(lines, (str(path), []))
    if tuple(header) != QRELS_HEADER:
        expected = " TAB ".join(QRELS_HEADER)
        raise InputError(f"{where}: expected the header {expected}, found {' TAB '.join(header)!r}; put it first")
    for where, columns in lines:
        if len(columns) != 3:
            raise InputError(f"{where}: expected 3 columns between tabs, found {len(columns)}; fix the line")
        yield where, columns
