"""A folder of .txt and .md files: whole documents with titles for training, passages with headings for searching."""

import json
import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from cmlmcse.common.errors import InputError
from cmlmcse.data import collection, lines, tables
from cmlmcse.data.collection import Document, few_files, load_collection, read_collection
from cmlmcse.data.folder import PASSAGE_WORDS, files_in, read_file, read_passages, unread_files
from cmlmcse.data.tables import scan
from cmlmcse.training.build_text import check_name
from cmlmcse.training.fields import DataArguments

GUIDE = """# The pump

It moves water.

## Cleaning `it` with [soap](https://x.org) ##

Open the lid.
Rinse the filter.

````
```
# no heading
````

#hashtag
### Parts

Spare parts
-----------
### C#

Sharp.

- # in a list
"""


def written(path: Path, text: str) -> str:
    """The name of a new file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return str(path)


def words(count: int, first: int = 0) -> str:
    """That many words, all different."""
    return " ".join(f"w{number}" for number in range(first, first + count))


def test_markdown_is_cut_at_headings(tmp_path) -> None:
    """Title and heading, without their marks, stand before each passage. Code and words with # are text. A heading with
    nothing below it, not even a smaller heading, is a passage."""
    path = written(tmp_path / "guide.md", GUIDE)
    assert list(read_passages(path)) == [
        ("The pump", "It moves water."),
        (
            "The pump: Cleaning it with soap",
            "Open the lid.\nRinse the filter.\n````\n```\n# no heading\n````\n#hashtag",
        ),
        ("The pump", "Parts"),
        ("The pump: C#", "Sharp.\n- # in a list"),
    ]
    title, text = read_file(path)
    assert title == "The pump"
    assert text.split("\n") == [
        "It moves water.", "# Cleaning it with soap", "Open the lid.", "Rinse the filter.", "````", "```",
        "# no heading", "````", "#hashtag", "# Parts", "# Spare parts", "# C#", "Sharp.", "- # in a list",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("---\ntitle: 'It''s of pumps'  # new\ndate: 2026\n---\n# Other\nText.\n", "It's of pumps"),
        ('--- \ntitle: "A: b"\n...\nText.\n', "A: b"),
        ("---\ntitle: >\n  Two\n  lines\n---\nText.\n", "Two lines"),
        ("---\ntitle: ''\ndate: 2026\n---\n\n# Other\nText.\n", "Other"),
        ("---\nText without an end of the front matter.\n", ""),
        ('+++\ndate = 2026-11-27\ntitle = "A \\"pump\\" \\u00e9" # new\n[params]\n+++\n# Other\nText.\n', 'A "pump" é'),
        ("+++\ntitle = 'C:\\pumps'\n+++\nText.\n", "C:\\pumps"),
        ("+++\ntags = []\n+++\n# Other\nText.\n", "Other"),
        ('+++\ntitle = """\nTwo\nlines"""\n+++\nText.\n', "Two\nlines"),
        ("<!-- a comment -->\n![badge](x)\n\n# A heading\nMore.\n\n## Second\nText.\n", "A heading"),
        ("Text first.\n\n# A heading\nMore.\n\n# Another\nText.\n", ""),
        ("\n\n## Second level\nText.\n", "Second level"),
        ("A *title*\n=======\nText.\n", "A title"),
        ("Text.\n", ""),
    ],
)
def test_the_title_of_markdown(text, title, tmp_path) -> None:
    """That of its front matter, else its only large heading, else a heading that nothing stands before."""
    assert read_file(written(tmp_path / "a.md", text))[0] == title


@pytest.mark.parametrize(
    "text",
    [
        "---\n\nFirst.\n\n---\n\nSecond.\n",
        "---\na: [\n\n---\nFirst.\n",
        "+++\nFirst.\n+++\nSecond.\n",
        "+++\na = 'b'\nSecond.\n",
    ],
)
def test_rules_are_no_front_matter(text, tmp_path) -> None:
    """What is no YAML or TOML of fields is kept as text: every line of it."""
    path = written(tmp_path / "a.md", text)
    kept = [line for line in text.split("\n") if line]
    assert read_file(path)[1].split("\n") == kept
    (only,) = read_passages(path)
    assert only[1].split("\n") == kept


def test_long_headings_take_no_time(tmp_path) -> None:
    """A pattern that looked back took a minute for such a line."""
    path = written(tmp_path / "a.md", "# a" + " " * 20_000 + "b\nText.\n")
    assert read_file(path) == ("a b", "Text.")


def test_passages_have_whole_paragraphs(tmp_path) -> None:
    """As many as fit; a longer one is cut into equal parts, and nothing is lost or moved."""
    sizes = [30, PASSAGE_WORDS - 30, 1, 2 * PASSAGE_WORDS + 1, 5, PASSAGE_WORDS]
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    paragraphs = [words(size, start) for size, start in zip(sizes, starts, strict=True)]
    for mark in ("\n\n", "\n"):  # without a blank line each line is a paragraph
        passages = [text for _, text in read_passages(written(tmp_path / "a.txt", mark.join(paragraphs)))]
        assert [len(text.split()) for text in passages] == [PASSAGE_WORDS, 1, 54, 54, 53, 5, PASSAGE_WORDS]
        assert " ".join(passages).split() == words(sum(sizes)).split()


def test_a_long_paragraph_of_short_lines_is_cut_between_them(tmp_path) -> None:
    """As a list or wrapped text: in parts of about the same size."""
    lines = [words(12, 12 * number) for number in range(8)]
    passages = [text for _, text in read_passages(written(tmp_path / "a.md", "\n".join(lines)))]
    assert passages == ["\n".join(lines[:4]), "\n".join(lines[4:])]
    passages = [text for _, text in read_passages(written(tmp_path / "a.md", "\n".join([*lines, words(100, 96)])))]
    assert [len(text.split()) for text in passages] == [72, 24, 50, 50]


def test_chinese_is_cut_too(tmp_path) -> None:
    """Two characters are a word there."""
    text = "水泵清洁" * PASSAGE_WORDS
    passages = [text for _, text in read_passages(written(tmp_path / "a.txt", text))]
    assert [len(passage) for passage in passages] == [2 * PASSAGE_WORDS] * 2
    assert "".join(passages) == text


@pytest.mark.parametrize("least", [2, 3])
def test_a_collection_and_a_table_of_a_folder(least, tmp_path, monkeypatch) -> None:
    """The same files in the same order: for a collection each a document, or with few files their passages; for a table
    always their passages. Hidden and other files are not read."""
    monkeypatch.setattr(collection, "MIN_DOCUMENTS", least)
    written(tmp_path / "docs" / "b.md", GUIDE)
    written(tmp_path / "docs" / "a" / "NOTES.TXT", "One.\n\nTwo.\n")
    written(tmp_path / "docs" / ".git" / "c.md", "# Hidden\nText.\n")
    written(tmp_path / "docs" / "page.html", "<p>Text</p>")
    path = tmp_path / "docs"
    assert [Path(name).name for name in files_in(str(path))] == ["NOTES.TXT", "b.md"]
    first, *others = read_collection(str(path))
    assert first == Document("", "One.\nTwo.")
    passages = [Document(*passage) for passage in read_passages(str(path / "b.md"))]
    assert others == ([Document(*read_file(str(path / "b.md")))] if least == 2 else passages)
    loaded = load_collection(str(path))
    assert loaded["title"] == ["", *(document.title for document in others)]
    assert few_files(str(path)) == (2 if least == 3 else 0)
    assert few_files(str(path / "a" / "NOTES.TXT")) == 0
    source = scan(path)
    (table,) = source.tables()
    assert source.rows == 5
    assert table["file"].to_pylist() == ["a/NOTES.TXT", *["b.md"] * 4]
    assert source.titled_texts(table)[:2] == ["One.\nTwo.", "The pump It moves water."]


def test_the_passages_of_a_table(tmp_path, monkeypatch) -> None:
    """A row each, with all columns of their row and its number; cut as a .txt file is; a blank text keeps its row."""
    monkeypatch.setattr(tables, "TABLE_ROWS", 2)  # as a large table is read
    long = " ".join(f"w{place}" for place in range(200))
    rows = [("a", "One.\n\nTwo."), ("b", ""), ("c", long), ("d", f"Short.\r\n\r\n{long}")]
    path = tmp_path / "table.jsonl"
    path.write_text("".join(json.dumps({"id": name, "text": text, "empty": {}}) + "\n" for name, text in rows))
    source = scan(path, passages=True)
    found = pyarrow.concat_tables(source.tables())
    assert source.rows == len(found) == 1 + 1 + 3 + 4
    assert found.schema == source.schema
    assert found["document"].to_pylist() == [0, 1, 2, 2, 2, 3, 3, 3, 3]
    assert found["id"].to_pylist() == [*"abcccdddd"]
    texts = source.texts(found)
    assert texts[:2] == ["One.\nTwo.", ""]
    assert [len(text.split()) for text in texts[2:]] == [67, 67, 66, 1, 67, 67, 66]
    assert " ".join(texts[2:5]) == long
    written(tmp_path / "text.txt", f"Short.\n\n{long}\n")
    assert texts[5:] == [passage for _, passage in read_passages(str(tmp_path / "text.txt"))]
    assert [len(table) for table in source.tables()] == [2, 2, 2, 2, 1]


def test_the_passages_of_string_views(tmp_path) -> None:
    """Such a column, as Polars writes it, becomes one of strings: Arrow cannot repeat the rows of views."""
    columns = {"text": ["word " * 81, "short"], "name": ["a", None]}
    views = {name: pyarrow.array(values, pyarrow.string_view()) for name, values in columns.items()}
    parquet.write_table(pyarrow.table(views), tmp_path / "views.parquet")
    (found,) = scan(tmp_path / "views.parquet", passages=True).tables()
    assert found["name"].to_pylist() == ["a", "a", None]
    assert found.schema.field("name").type == found.schema.field("text").type == pyarrow.string()


def test_the_passages_of_a_long_text(tmp_path, monkeypatch) -> None:
    """The text is not repeated for each of its passages, and other columns only within a part of them."""
    monkeypatch.setattr(tables, "TABLE_BYTES", 1 << 20)
    path = tmp_path / "table.jsonl"
    path.write_text(json.dumps({"text": "word " * 250_000, "html": "x" * 300_000}) + "\n")
    source = scan(path, passages=True)
    tracemalloc.start()
    sizes = [len(table) for table in source.tables()]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sum(sizes) == source.rows == 3125
    assert max(sizes) <= 4
    assert peak < 100_000_000


def test_a_table_that_has_a_column_document(tmp_path) -> None:
    """It can hold the texts: the number of the row has another name then, of which there is one."""
    path = tmp_path / "table.csv"
    path.write_text("id,document\na,A dog.\nb,A cat.\n")
    source = scan(path, "document", passages=True)
    (table,) = source.tables()
    assert source.file_column == "document_row"
    assert table.to_pydict() == {"id": ["a", "b"], "document": ["A dog.", "A cat."], "document_row": [0, 1]}
    path.write_text("document,document_row\nA dog.,x\n")
    assert scan(path, "document").rows == 1
    with pytest.raises(InputError, match="the column document or document_row, found columns of both names; rename"):
        scan(path, "document", passages=True)


def test_a_markdown_file_by_itself(tmp_path) -> None:
    """Its passages are its rows and its documents."""
    path = written(tmp_path / "guide.md", GUIDE)
    (table,) = scan(Path(path)).tables()
    assert set(table["file"].to_pylist()) == {"guide.md"}
    assert list(zip(table["title"].to_pylist(), table["text"].to_pylist(), strict=True)) == list(read_passages(path))
    assert len(list(read_collection(path))) == len(table)
    check_name(DataArguments(train_file=path, views="crops"))
    with pytest.raises(InputError, match="unknown suffix, expected one of"):
        check_name(DataArguments(train_file=path))  # its lines are no sentences


def test_a_file_that_changed_changes_the_state(tmp_path) -> None:
    """So that a job which was interrupted does not go on with other text, or with the same under another name."""
    path = tmp_path / "docs"
    name = Path(written(path / "a.txt", "One.\n"))
    before = scan(path).state()
    assert scan(path).state() == before
    name.rename(path / "b.txt")
    renamed = scan(path).state()
    assert renamed != before
    written(path / "b.txt", "One. Two.\n")
    assert scan(path).state() not in (before, renamed)


def test_a_name_that_is_no_text(tmp_path) -> None:
    """A byte that is not UTF-8 does not stop the others."""
    os.makedirs(tmp_path / "docs")
    with open(os.path.join(os.fsencode(tmp_path / "docs"), b"bad\xff.txt"), "w") as file:
        file.write("One.\n")
    (table,) = scan(tmp_path / "docs").tables()
    assert table["file"].to_pylist() == ["bad\ufffd.txt"]


def test_what_cannot_be_read(tmp_path, monkeypatch) -> None:
    """A folder without text, one whose files are empty, and one that the user may not list: one line each."""
    path = tmp_path / "docs"
    path.mkdir()
    with pytest.raises(
        InputError, match=r"expected text files \(\.txt, \.md, \.markdown, also compressed\), found none"
    ):
        scan(path)
    written(path / "corpus.jsonl", '{"text": "A body."}\n')
    with pytest.raises(InputError, match=rf"found none; for a table name it, as {path / 'corpus.jsonl'}"):
        scan(path)
    written(path / "a.md", "---\ntitle: T\n---\n")
    with pytest.raises(InputError, match="docs: expected rows of texts, found none; give a file with text in it"):
        scan(path)

    def refused(_: object) -> Iterator[None]:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(InputError, match="docs: expected a folder that can be read, found Permission denied"):
        files_in(str(path))


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch) -> None:
    """Its rights are named, not its content."""
    path = written(tmp_path / "a.txt", "One.\n")

    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(lines, "_open", refused)
    with pytest.raises(InputError, match="expected a file that can be read, found Permission denied; change its"):
        list(lines.read_lines(path))


def test_files_that_are_not_read_are_counted(tmp_path):
    """By kind, the most frequent first; hidden ones are not meant. A folder of text files needs no word."""
    (tmp_path / "below").mkdir()
    for name in ("a.md", "below/b.txt.gz"):
        (tmp_path / name).write_text("x")
    assert unread_files(str(tmp_path)) == unread_files(str(tmp_path / "a.md")) == ""
    for name in ("c.pdf", "below/d.PDF", "e.html", "LICENSE", ".hidden.pdf"):
        (tmp_path / name).write_text("x")
    said = "files read: 2; not read: 4 (2 .pdf, 1 .html, 1 without a suffix); if they hold text, convert them to "
    assert said in unread_files(str(tmp_path))
    for kind in "uvwxyz":
        (tmp_path / f"name.{kind}").write_text("x")
    assert "not read: 10 (2 .pdf, 1 .html, 1 .u, 1 .v, 1 .w, others)" in unread_files(str(tmp_path))
