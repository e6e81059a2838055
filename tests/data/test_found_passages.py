"""Searches without labels: latent semantic analysis, queries from documents, and the passages found for them."""

import datasets
import numpy as np
import pytest

from cmlmcse.data.latent import LatentSpace
from cmlmcse.data.searches import FIRST_FOUND, FOUND, find_passages, make_queries

TEXTS = ["cats chase mice", "dogs chase cats", "stars shine at night", "night stars fade", "mice fear cats at night"]


def test_a_latent_space_is_the_singular_vectors_of_tf_idf():
    """As many components as there are keep every cosine of TF-IDF, computed here by hand; strange words and no words
    give zeros."""
    space = LatentSpace(TEXTS)
    assert space.size == len(TEXTS) + 1  # the rows, of which one is the added word
    rows = ["two words", *TEXTS]
    words = sorted({word for row in rows for word in row.split()})
    counts = np.array([[row.split().count(word) for word in words] for row in rows], float)
    weights = np.log((1 + len(rows)) / (1 + (counts > 0).sum(axis=0))) + 1
    table = np.where(counts > 0, 1 + np.log(np.maximum(counts, 1)), 0) * weights
    table /= np.linalg.norm(table, axis=1, keepdims=True)
    found = space(rows[1:])
    np.testing.assert_allclose(found @ found.T, (table @ table.T)[1:, 1:], atol=1e-5)
    assert not space(["unheard of", ""]).any()
    assert LatentSpace(["", "!"])(["word"]).shape == (1, 2)


def documents(rows):
    return datasets.Dataset.from_list([dict(zip(("title", "text"), row, strict=True)) for row in rows])


def test_queries_are_titles_sentences_and_words_of_their_document():
    """Each is a title of two words or more, a sentence of five, or three to eight different words; a document without
    any of them asks nothing; the seed decides."""
    text = "A first sentence has some words here. Tiny one. The second sentence is about telescopes and stars!"
    rows = documents([("Of stars", text), ("Single", text.upper()), ("", "?! - 7 of"), ("No body", "")])
    found = make_queries(rows, seed=1)
    kinds = {"Of stars": 0, "sentence": 0, "words": 0}
    for query, owner in zip(found.texts, found.owners, strict=True):
        title, body = rows[int(owner)]["title"], rows[int(owner)]["text"]
        if query == title:
            assert len(title.split()) >= 2
            kinds["Of stars"] += 1
        elif query in body and len(query.split()) >= 5 and query[-1] in ".!":
            kinds["sentence"] += 1
        else:
            asked = query.split()
            assert 1 <= len(asked) == len(set(asked)) <= 8
            assert set(asked) <= set(f"{title} {body}".lower().replace(".", "").replace("!", "").split())
            kinds["words"] += 1
    assert min(kinds.values()) >= 1
    assert 2 not in found.owners
    assert {found.texts[place] for place in np.flatnonzero(found.owners == 3)} <= {"No body", "body"}
    again, other = make_queries(rows, seed=1), make_queries(rows, seed=2)
    assert again.texts == found.texts != other.texts


def test_rare_words_ask_more_often_than_common_ones():
    """A word of one document among 200 against one of all of them."""
    common = "common words stand everywhere"
    rows = documents([("", f"{common} " + " ".join(f"rare{i}{letter}" for letter in "abcdefgh")) for i in range(200)])
    asked = [query.split() for query in make_queries(rows, seed=0).texts if not query.startswith(common)]
    rare = sum(word.startswith("rare") for words in asked for word in words) / 8
    assert rare > 20 * sum(words.count("common") for words in asked) > 0


@pytest.mark.parametrize("shares", [(1.0,), (0.75, 0.25)])
def test_found_passages(shares):
    """Never the query's own document; one of the 30 best by the weighted cosines; half of them among the three best."""
    rng = np.random.default_rng(0)
    passages = [rng.standard_normal((200, size)).astype(np.float32) for size in (16, 8)[: len(shares)]]
    owners = rng.integers(200, size=2000)
    queries = [
        table[owners] + 0.1 * rng.standard_normal((2000, table.shape[1])).astype(np.float32) for table in passages
    ]
    found = find_passages(queries, passages, shares, owners, seed=3)
    scores = sum(
        share
        * (asked / np.linalg.norm(asked, axis=1, keepdims=True))
        @ (given / np.linalg.norm(given, axis=1, keepdims=True)).T
        for share, asked, given in zip(shares, queries, passages, strict=True)
    )
    scores[np.arange(2000), owners] = -9
    ranks = (scores > scores[np.arange(2000), found][:, None]).sum(axis=1)
    assert (found != owners).all()
    assert ranks.max() < FOUND
    assert 0.45 < (ranks < FIRST_FOUND).mean() < 0.55
    assert len(np.unique(ranks)) == FOUND
    assert np.array_equal(found, find_passages(queries, passages, shares, owners, seed=3))


def test_fewer_passages_than_are_drawn_from():
    """Two documents: each finds the other; and vectors of zeros are no trouble."""
    table = np.zeros((2, 4), np.float32)
    assert find_passages([table], [table], [1.0], np.array([0, 1]), seed=0).tolist() == [1, 0]
