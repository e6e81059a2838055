"""Unlabelled text as documents, each with its title if it has one: the input of document views and of label-free
criteria."""

import os
import unicodedata
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
from datasets import Dataset, Features, Value
from datasets.exceptions import DatasetsError

from cmlmcse.common.errors import InputError
from cmlmcse.common.locations import resolve

from .columns import BLOCK_ROWS
from .folder import files_in, has_passages, read_file, read_passages
from .lines import read_documents, read_lines
from .tables import scan
from .text import as_text_error, file_state, load_sentences, source_kind
from .words import is_letter, is_unspaced, overlapping_pairs

VERSION = 5  # of the rules that make documents of a source; a source is read again if it changes
FEATURES = Features({"title": Value("string"), "text": Value("string")})
MIN_DOCUMENTS = 100  # with fewer, a score on held-out documents cannot tell a better model from chance
HELD_OUT_SHARE = 0.2  # of the documents
SAME_WORDS = 13  # that two texts hardly share by chance; as in GPT-3's check of its test sets (Brown et al. 2020)
STEP = 7  # looks up every seventh run only, which is so much faster
MAX_HELD_OUT = 600  # with 300 of them the standard error of a change of score is about 1 point


class Document(NamedTuple):
    """A document: its `title`, empty if it has none, and its `text`, with a line feed between its lines."""

    title: str
    text: str


def load_collection(source: str, text_column: str | None = None, title_column: str | None = None) -> Dataset:
    """The documents of a source, as a memory-mapped dataset with the columns "title" and "text".

    - A .txt file: blank lines separate documents. Without a blank line, each line is a document.
    - A folder: each text file in it (.txt, .md) is a document. The title of Markdown is that of its front matter, or
      its first heading. With fewer than `MIN_DOCUMENTS` files each passage of them is a document.
    - A table (.csv, .tsv, .jsonl, .parquet): each row is a document. BEIR's corpus.jsonl is one such table.
    - A Wikipedia dump or a Hub dataset: each article or row is a document, without a title.

    A title that the text repeats at its start is removed from the text. A document that has only a title, or whose text
    is its title again, has no title and keeps one of them as its text.

    Args:
        source: a file, a folder, or the id of a Hub dataset.
        text_column: column of the text (default: text, or the only column of strings).
        title_column: column of the title (default: title, if there is one).

    Raises:
        InputError: the source is missing, unreadable, or holds no text.
    """
    path = resolve(source)
    check_columns(path, text_column, title_column)
    if not has_passages(path) and source_kind(path) in ("wikipedia", "hub"):
        texts = load_sentences(path, text_column, documents=True)
        return texts.map(_without_title, batched=True, features=FEATURES)
    state = [file_state(file) for file in files_in(path)]
    columns = {"text_column": text_column, "title_column": title_column}
    try:
        return Dataset.from_generator(
            _rows,
            features=FEATURES,
            gen_kwargs={"path": path, **columns, "state": (tuple(map(str, state)),), "version": VERSION},
            writer_batch_size=BLOCK_ROWS,
        )
    except (DatasetsError, ValueError) as error:  # a ValueError says that there is no row
        raise as_text_error("text", source, error) from error


def few_files(source: str) -> int:
    """How many files with text a folder or a Markdown file has, if they are too few to measure with; else 0, as for
    other sources. Then their passages are the documents."""
    count = sum(os.path.getsize(file) > 0 for file in files_in(source)) if has_passages(source) else 0
    return count if count < MIN_DOCUMENTS else 0


def check_columns(path: str, text_column: str | None, title_column: str | None) -> None:
    """Check that columns are named for what has them: a text column for a table or a Hub dataset, a title column for a
    table.

    Raises:
        InputError: they are named for something else.
    """
    kind = "folder" if has_passages(path) else source_kind(path)
    for name, column, without in (
        ("text_column", text_column, ("folder", "text", "wikipedia")),
        ("title_column", title_column, ("folder", "text", "wikipedia", "hub")),
    ):
        if column is not None and kind in without:
            raise InputError(f"--{name} expects a table (.csv, .tsv, .jsonl, .parquet), found {path}; drop it")


def _without_title(batch: dict[str, list[str]]) -> dict[str, list[str]]:
    """Rows of "text" → rows of "title" and "text"."""
    return {"title": [""] * len(batch["text"]), "text": batch["text"]}


def _rows(
    path: str, text_column: str | None, title_column: str | None, state: object, version: int
) -> Iterator[dict[str, str]]:
    """The rows of the dataset. `state` and `version` are used only for the cache key."""
    for document in read_collection(path, text_column, title_column):
        yield document._asdict()


def read_collection(path: str, text_column: str | None = None, title_column: str | None = None) -> Iterator[Document]:
    """The documents of a file or a folder (:func:`load_collection`), in order. Documents without text are dropped.

    Raises:
        InputError: a file cannot be read, is not UTF-8, or lacks a named column.
    """
    for document in _untidied(path, text_column, title_column):
        title, text = " ".join(document.title.split()), document.text.strip()
        if title and text.startswith(title) and not text[len(title) :][:1].isalnum():
            text = text[len(title) :].lstrip(" .:\n")
        if says_the_same(title, text):
            title = ""
        if title or text:
            yield Document(title, text) if text else Document("", title)


def says_the_same(title: str, text: str) -> bool:
    """Whether title and text have the same letters and digits. A text twice as long is not looked at."""
    return len(text) < 2 * len(title) and letters(title) == letters(text)


def _untidied(path: str, text_column: str | None, title_column: str | None) -> Iterator[Document]:
    """The documents as they stand in a file or a folder."""
    if has_passages(path):
        files = files_in(path)
        found = chain.from_iterable(map(read_passages, files)) if few_files(path) else map(read_file, files)
        yield from (Document(*each) for each in found)
    elif source_kind(path) != "text":
        yield from _table(path, text_column, title_column)
    elif has_separators(read_lines(path, blank=True)):
        yield from (Document("", "\n".join(lines)) for lines in read_documents(path))
    else:
        yield from (Document("", line) for line in read_lines(path))


def has_separators(lines: Iterable[str]) -> bool:
    """Whether a blank line stands between two lines with text. One at the start or at the end separates nothing."""
    begun = gap = False
    for line in lines:
        if not line.strip():
            gap = begun
        elif gap:
            return True
        else:
            begun = True
    return False


def _table(path: str, text_column: str | None, title_column: str | None) -> Iterator[Document]:
    """The rows of a table, as documents.

    Raises:
        InputError: a named column is missing.
    """
    table = scan(Path(path), text_column, title_column, titles=True, all_columns=False)
    for rows in table.tables():
        texts = table.texts(rows)
        names = rows[table.title_column].to_pylist() if table.title_column else [""] * len(texts)
        yield from (Document(str(title or ""), text) for title, text in zip(names, texts, strict=True))


def draw_documents(documents: Dataset, count: int | None, seed: int) -> Dataset:
    """At most `count` of the documents, drawn by the seed, in their order; all of them if it is None.

    Raises:
        InputError: `count` is below `MIN_DOCUMENTS`.
    """
    if count is not None and count < MIN_DOCUMENTS:
        raise InputError(f"max_documents must be at least {MIN_DOCUMENTS}, found {count}; raise it")
    if count is None or len(documents) <= count:
        return documents
    return documents.select(np.sort(np.random.default_rng([seed, 6]).choice(len(documents), count, replace=False)))


def hold_out(documents: Dataset, seed: int) -> tuple[Dataset, Dataset]:
    """Split documents into those for training and those for measuring: a fifth of them, from 20 to 600.

    The choice depends only on the seed. Of held-out documents whose texts are equal, by letters and digits, the first
    one stays, and none is for training.

    Raises:
        InputError: there are fewer than `MIN_DOCUMENTS` documents, or almost all of them are equal.
    """
    if len(documents) < MIN_DOCUMENTS:
        raise InputError(
            f"a label-free score expects at least {MIN_DOCUMENTS} documents, found {len(documents)}; fewer cannot tell "
            "a better model from chance: add text, or use cmlmcse train --dev_set none. In a .txt file with blank "
            f"lines these separate the documents; without any, each line is one. In a folder of {MIN_DOCUMENTS} files "
            "each is one, and with fewer each passage"
        )
    count = min(int(len(documents) * HELD_OUT_SHARE), MAX_HELD_OUT)
    chosen = np.sort(np.random.default_rng([seed, 1]).choice(len(documents), count, replace=False))
    drawn = documents.select(chosen)["text"]
    known = {letters(text): row for row, text in reversed(list(zip(chosen, drawn, strict=True)))}
    held = documents.select(sorted(known.values()))
    rest = documents.select(np.setdiff1d(np.arange(len(documents)), chosen))
    others = rest.filter(lambda batch: [letters(text) not in known for text in batch["text"]], batched=True)
    if len(others) < 2:
        raise InputError(
            f"a label-free score expects documents that differ, found {len(others)} of {len(rest)} for training that "
            "are no copy of a held-out one; add other text, or use cmlmcse train --dev_set none"
        )
    return others, held


def share_overlapping(held_out: Dataset, others: Dataset) -> float:
    """The share of the held-out documents that have a run of `SAME_WORDS` words in common with another document.

    Every `STEP`-th run of the others is looked up, so a common passage of `SAME_WORDS` + `STEP` − 1 words is always
    found.
    """
    runs: dict[str, set[int]] = {}
    for row, text in enumerate(held_out["text"]):
        for run in runs_of(text, 1):
            runs.setdefault(run, set()).add(row)
    found: set[int] = set()
    for text in others["text"]:
        for run in runs_of(text, STEP):
            found |= runs.get(run, set())
    return len(found) / max(len(held_out), 1)


def runs_of(text: str, step: int) -> Iterator[str]:
    """Every `step`-th run of `SAME_WORDS` words of a text, in lower case; of Chinese and Japanese of twice as many
    characters, wherever its words begin."""
    words = overlapping_pairs(text.lower().split())
    length = SAME_WORDS * (2 if is_unspaced(text) else 1)
    for start in range(0, len(words) - length + 1, step):
        yield " ".join(words[start : start + length])


def next_seed(seed: int) -> int:
    """The seed of another split. The largest seed that NumPy takes, 2³² − 1, is followed by 0."""
    return (seed + 1) % (1 << 32)


def letters(text: str) -> str:
    """The letters and digits of a text, in lower case. The vowel signs of Hindi and other marks belong to a letter."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
        return "".join(sign for sign in text.lower() if sign.isalnum() or is_letter(sign))
    return "".join(filter(str.isalnum, text.lower()))
