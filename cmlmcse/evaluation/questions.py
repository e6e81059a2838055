"""What a document asks in a label-free criterion: a query made of one part of it, and a passage that answers it."""

import math
import zlib
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from datasets import Dataset

from cmlmcse.data.collection import letters
from cmlmcse.data.words import is_unspaced, join_words, split_words

QUERY_WORDS = 16  # a query is short, as a user's is
PASSAGE_WORDS = 32  # of an answer and of every other candidate
FEW_WORDS = 4  # of a query of words: users type few
FREQUENT = 0.125  # of the documents: a word of a query is in fewer
RARE = 0.001  # of the documents: a word of a query is in more, and never in one alone
SHORTENED_SHARE = 0.4  # of the words that a shortened query keeps (TSDAE deletes 60 %)


class Question(NamedTuple):
    """A query and the passage that answers it; for a document that gives no query, the passage alone."""

    query: str | None
    passage: str


class WordCounts(NamedTuple):
    """In how many of some documents each word stands."""

    documents: int
    words: Counter[str]

    @classmethod
    def of(cls, *parts: Dataset) -> "WordCounts":
        """Count the words of the texts."""
        counts: Counter[str] = Counter()
        for part in parts:
            for row in part:
                counts.update({word.strip() for word in split_words(row["text"])})
        return cls(sum(map(len, parts)), counts)

    def telling(self, words: list[str]) -> list[str]:
        """The `FEW_WORDS` rarest of the words, in their order. Words of very many documents, or of very few, are taken
        only if there are no others."""
        low, high = max(2, math.ceil(RARE * self.documents)), FREQUENT * self.documents
        different = list(dict.fromkeys(word.strip() for word in words))
        if any(map(is_unspaced, different)):  # there punctuation stands by itself
            different = [word for word in different if any(map(str.isalnum, word))] or different
        found = [word for word in different if low <= self.words[word] < high] or different
        rarest = sorted(found, key=lambda word: self.words[word])[:FEW_WORDS]
        return [word for word in different if word in rarest]


Ask = Callable[[str, str, np.random.Generator, WordCounts], Question | None]


def ask_title(title: str, text: str, rng: np.random.Generator, counts: WordCounts) -> Question | None:
    """The title asks for a passage of the body."""
    words = split_words(text)
    if not words:
        return None
    usable = letters(title) != letters(text) and len(split_words(title)) > 1 and len(words) >= QUERY_WORDS
    return Question(title if usable else None, passage(words, PASSAGE_WORDS, rng))


def ask_half(title: str, text: str, rng: np.random.Generator, counts: WordCounts) -> Question | None:
    """A passage of one half of the text asks for a passage of the other half."""
    return ask_across(text, rng, lambda words: passage(words, QUERY_WORDS, rng))


def ask_words(title: str, text: str, rng: np.random.Generator, counts: WordCounts) -> Question | None:
    """A few telling words of one half of the text ask for a passage of the other half."""
    return ask_across(text, rng, lambda words: " ".join(counts.telling(words)))


def ask_across(text: str, rng: np.random.Generator, query: Callable[[list[str]], str]) -> Question | None:
    """A query made of the words of one half of the text asks for a passage of the other half."""
    words = split_words(text)
    if not words:
        return None
    if len(words) < QUERY_WORDS:
        return Question(None, passage(words, PASSAGE_WORDS, rng))
    halves = words[: len(words) // 2], words[len(words) // 2 :]
    asked = int(rng.integers(2))
    return Question(query(halves[asked]), passage(halves[1 - asked], PASSAGE_WORDS, rng))


def ask_neighbour(title: str, text: str, rng: np.random.Generator, counts: WordCounts) -> Question | None:
    """A line asks for the next line of its document."""
    lines = [line for line in text.split("\n") if len(split_words(line)) > 2]
    if not lines:
        return None
    if len(lines) < 2:
        return Question(None, lines[0])
    chosen = int(rng.integers(len(lines) - 1))
    return Question(lines[chosen], lines[chosen + 1])


def ask_shortened(title: str, text: str, rng: np.random.Generator, counts: WordCounts) -> Question | None:
    """A passage that lost 60 % of its words asks for the whole passage."""
    words = split_words(passage(split_words(text), PASSAGE_WORDS, rng))
    if not words:
        return None
    kept = np.sort(rng.permutation(len(words))[: max(1, round(len(words) * SHORTENED_SHARE))])
    query = join_words(words[place] for place in kept)
    return Question(query if len(words) >= 5 else None, join_words(words))


def passage(words: list[str], length: int, rng: np.random.Generator) -> str:
    """At most `length` consecutive words, at a random place."""
    start = int(rng.integers(max(len(words) - length, 0) + 1))
    return join_words(words[start : start + length])


CRITERIA: dict[str, tuple[str, tuple[Ask, ...]]] = {  # the first that enough documents can ask is the default
    "parts": ("a title, or a passage, finds another passage of its document", (ask_title, ask_half)),
    "title_body": ("a title finds a passage of its text", (ask_title,)),
    "halves": ("a passage finds another passage of its document", (ask_half,)),
    "neighbours": ("a line finds the line after it", (ask_neighbour,)),
    "words": ("a few words of a document find a passage of its other half", (ask_words,)),
    "shortened": ("a passage with 60 % of its words deleted finds the whole passage", (ask_shortened,)),
}


def questions(
    row: dict[str, str], asks: tuple[Ask, ...], counts: WordCounts, seed: int, name: str, count: int
) -> list[Question]:
    """At most `count` different questions of a document, of each kind in turn, as far as the document can ask it; one
    without a query if it can ask nothing.

    They depend only on the seed, the criterion, the document's own text and the word counts.
    """
    start = [seed, zlib.crc32(name.encode()), zlib.crc32(row["text"].encode())]

    def ask(turn: int) -> Question | None:
        question = None
        for kind in range(turn, turn + len(asks)):
            rng = np.random.default_rng([*start, turn])
            question = asks[kind % len(asks)](row["title"], row["text"], rng, counts)
            if question is not None and question.query:
                break
        return question

    found = [question for question in dict.fromkeys(map(ask, range(count))) if question is not None]
    return [question for question in found if question.query] or found[:1]
