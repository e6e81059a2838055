"""`cmlmcse search` in the passages of files and of tables."""

import json
from pathlib import Path

import pytest
from pyarrow import parquet

from cmlmcse.encode import command as encode
from cmlmcse.search import command as search
from support.search import QUERY


def test_a_folder_of_files(place, capsys) -> None:
    """Its passages, each with its file and title, whether they are encoded now or were before."""
    Path("pages").mkdir()
    Path("pages/one.md").write_text(f"# the red dog\n\n{QUERY}\n\n## park\n\nrunning fast\n")
    Path("pages/two.txt").write_text("a blue bird\n")
    encode.main(["model", "pages", "--pooling", "avg", "--output", "pages.parquet"])
    said = []
    for corpus in ("pages", "pages.parquet"):
        search.main(["model", corpus, f"the red dog {QUERY}", "--pooling", "avg", "--output", f"{corpus}.out"])
        results = json.loads(Path(f"{corpus}.out").read_text())["results"]
        assert results[0]["columns"] == {"file": "one.md", "title": "the red dog", "text": QUERY}
        assert {one["columns"]["title"] for one in results} == {"the red dog", "the red dog: park", ""}
        said.append(capsys.readouterr().out.splitlines()[-3:])
    assert said[0] == said[1]
    assert said[0][0] == f"1.0000  one.md  the red dog | {QUERY}"
    Path("pages/two.txt").write_text("a blue bird and a cat\n")  # a finished file is not taken for the new text's
    with pytest.raises(SystemExit, match="2"):
        encode.main(["model", "pages", "--pooling", "avg", "--output", "pages.parquet"])


def test_the_passages_of_a_table(place, capsys) -> None:
    """Encoded now or before: a result says which row it is from, and with --bm25 the words of the whole row count."""
    long = " ".join(["the"] * 100)
    texts = [f"the dog {long}", f"the dog {long} the cat", QUERY]
    Path("long.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    encode.main(["model", "long.jsonl", "--passages", "--pooling", "avg", "--output", "long.parquet"])
    said = []
    for corpus, options in (("long.jsonl", ["--passages"]), ("long.parquet", [])):
        output = f"{corpus}.out"
        search.main(["model", corpus, "dog cat", "--pooling", "avg", "--output", output, "--bm25", "9", *options])
        results = json.loads(Path(output).read_text())["results"]
        assert sorted(one["columns"]["document"] for one in results) == [0, 0, 1, 1, 2]
        dogs = {one["columns"]["document"]: one for one in results if "dog" in one["columns"]["text"]}
        assert dogs[1]["bm25"] > dogs[0]["bm25"] > 0
        said.append(capsys.readouterr().out.splitlines()[-5:])
    assert said[0] == said[1]
    assert said[0][0].split("  ")[1] == "document 1"
    with pytest.raises(SystemExit, match="2"):
        encode.main(["model", "long.jsonl", "--pooling", "avg", "--output", "long.parquet"])  # other rows
    with pytest.raises(SystemExit, match="2"):
        search.main(["model", "long.parquet", "dog", "--pooling", "avg", "--passages"])
    assert "--passages expects texts, found embeddings in long.parquet; encode" in capsys.readouterr().err


def test_a_stored_file_without_its_column_of_files(place, capsys) -> None:
    """Another program may drop the column; the passages are then searched as those of no file."""
    Path("pages").mkdir()
    Path("pages/a.md").write_text("the dog\n\n# y\n\nthe bird\n")
    encode.main(["model", "pages", "--pooling", "avg", "--output", "pages.parquet"])
    table = parquet.read_table("pages.parquet")
    parquet.write_table(table.drop_columns(["file"]), "dropped.parquet")
    search.main(["model", "dropped.parquet", "the dog", "--pooling", "avg", "--bm25"])
    assert "the dog" in capsys.readouterr().out.splitlines()[-2]


@pytest.mark.parametrize(("passage", "shown"), [
    ("sat on the mat. The dog ran. It fell.", "The dog ran. It fell."),
    ("sat " * 30 + "down. The dog ran.", "… " + "sat " * 30 + "down. The dog ran."),
    ("the cat sat on the mat. a dog ran.", "the cat sat on the mat. a dog ran."), ("a note", "a note"),
    ("A cat sat. The dog ran.", "A cat sat. The dog ran."), ("", ""), ("3.5 cats. The dog.", "3.5 cats. The dog."),
    ("of Dr. Smith and others.", "of Dr. Smith and others."), ("nDCG@10 is one. It …", "nDCG@10 is one. It …"),
])  # fmt: skip
def test_a_passage_from_a_sentence_on(passage, shown) -> None:
    """Without the rest of a sentence if it is short, else with a sign that something is missing. A text without capital
    letters, and one sentence alone, say nothing about where they begin."""
    assert search.from_a_sentence(passage) == shown


def test_a_result_begins_at_a_sentence(place, capsys) -> None:
    """That of a passage. A row of a table that is not cut, and the file of the results, have their whole text."""
    text = "sat on it. The dog ran to the cat."
    Path("row.jsonl").write_text(json.dumps({"text": text}) + "\n")
    for options, shown in (([], text), (["--passages", "--output", "found.jsonl"], text[11:])):
        search.main(["model", "row.jsonl", "the dog", "--pooling", "avg", *options])
        assert capsys.readouterr().out.splitlines()[-1].endswith(f"  {shown}")
    assert json.loads(Path("found.jsonl").read_text())["results"][0]["columns"]["text"] == text
