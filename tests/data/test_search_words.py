"""The words by which BM25 finds a text."""

import pytest

from cmlmcse.data.collection import letters
from cmlmcse.data.search_words import SEARCH_WORDS
from cmlmcse.evaluation.bm25 import BM25


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Computer computing Run runs adapted adapting", ["comput", "comput", "run", "run", "adapte", "adapti"]),
        ("gas glass mass buses", ["gas", "glass", "mass", "buse"]),
        ("per_device_train_batch_size=64, 2026s", ["per_device_train_batch_size", "64", "2026s"]),
        ("Bücher Übersetzungen", ["bücher", "überse"]),
        ("cafe\u0301 ﬁnal docu\u00adment", ["café", "final", "docume"]),  # as copied from a PDF
        ("हिन्दी किताब, தமிழ்", ["हिन्दी", "किताब", "தமிழ்"]),  # their vowel signs are no letters to Python
        ("كِتَاب كتاب كـتاب סֵפֶר İstanbul", ["كتاب", "كتاب", "كتاب", "ספר", "istanb"]),
        ("na\u00efve “quoted” x² word—word", ["naïve", "quoted", "x2", "word", "word"]),
        ("בֵּית־סֵפֶר I ❤️ 1️⃣", ["בית", "ספר", "i", "1"]),
        ("京都へ iphones", ["京都", "都へ", "京", "都", "へ", "iphone"]),
    ],
)
def test_words_of_a_text(text, words):
    """Small letters; no final s but after another s or in a short word; six letters; names and numbers stay whole."""
    assert SEARCH_WORDS.of_text(text) == words


def test_texts_that_differ_in_vowel_signs_differ():
    """So two titles of Hindi are not one; two spellings of one character are."""
    assert letters("की") != letters("कि")
    assert letters("Cafe\u0301!") == letters("café")


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("How do I resume a run?", ["resume", "run"]),
        ("To be, or not to be", ["to", "be", "or", "not", "to", "be"]),
        ("the 京都 temples", ["京都", "temple"]),
        ("?", []),
    ],
)
def test_words_of_a_query(query, words):
    """Without those of every question, unless there are no others."""
    assert SEARCH_WORDS.of_query(query) == words


def test_a_question_finds_what_it_asks_for():
    """It does not find a text that asks another question. It finds one that has the word with another ending."""
    texts = ["How do I do it? As I do.", "Resumed runs go on where they stopped.", "max_steps of a run"]
    for queries in (None, ["how do I resume runs"]):
        scores = BM25(texts, queries).scores(["how do I resume runs"])[0]
        assert scores[0] == 0
        assert scores[1] > scores[2] > 0
