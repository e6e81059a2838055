"""Training text: files of every kind, odd bytes, the Hub, and what identifies a text."""

import bz2
import gzip
import hashlib
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pytest
from pyarrow import parquet

from cmlmcse.common.errors import InputError
from cmlmcse.data import lines, text
from cmlmcse.data.tables import scan
from cmlmcse.data.text import fingerprint_text, source_kind
from support.text import Load, put

ODD = [
    "plain",
    "lone\rreturn",
    "vt\x0bff\x0cfs\x1cnel\x85ls\u2028ps\u2029",
    "nul\x00 and bell\x07",
    "😀 emoji, 中文 and العربية",
    "  spaces kept  ",
    "x" * 100_000,
]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_text_survives_odd_lines(tmp_path: Path, load: Load, streaming: bool, end: str) -> None:
    """A line ends at a line feed only; BOM, carriage returns at the end and blank lines go, all else stays."""
    content = "\ufeff" + end.join(["", " \t", *ODD, "", "no end of line"])
    assert load(put(tmp_path / "odd.txt", content), streaming=streaming) == [*ODD, "no end of line"]


@pytest.mark.parametrize(("suffix", "compress"), [("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)])
def test_compressed_files(tmp_path: Path, load: Load, suffix: str, compress: Callable[[bytes], bytes]) -> None:
    """Text and tables may be compressed, and a truncated file is an error that names it."""
    content = "".join(f"sentence {i}\n" for i in range(2000)).encode()
    whole = compress(content)
    rows = [f"sentence {i}" for i in range(2000)]
    assert load(put(tmp_path / f"a.txt.{suffix}", whole)) == rows
    assert load(put(tmp_path / f"a.csv.{suffix}", compress(b"text\n" + content))) == rows
    for name in (f"cut.txt.{suffix}", f"cut.csv.{suffix}"):
        with pytest.raises(InputError, match=rf"{name}: expected a whole, readable file, found it truncated"):
            load(put(tmp_path / name, whole[: len(whole) // 2]))


@pytest.mark.slow
@pytest.mark.parametrize("streaming", [False, True])
def test_zstandard(tmp_path: Path, load: Load, streaming: bool) -> None:
    """Every frame of a .zst file is read, and a truncated file is an error that names it, wherever it is cut."""
    if lines.zstd is None:
        pytest.skip("no decoder for .zst")
    compress = lines.zstd.compress
    rows = [f"sentence {i} {hashlib.sha256(str(i).encode()).hexdigest()}" for i in range(40_000)]  # 3 MB in 2 frames
    first, second = ("".join(f"{row}\n" for row in part).encode() for part in (rows[:30_000], rows[30_000:]))
    frames = compress(first), compress(second)
    whole = b"".join(frames)
    assert load(put(tmp_path / "a.txt.zst", whole), streaming=streaming) == rows
    table = compress(b"text\n" + first) + frames[1]
    assert load(put(tmp_path / "a.csv.zst", table), streaming=streaming) == rows
    for name, content in (
        ("cut.txt.zst", whole[:-1]),
        ("cut.txt.zst", frames[0][: len(frames[0]) // 2]),
        ("cut.txt.zst", frames[0] + frames[1][:3]),
        ("cut.csv.zst", table[:-1]),
    ):
        with pytest.raises(InputError, match=rf"{name}: expected a whole, readable file, found it truncated"):
            load(put(tmp_path / name, content), streaming=streaming)


@pytest.mark.parametrize("streaming", [False, True])
def test_csv(tmp_path: Path, load: Load, streaming: bool) -> None:
    """Quoted commas and line ends, words that pandas takes for missing, numbers as written, and blank cells."""
    content = '\ufeffn,text\r\n1,"a, b"\r\n2,"two\nlines"\r\n3,NA\r\n4,null\r\n5,\r\n6,"  "\r\n7,007\r\n8,a\u2028b\r\n'
    path = put(tmp_path / "a[1].csv", content)  # the name is no pattern
    assert load(path, streaming=streaming) == ["a, b", "two\nlines", "NA", "null", "007", "a\u2028b"]
    assert load(path, "n", streaming=streaming) == list("12345678")


def test_tsv_has_no_quoting(tmp_path: Path, load: Load) -> None:
    """A quotation mark is a character like any other."""
    path = put(tmp_path / "a.tsv", 'score\tsentence\n1\t"Well, he said\n2\tno "end" of it\n')
    assert load(path) == ['"Well, he said', 'no "end" of it']


@pytest.mark.parametrize("streaming", [False, True])
def test_json(tmp_path: Path, load: Load, streaming: bool) -> None:
    """JSON Lines, and a list of objects or of strings; null and blank rows go."""
    texts = ["one", None, " ", "a\u2028b", "c\rd", "nul\x00", "😀"]
    kept = ["one", "a\u2028b", "c\rd", "nul\x00", "😀"]
    rows = [{"text": text, "n": i} for i, text in enumerate(texts)]
    lines = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    assert load(put(tmp_path / "a.jsonl", lines), streaming=streaming) == kept
    assert load(put(tmp_path / "b.json", json.dumps(rows)), streaming=streaming) == kept
    assert load(put(tmp_path / "c.json", '["one", "two"]'), streaming=streaming) == ["one", "two"]


@pytest.mark.parametrize("streaming", [False, True])
def test_parquet(tmp_path: Path, load: Load, streaming: bool) -> None:
    """The only column of strings is the text."""
    path = str(tmp_path / "a.parquet")
    datasets.Dataset.from_dict({"id": [1, 2, 3], "sentence": ["one", None, "two\r\n"]}).to_parquet(path)
    assert load(path, streaming=streaming) == ["one", "two"]
    with pytest.raises(InputError, match=r"a.parquet: expected text in the column id, found another type"):
        load(path, "id")


@pytest.mark.parametrize("streaming", [False, True])
def test_parquet_of_other_types(tmp_path: Path, load: Load, streaming: bool) -> None:
    """A column that nobody reads may be of a type that `datasets` does not know; categories of strings are text."""
    path = str(tmp_path / "a.parquet")
    counts = pyarrow.array([[("a", 1)], []], pyarrow.map_(pyarrow.string(), pyarrow.int64()))
    words = pyarrow.array(["one", "two"]).dictionary_encode()
    parquet.write_table(pyarrow.table({"counts": counts, "sentence": words}), path)
    assert load(path, streaming=streaming) == ["one", "two"]
    with pytest.raises(InputError, match=r"a.parquet: expected text in the column counts, found another type"):
        load(path, "counts", streaming=streaming)


def test_columns(tmp_path: Path, load: Load) -> None:
    """The wanted column, else "text"; an error lists the columns there are."""
    path = put(tmp_path / "a.csv", "first,second\nx,y\n")
    assert load(path, "second") == ["y"]
    with pytest.raises(InputError, match=r"a.csv: expected a column third, found the columns first, second; give"):
        load(path, "third")
    said = []
    for read in (load, lambda path: scan(Path(path))):  # training, and the other commands, say the same
        with pytest.raises(InputError) as error:
            read(path)
        said.append(str(error.value))
    assert said == [f"{path}: expected a column text, found the columns first, second; give --text_column NAME"] * 2
    with pytest.raises(InputError, match=r"a.jsonl: expected a column b, found the columns a; give --text_column"):
        load(put(tmp_path / "a.jsonl", '{"a": "x"}\n'), "b")
    with pytest.raises(InputError, match=r"a.txt: expected a column b, found the columns text; give --text_column"):
        load(put(tmp_path / "a.txt", "x\n"), "b")


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.jsonl", "a.txt.gz", "a.csv.gz"])
def test_a_repaired_file_is_read_again(tmp_path: Path, load: Load, name: str) -> None:
    """The cache follows a file's size and time of change, not its name alone; so does what is known of its bytes."""

    def written(word: bytes) -> Path:
        content = {"a.csv": b"text\n%s\n", "a.jsonl": b'{"text": "%s"}\n'}.get(name.removesuffix(".gz"), b"%s\n") % word
        return put(tmp_path / name, gzip.compress(content) if name.endswith("gz") else content)

    for word in ("old", "new"):
        assert load(written(word.encode())) == [word]
    with pytest.raises(InputError, match="found byte 0xe9"):
        load(written(b"n\xe9w"))


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.jsonl"])
def test_a_second_start_does_not_read_the_file(
    tmp_path: Path, load: Load, name: str, streaming: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read or found good once is neither read, checked nor hashed again."""
    rows = [f"sentence {i}" for i in range(5000)]
    head = ["text"] if name == "a.csv" else []
    written = [json.dumps({"text": row}) for row in rows] if name == "a.jsonl" else head + rows
    path = put(tmp_path / name, "\n".join(written))
    assert load(path, streaming=streaming) == rows

    def refused(*_: Any) -> None:
        raise AssertionError("read as a whole")

    for function in ("check_utf8", "fingerprint_text", *([] if streaming else ["read_lines"])):
        monkeypatch.setattr(text, function, refused)
    assert load(path, streaming=streaming) == rows


def test_source_kind_knows_dumps_and_hub_ids(tmp_path: Path) -> None:
    """A dump's name holds .xml; an id is a name or owner/name."""
    names = ["enwiki-latest-pages-articles1.xml-p1p30-shortened.bz2", "bgwiki.xml.bz2", "x.xml", "dewiki.XML-p1"]
    assert [source_kind(str(put(tmp_path / name, "x"))) for name in names] == ["wikipedia"] * 4
    assert source_kind(str(put(tmp_path / "notes.xml.txt", "x"))) == "text"
    assert source_kind("owner/some-data.v2") == source_kind("wikitext") == "hub"


@pytest.mark.parametrize("streaming", [False, True])
def test_hub_dataset(monkeypatch: pytest.MonkeyPatch, load: Load, streaming: bool) -> None:
    """An id is loaded from the Hub; what the Hub answers is in the error."""
    asked: list[Any] = []

    def fake(name: str, **kwargs: Any) -> Any:
        assert kwargs["data_files"] is None
        asked.append((name, kwargs["split"]))
        if name == "no/body":
            raise ConnectionError("Couldn't reach 'no/body'\non the Hub")
        rows = datasets.Dataset.from_dict({"sentence": ["one", " ", "two"], "label": [0, 1, 0]})
        return rows.to_iterable_dataset() if streaming else rows

    monkeypatch.setattr(datasets, "load_dataset", fake)
    assert load("owner/name", streaming=streaming, data_files="") == ["one", "two"]
    assert asked == [("owner/name", "train")]
    with pytest.raises(
        InputError, match=r"no/body: expected .* found no such file .*could not be loaded \(Couldn't reach 'no/body' on"
    ):
        load("no/body", streaming=streaming)


def test_fingerprint(tmp_path: Path) -> None:
    """Name, size and hash of a file, never its folder; the id of a dataset."""
    path = put(tmp_path / "a.txt", "hello\n")
    expected = {"file": "a.txt", "bytes": 6, "sha256": hashlib.sha256(b"hello\n").hexdigest()}
    assert fingerprint_text(str(path)) == expected
    assert fingerprint_text("owner/name") == {"dataset": "owner/name"}


def test_fingerprint_of_a_folder(tmp_path: Path) -> None:
    """Its text files by name and content, and nothing else that lies there."""
    folder = tmp_path / "notes"
    folder.mkdir()
    put(folder / "a.txt", "hello\n")
    first = fingerprint_text(str(folder))
    assert (first["folder"], first["files"], first["bytes"]) == ("notes", 1, 6)
    put(folder / "README.rst", "not read\n")
    assert fingerprint_text(str(folder)) == first
    put(folder / "a.txt", "jello\n")
    changed = fingerprint_text(str(folder))
    assert changed != first
    assert changed["bytes"] == 6
    (folder / "a.txt").rename(folder / "b.txt")
    assert fingerprint_text(str(folder)) != changed
