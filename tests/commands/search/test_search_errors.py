"""`cmlmcse search`: how it answers wrong input, and stored files that do not fit."""

import io
import json
import shutil
from pathlib import Path

import pytest
from pyarrow import parquet
from safetensors.torch import load_file, save_file

from cmlmcse.encode import command as encode
from cmlmcse.search import command as search
from support.search import QUERY


def test_embeddings_that_are_no_numbers(place, capsys) -> None:
    """Neither searched nor written."""
    weights = load_file("model/model.safetensors")
    name = next(name for name in weights if name.endswith("LayerNorm.weight"))
    weights[name] = weights[name] * float("nan")
    shutil.copytree("model", "broken")
    save_file(weights, "broken/model.safetensors", metadata={"format": "pt"})
    for command in (["broken", "texts.txt", "a"], ["broken", "texts.txt", "--output", "nan.npy"]):
        with pytest.raises(SystemExit, match="2"):
            (encode if "--output" in command else search).main([*command, "--pooling", "avg"])
        assert "expected finite embeddings, found NaN or infinity" in capsys.readouterr().err
    assert not Path("nan.npy").exists()


def test_a_file_that_does_not_name_its_model(place, backbone_folders, capsys) -> None:
    """Its first texts are encoded again. If that gives other embeddings, or there are no texts, the user is told."""
    table = parquet.read_table("texts.parquet").replace_schema_metadata(None)
    parquet.write_table(table, "anonymous.parquet")
    search.main(["model", "anonymous.parquet", QUERY, "--pooling", "avg"])
    assert "warning" not in capsys.readouterr().err
    search.main([backbone_folders["roberta"], "anonymous.parquet", QUERY, "--pooling", "avg"])
    said = capsys.readouterr().err
    assert (
        "anonymous.parquet does not say which model made its embeddings; those of its first texts have cosines" in said
    )
    parquet.write_table(table.select(["embedding"]), "bare.parquet")
    search.main(["model", "bare.parquet", QUERY, "--pooling", "avg"])
    assert "warning: bare.parquet does not say which model made its embeddings" in capsys.readouterr().err


def test_a_file_that_was_changed(place, capsys) -> None:
    """The column of titles may be gone; a second column of embeddings and a damaged record are named."""
    Path("titled.jsonl").write_text('{"title": "Pets", "text": "the dog"}\n{"title": "", "text": "the tree"}\n')
    encode.main(["model", "titled.jsonl", "--pooling", "avg", "--title_column", "title", "--output", "titled.parquet"])
    table = parquet.read_table("titled.parquet")
    parquet.write_table(table.select(["text", "embedding"]), "untitled.parquet")
    search.main(["model", "untitled.parquet", "dog", "--pooling", "avg", "--bm25"])
    assert "the dog" in capsys.readouterr().out
    Path("only.jsonl").write_text('{"title": "Pets", "text": ""}\n{"title": "Trees", "text": "the tree"}\n')
    encode.main(["model", "only.jsonl", "--pooling", "avg", "--title_column", "title", "--output", "only.parquet"])
    parquet.write_table(parquet.read_table("only.parquet").select(["text", "embedding"]), "rest.parquet")
    search.main(["model", "rest.parquet", "dog", "--pooling", "avg", "--output", "rest.out"])
    assert len(json.loads(Path("rest.out").read_text())["results"]) == 2  # the empty text had a title
    parquet.write_table(table.append_column("embedding", table["embedding"]), "twice.parquet")
    parquet.write_table(table.replace_schema_metadata({b"cmlmcse": b"[1]"}), "damaged.parquet")
    for name, words in (("twice", "expected one column embedding"), ("damaged", "expected the record of cmlmcse")):
        with pytest.raises(SystemExit, match="2"):
            search.main(["model", f"{name}.parquet", "dog", "--pooling", "avg"])
        assert words in capsys.readouterr().err


def test_two_columns_of_one_name(place, capsys) -> None:
    """Of texts or beside embeddings: refused, because a search would find the second one alone."""
    table = parquet.read_table("texts.parquet")
    parquet.write_table(table.append_column("text", table["text"]), "encoded.parquet")
    parquet.write_table(table.select(["text"]).append_column("text", table["text"]), "plain.parquet")
    capsys.readouterr()
    for name in ("encoded.parquet", "plain.parquet"):
        for options in ([], ["--bm25"]):
            with pytest.raises(SystemExit, match="2"):
                search.main(["model", name, QUERY, "--pooling", "avg", *options])
            said = capsys.readouterr().err
            assert said == f"error: {name}: expected each column once, found 'text' twice; rename one\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["model", "no.txt", "a"], "no.txt: expected a file or a folder of texts, found none"),
        (["model", "texts.txt", " "], "QUERY must be a text, found ' '"),
        (["model", "texts.txt", "-"], "found no line on standard input"),
        (["model", "texts.txt", "a", "--top_k", "0"], "expected a whole number of at least 1"),
        (["model", "texts.txt", "a", "--bm25", "-1"], "--bm25: expected a number above 0, found '-1'"),
        (["model", "texts.txt", "a", "--bm25", "nan"], "--bm25: expected a number above 0, found 'nan'"),
        (
            ["model", "texts.txt", "--bm25", "a query"],
            "--bm25: expected a number above 0, found 'a query'; put --bm25 behind QUERY",
        ),
        (
            ["model", "a query", "texts.txt"],
            "expected MODEL CORPUS QUERY in this order, found no file or folder a query, but one called texts.txt",
        ),
        (["model", "empty.txt", "a", "--bm25"], "expected texts to search, found no row"),
        (["model", "empty.txt", "a", "--bm25", "--passages"], "expected texts to search, found no row"),
        (["model", "texts.txt", "a", "--output", "texts.txt"], "--output texts.txt: exists; choose another name"),
        (["model", "texts.txt", "a", "--output", "no/out.jsonl"], "expected the folder no to exist"),
        (["no/model", "texts.txt", "a", "--output", "o" * 250], "o: cannot be written: "),  # before the model is loaded
        (["model", "texts.jsonl", "a"], "expected a column text, found the columns sentence, id"),
        (
            ["model", "texts.parquet", "a", "--text_column", "none"],
            "expected a column none, found the columns text",
        ),
        (
            ["model", "texts.jsonl", "a", "--text_column", "sentence", "--title_column", "sentence"],
            "--title_column expects another column than that of the texts, found sentence",
        ),
        (
            ["model", "texts.jsonl", "a", "--text_column", "sentence", "--title_column", "head"],
            "expected a column head, found the columns sentence, id; give --title_column",
        ),
        (["model", "texts.txt", "a", "--title_column", "title"], "--title_column expects a table"),
        (["model", "empty.txt", "a"], "expected texts to search, found no row"),
        (["model", "broken.parquet", "a"], "expected a Parquet file"),
        (["no/model", "texts.txt", "a"], "no/model"),
    ],
)
def test_errors(arguments, words, place, monkeypatch, capsys) -> None:
    """One line and status 2, and nothing is written."""
    Path("empty.txt").write_text("")
    Path("broken.parquet").write_bytes(b"PAR1 and no more")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\n")))
    before = {path: path.stat().st_mtime_ns for path in Path().iterdir()}
    capsys.readouterr()
    with pytest.raises(SystemExit, match="2"):
        search.main([*arguments, *(["--pooling", "avg"] if arguments[0] == "model" else [])])
    said = capsys.readouterr().err
    assert words in said
    assert len([line for line in said.splitlines() if line.startswith("error: ")]) == 1
    assert {path: path.stat().st_mtime_ns for path in Path().iterdir()} == before


def test_a_query_without_quotes(place, capsys) -> None:
    """Says that quotes are missing; another option is still unknown."""
    for words, said in (
        (["people", "who", "sing"], "QUERY must be one word of the command line, found 3; put quotes round it"),
        (["people", "--query", "x"], "unrecognized arguments: --query x"),
    ):
        with pytest.raises(SystemExit, match="2"):
            search.main(["model", "texts.txt", *words])
        assert said in capsys.readouterr().err


def test_queries_in_another_encoding(place, monkeypatch, capsys) -> None:
    """One line, and no traceback; a byte-order mark is no part of a query."""
    command = ["model", "texts.txt", "-", "--pooling", "avg"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9\n")))
    with pytest.raises(SystemExit, match="2"):
        search.main(command)
    assert "error: QUERY must be UTF-8 text, found something else" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbfthe cat\nthe dog\n")))
    search.main(command)
    assert capsys.readouterr().out.startswith("the cat\n")
