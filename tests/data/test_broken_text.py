"""Training text that cannot be read: each error names the file, and says what was found and what to do."""

import bz2
import gzip
from pathlib import Path

import pytest

from cmlmcse.common.errors import InputError
from cmlmcse.data import lines
from support.text import Load, put


def test_no_decoder(tmp_path: Path, load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a decoder for .zst, the error says which package has one."""
    monkeypatch.setattr(lines, "zstd", None)
    with pytest.raises(InputError, match=r"a.txt.zst: .*pip install backports.zstd"):
        load(put(tmp_path / "a.txt.zst", b"x"))


def test_compressed_in_name_only(tmp_path: Path, load: Load) -> None:
    """Bytes that are not gzip are an error that names the file."""
    with pytest.raises(InputError, match=r"a.txt.gz: expected a whole, readable file, .*Not a gzipped file"):
        load(put(tmp_path / "a.txt.gz", "plain text\n"))


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.jsonl", "a.txt.gz"])
def test_not_utf8_names_the_byte(tmp_path: Path, load: Load, name: str, streaming: bool) -> None:
    """The offset is right beyond a chunk of reading and behind a character of several bytes."""
    head = b'{"text": "' if name == "a.jsonl" else b"text\n"
    content = head + ("é" * 600_000).encode() + b"\ncaf\xe9 \n"
    path = put(tmp_path / name, gzip.compress(content) if name.endswith("gz") else content)
    with pytest.raises(
        InputError, match=rf"found byte 0xe9 at offset {content.index(0xE9.to_bytes(1, 'big') + b' ')};"
    ):
        load(path, streaming=streaming)


def test_a_run_of_zero_bytes_is_no_utf16(tmp_path: Path, load: Load) -> None:
    """A crash may leave one in a log, in a line of its own; what it says elsewhere is read."""
    rows = [*map(str, range(100)), "\0" * 500, "end"]
    assert load(put(tmp_path / "a.txt", "\n".join(rows))) == rows
    assert len(load(put(tmp_path / "a.csv", "text\n" + "\n".join(map(str, range(100))) + "\n" + "\0" * 99))) >= 100


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "", "expected sentences, found an empty file"),
        ("a.txt", " \n\n\t\n", "expected sentences, found no non-empty row"),
        ("a.csv", "text\n", "expected sentences, found no non-empty row"),
        ("a.csv", "a,b\n1,2\n1,2,3\n", r"well-formed csv, found .*Expected 2 fields in line 3, saw 3"),
        ("a.csv", "text\nwell, yes\nno, no\n", "found rows have more fields than the header; put quotes"),
        ("a.jsonl", '{"text": "x"}\n{"text": oops}\n', "well-formed json, found line 2: Expecting value"),
        ("a.json", '[{"text": "x"},\n {"text": "y"]\n', "well-formed json, found line 2: Expecting ','"),
        ("a.parquet", "PAR1 or not", "expected well-formed parquet, found"),
        ("a.docx", "x", r"unknown suffix, expected one of \.txt, \.csv, \.tsv, \.json, .*\.parquet, \.xml\.bz2"),
        ("a.parquet.gz", "x", "unknown suffix"),
        (
            "a.xml.bz2",
            bz2.compress(b"<html><p>x</p></html>"),
            "expected a Wikipedia dump .*not recognized as MediaWiki",
        ),
        ("a.xml", "not XML", "expected a Wikipedia dump .*syntax error"),
        ("a.xml.bz2", b"BZh9 broken", "expected a whole, readable file, found it truncated or corrupt"),
        ("a.txt", "one\ntwo".encode("utf-16-le"), "found UTF-16; convert it, as in `iconv -f utf-16le -t utf-8`"),
        ("a.txt", "one\ntwo".encode("utf-16-be"), "found UTF-16; convert it, as in `iconv -f utf-16be -t utf-8`"),
        ("a.csv", "text\none".encode("utf-16-le"), "found UTF-16; convert it, as in `iconv -f utf-16le -t utf-8`"),
        (
            "a.txt.gz",
            gzip.compress("one".encode("utf-16-le"), mtime=0),
            "found UTF-16; convert it, as in `iconv -f utf-16le",
        ),
    ],
)
def test_bad_files(tmp_path: Path, load: Load, name: str, content: str | bytes, message: str, streaming: bool) -> None:
    """Each error names the file, says what was found and what to do, in one line."""
    with pytest.raises(InputError, match=message) as error:
        load(put(tmp_path / name, content), streaming=streaming)
    assert str(error.value).startswith(str(tmp_path / name))
    assert "\n" not in str(error.value)


def test_missing_file_and_directory(tmp_path: Path, load: Load) -> None:
    """A path that cannot be a dataset's id is a missing file."""
    for path in (tmp_path / "none.txt", "corpus.txt", "./name", "text"):
        with pytest.raises(InputError, match="expected a file or a Hub dataset id"):
            load(path)
    with pytest.raises(InputError, match="expected a file, found a directory"):
        load(tmp_path)
