"""The bytes of a text file: opened, decompressed, decoded, line by line; a file that is not whole is an error."""

import bz2
import codecs
import contextlib
import gzip
import io
import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from cmlmcse.common.errors import InputError

CHUNK = 1 << 20  # bytes read at a time
_CORRUPT = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, OSError)


def split_compression(name: str) -> tuple[str, str]:
    """Split a compression's suffix off a file name."""
    stem, suffix = os.path.splitext(name)
    return (stem, suffix) if suffix.lower() in (".gz", ".bz2", ".xz", ".zst") else (name, "")


def _open(path: str) -> BinaryIO:
    """Open a file, decompressed if its suffix says so."""
    openers: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, "": open}
    suffix = split_compression(path)[1].lower()
    if suffix == ".zst":
        try:
            import zstandard
        except ImportError:
            raise InputError(f"{path}: .zst needs a decoder, which was not found; pip install zstandard") from None
        return io.BufferedReader(_ZstdFile(path, zstandard.ZstdDecompressor()))
    return openers[suffix](path, "rb")


class _ZstdFile(io.RawIOBase):
    """A decompressed .zst file that notices a missing end, over which zstandard's own reader says nothing.

    Args:
        decoder: a `zstandard.ZstdDecompressor`.
    """

    def __init__(self, path: str, decoder: Any) -> None:
        self._file, self._decoder = io.FileIO(path), decoder
        self._frame: Any = None  # decoder of the frame that is being read
        self._compressed, self._text = b"", memoryview(b"")

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        while not self._text:
            self._compressed = self._compressed or self._file.read(CHUNK // 16)
            if not self._compressed:
                if self._frame is not None:
                    raise EOFError("the last frame has no end")
                return 0
            self._frame = self._frame or self._decoder.decompressobj()
            self._text = memoryview(self._frame.decompress(self._compressed))
            ended = self._frame.eof
            self._compressed = self._frame.unused_data if ended else b""
            self._frame = None if ended else self._frame
        count = min(len(buffer), len(self._text))
        buffer[:count] = self._text[:count]
        self._text = self._text[count:]
        return count


@contextlib.contextmanager
def readable(path: str) -> Iterator[BinaryIO]:
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
    with readable(path) as file:
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


def read_lines(path: str, blank: bool = False) -> Iterator[str]:
    """Yield the non-blank lines of a text file, with `blank` the blank ones too: a line ends at a line feed only, its
    carriage return is dropped.

    Raises:
        InputError: the file is corrupt or not UTF-8.
    """
    offset = 0
    with readable(path) as file:
        for raw in file:
            start = len(codecs.BOM_UTF8) if offset == 0 and raw.startswith(codecs.BOM_UTF8) else 0
            try:
                line = raw[start:].decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise _not_utf8(path, offset + start + error.start, error.object[error.start]) from None
            offset += len(raw)
            if blank or line.strip():
                yield line


def read_documents(path: str) -> Iterator[list[str]]:
    """Yield the lines of each document of a text file; blank lines stand between documents.

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
