"""Texts to search: the lines of a file, a column of a table, or an encoded Parquet file with its embeddings.

A Space has limits, because visitors wait for one processor. On your own machine there are none.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

TEXT, EMBEDDING = "text", "embedding"  # columns that `cmlmcse encode` writes
METADATA = b"cmlmcse"  # key of its record in a .parquet's metadata
COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")
TABLES = (".csv", ".tsv", ".json", ".jsonl", ".parquet")  # which `cmlmcse` reads, compressed too
MAX_QUERY = 1_000  # characters in a query or a sentence; encoders cut after 128 to 512 tokens
MAX_SENTENCES = 20  # on each side of the similarity table


class Refused(ValueError):
    """Refused input; the message says what was expected, what was found and what to do."""


class Limits(NamedTuple):
    """The most that a file of texts may have: bytes, lines, characters in a line. None is no limit."""

    size: int | None = None
    lines: int | None = None
    characters: int | None = None


SPACE = Limits(2**20, 2_000, 1_000)  # a Space without a GPU encodes a file while the user waits


def on_a_space() -> bool:
    """Whether this runs on the Hub's machines."""
    return "SPACE_ID" in os.environ


def current_limits() -> Limits:
    """The limits of this machine."""
    return SPACE if on_a_space() else Limits()


@dataclass(frozen=True)
class Corpus:
    """N texts, and their embeddings (N, K) if the file holds some."""

    name: str
    lines: Sequence[str]
    vectors: NDArray[np.float32] | None = None
    key: bytes = field(init=False)

    def __post_init__(self) -> None:
        digest = hashlib.sha256(json.dumps(list(self.lines)).encode())  # a line may have line feeds in it
        digest.update(b"" if self.vectors is None else np.ascontiguousarray(self.vectors).tobytes())
        object.__setattr__(self, "key", digest.digest())


def read_corpus(path: str | Path, limits: Limits | None = None, column: str | None = None) -> Corpus:
    """The texts of a file: one a line, or a column of a table; of an encoded .parquet with the embeddings.

    Args:
        path: the file.
        limits: the most it may have (default: those of this machine).
        column: the table's column of texts (default: `text`, or its only column of strings).

    Raises:
        Refused: the file cannot be read, holds no text, or is too large.
    """
    path, limits = Path(path), current_limits() if limits is None else limits
    found = check_size(path, limits)
    kind = kind_of(path)
    if kind == ".parquet" and (encoded := read_encoded(path, limits)) is not None:
        if column not in (None, TEXT):
            raise Refused(f"Expected no other column of texts for an encoded file, found {column!r}; leave it out.")
        return encoded
    if kind in TABLES:
        return Corpus(path.name, check_lines(read_column(path, column), limits))
    return Corpus(path.name, check_lines(split_lines(decode(path, found)), limits))


def kind_of(path: Path) -> str:
    """The suffix that says what a file is, in lower case: the last one before that of a compression."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def check_size(path: Path, limits: Limits) -> int:
    """The size of a file in bytes.

    Raises:
        Refused: it was deleted, or is too large.
    """
    try:
        size = path.stat().st_size
    except OSError:
        raise Refused("Expected a file, found none (uploads are deleted after a day); upload it again.") from None
    if limits.size is not None and size > limits.size:
        raise Refused(f"Expected a file of at most {limits.size:,} bytes, found {size:,}; shorten it.")
    return size


def decode(path: Path, size: int) -> str:
    """The content of a UTF-8 file, without a byte-order mark.

    Raises:
        Refused: it is something else.
    """
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Refused(f"Expected UTF-8 text, found something else at byte {error.start:,}; save it as UTF-8.") from None
    except OSError as error:
        raise Refused(f"Expected a file of {size:,} bytes, found one that cannot be read: {error.strerror}.") from None


def split_lines(text: str) -> list[str]:
    """The lines of a text, without surrounding white space."""
    return [line.strip() for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n")]


def check_lines(lines: Sequence[str], limits: Limits) -> list[str]:
    """The lines that are not blank.

    Raises:
        Refused: there is none, there are too many, or one is too long or no text.
    """
    for number, line in enumerate(lines, 1):
        try:
            line.encode()
        except UnicodeEncodeError:
            raise Refused(f"Expected text, found half a character in line {number:,}; remove it.") from None
        if limits.characters is not None and len(line) > limits.characters:
            found = f"found {len(line):,} in line {number:,}"
            raise Refused(f"Expected at most {limits.characters:,} characters a line, {found}; break it up.")
    kept = [line for line in lines if line]
    if not kept:
        raise Refused("Expected one text a line, found an empty file; choose another.")
    if limits.lines is not None and len(kept) > limits.lines:
        raise Refused(f"Expected at most {limits.lines:,} lines, found {len(kept):,}; shorten the file.")
    return kept


def read_column(path: Path, column: str | None) -> list[str]:
    """The texts of a table, as `cmlmcse encode` reads it.

    Raises:
        Refused: cmlmcse is not installed here, or it refuses the file.
    """
    try:
        from cmlmcse.common.errors import InputError
        from cmlmcse.data.tables import scan
    except ImportError:
        raise Refused("Expected a .txt file, found a table, which needs cmlmcse; save one text a line.") from None
    try:
        source = scan(path, column)
        return [text.strip() for table in source.tables() for text in source.texts(table)]
    except InputError as error:
        raise Refused(str(error)) from None


def read_encoded(path: Path, limits: Limits) -> Corpus | None:
    """The texts and embeddings of a .parquet that `cmlmcse encode` or another program wrote; None if it has no
    embeddings.

    Raises:
        Refused: it cannot be read, is too large, has no texts, or not one embedding of the same size for each text.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise Refused("Expected a .txt file, found .parquet, which needs pyarrow; pip install pyarrow.") from None
    try:
        if EMBEDDING not in parquet.read_schema(path).names:
            return None
        table = parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise Refused(f"Expected a Parquet file, found one that cannot be read: {reason}.") from None
    if TEXT not in table.column_names or len(table) == 0:
        raise Refused(f"Expected texts in a column {TEXT!r} beside {EMBEDDING!r}, found none; encode it with them.")
    texts = table[TEXT].to_pylist()
    if not all(text is None or isinstance(text, str) for text in texts):
        raise Refused(f"Expected texts in the column {TEXT!r}, found {table[TEXT].type}; encode the file again.")
    title = title_column(table.schema.metadata or {})
    lines = [text or "" for text in texts]
    if title in table.column_names:
        lines = [f"{before or ''} {text}".strip() for before, text in zip(table[title].to_pylist(), lines, strict=True)]
    check_lines(lines, limits)
    return Corpus(path.name, lines, stacked(table[EMBEDDING]))


def title_column(metadata: Mapping[bytes, bytes]) -> str:
    """The column of titles that `cmlmcse encode` put before the texts, as its file says; empty if there was none."""
    try:
        return str(json.loads(metadata.get(METADATA, b"{}")).get("title_column") or "")
    except (ValueError, AttributeError):
        return ""


def stacked(column: Any) -> NDArray[np.float32]:
    """A column of lists of numbers → (N, K).

    Raises:
        Refused: a list is missing or has another length, or a number is not finite.
    """
    wrong = Refused("Expected one embedding of the same size for each text, found others; encode the file again.")
    try:
        rows = [np.asarray(row, np.float32) for row in column.to_numpy()]
        vectors = np.stack(rows)
    except (TypeError, ValueError):
        raise wrong from None
    if vectors.ndim != 2 or vectors.shape[1] == 0 or not np.isfinite(vectors).all():
        raise wrong
    return vectors


def check_query(query: str | None) -> str:
    """The query without surrounding white space.

    Raises:
        Refused: it is empty, or too long.
    """
    lines = [line for line in split_lines(query or "") if line]
    if not lines:
        raise Refused("Expected a query, found none; type a few words.")
    return " ".join(check_lines(lines, Limits(characters=MAX_QUERY)))


def check_sentences(text: str | None, name: str) -> list[str]:
    """The sentences in one of the two boxes.

    Raises:
        Refused: no sentence, too many, or a sentence that is too long.
    """
    sentences = [line for line in split_lines(text or "") if line]
    if not 1 <= len(sentences) <= MAX_SENTENCES:
        raise Refused(f"Expected 1 to {MAX_SENTENCES} sentences in {name}, one a line, found {len(sentences)}.")
    return check_lines(sentences, Limits(characters=MAX_QUERY))
