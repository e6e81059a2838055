"""Read text files line by line, decompressed and decoded. A truncated or corrupt file is an error."""

import bz2
import codecs
import contextlib
import gzip
import io
import lzma
import os
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from cmlmcse.common.errors import InputError

zstd: Any
try:  # Python's own decoder detects a truncated file; the package zstandard does not
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
except ImportError:
    zstd = None

CHUNK = 1 << 20  # bytes read at a time
HEAD = 1 << 10  # bytes that show which code a file is in
VERSION = 1  # of the rules that accept text; a source is checked again if it changes
BINARY = (b"%PDF", b"PK\x03\x04", b"\x93NUMPY")  # how such files begin, which may hold no zero byte early
_CORRUPT = (EOFError, OSError, zlib.error, lzma.LZMAError, *([zstd.ZstdError] if zstd else []))


def split_compression(name: str) -> tuple[str, str]:
    """Split the suffix of a compression off a file name: the rest, and the suffix or an empty string."""
    stem, suffix = os.path.splitext(name)
    return (stem, suffix) if suffix.lower() in (".gz", ".bz2", ".xz", ".zst") else (name, "")


def suffix_of(path: str | Path) -> str:
    """The suffix of a file's name, without that of a compression, in lower case."""
    return Path(split_compression(Path(path).name)[0]).suffix.lower()


def _open(path: str) -> BinaryIO:
    """Open a file, decompressed if its suffix says so.

    Raises:
        InputError: the file is .zst, and no decoder is installed.
    """
    suffix = split_compression(path)[1].lower()
    if suffix == ".zst" and zstd is None:
        raise InputError(f"{path}: .zst needs a decoder, which was not found; pip install backports.zstd")
    openers: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, ".zst": zstd and zstd.open}
    return io.BufferedReader(openers[suffix](path, "rb")) if suffix else open(path, "rb")


@contextlib.contextmanager
def readable(path: str) -> Iterator[BinaryIO]:
    """Open a file for reading. If it is truncated or corrupt, an InputError is raised."""
    try:
        with _open(path) as file:
            yield file
    except PermissionError as error:
        raise InputError(
            f"{path}: expected a file that can be read, found {error.strerror}; change its rights"
        ) from error
    except _CORRUPT as error:
        detail = str(error) or type(error).__name__
        raise InputError(
            f"{path}: expected a whole, readable file, found it truncated or corrupt ({detail}); get a new copy"
        ) from error


def _not_utf8(path: str, offset: int, byte: int) -> InputError:
    """Return the error for a byte that is not UTF-8. UTF-16 begins with the bytes FF FE or FE FF."""
    code = "utf-16" if offset == 0 and byte in (0xFF, 0xFE) else "latin1"
    with readable(path) as file:
        head = file.read(CHUNK)
    if code == "latin1" and (b"\0" in head or head.startswith(BINARY)):
        return InputError(f"{path}: expected text, found a binary file; write its text to .txt, .csv or .jsonl")
    return InputError(
        f"{path}: expected UTF-8 text, found byte 0x{byte:02x} at offset {offset}; convert it, as in "
        f"`iconv -f {code} -t utf-8`"
    )


def _check_utf16(path: str, head: bytes) -> None:
    """Check that a file does not begin as UTF-16. Without its mark that is UTF-8 too, with a zero byte in each English
    letter: all at odd places, or all at even ones.

    Raises:
        InputError: most bytes at these places are zero, and few at the others.
    """
    even, odd = (head[first::2].count(0) / max(len(head[first::2]), 1) for first in (0, 1))
    if max(even, odd) > 1 / 2 and min(even, odd) < 1 / 10:
        code = "utf-16be" if even > odd else "utf-16le"
        raise InputError(f"{path}: expected UTF-8 text, found UTF-16; convert it, as in `iconv -f {code} -t utf-8`")


def check_utf8(path: str) -> None:
    """Read a file in chunks to check that it is whole, UTF-8 and not UTF-16.

    Raises:
        InputError: it is not. The message gives the byte's offset in the decompressed text.
    """
    decoder, done = codecs.getincrementaldecoder("utf-8")(), 0
    with readable(path) as file:
        while True:
            chunk = file.read(CHUNK)
            pending = len(decoder.getstate()[0])
            try:
                decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError as error:
                raise _not_utf8(path, done - pending + error.start, error.object[error.start]) from None
            if done == 0:
                _check_utf16(path, chunk[:HEAD])
            done += len(chunk)
            if not chunk:
                return


def read_lines(path: str, blank: bool = False) -> Iterator[str]:
    """Yield the non-blank lines of a text file; if `blank`, the blank lines too.

    Only a line feed ends a line. A carriage return before it is dropped.

    Raises:
        InputError: the file is corrupt or not UTF-8, or its lines end with carriage returns alone.
    """
    offset = 0
    with readable(path) as file:
        _check_utf16(path, file.peek(HEAD)[:HEAD])  # type: ignore[attr-defined]
        for raw in file:
            if offset == 0 and b"\r" in raw.rstrip(b"\r\n") and not raw.endswith(b"\n"):  # the only line
                raise InputError(
                    f"{path}: expected lines that end with a line feed, found carriage returns alone; convert them, as "
                    "in `tr '\\r' '\\n'`"
                )
            start = len(codecs.BOM_UTF8) if offset == 0 and raw.startswith(codecs.BOM_UTF8) else 0
            try:
                line = raw[start:].decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise _not_utf8(path, offset + start + error.start, error.object[error.start]) from None
            offset += len(raw)
            if blank or line.strip():
                yield line


def read_documents(path: str) -> Iterator[list[str]]:
    """Yield the lines of each document of a text file. Blank lines separate documents.

    Raises:
        InputError: the file is corrupt or not UTF-8.
    """
    document: list[str] = []
    for line in read_lines(path, blank=True):
        if line.strip():
            document.append(line)
        elif document:
            yield document
            document = []
    if document:
        yield document


def check_separator(path: str, header: str, tabs: bool) -> None:
    """Check that the only column of a table is not several columns between other marks.

    Args:
        path: the file.
        header: the column's name.
        tabs: whether tabs stand between columns, and not commas.

    Raises:
        InputError: another mark in the name: a semicolon, a tab or a comma.
    """
    mark, others = ("tabs", ";,") if tabs else ("commas", ";\t")
    if other := [each for each in others if each in header]:
        raise InputError(
            f"{path}: expected {mark} between the columns, found {other[0]!r} in the header {header!r}; save it with "
            f"{mark}"
        )


def is_number(text: str) -> bool:
    """Whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True
