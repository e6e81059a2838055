"""Documents from every kind of source, and which of them training never sees."""

import gzip
import json

import pytest
from datasets import Dataset

from cmlmcse.common.errors import InputError
from cmlmcse.data.collection import Document, hold_out, load_collection, next_seed, read_collection


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
    assert found(tmp_path / "folder") == [Document("", "b one\nb two"), Document("", "a one")]


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
    dataset = load_collection(str(path), cache_dir=str(tmp_path / "cache"))
    assert [(row["title"], row["text"]) for row in dataset] == expected
    table = tmp_path / "table.csv"
    table.write_text("name,body\nA name,Some text\n")
    assert found(table, "body", "name") == [Document("A name", "Some text")]


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
        (lambda path: path.mkdir(), "expected text files (.txt, also compressed), found none"),
        (lambda path: path.write_text('{"text": "a", "other": 1}\n'), "expected the column 'title', found text, other"),
    ],
)
def test_wrong_sources(make, message, tmp_path):
    path = tmp_path / "corpus.jsonl"
    make(path)
    with pytest.raises(InputError) as error:
        found(path, None, "title")
    assert message in str(error.value)


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
    with pytest.raises(InputError, match="at least 100 documents, found 99"):
        hold_out(documents.select(range(99)), 1)
