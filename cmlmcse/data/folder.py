"""A folder of text files (.txt, .md): each file a document, for training; or cut into passages, for searching and where
there are few files.

In Markdown a line with `#` before it is a heading, outside of code between ``` or ~~~.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from cmlmcse.common.errors import InputError

from .lines import read_lines, split_compression
from .words import join_words, split_words

SUFFIXES = (".txt", ".md")
PASSAGE_WORDS = 80  # about 110 tokens of English: encoders of 128 positions read it whole, with a short title
MIN_FILES = 100  # a folder of fewer has too few documents to measure with; then its passages are the documents
_HEADING = re.compile(r"#{1,6}\s+(.*?)\s*#*\s*")
_FENCE = re.compile(r"\s*(```|~~~)")
_FRONT_TITLE = re.compile(r"title:\s*(['\"]?)(.+)\1\s*")


class Section(NamedTuple):
    """The lines below a heading, up to the next heading, blank ones too. Before the first one the heading is empty."""

    heading: str
    lines: list[str]


def files_in(folder: str) -> list[str]:
    """The text files of a folder and its subfolders, sorted by name. What begins with a dot is hidden, and not read.

    Raises:
        InputError: there is none.
    """
    below = [path.relative_to(folder) for path in Path(folder).rglob("*") if path.is_file()]
    shown = [path for path in below if not any(part.startswith(".") for part in path.parts)]
    texts = [path for path in shown if _suffix(path) in SUFFIXES]
    if not texts:
        raise InputError(
            f"{folder}: expected text files ({', '.join(SUFFIXES)}, also compressed), found none; convert other files, "
            "or name a file"
        )
    return sorted(str(Path(folder, path)) for path in texts)


def few_files(source: str) -> int:
    """How many text files a folder has if they are fewer than `MIN_FILES`; else 0, as for what is no folder."""
    count = len(files_in(source)) if Path(source).is_dir() else 0
    return count if count < MIN_FILES else 0


def read_folder(folder: str) -> Iterator[tuple[str, str]]:
    """The title and the text of each document of a folder: its files, or, if there are fewer than `MIN_FILES`, their
    passages."""
    files = files_in(folder)
    if few_files(folder):
        yield from (passage for file in files for passage in read_passages(file))
    else:
        yield from map(read_file, files)


def read_file(path: str) -> tuple[str, str]:
    """The title of a file, empty if it has none, and its text, without blank lines."""
    if not _is_markdown(path):
        return "", "\n".join(read_lines(path))
    title, sections = _markdown(path)
    marked = [[f"# {section.heading}"] * (section.heading not in ("", title)) + section.lines for section in sections]
    return title, "\n".join(line for lines in marked for line in lines if line.strip())


def read_passages(path: str) -> Iterator[tuple[str, str]]:
    """The passages of a file, each with its title: the file's title and the heading above the passage, or what is there
    of them. A passage has whole paragraphs, as many as have at most `PASSAGE_WORDS` words. A longer paragraph is cut
    into equal parts. Blank lines separate paragraphs; in a section without them each line is one."""
    title, sections = _markdown(path) if _is_markdown(path) else ("", [Section("", list(read_lines(path, blank=True)))])
    for section in sections:
        heading = ": ".join(dict.fromkeys(filter(None, (title, section.heading))))
        for passage in _joined(_paragraphs(section.lines)):
            yield heading, passage


def _suffix(path: Path | str) -> str:
    """The suffix of a file's name, without that of a compression, in lower case."""
    return Path(split_compression(Path(path).name)[0]).suffix.lower()


def _is_markdown(path: str) -> bool:
    """Whether a file is Markdown, by its name."""
    return _suffix(path) == ".md"


def _markdown(path: str) -> tuple[str, list[Section]]:
    """The title of a Markdown file and its sections. The title is that of its front matter, else its first heading if
    no text stands before it."""
    lines = list(read_lines(path, blank=True))
    front: list[str] = []
    if lines[:1] == ["---"] and "---" in lines[1:]:
        end = lines.index("---", 1)
        front, lines = lines[1:end], lines[end + 1 :]
    titles = [found[2].strip() for found in map(_FRONT_TITLE.fullmatch, front) if found]
    sections, fenced = [Section("", [])], False
    for line in lines:
        fenced ^= _FENCE.match(line) is not None
        heading = None if fenced else _HEADING.fullmatch(line)
        if heading:
            sections.append(Section(heading[1], []))
        else:
            sections[-1].lines.append(line)
    if not titles and len(sections) > 1 and not any(map(str.strip, sections[0].lines)):
        titles = [sections[1].heading]
    return (titles or [""])[0], sections


def _paragraphs(lines: list[str]) -> Iterator[str]:
    """The paragraphs between blank lines; without a blank line between lines of text, the lines."""
    found = [block.strip() for block in re.split(r"\n\s*\n", "\n".join(lines).strip())]
    yield from filter(None, found if len(found) > 1 else map(str.strip, lines))


def _joined(paragraphs: Iterable[str]) -> Iterator[str]:
    """Paragraphs as passages: short ones together, long ones in parts."""
    held: list[str] = []
    count = 0
    for paragraph in paragraphs:
        words = split_words(paragraph)
        if held and count + len(words) > PASSAGE_WORDS:
            yield "\n".join(held)
            held, count = [], 0
        if len(words) <= PASSAGE_WORDS:
            held.append(paragraph)
            count += len(words)
            continue
        parts = -(-len(words) // PASSAGE_WORDS)
        size = -(-len(words) // parts)
        yield from (join_words(words[start : start + size]) for start in range(0, len(words), size))
    if held:
        yield "\n".join(held)
