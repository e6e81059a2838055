"""Label-free criteria: does a model find the other part of a document among the parts of thousands of others?

Documents that training never sees give queries and answers. The candidates are passages of the same text, so they are
near neighbours. The passages are short and drawn from the whole document, so that a good model does not find all.
"""

import math
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from datasets import Dataset
from numpy.typing import NDArray

from cmlmcse.common.errors import InputError
from cmlmcse.data.collection import MIN_DOCUMENTS, letters
from cmlmcse.data.words import is_unspaced, join_words, split_words
from modeling_cmlmcse.prompts import DOCUMENT, QUERY

from .bm25 import BM25, WEIGHT
from .encoding import Encode, EncodeOnce, encode_as
from .retrieval import exact_unit

QUERY_WORDS = 16  # a query is short, as a user's is
PASSAGE_WORDS = 32  # of an answer and of every other candidate
FEW_WORDS = 4  # of a query of words: users type few
FREQUENT = 0.125  # of the documents: a word of a query is in fewer
RARE = 0.001  # of the documents: a word of a query is in more, and never in one alone
SHORTENED_SHARE = 0.4  # of the words that a shortened query keeps (TSDAE deletes 60 %)
# Passages of 32 words: some seconds for a small model on a CPU. There are more if the held-out documents have more.
MAX_CANDIDATES = 2000
QUESTIONS = 1200  # of all held-out documents, where a score is taken every few steps
MORE_QUESTIONS = 3000  # where it is taken twice: with five of each, the noise of a comparison was less than half
MAX_EACH = 5  # questions of a document; more of them repeat the same words
ENOUGH_ASKING = 100  # the first criterion with so many documents that ask is chosen
# Letters between two spaces, on average, above which spaces do not separate words. No language that does so is near it;
# a text without has whole sentences there.
LONGEST_WORDS = 20
MIN_ASKING = 20  # held-out documents that can ask; a fifth of the fewest documents


class Question(NamedTuple):
    """A query and the passage that answers it; for a document that gives no query, the passage alone."""

    query: str | None
    passage: str


class MeanOfDocuments:
    """A score that is the mean of a value for each document."""

    def values(self, encode: Encode) -> NDArray[np.float64]:
        """(D,) one value for each document."""
        raise NotImplementedError

    def summary(self, values: NDArray[np.float64]) -> float:
        """The mean over the documents."""
        return float(np.mean(values))

    def resampled(self, values: NDArray[np.float64], rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """(R, D) samples of the documents → (R,) the mean of each."""
        return values[rows].mean(axis=1)

    def score(self, encode: Encode) -> float:
        """The mean gain over the documents, 0 to 100."""
        return self.summary(self.values(encode))


@dataclass(frozen=True)
class Criterion(MeanOfDocuments):
    """Questions about D held-out documents, and the passages among which each query must find its answer.

    Attributes:
        name: the name in `CRITERIA`.
        title: what it measures, in words.
        queries: Q texts, perhaps several for a document.
        candidates: C different passages.
        answers: (Q,) the position of each query's answer among the candidates.
        asked: (Q,) the document of each query, 0 … D − 1.
        owners: (C,) the document of each candidate; -1 for documents that ask nothing.
        rows: (D,) the row of each document among the held-out ones, ascending.
        held_out: how many documents are held out.
    """

    name: str
    title: str
    queries: list[str]
    candidates: list[str]
    answers: NDArray[np.int64]
    asked: NDArray[np.int64]
    owners: NDArray[np.int64]
    rows: NDArray[np.int64]
    held_out: int

    def values(self, encode: Encode) -> NDArray[np.float64]:
        """(D,) the mean gain of each document's queries, with cosine as the score (:meth:`gains`)."""
        return self.gains(self.cosines(encode))

    def cosines(self, encode: Encode) -> NDArray[np.float64]:
        """(Q, C) cosines of the queries and the candidates, each with the encoder's own prompt."""
        once = EncodeOnce.of(encode)
        queries, candidates = encode_as(once, QUERY, self.queries), encode_as(once, DOCUMENT, self.candidates)
        return exact_unit(queries) @ exact_unit(candidates).T

    def gains(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """(Q, C) scores → (D,) the mean of 100 / log2(1 + rank) over each document's queries.

        That is nDCG × 100 without a cut-off, for one right answer. Equal scores share the mean of their ranks.
        """
        gains = 100 / np.log2(1 + self.ranks(self.without_siblings(scores)))
        return np.bincount(self.asked, gains) / np.bincount(self.asked)

    def without_siblings(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """(Q, C) scores, with -inf for the passages of a query's own document that are not its answer."""
        siblings = self.owners[None, :] == self.asked[:, None]
        siblings[np.arange(len(self.answers)), self.answers] = False
        return np.where(siblings, -np.inf, scores)

    def ranks(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """(Q, C) scores → (Q,) the rank of each answer, from 1."""
        own = scores[np.arange(len(self.answers)), self.answers][:, None]  # (Q, 1)
        return 1 + (scores > own).sum(axis=1) + ((scores == own).sum(axis=1) - 1) / 2

    def bm25(self) -> NDArray[np.float64]:
        """(D,) the gains of BM25."""
        return self.gains(BM25(self.candidates).scores(self.queries))

    def hybrid(self, encode: Encode) -> NDArray[np.float64]:
        """(D,) the gains of the cosine and `WEIGHT` · BM25, divided by the best of those that a query may find."""
        words = BM25(self.candidates).scores(self.queries)  # (Q, C)
        best = self.without_siblings(words).max(axis=1, keepdims=True)
        return self.gains(self.cosines(encode) + WEIGHT * words / np.where(best > 0, best, 1))

    @property
    def documents(self) -> int:
        """D, the documents that ask."""
        return int(self.asked.max()) + 1

    def halves(self, seed: int) -> tuple["Criterion", "Criterion"]:
        """Two criteria with half of the documents each and all candidates: one to choose by, one to confirm it.

        The held-out documents are split, so that what chooses in one criterion confirms in none.
        """
        order = np.random.default_rng([seed, 2]).permutation(self.held_out)
        first = np.isin(self.rows, order[: (self.held_out + 1) // 2])
        return self.only(np.flatnonzero(first)), self.only(np.flatnonzero(~first))

    def only(self, documents: NDArray[np.int64]) -> "Criterion":
        """The criterion with the queries of some documents; the others only add candidates.

        Args:
            documents: ascending numbers of documents.
        """
        numbers = np.full(self.documents + 1, -1)  # the last one is for owners of -1
        numbers[documents] = np.arange(len(documents))
        rows = np.flatnonzero(numbers[self.asked] >= 0)
        return replace(
            self,
            queries=[self.queries[row] for row in rows],
            answers=self.answers[rows],
            asked=numbers[self.asked[rows]],
            owners=numbers[self.owners],
            rows=self.rows[documents],
        )


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


def build_criterion(
    name: str, held_out: Dataset, others: Dataset, seed: int, most: int = QUESTIONS
) -> Criterion | None:
    """A criterion on a text; None if fewer than `MIN_ASKING` held-out documents can ask.

    Args:
        name: a name in `CRITERIA`.
        held_out: documents that training never sees (:func:`hold_out`); each may ask up to `MAX_EACH` questions.
        others: documents that only add candidates.
        seed: the seed of the passages.
        most: questions of all documents.
    """
    title, asks = CRITERIA[name]
    rows_held = with_own_titles(held_out, others) if ask_title in asks else list(held_out)
    each = max(int(np.clip(most // len(held_out), 1, MAX_EACH)), len(asks))
    counts = WordCounts(0, Counter())
    if ask_words in asks:
        counts = WordCounts.of(held_out, sample(others, MAX_CANDIDATES, seed))

    def asked_by(row: dict[str, str], count: int) -> list[Question]:
        return questions(row, asks, counts, seed, name, count)

    drawn = [asked_by(row, each) for row in rows_held]
    rows = [row for row, asked in enumerate(drawn) if asked and asked[0].query]
    asking = [drawn[row] for row in rows]
    if len(asking) < MIN_ASKING:
        return None
    found = [(document, question) for document, asked in enumerate(asking) for question in asked]
    silent = [asked[0] for asked in drawn if asked and not asked[0].query]
    room = max(MAX_CANDIDATES - len(found) - len(silent), 0)
    silent += [question for row in sample(others, room, seed) for question in asked_by(row, 1)]

    owners: dict[str, int] = {}
    for document, question in [*found, *((-1, question) for question in silent)]:
        owners.setdefault(question.passage, document)
    places = {passage: place for place, passage in enumerate(owners)}
    return Criterion(
        name,
        title,
        queries=[question.query or "" for _, question in found],
        candidates=list(owners),
        answers=np.array([places[question.passage] for _, question in found]),
        asked=np.array([document for document, _ in found]),
        owners=np.array(list(owners.values())),
        rows=np.array(rows),
        held_out=len(held_out),
    )


def with_own_titles(held_out: Dataset, others: Dataset) -> list[dict[str, str]]:
    """The held-out documents, without the titles that another document has too: such a query has several answers."""
    counts = Counter(letters(title) for part in (held_out, others) for title in part["title"] if title)
    return [row if counts[letters(row["title"])] < 2 else {**row, "title": ""} for row in held_out]


def sample(documents: Dataset, count: int, seed: int) -> Dataset:
    """At most `count` of the documents, drawn by the seed."""
    if len(documents) <= count:
        return documents
    return documents.select(np.sort(np.random.default_rng([seed, 3]).choice(len(documents), count, replace=False)))


def enough_ask(criterion: Criterion | None, held_out: Dataset) -> bool:
    """Whether enough of the held-out documents ask a criterion's questions."""
    return criterion is not None and criterion.documents >= min(ENOUGH_ASKING, len(held_out) / 2)


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


def choose_criterion(held_out: Dataset, others: Dataset, seed: int) -> Criterion:
    """The first criterion of `CRITERIA` in which at least `ENOUGH_ASKING` documents ask, or half of the held-out ones;
    if there is none, the one in which the most ask.

    Raises:
        InputError: in no criterion enough documents ask.
    """
    found: list[Criterion] = []
    for name in CRITERIA:
        if (criterion := build_criterion(name, held_out, others, seed)) is not None:
            if enough_ask(criterion, held_out):
                return criterion
            found.append(criterion)
    if not found:
        if letters_of_a_word(held_out) > LONGEST_WORDS:
            raise InputError(
                "a label-free score expects words with spaces between them, or Chinese or Japanese, found text "
                "without, as in Thai; put a space between the words (a segmenter does), or use cmlmcse train "
                "--dev_set none"
            )
        raise InputError(
            f"a label-free score expects documents of some words, found fewer than {MIN_ASKING} of {len(held_out)} "
            f"with enough; give at least {MIN_DOCUMENTS} longer texts, or use cmlmcse train --dev_set none"
        )
    return max(found, key=lambda criterion: criterion.documents)


def letters_of_a_word(documents: Dataset) -> float:
    """How many letters and digits a word has, on average."""
    words = [word for text in documents["text"] for word in split_words(text)]
    return sum(len(letters(word)) for word in words) / max(len(words), 1)
