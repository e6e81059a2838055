"""BM25 against its formula, whole, in parts and beside the cosine; and its memory."""

import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from cmlmcse.common.errors import InputError
from cmlmcse.evaluation.beir_data import load_retrieval
from cmlmcse.evaluation.bm25 import BM25, BM25OfFiles, BM25Shares
from cmlmcse.evaluation.retrieval import by_query, exact_unit, means, retrieval
from support.retrieval_sets import hashed, write
from support.tiny import WORDS


def test_bm25_by_hand(tmp_path: Path) -> None:
    """Scores from the formula with k1 0.9 and b 0.4; a passage without a word of the query is not found, and a passage
    with the query's own id is not either."""
    passages = [("a", "red cat"), ("b", "red red dog on a mat"), ("c", "tree"), ("q", "red")]
    write(tmp_path, passages, [("q", "the red dog?"), ("r", "nothing")], [("q", "a", 1), ("q", "c", 1), ("r", "c", 1)])
    mean, found = (2 + 6 + 1 + 1) / 4, {"red": 3, "dog": 1}

    def part(word: str, count: int, length: int) -> float:
        weight = math.log(1 + (4 - found[word] + 0.5) / (found[word] + 0.5))
        return weight * count / (count + 0.9 * (1 - 0.4 + 0.4 * length / mean))

    scores = BM25(text for _, text in passages).scores(["the red dog?"])
    expected = [part("red", 1, 2), part("red", 2, 6) + part("dog", 1, 6), 0.0, part("red", 1, 1)]
    assert scores[0] == pytest.approx(expected)
    result = retrieval(lambda texts: np.ones((len(texts), 2)), load_retrieval(str(tmp_path)))["tiny"]["bm25"]
    assert (result["mrr@10"], result["recall@100"]) == (25.0, 25.0)  # "a" on rank 2, "c" never
    assert BM25(["?", "!"]).scores(["what"]).tolist() == [[0.0, 0.0]]


def test_cosine_and_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`hybrid` ranks by the cosine and 0.3 of BM25 over the query's best, as sorting a dense table of all does, in
    every block size; BM25 reads no prompt; a large set has neither entry."""
    rng = np.random.default_rng(0)
    passages = [(f"d{i}", f"{i} " + " ".join(rng.choice(WORDS, 6))) for i in range(300)]
    queries = [(f"d{i}", " ".join(rng.choice(WORDS, 4)) if i % 2 else passages[i][1]) for i in range(80)]
    qrels = [(f"d{i}", f"d{j}", 1 + j % 2) for i in range(80) for j in range(i % 7, 300, 7)]
    write(tmp_path, passages, queries, qrels)
    data = load_retrieval(str(tmp_path))
    texts, asked = [text for _, text in passages], [text for _, text in queries]

    words = BM25(texts).scores(asked)
    cosines = exact_unit(hashed([f"w1 {text}" for text in asked])) @ exact_unit(hashed(texts)).T
    allowed = words.copy()
    allowed[np.arange(80), np.arange(80)] = 0  # a query does not find itself
    both = np.round(cosines + 0.3 * words / allowed.max(axis=1, keepdims=True), 6)
    both[np.arange(80), np.arange(80)] = -9
    order = np.argsort(-both, axis=1, kind="stable")[:, :100]
    run = {f"d{i}": {f"d{place}": float(both[i, place]) for place in order[i]} for i in range(80)}
    expected = means(by_query(data["tiny"].qrels, run))
    results = [retrieval(hashed, data, query_prefix="w1 ", block_size=size)["tiny"] for size in (7, 299, 4096)]
    assert all(result["hybrid"] == expected for result in results)
    assert expected["ndcg@10"] not in (results[0]["ndcg@10"], results[0]["bm25"]["ndcg@10"])
    heavy = retrieval(hashed, data, query_prefix="w1 ", bm25_weight=1.0)["tiny"]
    light = retrieval(hashed, data, query_prefix="w1 ", bm25_weight=1e-7)["tiny"]
    assert (heavy["bm25_weight"], "bm25_weight" in results[0]) == (1.0, False)
    assert heavy["hybrid"]["ndcg@10"] != expected["ndcg@10"]
    most = retrieval(hashed, data, query_prefix="w1 ", bm25_weight=10.0)["tiny"]  # nearly BM25's own order
    assert most["hybrid"]["ndcg@10"] == pytest.approx(heavy["bm25"]["ndcg@10"], abs=1)
    with pytest.raises(InputError, match="bm25_weight must be above 0, at most 10, found 11"):
        retrieval(hashed, data, bm25_weight=11)
    assert light["hybrid"]["ndcg@10"] == light["ndcg@10"]
    monkeypatch.setattr("cmlmcse.evaluation.retrieval.LEXICAL", 299)
    assert not {"bm25", "hybrid"} & set(retrieval(hashed, data)["tiny"])


def test_bm25_of_the_queries_words_alone() -> None:
    """An index of the words of some queries gives them the scores of the whole one, bit for bit, and holds less."""
    rng = np.random.default_rng(0)
    passages, queries = ([" ".join(rng.choice(WORDS, 8)) for _ in range(count)] for count in (500, 3))
    whole, small = BM25(passages), BM25(iter(passages), queries)
    assert np.array_equal(small.scores(queries), whole.scores(queries))
    assert small.counts.nnz < whole.counts.nnz / 2
    shares = BM25Shares(small, [*queries, "unheard"])
    dense = whole.scores(queries)
    dense /= dense.max(axis=1, keepdims=True)
    assert shares(slice(100, 300), slice(1, 3)) == pytest.approx(dense[1:, 100:300], abs=1e-12)
    assert not shares(slice(None))[3].any()


def test_bm25_of_files() -> None:
    """A passage with a word of the query has its own score and its file's, wherever the file's passages stand."""
    rng = np.random.default_rng(1)
    rows = [(f"f{place // 3}", f"t{place // 3}", " ".join(rng.choice(WORDS, 6))) for place in range(30)]
    queries = [rows[place][2] for place in (0, 7, 20)] + ["t3", "unheard"]
    texts = [f"{title} {text}" for _, title, text in rows]
    files = BM25([" ".join(texts[start : start + 3]) for start in range(0, 30, 3)])
    own, both = BM25(texts).scores(queries), np.repeat(files.scores(queries), 3, axis=1)
    expected = np.where(own > 0, own + both, 0)
    assert ((own == 0) & (both > 0)).any()
    order = rng.permutation(30)
    for places in (np.arange(30), order):
        index = BM25OfFiles((rows[place] for place in places), queries)
        assert index.scores(queries) == pytest.approx(expected[:, places], abs=1e-12)
        shares = BM25Shares(index, queries)(slice(5, 20), slice(0, 4))
        assert shares == pytest.approx((expected / expected.max(axis=1, keepdims=True).clip(1e-9))[:4, places[5:20]])


@pytest.mark.parametrize(("of_files", "limit"), [(False, 250), (True, 350)])
def test_memory_of_the_queries_words(of_files, limit) -> None:
    """The index of a corpus for one query takes so many bytes a text, as docs/reference/commands.md says, by the words
    that it shares with the query, and not by its length."""
    text, query = " ".join(f"w{word}" for word in range(50)), "a b c d e f g h i j k l"
    BM25(["imports"], [query])
    texts = (f"{text} a b c d {row}" for row in range(5_000))
    rows = ((f"f{row // 5}", "", text) for row, text in enumerate(texts))
    tracemalloc.start()
    BM25Shares(BM25OfFiles(rows, [query]) if of_files else BM25(texts, [query]), [query])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5_000 * limit
