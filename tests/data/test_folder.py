"""A folder of .txt and .md files: whole documents with titles for training, passages with headings for searching."""

from pathlib import Path

import pytest

from cmlmcse.data import folder
from cmlmcse.data.collection import Document, load_collection, read_collection
from cmlmcse.data.folder import PASSAGE_WORDS, few_files, files_in, read_file, read_passages
from cmlmcse.data.tables import scan

GUIDE = """# The pump

It moves water.

## Cleaning ##

Open the lid.
Rinse the filter.

```
# no heading
```

#hashtag
### Parts

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
    """Title and heading stand before each passage; code and words with # are text; a heading without text is none."""
    path = written(tmp_path / "guide.md", GUIDE)
    assert list(read_passages(path)) == [
        ("The pump", "It moves water."),
        ("The pump: Cleaning", "Open the lid.\nRinse the filter.\n```\n# no heading\n```\n#hashtag"),
    ]
    title, text = read_file(path)
    assert title == "The pump"
    assert text.split("\n") == [
        "It moves water.", "# Cleaning", "Open the lid.", "Rinse the filter.", "```", "# no heading", "```", "#hashtag",
        "# Parts",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("---\ntitle: 'Of pumps'\ndate: 2026\n---\n# Other\nText.\n", "Of pumps"),
        ('---\ntitle: "A: b"\n---\nText.\n', "A: b"),
        ("---\ndate: 2026\n---\n\n# Other\nText.\n", "Other"),
        ("---\nText without an end of the front matter.\n", ""),
        ("Text first.\n\n# A heading\nMore.\n", ""),
        ("\n\n## Second level\nText.\n", "Second level"),
        ("Text.\n", ""),
    ],
)
def test_the_title_of_markdown(text, title, tmp_path) -> None:
    """That of its front matter, else a heading that nothing stands before."""
    assert read_file(written(tmp_path / "a.md", text))[0] == title


def test_passages_have_whole_paragraphs(tmp_path) -> None:
    """As many as fit; a longer one is cut into equal parts, and nothing is lost or moved."""
    sizes = [30, PASSAGE_WORDS - 30, 1, 2 * PASSAGE_WORDS + 1, 5, PASSAGE_WORDS]
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    paragraphs = [words(size, start) for size, start in zip(sizes, starts, strict=True)]
    for mark in ("\n\n", "\n"):  # without a blank line each line is a paragraph
        passages = [text for _, text in read_passages(written(tmp_path / "a.txt", mark.join(paragraphs)))]
        assert [len(text.split()) for text in passages] == [PASSAGE_WORDS, 1, 54, 54, 53, 5, PASSAGE_WORDS]
        assert " ".join(passages).split() == words(sum(sizes)).split()


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
    monkeypatch.setattr(folder, "MIN_FILES", least)
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
    loaded = load_collection(str(path), cache_dir=str(tmp_path / "cache"))
    assert loaded["title"] == ["", *(document.title for document in others)]
    assert few_files(str(path)) == (2 if least == 3 else 0)
    assert few_files(str(path / "b.md")) == 0
    source = scan(path)
    (table,) = source.tables()
    assert source.rows == 3
    assert table["file"].to_pylist() == ["a/NOTES.TXT", "b.md", "b.md"]
    assert source.titled_texts(table)[:2] == ["One.\nTwo.", "The pump It moves water."]


def test_a_file_that_changed_changes_the_state(tmp_path) -> None:
    """So that a job which was interrupted does not go on with other text."""
    path = tmp_path / "docs"
    name = written(path / "a.txt", "One.\n")
    before = scan(path).state()
    assert scan(path).state() == before
    written(Path(name), "One. Two.\n")
    assert scan(path).state() != before


def test_suffixes_are_those_of_the_message(tmp_path) -> None:
    """An empty folder is refused by every reader in the same words."""
    with pytest.raises(folder.InputError, match=r"expected text files \(\.txt, \.md, also compressed\), found none"):
        scan(tmp_path)
