"""A folder of text files, or one Markdown file: each file as a document, or cut into passages."""

import functools
import hashlib
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from cmlmcse.common.errors import InputError

from .lines import read_lines, suffix_of
from .words import join_words, split_words

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MARKDOWN = (".md", ".markdown")
SUFFIXES = (".txt", *MARKDOWN)
TABLES = (".csv", ".tsv", ".jsonl", ".parquet")
KINDS = 5  # of other files that a message names
# 111 tokens of Wikipedia's prose by the tokenizer of assets/bert-mini-en: encoders of 128 positions read them whole,
# with a short title. Lists, tables and code have more tokens a word. From 40 to 160 words search was about equally good
# (docs/results/passages.md).
PASSAGE_WORDS = 80


class Section(NamedTuple):
    """The text below a heading, up to the next heading.

    Attributes:
        heading: the words of the heading; empty before the first heading.
        level: the level of the heading, from 1; 0 before the first heading.
        lines: the lines, blank ones too.
    """

    heading: str
    level: int
    lines: list[str]

    @property
    def has_text(self) -> bool:
        """Whether a line has words."""
        return any(map(str.strip, self.lines))


def is_markdown(path: str | Path) -> bool:
    """Whether a name is that of a Markdown file, compressed or not."""
    return suffix_of(path) in MARKDOWN


def has_passages(path: str | Path) -> bool:
    """Whether this is a folder or a Markdown file, which has no rows of its own."""
    return Path(path).is_dir() or (is_markdown(path) and Path(path).is_file())


def files_in(source: str) -> list[str]:
    """The text files of a folder and its subfolders, sorted by name; of a Markdown file, itself. What begins with a dot
    is hidden, and not read; links to folders are not followed.

    Raises:
        InputError: there is none, or a folder cannot be read.
    """
    if not Path(source).is_dir():
        return [source]
    everything = list(_all_files(source))
    found = [path for path in everything if suffix_of(path) in SUFFIXES]
    if not found:
        table = next((path for path in sorted(everything) if suffix_of(path) in TABLES), None)
        advice = f"for a table name it, as {table}" if table else "convert other files, or name a file"
        raise InputError(
            f"{source}: expected text files ({', '.join(SUFFIXES)}, also compressed), found none; {advice}"
        )
    return sorted(found)


def unread_files(source: str) -> str:
    """A sentence that says which files of a folder are not read, because they are no text files; empty if all are."""
    if not Path(source).is_dir():
        return ""
    kinds = Counter(suffix_of(path) or "without a suffix" for path in _all_files(source))
    read = sum(kinds.pop(suffix, 0) for suffix in SUFFIXES)
    if not kinds:
        return ""
    frequent = sorted(kinds.items(), key=lambda item: (-item[1], item[0]))[:KINDS]
    named = [f"{count:,} {kind}" for kind, count in frequent] + ["others"] * (len(kinds) > KINDS)
    return (
        f"{source}: files read: {read:,}; not read: {kinds.total():,} ({', '.join(named)}); if they hold text, "
        "convert them to .txt or .md"
    )


def _all_files(source: str) -> Iterator[str]:
    """Yield the files of a folder and its subfolders that are not hidden, whatever they are."""
    for folder, below, names in os.walk(source, onerror=_unreadable):
        below[:] = [name for name in below if not name.startswith(".")]
        shown = [name for name in names if not name.startswith(".")]
        yield from (path for name in shown if os.path.isfile(path := os.path.join(folder, name)))


def folder_state(source: str) -> str:
    """A hash of the files' names, sizes and times: another one shows, without reading them, that something changed."""
    digest = hashlib.sha256()
    for file in files_in(source):
        status = os.stat(file)
        digest.update(os.fsencode(os.path.relpath(file, source)) + b"\0")
        digest.update(f"{status.st_size} {status.st_mtime_ns}\0".encode())
    return digest.hexdigest()


def read_file(path: str) -> tuple[str, str]:
    """The title of a file, empty if it has none, and its text, without blank lines."""
    if not is_markdown(path):
        return "", "\n".join(read_lines(path))
    title, sections = _markdown(path)
    marked = [[f"# {section.heading}"] * (section.heading not in ("", title)) + section.lines for section in sections]
    return title, "\n".join(line for lines in marked for line in lines if line.strip())


def read_passages(path: str) -> Iterator[tuple[str, str]]:
    """The passages of a file, each with its title: the file's title and the nearest heading above the passage, or what
    is there of them.

    A passage has whole paragraphs, as many as have at most `PASSAGE_WORDS` words; a longer paragraph is cut, between
    lines where they are short enough. Blank lines separate paragraphs; in a .txt file without any each line is one. A
    heading with nothing below it is a passage of its own.
    """
    if not is_markdown(path):
        yield from (
            ("", passage) for passage in _joined(_paragraphs(list(read_lines(path, blank=True)), lone_lines=True))
        )
        return
    title, sections = _markdown(path)
    for section, following in zip(sections, [*sections[1:], None], strict=True):
        heading = ": ".join(dict.fromkeys(filter(None, (title, section.heading))))
        if section.has_text:
            yield from ((heading, passage) for passage in _joined(_paragraphs(section.lines)))
        elif section.heading and (following is None or following.level <= section.level):
            yield (title if title != section.heading else ""), section.heading


def cut_text(text: str) -> list[str]:
    """The passages of a text, cut as a .txt file is (:func:`read_passages`); one empty passage of a blank text."""
    return list(_joined(_paragraphs(text.split("\n"), lone_lines=True))) or [""]


def _unreadable(error: OSError) -> None:
    """Refuse a folder that cannot be listed: without it a part of the text would be missing."""
    raise InputError(f"{error.filename}: expected a folder that can be read, found {error.strerror}; change its rights")


@functools.cache
def _parser(*unused: str) -> Any:
    """The parser of CommonMark without some of its rules. It is imported where Markdown is read."""
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark").disable(unused)


def _plain(heading: str) -> str:
    """The words of a heading without marks of links, code and emphasis."""
    (parsed,) = _parser().parseInline(heading)
    return " ".join("".join(part.content or " " * (part.type == "softbreak") for part in parsed.children or []).split())


def _markdown(path: str) -> tuple[str, list[Section]]:
    """The title of a Markdown file and its sections. The title is that of its front matter, else its only heading of
    the first level, else a heading that no text stands before."""
    front, lines = _front_matter(list(read_lines(path, blank=True)))
    tokens = _parser("inline").parse("\n".join(lines))  # headings, and what is code; marks within lines are not read
    sections, start = [], 0
    heading, level = "", 0
    for token, inline in pairwise(tokens):
        if token.type == "heading_open" and token.level == 0:
            sections.append(Section(heading, level, lines[start : token.map[0]]))
            heading, level, start = _plain(inline.content), int(token.tag[1:]), token.map[1]
    sections.append(Section(heading, level, lines[start:]))
    title = str(front.get("title") or front.get("Title") or "").strip()
    firsts = [section.heading for section in sections if section.level == 1]
    if not title and len(firsts) == 1:
        title = firsts[0]
    elif not title and len(sections) > 1 and not sections[0].has_text:
        title = sections[1].heading
    return title, sections


def _front_matter(lines: list[str]) -> tuple[dict[str, Any], list[str]]:
    """The fields at the start of a file, YAML between two lines of --- or TOML between two of +++, and the lines behind
    them. What is neither is text."""
    mark = lines[0].rstrip() if lines else ""
    closing = {"---": ("---", "..."), "+++": ("+++",)}.get(mark, ())
    end = next((place for place, line in enumerate(lines[1:], start=1) if line.rstrip() in closing), None)
    if end is None:
        return {}, lines
    fields = _toml(lines[1:end]) if mark == "+++" else _yaml(lines[1:end])
    return ({}, lines) if fields is None else (fields, lines[end + 1 :])


def _yaml(lines: list[str]) -> dict[str, Any] | None:
    """The fields of lines of YAML; None if they are no mapping."""
    try:
        fields = yaml.safe_load("\n".join(lines))
    except yaml.YAMLError:
        return None
    return fields if isinstance(fields, dict) else None


def _toml(lines: list[str]) -> dict[str, Any] | None:
    """The fields of lines of TOML; None if they are none."""
    try:
        return tomllib.loads("\n".join(lines)) or None
    except tomllib.TOMLDecodeError:
        return None


def _paragraphs(lines: list[str], lone_lines: bool = False) -> list[str]:
    """The paragraphs between blank lines. With `lone_lines`, where no blank line stands between lines of text, the
    lines."""
    found: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            found[-1].append(line.strip())
        elif found[-1]:
            found.append([])
    paragraphs = ["\n".join(each) for each in found if each]
    return paragraphs[0].split("\n") if lone_lines and len(paragraphs) == 1 else paragraphs


def _joined(paragraphs: Iterable[str]) -> Iterator[str]:
    """Paragraphs as passages: short ones together, long ones in parts."""
    return _packed(paragraphs, PASSAGE_WORDS, _lines_of)


def _lines_of(paragraph: str, words: int) -> Iterator[str]:
    """A long paragraph in about equal parts, cut between its lines."""
    return _packed(paragraph.split("\n"), _share(words), _cut)


def _cut(line: str, words: int) -> Iterator[str]:
    """A long line in equal parts."""
    all_words, size = split_words(line), _share(words)
    yield from (join_words(all_words[start : start + size]) for start in range(0, words, size))


def _share(words: int) -> int:
    """The words of each part, if so many are cut into as few equal parts as possible."""
    parts = -(-words // PASSAGE_WORDS)
    return -(-words // parts)


def _packed(pieces: Iterable[str], wanted: int, cut: Callable[[str, int], Iterator[str]]) -> Iterator[str]:
    """Pieces together, as many as it takes to `wanted` words, at most `PASSAGE_WORDS`; `cut` cuts a longer piece."""
    held: list[str] = []
    count = 0
    for piece in pieces:
        words = len(split_words(piece))
        if held and (count >= wanted or count + words > PASSAGE_WORDS):
            yield "\n".join(held)
            held, count = [], 0
        if words > PASSAGE_WORDS:
            yield from cut(piece, words)
        else:
            held.append(piece)
            count += words
    if held:
        yield "\n".join(held)
