"""Views of documents: what each takes from a document, and what its random numbers depend on."""

import json
import time

import numpy as np
import pytest
from datasets import Dataset

from cmlmcse.common.errors import InputError
from cmlmcse.data.batches import Example, TrainingSentences, tokenize_pieces
from cmlmcse.data.collator import ViewCollator
from cmlmcse.data.collection import load_collection
from cmlmcse.data.masking import Masking
from cmlmcse.data.telling_words import TellingWords
from cmlmcse.data.views import MIN_PIECE, VIEWS, WINDOW, DocumentViews, Pieces, check_views
from support.tiny import WORDS, tiny_tokenizer

BODY = list(range(1000, 1600))
DOCUMENT = Pieces([1, 2, 3], BODY)


def drawn(name, view, seed, document=DOCUMENT, limit=40):
    """One view; the two views of a document share the first generator."""
    return VIEWS[name](document, view, limit, np.random.default_rng(seed), np.random.default_rng([seed, 1 + view]))


def test_crops():
    """Two crops of one window: 10 to 50 % of it, at most the limit, at independent places."""
    first, second = ([drawn("crops", view, seed, limit=WINDOW) for seed in range(300)] for view in (0, 1))
    for one, other in zip(first, second, strict=True):
        for crop in (one, other):
            assert crop == BODY[crop[0] - 1000 : crop[0] - 1000 + len(crop)]
        assert max(one[-1], other[-1]) - min(one[0], other[0]) < WINDOW
    sizes = [len(crop) for crop in first]
    assert (min(sizes), max(sizes)) == pytest.approx((25.6, 128), abs=3)
    assert np.mean(sizes) == pytest.approx(0.3 * WINDOW, rel=0.05)
    assert abs(np.corrcoef(sizes, [len(crop) for crop in second])[0, 1]) < 0.15
    assert max(len(drawn("crops", 0, seed)) for seed in range(50)) == 40


def test_neighbours():
    """The two views touch, and do not overlap."""
    for seed in range(100):
        before, after = (drawn("neighbours", view, seed) for view in (0, 1))
        assert before[-1] + 1 == after[0]
        assert MIN_PIECE <= min(len(before), len(after)) <= max(len(before), len(after)) <= 40
    short = Pieces([], BODY[: 2 * MIN_PIECE])
    assert [drawn("neighbours", view, 0, short) for view in (0, 1)] == [
        BODY[:MIN_PIECE],
        BODY[MIN_PIECE : 2 * MIN_PIECE],
    ]


def test_title_body():
    assert [drawn("title_body", view, 0) for view in (0, 1)] == [[1, 2, 3], BODY[:40]]


def test_a_document_that_cannot_give_a_view():
    """It gives crops instead, and a very short one gives its text twice."""
    rng = np.random.default_rng
    untitled, tiny = Pieces([], BODY), Pieces([], BODY[:4])
    views = DocumentViews("title_body", 40)
    assert views(untitled, 0, rng(0), rng(1)) == VIEWS["crops"](untitled, 0, 40, rng(0), rng(1))
    assert [views(tiny, view, rng(0), rng(view)) for view in (0, 1)] == [BODY[:4], BODY[:4]]
    nothing = TellingWords(9, np.zeros(9, int), np.zeros(9, bool), np.zeros(9, int), np.zeros(9, bool))
    for name in VIEWS:  # a tokenizer may drop all signs of a text
        assert DocumentViews(name, 40, nothing)(Pieces([], []), 0, rng(0), rng(1)) == []


def test_a_mixture_draws_one_view_for_both_sides():
    rng = np.random.default_rng
    views = DocumentViews("title_body+neighbours", 40)
    kinds = []
    for seed in range(200):
        first, second = (views(DOCUMENT, view, rng(seed), rng([seed, view])) for view in (0, 1))
        assert (first == [1, 2, 3]) == (second == BODY[:40])
        kinds.append(first == [1, 2, 3])
    assert 0.4 < np.mean(kinds) < 0.6


@pytest.mark.parametrize("name", VIEWS)
def test_a_long_document_is_not_read_through(name):
    """Each view of 100,000 tokens looks at a window of them, at most two; the time does not grow with the document."""
    read = [0]

    class Watched(list):
        def __getitem__(self, key):
            found = super().__getitem__(key)
            read[0] += len(found) if isinstance(key, slice) else 1
            return found

        def __iter__(self):
            read[0] += len(self)
            return super().__iter__()

    words = TellingWords(100, np.full(1000, 2), np.zeros(1000, bool), np.full(1000, 5), np.zeros(1000, bool))
    document = Pieces([1, 2, 3], Watched([5 + place % 995 for place in range(100_000)]), words)
    for view in (0, 1):
        for seed in range(20):
            read[0] = 0
            assert 0 < len(drawn(name, view, seed, document)) <= 40
            assert 0 < read[0] <= 2 * WINDOW or (name, view) == ("title_body", 0)


def test_a_long_document_takes_no_longer_than_its_parts(tmp_path):
    """From a file to batches of all views: 100,000 words take at most 30 times as long as 10,000, and a second for what
    else the machine does; the square is 100 times."""
    tokenizer, seconds = tiny_tokenizer("bert"), []
    for size in (10_000, 100_000):
        text = " ".join(np.random.default_rng(0).choice(WORDS, size))
        path = tmp_path / f"{size}.jsonl"
        path.write_text("".join(json.dumps({"title": "w1 w2", "text": each}) + "\n" for each in (text, text[:500])))
        start = time.perf_counter()
        documents = load_collection(str(path))
        pieces = tokenize_pieces(documents, tokenizer)
        rows, words = TrainingSentences(pieces), TellingWords.count(pieces, tokenizer)
        assert len(rows[0].tokens) == size
        for name in VIEWS:
            collator = ViewCollator(tokenizer, 7, documents=DocumentViews(name, 30, words))
            assert collator(rows.__getitems__([0, 1]))["views"]["width"] <= 32
        seconds.append(time.perf_counter() - start)
    assert seconds[1] < 30 * seconds[0] + 1


def test_batches_depend_on_seed_epoch_and_row_alone():
    """The same document gives the same views in any batch, and others in another epoch; its masks are of its views."""
    tokenizer = tiny_tokenizer("bert")
    masking = Masking.of(tokenizer, 0.5)
    body = [5 + row % 60 for row in range(300)]

    def rows(epoch, order, part="views"):
        collator = ViewCollator(tokenizer, 7, masking, documents=DocumentViews("crops+title_body", 30))
        batch = collator([Example(body, epoch, row, (), [9, 8, 7]) for row in order])[part]
        split = np.split(batch["input_ids"].numpy(), np.cumsum(batch["lengths"].numpy())[:-1])
        return [tuple(row) for row in split], batch

    views, _ = rows(0, (4, 5))
    again, _ = rows(0, (5, 6, 4))
    assert [*views[:2], views[2]] == [again[2], again[0], again[5]]
    assert views != rows(1, (4, 5))[0]
    assert all(view[0] == tokenizer.cls_token_id and view[-1] == tokenizer.sep_token_id for view in views)
    masked, batch = rows(0, (4, 5), "masked")
    restored = batch["input_ids"].clone()
    restored[batch["mlm_positions"]] = batch["mlm_labels"]
    assert restored.tolist() == [token for view in views for token in view]
    assert masked != views


@pytest.mark.parametrize(
    "views, titles, longest, message",
    [
        ("title_body", 0, 50, "views title_body expects documents with a title and another text, found none among 7"),
        ("crops", 7, 9, "views crops expects documents of at least 10 tokens, found none among 7"),
        (
            "dropout+halves",
            7,
            50,
            "views must be one of dropout, crops, neighbours, title_body, words, sentence, or "
            "several joined by +, or search by itself, found 'halves'",
        ),
    ],
)
def test_text_that_cannot_give_the_views(views, titles, longest, message):
    with pytest.raises(InputError) as error:
        check_views(views, 7, titles, longest)
    assert message in str(error.value)


def counted(texts, titles=None):
    """The telling words of tokenised documents, and the tokenizer."""
    tokenizer = tiny_tokenizer("bert")
    titles = titles or [""] * len(texts)
    pieces = tokenize_pieces(Dataset.from_dict({"title": titles, "text": texts}), tokenizer)
    return TellingWords.count(pieces, tokenizer), tokenizer


def ids(tokenizer, text):
    """Its tokens without special ones."""
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def test_telling_words_are_rare_and_frequent_here():
    """TF-IDF by hand: weights log(1 + times here) · log((documents + 1) / documents with it); what stands in one
    document alone, short words and signs are out."""
    texts = ["tree tree small cat on", "small cat dog on", "cat cat on", "cat mat"]
    words, tokenizer = counted(texts, ["dog", "", "", ""])
    assert words.documents == 4
    tokens = ids(tokenizer, "dog tree tree small small cat on")
    found, weights = words.of(tokens)
    assert found == [ids(tokenizer, word) for word in ("dog", "small", "cat")]
    expected = [np.log(2) * np.log(5 / 2), np.log(3) * np.log(5 / 2), np.log(2) * np.log(5 / 4)]
    np.testing.assert_allclose(weights, expected, rtol=1e-12)


def test_words_of_a_text_without_titles():
    words, tokenizer = counted(["cat dog", "cat mat", ""])
    assert words.of(ids(tokenizer, "dog cat"))[0] == [ids(tokenizer, "cat")]
    assert words.of([])[0] == []


def test_a_word_in_pieces_is_as_rare_as_its_rarest_piece():
    words = TellingWords(
        10, np.array([9, 9, 3, 8]), np.array([0, 0, 1, 0], bool), np.array([4, 4, 2, 4]), np.zeros(4, bool)
    )
    found, weights = words.of([0, 1, 2, 3])
    assert found == [[0], [1, 2], [3]]
    np.testing.assert_allclose(weights / np.log(2), np.log(11 / np.array([9, 3, 8])), rtol=1e-12)


def test_words_ask_for_a_passage():
    """Two to seven different telling words, in their order; drawn by weight, others in every epoch."""
    rare, common = list(range(1, 21)), list(range(21, 41))
    found = np.array([0] + [2] * 20 + [90] * 20)
    words = TellingWords(100, found, np.zeros(41, bool), np.full(41, 5), np.zeros(41, bool))
    document = Pieces([], rare + common, words)
    queries = [drawn("words", 0, seed, document) for seed in range(400)]
    assert {len(query) for query in queries} == set(range(2, 8))
    assert all(query == sorted(set(query)) for query in queries)
    share = np.mean([token <= 20 for query in queries for token in query])
    assert share > 0.9  # log(101/2) against log(101/90)
    passages = [drawn("words", 1, seed, document, limit=10) for seed in range(100)]
    assert all(one == list(range(one[0], one[0] + 10)) for one in passages)
    assert 0.3 < np.mean([one[0] == 1 for one in passages]) < 0.7
    unknown = Pieces([], [0, 0, 0], words)
    assert drawn("words", 0, 0, unknown) is drawn("words", 1, 0, unknown) is None


def test_a_passage_is_read_with_its_title_half_of_the_time():
    document = Pieces([1, 2, 3], BODY)
    passages = [drawn("sentence", 1, seed, document, limit=20) for seed in range(200)]
    assert all(len(one) == 20 for one in passages)
    assert 0.4 < np.mean([one[:3] == [1, 2, 3] for one in passages]) < 0.6
    sizes = {len(drawn("sentence", 0, seed, document)) for seed in range(300)}
    assert (min(sizes), max(sizes)) == (8, 31)
