"""Retrieval sets in BEIR's format, from a data folder or the Hub; checked whole before anything is encoded."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cmlmcse.common.errors import InputError

from .sts_data import MissingData, data_root, hub_errors

FILES = ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv")
QRELS_HEADER = ("query-id", "corpus-id", "score")
HUB_NAME = "scifact"  # fetched without --data_dir; of the papers' sets one of the smallest
HUB, HUB_QRELS = "BeIR/scifact", "BeIR/scifact-qrels"

Rows = Callable[[], Iterable[tuple[str, Any]]]
"""Starts anew through the rows of a file or table: where a row stands (for messages), and what it holds."""


@dataclass(frozen=True)
class RetrievalSet:
    """One set (Thakur et al. 2021, §3): its passages stay where they are, of them only the ids are in memory.

    Attributes: `passages`, id → position in the corpus (about 150 bytes a passage); `queries`, id → text; `qrels`,
    query → passage → relevance, for the queries that have a relevant passage; `rows`, the corpus.
    """

    passages: dict[str, int]
    queries: dict[str, str]
    qrels: dict[str, dict[str, int]]
    rows: Rows

    def texts(self) -> Iterator[str]:
        """The passages' texts, one at a time, in the order of the corpus."""
        return (passage_text(where, row) for where, row in self.rows())


def load_retrieval(data_dir: str | None) -> dict[str, RetrievalSet | None]:
    """Every folder under `beir/`, None where it lacks a file; without `data_dir` SciFact from the Hub.

    Raises:
        InputError: no such folder, a malformed or contradictory set, no Hub; `MissingData` if no set is whole.
    """
    if data_dir is None:
        return {HUB_NAME: from_hub()}
    folders = set_folders(data_dir)
    if all(map(lacking, folders)):
        root = Path(data_dir) / "beir"
        lines = missing_retrieval(data_dir, {folder.name: None for folder in folders})
        raise MissingData("; ".join(lines) or f"retrieval: no set under {root}, expected such as {root / 'scifact'}")
    return {folder.name: None if lacking(folder) else from_folder(folder) for folder in folders}


def missing_retrieval(data_dir: str | None, data: dict[str, RetrievalSet | None]) -> list[str]:
    """A line for each set that lacks a file."""
    folders = set_folders(data_dir) if data_dir else []
    return [
        f"retrieval {folder.name}: no {', '.join(map(str, lacking(folder)))}"
        for folder in folders
        if folder.name in data and data[folder.name] is None
    ]


def set_folders(data_dir: str) -> list[Path]:
    """The folders under `beir/`, by name.

    Raises:
        InputError: the data folder does not exist.
    """
    return sorted(path for path in data_root(data_dir, "beir").glob("*") if path.is_dir() and path.name[0] != ".")


def lacking(folder: Path) -> list[Path]:
    """The files of a set that are not there."""
    return [folder / name for name in FILES if not (folder / name).is_file()]


def from_folder(folder: Path) -> RetrievalSet:
    """One set from its three files.

    Raises:
        InputError: see :func:`checked`, or a line that is no JSON or no three columns.
    """
    corpus, queries, qrels = (folder / name for name in FILES)
    return checked(str(folder), lambda: json_lines(corpus), lambda: json_lines(queries), lambda: judgments(qrels))


def from_hub() -> RetrievalSet:
    """SciFact from the Hub's two datasets, memory-mapped.

    Raises:
        InputError: the Hub cannot be reached, or see :func:`checked`.
    """
    from datasets import load_dataset

    with hub_errors(HUB, "beir"):
        corpus, queries = (load_dataset(HUB, part, split=part) for part in ("corpus", "queries"))
        qrels = load_dataset(HUB_QRELS, split="test")
    return checked(
        f"Hub dataset {HUB}",
        lambda: numbered(f"Hub dataset {HUB}, corpus", corpus),
        lambda: numbered(f"Hub dataset {HUB}, queries", queries),
        lambda: (
            (where, [str(row.get(name)) for name in QRELS_HEADER])
            for where, row in numbered(f"Hub dataset {HUB_QRELS}", qrels)
        ),
    )


def checked(source: str, corpus: Rows, queries: Rows, qrels: Rows) -> RetrievalSet:
    """A set whose ids are unique and whose qrels name passages and queries that are there.

    Raises:
        InputError: it is none, has no passage, or no query with a relevant passage.
    """
    passages: dict[str, int] = {}
    for where, row in corpus():
        passages[new_id(where, row, passages)] = len(passages)
        passage_text(where, row)
    if not passages:
        raise InputError(f"{source}: expected passages, found an empty corpus; restore it")
    texts: dict[str, str] = {}
    for where, row in queries():
        texts[new_id(where, row, texts)] = string(where, row, "text")
    relevance: dict[str, dict[str, int]] = {}
    for where, (query, passage, score) in qrels():
        _check_known(where, query, texts, "query")
        _check_known(where, passage, passages, "passage")
        judged, value = relevance.setdefault(query, {}), whole_number(where, score)
        if judged.setdefault(passage, value) != value:
            raise InputError(f"{where}: expected one score for a passage, found another before; remove one of them")
    scored = {query: judged for query, judged in relevance.items() if max(judged.values()) > 0}
    if not scored:
        raise InputError(f"{source}: expected a query with a relevant passage, found none; check the qrels")
    return RetrievalSet(passages, {query: texts[query] for query in scored}, scored, corpus)


def _check_known(where: str, found: str, known: dict[str, Any], what: str) -> None:
    """Refuse qrels that name what is not there."""
    if found not in known:
        raise InputError(f"{where}: expected the id of a {what}, found {found!r}; take all files from one release")


def new_id(where: str, row: Any, known: dict[str, Any]) -> str:
    """The id of a row of the corpus or of the queries, which no row before it has."""
    if not isinstance(row, dict):
        raise InputError(
            f"{where}: expected a JSON object with _id and text, found {type(row).__name__}; mend the line"
        )
    found = row.get("_id")
    if not isinstance(found, str) or not found:
        raise InputError(f"{where}: expected a text as _id, found {found!r}; mend the line")
    if found in known:
        raise InputError(f"{where}: expected each _id once, found {found!r} again; remove one of the two")
    return found


def string(where: str, row: dict[str, Any], key: str) -> str:
    """A text of a row."""
    found = row.get(key)
    if not isinstance(found, str):
        raise InputError(f"{where}: expected a text as {key}, found {found!r}; mend the line")
    return found


def passage_text(where: str, row: dict[str, Any]) -> str:
    """title + " " + text, without white space around it, as BEIR joins them; a passage may have no title."""
    title = "" if row.get("title") is None else string(where, row, "title")
    return f"{title} {string(where, row, 'text')}".strip()


def whole_number(where: str, text: str) -> int:
    """The score of a judgment."""
    try:
        return int(text)
    except ValueError:
        raise InputError(f"{where}: expected a whole number as score, found {text!r}; mend the line") from None


def numbered(source: str, table: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """The rows of a Hub dataset with their places."""
    return ((f"{source}, row {number}", row) for number, row in enumerate(table))


def lines_of(path: Path) -> Iterator[tuple[str, str]]:
    """The lines of a file with their places, one at a time; blank ones are left out.

    Raises:
        InputError: it cannot be read, or is not UTF-8.
    """
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield f"{path}, line {number}", line.decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}, line {number}: expected UTF-8, found byte {error.start + 1} that is not") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error


def json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    """The objects of a JSON lines file with their places.

    Raises:
        InputError: a line is no JSON.
    """
    for where, line in lines_of(path):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise InputError(
                f"{where}: expected a JSON object, found something else ({error}); mend the line"
            ) from error
        yield where, row


def judgments(path: Path) -> Iterator[tuple[str, list[str]]]:
    """The rows of a qrels file with their places: ids of query and passage, score.

    Raises:
        InputError: a wrong header, or a row without three columns.
    """
    lines = ((where, line.split("\t")) for where, line in lines_of(path))
    where, header = next(lines, (str(path), []))
    if tuple(header) != QRELS_HEADER:
        expected = " TAB ".join(QRELS_HEADER)
        raise InputError(f"{where}: expected the header {expected}, found {' TAB '.join(header)!r}; put it first")
    for where, columns in lines:
        if len(columns) != 3:
            raise InputError(f"{where}: expected 3 columns between tabs, found {len(columns)}; mend the line")
        yield where, columns
