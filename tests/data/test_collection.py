"""Documents from every kind of source, and which of them training never sees."""

import gzip
import json

import pytest
from datasets import Dataset

from cmlmcse.common.errors import InputError
from cmlmcse.data import collection
from cmlmcse.data.collection import (
    Document,
    draw_documents,
    hold_out,
    load_collection,
    next_seed,
    read_collection,
)
from cmlmcse.data.row_blocks import read_blocks
from cmlmcse.data.tables import scan


def found(path, *columns):
    return list(read_collection(str(path), *columns))


def test_text_files(tmp_path):
    """Blank lines separate documents; without any, each line is one; in a folder each file is one."""
    lines, blocks = tmp_path / "lines.txt", tmp_path / "blocks.txt"
    lines.write_text("one a\ntwo b\n")
    blocks.write_text("one a\none b\n\n\ntwo a\n")
    assert found(lines) == [Document("", "one a"), Document("", "two b")]
    assert found(blocks) == [Document("", "one a\none b"), Document("", "two a")]
    (tmp_path / "folder" / "deep").mkdir(parents=True)
    (tmp_path / "folder" / "b.txt").write_text("b one\n\nb two\n")
    with gzip.open(tmp_path / "folder" / "deep" / "a.txt.gz", "wt") as file:
        file.write("a one\n")
    (tmp_path / "folder" / "picture.png").write_bytes(b"\x89PNG")
    (tmp_path / "folder" / ".ipynb_checkpoints").mkdir()
    (tmp_path / "folder" / ".ipynb_checkpoints" / "b.txt").write_text("hidden\n")
    assert found(tmp_path / "folder") == [Document("", "b one\nb two"), Document("", "a one")]
    for text in ("\none a\ntwo b\n", "one a\ntwo b\n\n", " \none a\ntwo b\n\t\n\n"):
        lines.write_text(text)  # blank lines at the ends separate nothing
        assert found(lines) == [Document("", "one a"), Document("", "two b")]


def test_tables(tmp_path):
    """A title that the text repeats is removed from it; a document with a title alone keeps it as its text."""
    rows = [
        {"_id": "1", "title": "A title", "text": "A title. The body."},
        {"_id": "2", "title": "Alone", "text": ""},
        {"_id": "3", "title": "", "text": "Body alone"},
        {"_id": "4", "title": " ", "text": " "},
        {"_id": "5", "title": "Other", "text": "A body"},
    ]
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    expected = [("A title", "The body."), ("", "Alone"), ("", "Body alone"), ("Other", "A body")]
    assert [tuple(document) for document in found(path)] == expected
    dataset = load_collection(str(path))
    assert [(row["title"], row["text"]) for row in dataset] == expected
    table = tmp_path / "table.csv"
    table.write_text("name,body\nA name,Some text\n")
    assert found(table, "body", "name") == [Document("A name", "Some text")]


def test_a_column_that_is_not_read_may_hold_anything(tmp_path):
    """Numbers and words in one column stop a command that copies the column, and not one that reads others."""
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"title": "A", "text": "One.", "id": 1}\n{"title": "B", "text": "Two.", "id": "B2"}\n')
    assert found(path) == [Document("A", "One."), Document("B", "Two.")]
    with pytest.raises(InputError, match="expected one type of value in the column id, found"):
        scan(path)
    path.write_text('{"title": "A", "text": "One.", "id": 1180591620717411303424}\n')  # more than 64 bits
    assert found(path) == [Document("A", "One.")]
    with pytest.raises(InputError, match="expected one type of value in the column id, found"):
        scan(path)


@pytest.mark.parametrize(
    ("row", "columns", "name"),
    [
        ('{"title": "B", "text": 300}', (), "text"),
        ('{"title": 1984, "text": "Two."}', (), "title"),
        ('{"title": "B", "text": "Two.", "body": 7}', ("body",), "body"),
        ('{"title": "B", "text": "Two.", "name": 7}', ("text", "name"), "name"),
    ],
)
def test_a_column_that_is_read_holds_text(row, columns, name, tmp_path):
    """One number among the texts or the titles does not leave out the column without a word."""
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"title": "A", "text": "One.", "body": "b", "name": "n"}\n' + row + "\n")
    with pytest.raises(InputError, match=f"expected one type of value in the column {name}, found"):
        found(path, *columns)


def test_a_mixed_column_where_the_text_is_guessed(tmp_path):
    """It may be the text. Who names the text may keep it."""
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"body": "One.", "id": 1}\n{"body": "Two.", "id": "B2"}\n')
    with pytest.raises(InputError, match=r"in the column id, found .*; fix it, or give --text_column"):
        found(path)
    assert found(path, "body") == [Document("", "One."), Document("", "Two.")]


def test_commas_at_the_end_of_each_line(tmp_path):
    """Spreadsheets leave them. They make columns without a name and without text, which are left out."""
    path = tmp_path / "sheet.csv"
    path.write_text("id,text,,\n1,one cat,,\n2,two dogs,,\n")
    assert load_collection(str(path), "text")["text"] == ["one cat", "two dogs"]
    assert [sorted(block) for block in read_blocks(path, 5)] == [["id", "text"]]


def test_columns_are_guessed_apart(tmp_path):
    """The column of the titles is not taken for that of the texts, and one column is not both."""
    path = tmp_path / "table.csv"
    path.write_text("headline,body\nA name,Some text\n")
    assert found(path, None, "headline") == [Document("A name", "Some text")]
    with pytest.raises(InputError, match="--title_column expects another column than that of the texts, found body"):
        found(path, "body", "body")
    path.write_text("title,body\nA name,Some text\n")
    assert found(path) == [Document("A name", "Some text")]
    assert found(path, "title") == [Document("", "A name")]


def test_other_rules_read_the_source_again(tmp_path, monkeypatch):
    """What an earlier version kept of the same file is not used."""
    path = tmp_path / "text.txt"
    path.write_text("one a\ntwo b\n")
    assert len(load_collection(str(path))) == 2
    monkeypatch.setattr(collection, "read_collection", lambda *_: iter([Document("", "other")]))
    assert len(load_collection(str(path))) == 2
    monkeypatch.setattr(collection, "VERSION", collection.VERSION + 1)
    assert load_collection(str(path))["text"] == ["other"]


@pytest.mark.parametrize(
    ("title", "text", "expected"),
    [
        ("The cat sat", "The cat sat", ("", "The cat sat")),
        ("The cat  sat", "THE CAT SAT. ", ("", "THE CAT SAT.")),
        ("Cat", "Category theory", ("Cat", "Category theory")),
        ("Cat", "Cat. A small animal", ("Cat", "A small animal")),
        ("Cat", "Cat Cat", ("", "Cat")),
    ],
)
def test_a_title_that_says_what_the_text_says(title, text, expected, tmp_path):
    """It is no title; one that the text's first word only starts with is not cut out of that word."""
    path = tmp_path / "corpus.jsonl"
    path.write_text(json.dumps({"title": title, "text": text}))
    assert found(path) == [expected]


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda path: path.mkdir(), "expected text files (.txt, .md, .markdown, also compressed), found none"),
        (
            lambda path: path.write_text('{"text": "a", "other": 1}\n'),
            "expected a column title, found the columns",
        ),
    ],
)
def test_wrong_sources(make, message, tmp_path):
    path = tmp_path / "corpus.jsonl"
    make(path)
    with pytest.raises(InputError) as error:
        found(path, None, "title")
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("name", "content", "columns", "message"),
    [
        ("a.txt", "one\n", ("text", None), "--text_column expects a table (.csv, .tsv, .jsonl, .parquet), found"),
        ("a.txt", "one\n", (None, "title"), "--title_column expects a table (.csv, .tsv, .jsonl, .parquet), found"),
        ("a.csv", "title;text\nA;One\n", (None, None), "expected commas between the columns, found ';' in the header"),
        (
            "a.jsonl",
            '{"text": "a"}\n{"text": "a \\ud83d b"}\n',
            (None, None),
            "text in line 2, found half of a character",
        ),
        ("a.txt", "\n\n", (None, None), "expected sentences, found no non-empty row"),
    ],
)
def test_wrong_columns_and_text(name, content, columns, message, tmp_path):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError) as error:
        load_collection(str(tmp_path / name), *columns)
    assert message in str(error.value)


def test_overlapping_documents():
    """Windows that overlap have words in common; a run of 12 words is chance, one of 19 is always found."""
    words = [[f"d{row}w{word}" for word in range(40)] for row in range(30)]
    held = Dataset.from_dict({"text": [" ".join(each) for each in words]})

    def others(*texts):
        return Dataset.from_dict({"text": [" ".join(each) for each in texts]})

    assert collection.share_overlapping(held, others(["other"] * 50)) == 0
    assert collection.share_overlapping(held, others(words[3][:12] + ["x"] * 9)) == 0
    for start in range(9):
        found = collection.share_overlapping(held, others(["x"] * start + words[3][5:24], words[4][2:30], words[4]))
        assert found == pytest.approx(2 / 30)


def test_few_documents_are_asked_for():
    documents = Dataset.from_dict({"title": [""] * 200, "text": [str(row) for row in range(200)]})
    with pytest.raises(InputError, match="max_documents must be at least 100, found 50"):
        draw_documents(documents, 50, 1)
    assert len(draw_documents(documents, 100, 1)) == 100


def test_next_seed():
    """The largest one is followed by the smallest one."""
    assert [next_seed(seed) for seed in (0, 42, 2**32 - 1)] == [1, 43, 0]


def test_hold_out():
    """A fifth is held out, the same at every call, each text once, and no copy of a held-out text is trained on."""
    texts = [f"text number {row}" for row in range(200)] + [f"Text, number {row}!" for row in range(200)]
    documents = Dataset.from_dict({"title": [""] * 400, "text": texts})
    rest, held = hold_out(documents, 1)
    assert held["text"] == hold_out(documents, 1)[1]["text"] != hold_out(documents, 2)[1]["text"]
    numbers = [{"".join(filter(str.isdigit, text)) for text in part["text"]} for part in (rest, held)]
    assert not numbers[0] & numbers[1]
    assert 60 < len(held) == len(numbers[1]) < 80
    assert len(hold_out(documents.select(range(200)), 1)[1]) == 40
    assert len(rest) < 400 - 80
    with pytest.raises(InputError, match=r"at least 100 documents, found 99.* In a folder of 100 files each is one"):
        hold_out(documents.select(range(99)), 1)
