"""Label-free criteria: does a model find the other part of a document among the parts of thousands of others?

Documents that training never sees give queries and answers. The candidates are passages of the same text, so they are
near neighbours. The passages are short and drawn from the whole document, so that a good model does not find all.
"""

from collections import Counter

import numpy as np
from datasets import Dataset

from cmlmcse.common.errors import InputError
from cmlmcse.data.collection import MIN_DOCUMENTS, letters
from cmlmcse.data.words import split_words

from .criterion import Criterion
from .questions import CRITERIA, Question, WordCounts, ask_title, ask_words, questions

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
