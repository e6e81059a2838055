"""Searches without labels: queries from documents, and the passages drawn for them."""

import datasets
import numpy as np

from cmlmcse.data.searches import FIRST_FOUND, FOUND, draw_passages, make_queries


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


def test_drawn_queries():
    """So many of all, in their order, of many documents, as the seed decides."""
    rows = documents([(f"Title of {i}", f"A sentence about number{i} is here. And word{i} too.") for i in range(50)])
    whole, few = make_queries(rows, seed=1), make_queries(rows, seed=1, most=40)
    pairs = list(zip(*whole, strict=True))
    places = [pairs.index(pair) for pair in zip(*few, strict=True)]
    assert places == sorted(set(places))
    assert len(places) == 40 < len(pairs)
    assert len(set(few.owners.tolist())) > 20
    assert make_queries(rows, seed=1, most=40).texts == few.texts
    assert make_queries(rows, seed=1, most=len(pairs)).texts == whole.texts


def test_rare_words_ask_more_often_than_common_ones():
    """A word of one document among 200 against one of all of them."""
    common = "common words stand everywhere"
    rows = documents([("", f"{common} " + " ".join(f"rare{i}{letter}" for letter in "abcdefgh")) for i in range(200)])
    asked = [query.split() for query in make_queries(rows, seed=0).texts if not query.startswith(common)]
    rare = sum(word.startswith("rare") for words in asked for word in words) / 8
    assert rare > 20 * sum(words.count("common") for words in asked) > 0


def test_drawn_passages():
    """Never the query's own document; one of the 30 that are found first; half of them among the first three."""
    rng = np.random.default_rng(0)
    scores, owners = rng.standard_normal((2000, 200)), rng.integers(200, size=2000)
    scores[np.arange(2000), owners] = 9
    kept = scores.copy()
    found = draw_passages(scores.__getitem__, owners, 200, seed=3)
    assert np.array_equal(scores, kept)
    scores[np.arange(2000), owners] = -9
    ranks = (scores > scores[np.arange(2000), found][:, None]).sum(axis=1)
    assert (found != owners).all()
    assert ranks.max() < FOUND
    assert 0.45 < (ranks < FIRST_FOUND).mean() < 0.55
    assert len(np.unique(ranks)) == FOUND
    assert np.array_equal(found, draw_passages(kept.__getitem__, owners, 200, seed=3))


def test_two_documents_find_each_other():
    assert draw_passages(np.zeros((2, 2)).__getitem__, np.array([0, 1]), 2, seed=0).tolist() == [1, 0]
