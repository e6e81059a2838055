"""Label-free criteria: what they ask, how they score, and which one a text gets."""

import math
import zlib
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from datasets import Dataset

from cmlmcse.common.errors import InputError
from cmlmcse.data.collection import hold_out
from cmlmcse.evaluation.bm25 import BM25
from cmlmcse.evaluation.bootstrap import interval
from cmlmcse.evaluation.choose_criterion import build_criterion, choose_criterion, enough_ask
from cmlmcse.evaluation.combined import CombinedCriterion, asked_together
from cmlmcse.evaluation.criterion import Criterion
from cmlmcse.evaluation.questions import CRITERIA, Question, WordCounts, ask_words
from cmlmcse.evaluation.sts_data import Pairs
from cmlmcse.training.dev_set import DevSet


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


def by_chance(texts):
    return np.stack([np.random.default_rng(zlib.crc32(text.encode())).normal(size=4) for text in texts])


def constant(texts):
    return np.ones((len(texts), 4))


def criterion_of(queries, candidates, answers, asked, owners):
    rows = np.arange(max(asked) + 1)
    return Criterion("halves", "", queries, candidates, *map(np.array, (answers, asked, owners)), rows, len(rows))


def test_gains():
    """By hand: 100 / log2(1 + rank); equal scores share the mean of their ranks; a document's value is the mean of its
    queries; the other passage of its own document does not compete, a passage that two documents share does."""
    criterion = criterion_of([""] * 4, [""] * 4, [0, 1, 2, 0], [0, 0, 1, 2], [0, 0, 1, -1])
    scores = np.array([[0.1, 0.9, 0.5, 0.0], [0.9, 0.1, 0.5, 0.3], [0.7] * 4, [0.2, 0.2, 0.3, 0.1]])
    ranks = [2, 3, 2.5, 2.5]
    gains = [100 / math.log2(1 + rank) for rank in ranks]
    assert criterion.gains(scores).tolist() == pytest.approx([(gains[0] + gains[1]) / 2, gains[2], gains[3]])


@pytest.mark.parametrize("name", CRITERIA)
def test_every_criterion_ranks_encoders(name):
    """Who knows the documents scores 100, who knows nothing scores what chance gives; the questions are of held-out
    documents, and the query is not in the answer."""
    documents = corpus()
    if name == "neighbours":
        documents = documents.map(lambda row: {"text": row["text"].replace("x30 ", "x30\n")})
    rest, held = hold_out(documents, 3)
    criterion = build_criterion(name, held, rest, 3)
    assert criterion.documents == len(held) == 30
    # Two lines give one question, and two halves two sets of few words. Equal questions count once.
    each = {"neighbours": 1, "words": 2}.get(name, 5)
    assert 0.8 * 30 * each < len(criterion.queries) <= 30 * each
    assert len(criterion.candidates) == len(set(criterion.candidates)) <= 150 + 120
    assert criterion.score(by_document) == 100
    others = np.array([(criterion.owners != document).sum() for document in criterion.asked])
    assert criterion.score(constant) == pytest.approx((100 / np.log2(2 + others / 2)).mean(), abs=0.01)
    held_words = {word for text in held["text"] for word in text.split()}
    assert all(word in held_words for query in criterion.queries for word in query.split() if word != "title")
    if name != "shortened":
        for query, answer in zip(criterion.queries, criterion.answers, strict=True):
            assert query not in criterion.candidates[answer]
    same = build_criterion(name, held, rest, 3)
    assert same.queries == criterion.queries
    if name != "neighbours":
        assert build_criterion(name, held, rest, 4).candidates != criterion.candidates


def test_the_text_chooses():
    """Parts, with titles or without; short texts are shortened; too short ones are refused."""

    def chosen(documents):
        rest, held = hold_out(documents, 1)
        return choose_criterion(held, rest, 1).name

    assert chosen(corpus()) == "parts"
    assert chosen(corpus(titles=False)) == "parts"
    assert chosen(corpus(titles=False, words=12)) == "shortened"
    with pytest.raises(InputError, match="expects documents of some words, found fewer than 20 of 30"):
        chosen(corpus(titles=False, words=2))


def test_a_title_that_another_document_has_asks_nothing():
    """It has several answers. Half of the documents share one title, held out or not; the others ask by theirs."""
    documents = corpus()
    titles = ["Support  Ticket!" if row % 2 else title for row, title in enumerate(documents["title"])]
    titles[0] = titles[148] = "once held out, once not"
    documents = documents.remove_columns("title").add_column("title", titles)
    held, others = documents.select(range(100)), documents.select(range(100, 150))
    found = build_criterion("title_body", held, others, 0)
    assert {query.split()[0] for query in found.queries} == {"title"}
    assert found.documents == 49
    assert not enough_ask(build_criterion("title_body", held.select(range(60)), documents.select([149, 61]), 0), held)


def test_text_without_spaces():
    """Two characters of Chinese are a word: documents ask, without spaces, and BM25 finds some. Of Thai the reason is
    said."""
    rng = np.random.default_rng(0)
    topics = rng.integers(0x4E00, 0x9FA5, size=(15, 40))
    texts = ["".join(map(chr, rng.choice(topics[row % 15], 300))) for row in range(150)]
    documents = Dataset.from_dict({"title": [""] * 150, "text": texts})
    criterion = choose_criterion(documents.select(range(30)), documents.select(range(30, 150)), 0)
    assert (criterion.name, criterion.documents) == ("parts", 30)
    assert all(len(query) == 32 and " " not in query for query in criterion.queries)
    chance = rng.random((len(criterion.queries), len(criterion.candidates)))
    assert criterion.bm25().mean() > 2 * criterion.gains(chance).mean()
    words = build_criterion("words", documents.select(range(30)), documents.select(range(30, 150)), 0)
    assert all(len(word) == 2 for query in words.queries for word in query.split())
    thai = documents.map(lambda row: {"text": "".join(chr(0x0E01 + ord(sign) % 40) for sign in row["text"])})
    with pytest.raises(InputError, match="expects words with spaces between them, or Chinese or Japanese, found text"):
        choose_criterion(thai.select(range(30)), thai.select(range(30, 150)), 0)


def test_parts_ask_both_ways():
    """Of five questions three have the title and two a passage; without a title all five have a passage."""
    for titles, expected in ((True, 3), (False, 0)):
        rest, held = hold_out(corpus(titles=titles), 3)
        criterion = build_criterion("parts", held, rest, 3)
        named = np.array(["title" in query for query in criterion.queries])
        assert titles or len(criterion.queries) > 4 * 30
        found = np.bincount(criterion.asked, named, minlength=30)
        assert set(found) <= set(range(expected + 1))  # equal questions count once
        assert found.mean() == pytest.approx(expected, abs=0.2)
        assert enough_ask(build_criterion("title_body", held, rest, 3), held) == titles


def test_few_words():
    """By hand: of 1,000 documents a word may be in 2 to 124. The four rarest of one half stay in order; the
    answer is of the other half. Where no word is such, the rarest of all are taken."""
    counts = WordCounts(1000, Counter({"the": 900, "a": 125, "e": 124, "d": 9, "c": 3, "b": 2, "f": 8, "once": 1}))
    assert counts.telling(["once", "the", "e", "a", "d", "e", "c", "b", "f", "the"]) == ["d", "c", "b", "f"]
    assert counts.telling(["once", "the", "e"]) == ["e"]
    assert counts.telling(["once", "the", "once"]) == ["once", "the"]
    text = " ".join(["the b the c the d the f"] + ["e"] * 8)
    drawn = {ask_words("", text, np.random.default_rng(seed), counts) for seed in range(20)}
    assert drawn == {Question("b c d f", " ".join(["e"] * 8)), Question("e", "the b the c the d the f")}
    assert ask_words("", "too short", np.random.default_rng(0), counts) == Question(None, "too short")
    texts = Dataset.from_dict({"text": ["one two two", "two three"]})
    assert WordCounts.of(texts, texts) == (4, Counter({"two": 4, "one": 2, "three": 2}))


def test_bm25():
    """Against the formula, written out (Robertson & Zaragoza 2009; Lucene's idf)."""
    candidates = ["red cat sat", "red dog ran far away", "blue cat"]
    criterion = criterion_of(["red cat", "blue", "away"], candidates, [1, 2, 1], [0, 1, 2], [-1, 0, 1])

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
    assert criterion.bm25().tolist() == criterion.gains(scores).tolist() == [50, 100, 100]
    vectors = {"red cat": [1, 0], "blue cat": [1, 1], "blue": [0, 1]}  # and nothing for other texts
    cosines = np.array([[1, 0, 0.5**0.5], [0, 0, 0.5**0.5], [0, 0, 0]])
    shares = scores / scores.max(axis=1, keepdims=True)
    hybrid = criterion.hybrid(lambda texts: np.array([vectors.get(text, [0, 0]) for text in texts]))
    assert hybrid.tolist() == criterion.gains(cosines + 0.3 * shares).tolist()


def test_both_without_the_siblings():
    """BM25 is divided by the best passage that may be found: the rest of the query's document has its words too."""
    candidates = ["red cat red cat", "a red dog that ran far away", "one blue bird"]
    criterion = criterion_of(["red cat"], candidates, [1], [0], [0, 0, -1])
    assert BM25(candidates).scores(["red cat"])[0].argmax() == 0
    vectors = {"red cat": [1.0, 0.0], candidates[2]: [0.25, 0.97]}  # its cosine of 0.25 is less than a whole share has
    hybrid = criterion.hybrid(lambda texts: np.array([vectors.get(text, [0.0, 0.0]) for text in texts]))
    assert hybrid.tolist() == [100]


def test_halves_of_the_documents():
    """Each document asks in one half, and the candidates are those of the whole."""
    rest, held = hold_out(corpus(), 3)
    criterion = build_criterion("halves", held, rest, 3)
    first, second = criterion.halves(1)
    assert (first.documents, second.documents) == (15, 15)
    assert sorted(first.queries + second.queries) == sorted(criterion.queries)
    assert first.candidates == second.candidates == criterion.candidates
    for encode in (by_document, by_chance):
        values = np.concatenate([part.values(encode) for part in (first, second)])
        assert criterion.score(encode) == pytest.approx(values.mean())


def test_criteria_together():
    """The score is the mean of both, also where a document asks in one alone; a document brings its values in both into
    every sample, so scores that go against each other have a narrow interval."""
    documents = corpus().map(lambda row, place: {"text": row["text"] if place % 5 else "w1 w2"}, with_indices=True)
    rest, held = hold_out(documents, 3)
    together = asked_together(held, rest, 3)
    titles = build_criterion("title_body", held, rest, 3)
    assert together.name == "halves+words"
    assert together.documents == sum(len(text.split()) > 2 for text in held["text"]) < len(held)
    mixed = CombinedCriterion((*together.criteria, replace(titles, rows=np.arange(titles.documents))))
    scores = [criterion.score(by_chance) for criterion in mixed.criteria]
    assert mixed.documents > together.documents
    assert mixed.score(by_chance) == pytest.approx(np.mean(scores))
    assert mixed.bm25().mean() == pytest.approx(np.mean([criterion.bm25().mean() for criterion in mixed.criteria]))
    for half, parts in zip(
        mixed.halves(1), zip(*(each.halves(1) for each in mixed.criteria), strict=True), strict=True
    ):
        assert half.score(by_chance) == pytest.approx(np.mean([part.score(by_chance) for part in parts]))
    assert asked_together(*hold_out(corpus(words=12), 3)[::-1], 3) is None

    rng, zeros = np.random.default_rng(0), np.zeros(200)
    one = criterion_of([""] * 200, [""], [0] * 200, range(200), [-1])
    both, change = CombinedCriterion((one, one)), rng.normal(0, 20, 200)
    given = iter((change, 1 - change))
    against = both.mean(lambda _: next(given))
    assert interval(both, zeros, against) == pytest.approx((0.5, 0.5))
    low, high = interval(both, zeros, both.mean(lambda _: change))
    assert high - low == pytest.approx(2 * 1.96 * 20 / math.sqrt(200), rel=0.15)


def test_what_chooses_confirms_nowhere():
    """The two halves hold the same documents in every criterion, also with more questions."""
    rest, held = hold_out(corpus(), 3)
    first, second = asked_together(held, rest, 3).halves(1)
    more = build_criterion("words", held, rest, 3, most=30).halves(1)
    rows = [{int(row) for each in half.criteria for row in each.rows} for half in (first, second)]
    assert rows[0].isdisjoint(rows[1])
    assert [set(half.rows.tolist()) for half in more] == rows


def test_interval():
    """Of a difference that is the same for all documents it is a point; of noise it holds 0."""
    criterion = criterion_of([""] * 200, [""], [0] * 200, range(200), [-1])
    before = np.random.default_rng(0).uniform(0, 50, 200)
    assert interval(criterion, before, before + 10) == pytest.approx((10, 10))
    noise = np.random.default_rng(1).normal(0, 20, 200)
    low, high = interval(criterion, before, before + noise - noise.mean())
    assert low < 0 < high
    assert high - low == pytest.approx(2 * 1.96 * 20 / math.sqrt(200), rel=0.15)


def test_a_sample_of_pairs_has_the_score_that_it_would_have_alone():
    """With repetitions and ties; where all cosines are equal it is 0."""
    rng = np.random.default_rng(0)
    pairs = DevSet("pairs", Pairs(rng.integers(0, 6, 30).astype(float), [""] * 30, [""] * 30))
    values, rows = rng.integers(0, 9, 30) / 10, rng.integers(30, size=(5, 30))
    rows[4] = 3
    found = pairs.resampled(values, rows)
    for row, score in zip(rows[:4], found, strict=False):
        alone = DevSet("pairs", Pairs(pairs.pairs.scores[row], [""] * 30, [""] * 30))
        assert score == pytest.approx(alone.summary(values[row]))
    assert found[4] == 0
