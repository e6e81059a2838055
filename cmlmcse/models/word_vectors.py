"""Averaged word vectors from a text file in GloVe's or word2vec's format: the baseline "GloVe embeddings (avg.)"."""

import gzip
import re
import zipfile
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from cmlmcse.common.errors import InputError
from cmlmcse.data.lines import is_number

SUFFIXES = (".txt", ".vec", ".gz", ".zip")
PIECES = re.compile(r"\w+|[^\w\s]")


def is_word_vectors(name: str) -> bool:
    """Whether a model's name is a file of word vectors."""
    return name.endswith(SUFFIXES) and Path(name).is_file()


@dataclass
class WordVectors:
    """The mean vector of a sentence's words: N texts → (N, D) float32 (CMLM-CSE Table 1, "GloVe (avg.)").

    The sentence is lower-cased and split at white space. A piece that is in the file is one word. Any other piece is
    split further, into runs of letters, digits and underscores, and single other characters. Words that are not in the
    file are left out. The vector of a sentence without known words is all zeros.
    """

    rows: dict[str, int]  # word → its row in `table`
    table: NDArray[np.float32]  # (words, D)
    settings: dict[str, Any] = field(default_factory=dict)

    def __call__(self, sentences: list[str]) -> NDArray[np.float32]:
        vectors = np.zeros((len(sentences), self.table.shape[1]), np.float32)
        for vector, sentence in zip(vectors, sentences, strict=True):
            if known := [self.rows[word] for word in self.words(sentence) if word in self.rows]:
                vector[:] = self.table[known].mean(axis=0)
        return vectors

    def words(self, sentence: str) -> list[str]:
        """The words of a sentence, whether or not they are in the file."""
        return [
            word for piece in sentence.lower().split() for word in ([piece] if piece in self.rows else split(piece))
        ]


def split(piece: str) -> list[str]:
    """Split a piece without white space into words and punctuation marks."""
    return PIECES.findall(piece)


def load_word_vectors(name: str) -> WordVectors:
    """Read a text file of word vectors: each line has a word and its D numbers, separated by single spaces.

    gensim's `KeyedVectors.load_word2vec_format` is not used: version 4.4 stops at the first word with a space in it,
    which GloVe's largest file has, keeps NaN as a number, and must be told whether there is a header.

    The file may be plain, .gz, or a .zip of one file. A first line of two whole numbers is word2vec's header. If a word
    occurs twice, its first vector is used. Lines whose word contains spaces are skipped (GloVe's largest file has
    some), because no word of a sentence contains a space.

    Raises:
        InputError: a line has the wrong number of values or a value that is not a number, or the file has no vectors.
    """
    rows: dict[str, int] = {}
    numbers = array("f")
    size = 0
    with _open(name) as lines:
        for number, line in enumerate(lines, 1):
            where = f"{name}, line {number}"
            fields = _decoded(line, where).rstrip("\r\n ").split(" ")
            if number == 1 and len(fields) == 2 and all(text.isdecimal() for text in fields):
                continue
            size = size or len(fields) - 1
            if size == 0 or len(fields) <= size or (len(fields) > size + 1 and is_number(fields[-size - 1])):
                raise InputError(
                    f"{where}: expected a word and {size or 'its'} numbers between single spaces, found "
                    f"{len(fields) - 1} fields after the word; fix the file"
                )
            vector = _numbers(fields[-size:], where)
            if len(fields) == size + 1 and fields[0] not in rows:
                rows[fields[0]] = len(rows)
                numbers.extend(vector)
    if not rows:
        raise InputError(f"{name}: expected lines of a word and its numbers, found none; check the file")
    table = np.frombuffer(numbers, np.float32).reshape(len(rows), size)
    _check_finite(table, rows, name)
    settings = {"pooling": "mean of word vectors", "words": len(rows), "dimensions": size}
    return WordVectors(rows, table, settings)


@contextmanager
def _open(name: str) -> Iterator[IO[bytes]]:
    """Open a file for reading, decompressed.

    Raises:
        InputError: the file cannot be read, is truncated, or is an archive of several files.
    """
    try:
        if name.endswith(".zip"):
            with zipfile.ZipFile(name) as archive:
                members = [item for item in archive.namelist() if not item.endswith("/")]
                if len(members) != 1:
                    raise InputError(f"{name}: expected one file inside, found {len(members)}; unpack the one you want")
                with archive.open(members[0]) as inside:
                    yield inside
        else:
            with gzip.open(name) if name.endswith(".gz") else open(name, "rb") as lines:
                yield lines  # type: ignore[misc]
    except (OSError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{name}: expected word vectors, found a file that cannot be read ({error})") from error


def _decoded(line: bytes, where: str) -> str:
    """A line as text."""
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: expected UTF-8, found byte {error.start + 1} that is not; convert it") from error


def _numbers(fields: list[str], where: str) -> list[float]:
    """The numbers of a line."""
    try:
        return list(map(float, fields))
    except ValueError:
        wrong = next(text for text in fields if not is_number(text))
        raise InputError(f"{where}: expected numbers after the word, found {wrong!r}; fix the file") from None


def _check_finite(table: NDArray[np.float32], rows: dict[str, int], name: str) -> None:
    """Raise an InputError if a vector has an infinite value or a NaN."""
    finite = np.isfinite(table).all(axis=1)
    if not finite.all():
        word = list(rows)[int(np.argmin(finite))]
        raise InputError(f"{name}: expected finite numbers, found inf or nan in the vector of {word!r}; fix the file")
