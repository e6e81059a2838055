"""`cmlmcse encode` and `search` on a file that another program changes while they read it."""

import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from cmlmcse.common.errors import InputError
from cmlmcse.data import file_parts, tables
from cmlmcse.data.unchanged import InputChanged
from cmlmcse.encode import command as encode
from cmlmcse.encode.mentions import mention_unread
from cmlmcse.models.encoders import Encoder
from cmlmcse.search import command as search
from support.encoding import ROWS


def shorter(path: Path) -> None:
    """Half of the file's lines."""
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: len(lines) // 2]))


def shorter_table(path: Path) -> None:
    """Half of its rows."""
    table = parquet.read_table(path)
    parquet.write_table(table.slice(0, len(table) // 2), path)


def other_types(path: Path) -> None:
    """Another table of as many rows: what was a number is text."""
    table = parquet.read_table(path)
    parquet.write_table(table.set_column(1, "n", pyarrow.array([f"n{row}" for row in range(len(table))])), path)


def other_texts(path: Path) -> None:
    """Other texts of the same size, by a new file of the same name."""
    old = path.with_suffix(".old")
    path.rename(old)
    path.write_bytes(old.read_bytes().replace(b"the", b"The"))
    old.unlink()


def cut_off(path: Path) -> None:
    """The bytes of a copy that has not ended."""
    os.truncate(path, path.stat().st_size // 2)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small parts, which are read in small blocks."""
    monkeypatch.setattr(file_parts, "PART_ROWS", 16)
    monkeypatch.setattr(tables, "TABLE_ROWS", 8)


def once(monkeypatch: pytest.MonkeyPatch, change, path: Path) -> None:
    """Change the file when the model has encoded the first texts."""
    original, done = Encoder.__call__, []

    def encoded(self: Encoder, *arguments, **options) -> np.ndarray:
        if not done:
            done.append(change(path))
        return original(self, *arguments, **options)

    monkeypatch.setattr(Encoder, "__call__", encoded)


@pytest.mark.parametrize("name, change, target", [
    ("in.txt", shorter, "out.npy"), ("in.txt", other_texts, "out.parquet"), ("in.txt", Path.unlink, "out.npy"),
    ("in.parquet", shorter_table, "out.parquet"), ("in.parquet", other_types, "out.parquet"),
    ("in.parquet", cut_off, "out.npy"),
])  # fmt: skip
def test_encode(name, change, target, small, lines, arguments, tmp_path, monkeypatch, capsys) -> None:
    """One line and status 2. No output and no parts, which no other command could use."""
    source, output = tmp_path / name, tmp_path / target
    arguments[1], arguments[-1] = str(source), str(output)
    once(monkeypatch, change, source)
    with pytest.raises(SystemExit) as ending:
        encode.main(arguments)
    assert ending.value.code == 2
    (error,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert f"{source}: expected text that stays as it is while the command reads it, found it changed (" in error
    assert error.endswith("; run the command again when nothing writes to it")
    assert [path.name for path in tmp_path.iterdir() if "out" in path.name] == []


@pytest.mark.parametrize("while_it_loads", [False, True])
def test_the_command_again(while_it_loads, small, lines, arguments, tmp_path, monkeypatch) -> None:
    """It encodes what is there now, without --overwrite, also where the file changed while the model was loaded."""
    source = tmp_path / "in.txt"
    with monkeypatch.context() as patched:
        if while_it_loads:
            load = encode.load_encoder
            patched.setattr(encode, "load_encoder", lambda *given: (load(*given), shorter(source))[0])
        else:
            once(patched, shorter, source)
        with pytest.raises(SystemExit):
            encode.main(arguments)
    encode.main(arguments)
    assert len(np.load(tmp_path / "out.npy")) == ROWS // 2


def test_a_table_that_is_written_while_the_model_loads(tmp_path) -> None:
    """The line says that it changed, and not what the look for titles met in it."""
    path = tmp_path / "in.jsonl"
    path.write_text('{"text": "the cat", "name": "a cat"}\n')
    source = tables.scan(path)
    path.write_text('{"text": "the')
    with pytest.raises(InputChanged, match=r"found it changed \(13 bytes, 37 before\)"):
        mention_unread(source)


@pytest.mark.parametrize("alone", [True, False])
def test_the_parts_of_several_processes(alone, tmp_path) -> None:
    """They are left, because another process may still write, and the line says how the next command removes them."""
    job = file_parts.Job(tmp_path / "out.npy", 10, 4)
    job.claim_parts({}, overwrite=False)
    with pytest.raises(InputError) as error, encode.without_old_parts(job, alone):
        raise InputChanged("run the command again when nothing writes to it")
    assert job.folder.exists() is not alone
    further = "" if alone else f", with --overwrite, which removes {job.folder}"
    assert str(error.value) == f"run the command again when nothing writes to it{further}"


def test_a_folder_that_changes_meanwhile(small, arguments, tmp_path, monkeypatch, capsys) -> None:
    """A file that was read already gets longer: the rows behind it would be other ones."""
    folder = tmp_path / "notes"
    folder.mkdir()
    for number in range(40):
        (folder / f"{number:02d}.txt").write_text(f"the cat sat on mat {number}\n")
    arguments[1] = str(folder)
    once(monkeypatch, lambda path: path.write_text("a dog\n\nthe cat\n"), folder / "00.txt")
    with pytest.raises(SystemExit):
        encode.main(arguments)
    error = capsys.readouterr().err
    assert f"{folder}: expected text that stays as it is" in error
    assert "found it changed (a file in it is new, gone or another one); run" in error
    assert not (tmp_path / "out.npy").exists()


@pytest.mark.parametrize("change", [shorter_table, cut_off, other_types])
@pytest.mark.parametrize("encoded", [False, True], ids=["texts", "embeddings"])
@pytest.mark.parametrize("options", [[], ["--bm25"]])
def test_search(options, change, encoded, small, lines, arguments, tmp_path, monkeypatch, capsys) -> None:
    """Of texts, and of embeddings, the same line, and no results."""
    corpus = tmp_path / "in.parquet"
    if encoded:
        encode.main([arguments[0], str(corpus), *arguments[2:-1], str(tmp_path / "out.parquet")])
        shutil.move(tmp_path / "out.parquet", corpus)
    once(monkeypatch, change, corpus)
    with pytest.raises(SystemExit) as ending:
        search.main([arguments[0], str(corpus), "the cat", *options, "--pooling", "avg",
                     "--output", str(tmp_path / "found.jsonl")])  # fmt: skip
    assert ending.value.code == 2
    (error,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert f"{corpus}: expected text that stays as it is while the command reads it, found it changed (" in error
    assert not (tmp_path / "found.jsonl").exists()
