"""Retrieval against hand-computed figures and brute force, its memory, and what reaches the encoder."""

import json
import math
import tracemalloc
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest

from cmlmcse.common.errors import InputError
from cmlmcse.evaluation.beir_data import load_retrieval
from cmlmcse.evaluation.retrieval import exact_unit, retrieval, search
from support.retrieval_sets import at_angle, hashed, write


def test_figures_by_hand(tmp_path: Path) -> None:
    """Ranks 2; 1 and 3 with grades; 11: all measures, averaged over the queries with a relevant passage alone."""
    passages = [(f"d{angle}", f"{angle}") for angle in range(0, 24, 2)]  # d0, d2, …, d22, the nearest first
    queries = [("second", "0"), ("graded", "-1"), ("eleventh", "-2"), ("unjudged", "0"), ("irrelevant", "0")]
    qrels = [("second", "d2", 1), ("graded", "d0", 1), ("graded", "d4", 2), ("graded", "d6", 0)]
    write(tmp_path, passages, queries, [*qrels, ("eleventh", "d20", 1), ("irrelevant", "d0", 0)])
    result = retrieval(at_angle, load_retrieval(str(tmp_path)))
    graded = (1 + 2 / math.log2(4)) / (2 + 1 / math.log2(3))
    assert result == {
        "tiny": {
            "ndcg@10": pytest.approx(100 * (1 / math.log2(3) + graded + 0) / 3, abs=1e-4),
            "recall@10": pytest.approx(100 * (1 + 1 + 0) / 3, abs=1e-4),
            "recall@100": 100.0,
            "map": pytest.approx(100 * (1 / 2 + (1 + 2 / 3) / 2 + 1 / 11) / 3, abs=1e-4),
            "mrr@10": pytest.approx(100 * (1 / 2 + 1 + 0) / 3, abs=1e-4),
            "queries": 3,
            "passages": 12,
            **dict.fromkeys(
                ("bm25", "hybrid"), dict.fromkeys(("ndcg@10", "recall@10", "recall@100", "map", "mrr@10"), ANY)
            ),
        }
    }


def test_own_id_is_left_out(tmp_path: Path) -> None:
    """A passage with the query's id is never an answer, in whatever block it stands."""
    passages = [("q", "0"), ("a", "1"), ("p", "180"), ("b", "181")]
    write(tmp_path, passages, [("q", "0"), ("p", "180")], [("q", "a", 1), ("p", "b", 1), ("p", "p", 1)])
    data = load_retrieval(str(tmp_path))
    for size in (1, 2, 3, 4):
        result = retrieval(at_angle, data, block_size=size)["tiny"]
        assert (result["mrr@10"], result["recall@100"]) == (100.0, 75.0)
    write(tmp_path, [("q", "0")], [("q", "0")], [("q", "q", 1)])
    assert retrieval(at_angle, load_retrieval(str(tmp_path)))["tiny"]["ndcg@10"] == 0.0  # nothing is left to find


def test_blocks_of_every_size_give_the_same(tmp_path: Path) -> None:
    """Figures, and positions found, are those of sorting all similarities, whatever the block size."""
    passages = [(f"d{i}", f"passage {i % 290}") for i in range(300)]  # the last ten equal the first ten
    queries = [(f"d{i}", f"query {i}") for i in range(40)]
    qrels = [(f"d{i}", f"d{j}", 1 + j % 2) for i in range(40) for j in (i + 1, 3 * i, 299 - i)]
    write(tmp_path, passages, queries, qrels)
    data = load_retrieval(str(tmp_path))
    results = [retrieval(hashed, data, block_size=size) for size in (1, 7, 64, 299, 300, 4096)]
    assert all(result == results[0] for result in results)

    vectors, rows = (
        exact_unit(hashed([text for _, text in passages])),
        exact_unit(hashed([text for _, text in queries])),
    )
    own = np.arange(40)
    own[20:] = -1
    similar = np.rint(rows @ vectors.T * 1e6)
    similar[np.arange(20), np.arange(20)] = -9e6
    expected = np.argsort(-similar, axis=1, kind="stable")[:, :30]
    for size in (1, 13, 300):
        blocks = (vectors[start : start + size] for start in range(0, 300, size))
        positions, steps = search(rows, blocks, own, 30)
        assert np.array_equal(positions, expected)
        assert np.array_equal(steps, np.take_along_axis(similar, expected, axis=1))


def test_fewer_passages_than_asked_for() -> None:
    """Places without a passage are −1, and opposite vectors still count as found."""
    points = np.array([[1.0, 0.0], [-1.0, 0.0]])
    positions, _ = search(points[:1], [points[:1], points[1:]], np.array([-1]), 4)
    assert positions.tolist() == [[0, 1, -1, -1]]
    assert search(points[:1], [], np.array([0]), 2)[0].tolist() == [[-1, -1]]


@pytest.mark.parametrize("size", (1, 60, 4096))
def test_ties(size: int, tmp_path: Path) -> None:
    """Of equal passages the first 100 of the corpus are found; among those trec_eval puts the last id first."""
    passages = [(f"d{i:03}", "0") for i in range(150)]
    qrels = [("last", "d099", 1), ("before", "d098", 1), ("beyond", "d100", 1)]
    write(tmp_path, passages, [(name, "0") for name, *_ in qrels], qrels)
    result = retrieval(at_angle, load_retrieval(str(tmp_path)), block_size=size)["tiny"]
    assert result["recall@100"] == pytest.approx(200 / 3, abs=1e-4)
    assert result["mrr@10"] == pytest.approx(100 * (1 + 1 / 2) / 3, abs=1e-4)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    """Ten times the passages: the peak of encoding and searching grows by far less than their vectors take."""
    peaks = {}
    for count in (5_000, 50_000):
        passages = ((f"d{i}", f"passage {i}") for i in range(count))
        qrels = [(f"q{i}", f"d{i}", 1) for i in range(20)]
        write(tmp_path / str(count), passages, [(f"q{i}", f"query {i}") for i in range(20)], qrels)
        data = load_retrieval(str(tmp_path / str(count)))
        tracemalloc.start()
        result = retrieval(hashed, data, block_size=500)
        peaks[count] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert result["tiny"]["passages"] == count
    vectors = 45_000 * 32 * 4  # bytes
    assert peaks[50_000] - peaks[5_000] < vectors / 8


def test_affixes_reach_the_encoder(tmp_path: Path) -> None:
    """Texts as BEIR joins them, with what is put around them; the results say so."""
    folder = write(tmp_path, [], [("q", " ask ")], [("q", "a", 1)])
    rows: list[dict[str, Any]] = [{"_id": "a", "title": "Title", "text": "text "}, {"_id": "b", "text": "bare"}]
    rows.append({"_id": "c", "title": None, "text": ""})
    (folder / "corpus.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    seen: list[str] = []

    def encode(texts: list[str]) -> np.ndarray:
        seen.extend(texts)
        return hashed(texts)

    affixes = {"query_prefix": "query: ", "passage_prefix": "passage: ", "passage_suffix": "!"}
    result = retrieval(encode, load_retrieval(str(tmp_path)), **affixes)["tiny"]
    assert seen == ["query:  ask ", "passage: Title text!", "passage: bare!", "passage: !"]
    assert {name: result[name] for name in affixes} == affixes
    assert "query_suffix" not in result
    seen.clear()
    retrieval(encode, load_retrieval(str(tmp_path)), query_suffix="?", block_size=2)
    assert seen == [" ask ?", "Title text", "bare", ""]


def test_encoder_gone_wrong(tmp_path: Path) -> None:
    """Embeddings that are not finite or too few are refused; zero ones are similar to nothing."""
    write(tmp_path, [("a", "1"), ("b", "2")], [("q", "3")], [("q", "a", 1)])
    data = load_retrieval(str(tmp_path))
    with pytest.raises(InputError, match="expects finite embeddings, found NaN or infinity; check the model"):
        retrieval(lambda texts: np.full((len(texts), 2), np.nan), data)
    with pytest.raises(ValueError, match=r"must return \(2, H\) for 2 texts, found \(1, 2\)"):
        retrieval(lambda texts: np.ones((1, 2)), data)
    assert retrieval(lambda texts: np.zeros((len(texts), 2)), data)["tiny"]["mrr@10"] == 50.0
