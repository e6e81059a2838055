"""The command `encode`: the same vectors from every kind of file, and what is wrong with a file."""

import csv
import gzip
import json
import shutil
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow
import pytest
import torch
from pyarrow import parquet

from cmlmcse.data import file_parts, tables
from cmlmcse.encode.command import main
from cmlmcse.encode.parts import encode_parts
from cmlmcse.models import encoders
from support.encoding import ROWS, Ones, expected, without_special_tokens


@pytest.mark.parametrize("source", ["in.txt", "in.parquet", "in.txt.gz"])
@pytest.mark.parametrize("target", ["out.npy", "out.parquet"])
@pytest.mark.parametrize("part_rows", [10, 2048])
def test_command(source, target, part_rows, model, lines, arguments, tmp_path, monkeypatch, capsys) -> None:
    """A row a line in order, empty ones too, as the method has them; of parts and blocks nothing is seen."""
    monkeypatch.setattr(file_parts, "PART_ROWS", part_rows)
    monkeypatch.setattr(tables, "TABLE_ROWS", 7)
    (tmp_path / "in.txt.gz").write_bytes(gzip.compress((tmp_path / "in.txt").read_bytes()))
    output = tmp_path / target
    main([arguments[0], str(tmp_path / source), "--pooling", "avg", "--output", str(output), "--normalize"])
    assert f"{ROWS} rows × 32" in capsys.readouterr().out
    if target == "out.npy":
        found = np.load(output)
    else:
        table = parquet.read_table(output)
        assert table["embedding"].type == pyarrow.list_(pyarrow.float32(), 32)
        assert table["text"].to_pylist() == lines
        assert table.column_names == ["text", "embedding", *(["n"] if source == "in.parquet" else [])]
        assert source != "in.parquet" or table["n"].to_pylist() == list(range(ROWS))
        found = np.array(table["embedding"].to_pylist(), np.float32)
    np.testing.assert_allclose(found, expected(model, lines, normalize=True), atol=1e-5)
    assert {path.name for path in tmp_path.iterdir()} == {"in.txt", "in.parquet", "in.txt.gz", target}


@pytest.mark.parametrize("name", ["in.csv", "in.tsv.gz", "in.jsonl", "in.parquet"])
def test_tables(name, model, arguments, tmp_path, monkeypatch) -> None:
    """The text column by its name or as the only one of strings; the other columns come along, with one type in all
    parts, values that some rows lack included; no row is dropped."""
    monkeypatch.setattr(file_parts, "PART_ROWS", 2)
    monkeypatch.setattr(tables, "TABLE_ROWS", 2)
    texts = ["the cat, sat", "", 'a "big" dog', "w1\tw2" if name != "in.tsv.gz" else "w1 w2", "ran"]
    numbers = [1, 2, 3, 4, 5.5]
    rows = [{"sentence": text, "n": number} for text, number in zip(texts, numbers, strict=True)]
    if name == "in.jsonl":
        rows[1]["late"] = {"a": 1}
        (tmp_path / name).write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    elif name == "in.parquet":
        parquet.write_table(pyarrow.table({"sentence": texts, "n": numbers}), tmp_path / name)
    elif name == "in.csv":
        with (tmp_path / name).open("w", newline="", encoding="utf-8-sig") as file:
            csv.writer(file).writerows([["sentence", "n"], *(row.values() for row in rows)])
    else:
        text = "".join(f"{one['sentence']}\t{one['n']}\n" for one in [{"sentence": "sentence", "n": "n"}, *rows])
        (tmp_path / name).write_bytes(gzip.compress(text.encode()))
    output = tmp_path / "out.parquet"
    command = [arguments[0], str(tmp_path / name), "--pooling", "avg", "--output", str(output)]
    main([*command, "--text_column", "sentence"] if name == "in.parquet" else command)  # else: the numbers are no texts
    table = parquet.read_table(output)
    assert table.column_names == ["text", "embedding", "n", *(["late"] if name == "in.jsonl" else [])]
    assert table["text"].to_pylist() == texts
    typed = name in ("in.jsonl", "in.parquet")
    assert table["n"].to_pylist() == (numbers if typed else list(map(str, numbers)))
    if name == "in.jsonl":
        assert table["late"].to_pylist() == [None, {"a": 1}, None, None, None]
    np.testing.assert_allclose(np.array(table["embedding"].to_pylist()), expected(model, texts), atol=1e-5)
    origin = json.loads(parquet.read_schema(output).metadata[b"cmlmcse"])
    assert (origin["model"], origin["pooling"]) == (Path(arguments[0]).name, "avg")
    if typed:  # the only column of strings
        main([*command, "--overwrite", "--no_text"])
        assert parquet.read_table(output).column_names == table.column_names[1:]


def test_bf16(model, lines, arguments, tmp_path) -> None:
    """Another precision of the model gives nearly the same, as float32."""
    main([*arguments, "--dtype", "bf16"])
    found, exact = np.load(tmp_path / "out.npy"), expected(model, lines)
    assert found.dtype == np.float32
    difference = np.abs(found - exact).max()
    assert 1e-4 < difference < 0.1


def test_a_row_without_tokens(lines, arguments, backbone_folders, tmp_path, capsys) -> None:
    """The command names the file and the text in one line, and writes nothing."""
    folder = tmp_path / "model"
    shutil.copytree(backbone_folders["bert"], folder)
    without_special_tokens().save_pretrained(folder)
    with pytest.raises(SystemExit) as stop:
        main([str(folder), *arguments[1:]])
    assert stop.value.code == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(
        f"error: {tmp_path / 'in.txt'}, in the part from row 0 on: encode expects at least one token"
    )
    assert not (tmp_path / "out.npy").exists()


def test_long_texts_are_mentioned(arguments, tmp_path, capsys) -> None:
    """A line says how much of them the model does not read; short ones have no such line."""
    for words, mentioned in ((3, False), (300, True)):
        (tmp_path / "in.txt").write_text("cat " * words + "\n")
        output = tmp_path / f"{words}.npy"
        main([arguments[0], str(tmp_path / "in.txt"), "--pooling", "avg", "--output", str(output)])
        assert ("tokens of a text, which cuts off" in capsys.readouterr().err) == mentioned


def test_empty_objects(arguments, tmp_path, capsys) -> None:
    """BEIR's `metadata`, which Parquet cannot hold, becomes a column without values; deeper ones are refused."""
    rows = [{"_id": str(number), "text": "the cat", "metadata": {}} for number in range(3)]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, rows)))
    command = [arguments[0], str(tmp_path / "in.jsonl"), "--text_column", "text", "--pooling", "avg"]
    main([*command, "--output", str(tmp_path / "out.parquet")])
    table = parquet.read_table(tmp_path / "out.parquet")
    assert table.column_names == ["text", "embedding", "_id", "metadata"]
    assert table["metadata"].to_pylist() == [None] * 3
    (tmp_path / "in.jsonl").write_text(json.dumps({"text": "the cat", "more": {"inner": [{}]}}))
    with pytest.raises(SystemExit, match="2"):
        main([*command, "--output", str(tmp_path / "deep.parquet")])
    assert "found empty objects within the column more; leave them out" in capsys.readouterr().err
    assert not list(tmp_path.glob("deep*"))


def test_empty_file(arguments, tmp_path) -> None:
    """No rows, a file of none."""
    (tmp_path / "in.txt").write_text("")
    main(arguments)
    assert np.load(tmp_path / "out.npy").shape == (0, 32)


def test_memory_does_not_grow_with_the_file(tmp_path, monkeypatch) -> None:
    """Ten times the rows, the same peak."""
    monkeypatch.setattr(file_parts, "PART_ROWS", 1000)
    monkeypatch.setattr(tables, "TABLE_ROWS", 500)
    peaks = []
    for rows in (2000, 20_000):
        text = tmp_path / f"{rows}.txt"
        text.write_text("the cat sat on the mat\n" * rows)
        job = file_parts.Job(tmp_path / f"{rows}.npy", rows, 64)
        job.claim_parts({}, overwrite=False)
        tracemalloc.start()
        encode_parts(job, tables.scan(text), Ones(), 0, 1)
        job.finalize()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert np.load(job.output, mmap_mode="r").shape == (rows, 64)
    assert peaks[1] < 1.5 * peaks[0]


def test_passages_need_a_parquet(arguments, capsys) -> None:
    """A .npy could not say which text a vector is of."""
    with pytest.raises(SystemExit, match="2"):
        main([*arguments, "--passages"])
    assert "--passages expects --output OUT.parquet, which has each passage's text, found" in capsys.readouterr().err


def test_a_list_of_json_and_a_column_of_several_types(arguments, tmp_path) -> None:
    """A list is read as lines of objects are; vectors alone need no other column."""
    rows = [{"text": "the cat", "n": 1}, {"text": "a dog", "n": "x"}]
    written = {"in.json": json.dumps(rows, indent=1), "in.jsonl": "\n".join(map(json.dumps, rows))}
    for name, content in written.items():
        (tmp_path / name).write_text(content)
        main([arguments[0], str(tmp_path / name), "--output", str(tmp_path / f"{name}.npy"), "--pooling", "avg"])
    vectors = [np.load(tmp_path / f"{name}.npy") for name in written]
    assert vectors[0].shape == (2, 32)
    np.testing.assert_array_equal(*vectors)


def two_texts() -> bytes:
    """A .parquet with two columns of one name."""
    written = pyarrow.BufferOutputStream()
    parquet.write_table(pyarrow.table([["a"], ["b"]], names=["text", "text"]), written)
    return written.getvalue().to_pybytes()


@pytest.mark.parametrize(
    ("name", "content", "options", "words"),
    [
        ("in.csv", "text,n\nthe cat\n", [], "expected 2 fields in line 2, as in the header, found 1"),
        ("in.csv", 'text\n"the cat\n', [], "expected CSV, found line 2"),
        ("in.jsonl", '{"text": "a"}\n{"text": \n', [], "expected one JSON object per line, found line 2"),
        ("in.jsonl", '["a"]\n', [], "expected one JSON object per line, found list in line 1"),
        ("in.jsonl", '{"text": "a"}\n{"text": 1}\n', [], "expected one type of value in the column text"),
        (
            "in.jsonl",
            '{"a": "x", "b": "y"}\n',
            [],
            "expected a column text, found the columns a, b; give",
        ),
        ("in.jsonl", '{"a": "x", "b": "y"}\n', ["--text_column", "c"], "expected a column c, found the columns a, b"),
        ("in.jsonl", '{"text": 3}\n', [], "expected text in the column text, found int64"),
        ("in.jsonl", '{"a": "x", "text": "y"}\n', ["--text_column", "a"], "found another one of that name"),
        ("in.csv", b"text\ncaf\xe9\n", [], "expected UTF-8 text, found byte 0xe9"),
        ("in.csv", "text,text\na,b\n", [], "expected each column once, found 'text' twice"),
        (
            "in.csv",
            "text,,\na,b,c\n",
            [],
            "found 'b' in one without in line 2",
        ),
        ("in.parquet", two_texts(), [], "expected each column once, found 'text' twice"),
        ("notes.tsv.csv", "text\tn\nthe cat\t1\n", [], "expected commas between the columns, found '\\t'"),
        ("in.tsv", "text,n\nthe cat,1\n", [], "expected tabs between the columns, found ','"),
        ("in.csv", "text,n\n", [], "expected rows of texts, found none"),
        ("in.json", '[{"text": "a"}, 3]', [], "expected one JSON object per line, found int in row 2"),
        ("in.json", '[{"text": ', [], "expected a JSON list of objects, found"),
        ("in.jsonl", '{"text": "a", "n": 1}\n{"text": "b", "n": "x"}\n', [], "one type of value in the column n"),
        (
            "in.jsonl",
            f'{{"text": "a", "n": {2**60 + 1}}}\n' * tables.TABLE_ROWS + '{"text": "b", "n": NaN}\n',
            [],
            "one type of value in the column n, found fractions, and whole numbers above 9,007,199,254,740,992",
        ),
    ],
)
def test_wrong_tables(name, content, options, words, arguments, tmp_path, capsys) -> None:
    """One line and status 2 before the work."""
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    output = tmp_path / "out.parquet"
    with pytest.raises(SystemExit, match="2"):
        main([arguments[0], str(tmp_path / name), "--output", str(output), "--pooling", "avg", *options])
    assert words in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {name}


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("no.txt", None, "expected a file or a folder of texts, found none"),
        ("latin.txt", "café".encode("latin-1"), "expected UTF-8 text, found byte 0xe9 at offset 3"),
        ("cut.txt.gz", gzip.compress(b"the cat " * 999, mtime=0)[:40], "truncated or corrupt"),
        ("no.parquet", b"not one", "expected a Parquet file"),
    ],
)
def test_wrong_files(name, content, words, arguments, tmp_path, capsys) -> None:
    """A fault in the text shows before the work."""
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(SystemExit) as stop:
        main([arguments[0], str(tmp_path / name), *arguments[2:]])
    assert stop.value.code == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out.npy").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["--output", "{tmp}/out.csv"], "must end with .npy or .parquet"),
        (["--output", "{tmp}/no/out.npy"], "no to exist, found none; create it"),
        (["--output", "{tmp}/there.npy"], "there.npy: exists; choose another name, or --overwrite"),
        (["--text_column", "text"], "--text_column expects a table (.csv, .tsv, .jsonl, .parquet), found"),
        (["--truncate_dim", "33"], "must be at most 32, the model's, found 33"),
        (["--dtype", "fp8"], "invalid choice: 'fp8'"),
        (["--device", "abacus"], "--device abacus: cannot be used here"),
        (["--pooling", "mean"], "found 'mean'"),
    ],
)
def test_errors(change, words, lines, arguments, tmp_path, capsys) -> None:
    """One line and status 2, and nothing is written."""
    (tmp_path / "there.npy").write_text("")
    before = {path.name for path in tmp_path.iterdir()}
    with pytest.raises(SystemExit) as stop:
        main([*arguments, *(item.format(tmp=tmp_path) for item in change)])
    assert stop.value.code == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert words in error
    assert {path.name for path in tmp_path.iterdir()} == before


@pytest.mark.usefixtures("lines")
def test_emulated_bf16_is_refused(arguments, monkeypatch, capsys):
    """The GPU is pretended, an old one."""
    on_gpu = SimpleNamespace(model=SimpleNamespace(device=torch.device("cuda")))
    monkeypatch.setattr(encoders, "load_model_encoder", lambda *given, **options: on_gpu)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla V100")
    with pytest.raises(SystemExit, match="2"):
        main([*arguments, "--dtype", "bf16"])
    expected = "bf16 expects a GPU of the Ampere generation or newer, found Tesla V100; use --dtype fp16"
    assert expected in capsys.readouterr().err
