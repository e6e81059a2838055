"""Label-free criteria: what they ask, how they score, and which one a text gets."""

import math
import zlib

import numpy as np
import pytest
from datasets import Dataset

from cmlmcse.common.errors import InputError
from cmlmcse.data.collection import hold_out
from cmlmcse.evaluation.label_free import CRITERIA, Criterion, build_criterion, choose_criterion, reciprocal_ranks
from cmlmcse.training.dev_set import interval


def corpus(titles=True, words=60, count=150):
    """Documents of different words: document d has the words d0, d1, …"""
    texts = [" ".join(f"d{row}x{word}" for word in range(words)) for row in range(count)]
    return Dataset.from_dict({"title": [f"title d{row}x0" if titles else "" for row in range(count)], "text": texts})


def by_document(texts):
    """An encoder that knows of which document each text is: the criterion's upper end."""
    vectors = np.zeros((len(texts), 64))
    for row, text in enumerate(texts):
        name = text.split()[-1].split("x")[0]
        vectors[row] = np.random.default_rng(zlib.crc32(name.encode())).normal(size=64)
    return vectors


def constant(texts):
    return np.ones((len(texts), 4))


def test_reciprocal_ranks():
    """By hand; equal scores share the mean of their ranks."""
    scores = np.array([[0.1, 0.9, 0.5], [0.3, 0.3, 0.3], [2.0, 2.0, 1.0]])
    assert reciprocal_ranks(scores, np.array([2, 0, 1])).tolist() == pytest.approx([50, 50, 100 / 1.5])


@pytest.mark.parametrize("name", CRITERIA)
def test_every_criterion_ranks_encoders(name):
    """Who knows the documents scores 100, who knows nothing scores what chance gives; the questions are of held-out
    documents, and the query is not in the answer."""
    documents = corpus()
    if name == "neighbours":
        documents = documents.map(lambda row: {"text": row["text"].replace("x30 ", "x30\n")})
    rest, held = hold_out(documents, 3)
    criterion = build_criterion(name, held, rest, 3)
    assert len(criterion.queries) == len(held) == 30
    assert len(criterion.candidates) == 150
    assert criterion.score(by_document) == 100
    assert criterion.score(constant) == pytest.approx(100 / 75.5)
    held_words = {word for text in held["text"] for word in text.split()}
    assert all(word in held_words for query in criterion.queries for word in query.split() if word != "title")
    if name != "shortened":
        for query, answer in zip(criterion.queries, criterion.answers, strict=True):
            assert query not in criterion.candidates[answer]
    same = build_criterion(name, held, rest, 3)
    assert same.queries == criterion.queries
    if name != "neighbours":  # with two lines there is one question
        assert build_criterion(name, held, rest, 4).candidates != criterion.candidates


def test_the_text_chooses():
    """Titles first; without them halves; short texts are shortened; too short ones are refused."""

    def chosen(documents):
        rest, held = hold_out(documents, 1)
        return choose_criterion(held, rest, 1).name

    assert chosen(corpus()) == "title_body"
    assert chosen(corpus(titles=False)) == "halves"
    assert chosen(corpus(titles=False, words=12)) == "shortened"
    with pytest.raises(InputError, match="expects documents of some words, found fewer than 20 of 30"):
        chosen(corpus(titles=False, words=2))


def test_bm25():
    """Against the formula, written out (Robertson & Zaragoza 2009; Lucene's idf)."""
    candidates = ["red cat sat", "red dog ran far away", "blue cat"]
    criterion = Criterion("halves", "", ["red cat", "blue", "away"], candidates, np.array([1, 2, 1]))

    def score(query, text):
        words, mean = text.split(), 10 / 3
        total = 0.0
        for word in query.split():
            found = sum(word in other.split() for other in candidates)
            idf = math.log(1 + (3 - found + 0.5) / (found + 0.5))
            count = words.count(word)
            total += idf * count / (count + 0.9 * (0.6 + 0.4 * len(words) / mean))
        return total

    scores = np.array([[score(query, text) for text in candidates] for query in criterion.queries])
    assert criterion.bm25().tolist() == reciprocal_ranks(scores, criterion.answers).tolist() == [50 / 1.5, 100, 100]


def test_halves_of_the_queries():
    """Each query is in one half, and the candidates are those of the whole."""
    rest, held = hold_out(corpus(), 3)
    criterion = build_criterion("halves", held, rest, 3)
    first, second = criterion.halves(1)
    assert sorted(first.queries + second.queries) == sorted(criterion.queries)
    assert first.candidates == second.candidates == criterion.candidates
    values = np.concatenate([part.values(by_document) for part in (first, second)])
    assert criterion.score(by_document) == pytest.approx(values.mean())


def test_interval():
    """Of a difference that is the same for all queries it is a point; of noise it holds 0."""
    criterion = Criterion("halves", "", [""] * 200, [""], np.zeros(200, int))
    before = np.random.default_rng(0).uniform(0, 50, 200)
    assert interval(criterion, before, before + 10) == pytest.approx((10, 10))
    noise = np.random.default_rng(1).normal(0, 20, 200)
    low, high = interval(criterion, before, before + noise - noise.mean())
    assert low < 0 < high
    assert high - low == pytest.approx(2 * 1.96 * 20 / math.sqrt(200), rel=0.15)
