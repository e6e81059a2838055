"""Retrieval against hand-computed figures and brute force, its memory, and what it says of broken sets."""

import hashlib
import inspect
import json
import math
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest

from cmlmcse.common.errors import InputError
from cmlmcse.evaluation.beir_data import load_retrieval, missing_retrieval
from cmlmcse.evaluation.bm25 import BM25, BM25OfFiles, BM25Shares
from cmlmcse.evaluation.command import main
from cmlmcse.evaluation.retrieval import by_query, exact_unit, means, retrieval, search, search_sets
from cmlmcse.evaluation.sts_data import MissingData
from cmlmcse.evaluation.tasks import TASKS
from support.paths import DATA
from support.retrieval_sets import HEADER, write
from support.text import one_space
from support.tiny import WORDS


def at_angle(texts: list[str]) -> np.ndarray:
    """A text that ends in a number of degrees → the vector in that direction, of some length."""
    angles = np.radians([float(text.split()[-1]) for text in texts])
    return 3 * np.stack([np.cos(angles), np.sin(angles)], axis=1)


def hashed(texts: list[str]) -> np.ndarray:
    """A vector of 32 numbers for each text that depends on nothing but the text."""
    digests = b"".join(hashlib.blake2b(text.encode(), digest_size=64).digest() for text in texts)
    return np.frombuffer(digests, np.int16).reshape(-1, 32).astype(np.float32)


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


def test_average_of_whole_sets_only(tmp_path: Path) -> None:
    """ "avg" is the mean nDCG@10 of several sets, and absent when one of them lacks a file."""
    passages, queries = [("a", "0"), ("b", "5")], [("q", "0")]
    write(tmp_path, passages, queries, [("q", "a", 1)], "one")
    folder = write(tmp_path, passages, queries, [("q", "b", 1)], "two")
    data = load_retrieval(str(tmp_path))
    assert retrieval(at_angle, data)["avg"] == pytest.approx(100 * (1 + 1 / math.log2(3)) / 2, abs=1e-4)
    assert missing_retrieval(str(tmp_path), data) == []
    (folder / "qrels" / "test.tsv").unlink()
    data = load_retrieval(str(tmp_path))
    assert list(retrieval(at_angle, data)) == ["one"]
    (line,) = missing_retrieval(str(tmp_path), data)
    assert line == f"retrieval two: no {folder / 'qrels' / 'test.tsv'}"
    (tmp_path / "beir" / "one" / "corpus.jsonl").unlink()
    with pytest.raises(MissingData, match=r"retrieval one: no .*corpus.jsonl; retrieval two"):
        load_retrieval(str(tmp_path))
    with pytest.raises(MissingData, match=r"no set under .*beir, expected such as .*scifact"):
        load_retrieval(str(folder))
    with pytest.raises(InputError, match=r"expected a folder that holds beir/, found none"):
        load_retrieval(str(tmp_path / "nothing"))


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


CORPUS, QUERIES, QRELS = "corpus.jsonl", "queries.jsonl", "qrels/test.tsv"


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        (CORPUS, b"", ["tiny", "expected passages", "empty corpus"]),
        (CORPUS, b'{"_id": "a", "text": "x"}\n{"_id": "a"\n', [f"{CORPUS}, line 2", "a JSON object", "fix"]),
        (CORPUS, b'["a"]\n', [f"{CORPUS}, line 1", "a JSON object", "found list"]),
        (CORPUS, b'\n{"text": "x"}\n', [f"{CORPUS}, line 2", "a text as _id", "None"]),
        (CORPUS, b'{"_id": 7, "text": "x"}\n', [f"{CORPUS}, line 1", "a text as _id", "7"]),
        (CORPUS, b'{"_id": "a"}\n', [f"{CORPUS}, line 1", "expected a text as text", "None"]),
        (CORPUS, b'{"_id": "a", "title": 1, "text": "x"}\n', [f"{CORPUS}, line 1", "a text as title", "1"]),
        (CORPUS, b'{"_id": "a", "text": "x"}\n' * 2, [f"{CORPUS}, line 2", "_id once", "'a' again", "remove"]),
        (CORPUS, b'{"_id": "a", "text": "x"}\n\xff\n', [f"{CORPUS}, line 2", "UTF-8"]),
        (QUERIES, b"nothing\n", [f"{QUERIES}, line 1", "a JSON object"]),
        (QUERIES, b'{"_id": "", "text": "x"}\n', [f"{QUERIES}, line 1", "a text as _id"]),
        (QUERIES, b'{"_id": "q", "text": "x"}\n' * 2, [f"{QUERIES}, line 2", "_id once", "'q' again"]),
        (QUERIES, b"", [f"{QRELS}, line 2", "the id of a query", "'q'", "one release"]),
        (QRELS, b"", [QRELS, "expected the header query-id TAB corpus-id TAB score"]),
        (QRELS, b"q\ta\t1\n", [f"{QRELS}, line 1", "expected the header", "'q TAB a TAB 1'"]),
        (QRELS, HEADER.encode() + b"q a 1\n", [f"{QRELS}, line 2", "3 columns", "found 1"]),
        (QRELS, HEADER.encode() + b"q\tz\t1\n", [f"{QRELS}, line 2", "the id of a passage", "'z'", "one release"]),
        (QRELS, HEADER.encode() + b"z\ta\t1\n", [f"{QRELS}, line 2", "the id of a query", "'z'"]),
        (QRELS, HEADER.encode() + b"q\ta\t1.5\n", [f"{QRELS}, line 2", "a whole number", "'1.5'"]),
        (QRELS, HEADER.encode() + b"q\ta\t1\nq\ta\t2\n", [f"{QRELS}, line 3", "one score for a passage", "remove"]),
        (QRELS, HEADER.encode() + b"q\ta\t0\n", ["tiny", "a query with a relevant passage", "check the qrels"]),
    ],
)
def test_broken_set(file: str, content: bytes, words: list[str], tmp_path: Path) -> None:
    """What is wrong is found before anything is encoded, with the file, the line and what to do."""
    folder = write(tmp_path, [("a", "x")], [("q", "x")], [("q", "a", 1)])
    assert load_retrieval(str(tmp_path))["tiny"] is not None
    (folder / file).write_bytes(content)
    with pytest.raises(InputError) as error:
        load_retrieval(str(tmp_path))
    assert not isinstance(error.value, MissingData)
    assert all(word in str(error.value) for word in words), error.value
    assert "\n" not in str(error.value)


def test_lines_that_end_otherwise(tmp_path: Path) -> None:
    """Carriage returns, a repeated judgment and unusual line separators change nothing."""
    folder = write(tmp_path, [("a", "x\u2028y")], [("q", "x")], [])
    (folder / "qrels" / "test.tsv").write_bytes(b"query-id\tcorpus-id\tscore\r\nq\ta\t1\r\nq\ta\t1\r\n")
    one = load_retrieval(str(tmp_path))["tiny"]
    assert one is not None
    assert (one.qrels, list(one.texts())) == ({"q": {"a": 1}}, ["x\u2028y"])


def test_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """SciFact from the Hub, whose qrels hold numbers, behind the same interface; no Hub is an input error."""
    with pytest.raises(InputError, match=r"cannot load BeIR/scifact from the Hub .* pass --data_dir"):
        load_retrieval(None)
    tables = {
        ("BeIR/scifact", "corpus"): [{"_id": "7", "title": "1", "text": "0"}, {"_id": "8", "title": "", "text": "9"}],
        ("BeIR/scifact", "queries"): [{"_id": "1", "title": "", "text": "9"}],
        ("BeIR/scifact-qrels", "test"): [{"query-id": 1, "corpus-id": 8, "score": 1}],
    }

    def load_dataset(name: str, part: str | None = None, *, split: str) -> list[dict]:
        assert part in (None, split)
        return tables[name, split]

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    result = retrieval(at_angle, load_retrieval(None))
    assert (result["scifact"]["ndcg@10"], result["scifact"]["passages"]) == (100.0, 2)
    assert missing_retrieval(None, load_retrieval(None)) == []
    tables["BeIR/scifact-qrels", "test"][0]["corpus-id"] = 9
    with pytest.raises(InputError, match=r"BeIR/scifact-qrels, row 0: expected the id of a passage, found '9'"):
        load_retrieval(None)


@pytest.fixture
def command_line(tmp_path: Path, backbone_folders: dict[str, str]) -> Callable[..., list[str]]:
    """The command's arguments for a tiny set, with options."""
    passages = [(f"d{i}", f"{WORDS[i]} {WORDS[i + 1]}") for i in range(20)]
    write(tmp_path / "data", passages, [("q", WORDS[3]), ("p", WORDS[9])], [("q", "d3", 1), ("p", "d9", 1)])
    start = [backbone_folders["bert"], "--data_dir", str(tmp_path / "data"), "--pooling", "avg"]
    return lambda *options: [*start, "--tasks", "retrieval", "--output", str(tmp_path / "out.json"), *options]


def test_command(command_line, tmp_path: Path, capsys) -> None:
    """The task by its name, with its options; its figures are printed and written."""
    main(command_line())
    plain = json.loads((tmp_path / "out.json").read_text())["retrieval"]["tiny"]
    assert plain["queries"] == 2
    assert plain["recall@100"] == 100.0
    assert f"| retrieval tiny ndcg@10 | {plain['ndcg@10']:.2f} |" in one_space(capsys.readouterr().out)
    main(command_line("--retrieval_block_size", "3"))
    assert json.loads((tmp_path / "out.json").read_text())["retrieval"]["tiny"] == plain
    main(command_line("--retrieval_query_prefix", "w5 w6 "))
    prefixed = json.loads((tmp_path / "out.json").read_text())["retrieval"]["tiny"]
    assert prefixed["query_prefix"] == "w5 w6 "
    assert prefixed["map"] != plain["map"]
    with pytest.raises(SystemExit, match="2"):
        main(command_line("--retrieval_block_size", "0"))
    assert "--retrieval_block_size: expected a whole number of at least 1, found '0'" in capsys.readouterr().err


def test_what_the_model_does_not_see_is_said(tmp_path: Path, backbone_folders, capsys) -> None:
    """Passages of 80 words for a model that reads 16 tokens, of which two are special; and a tokenizer's limit below
    the model's positions."""
    passages = [(f"d{i}", " ".join([WORDS[i % 20]] * 80)) for i in range(30)]
    write(tmp_path / "data", passages, [("q", WORDS[3])], [("q", "d3", 1)])
    start = [backbone_folders["bert"], "--data_dir", str(tmp_path / "data"), "--pooling", "avg", "--tasks", "retrieval"]
    main([*start, "--max_seq_length", "16"])
    said = capsys.readouterr().err
    assert f"warning: tiny: {start[0]} reads the first 16 tokens of a text, which cuts off 80% of all tokens;" in said
    assert "its tokenizer allows 64 tokens, the model has 66 positions" in said
    write(tmp_path / "data", [(name, text[:20]) for name, text in passages], [("q", WORDS[3])], [("q", "d3", 1)])
    main(start)
    assert "cuts off" not in capsys.readouterr().err


def test_what_is_not_seen_of_other_texts_is_said(tmp_path: Path, backbone_folders, data_dir, capsys) -> None:
    """Documents of pairs too; and the tokenizer's limit with every task, also where all texts are sentences."""
    (tmp_path / "pairs").mkdir()
    texts = [f"{WORDS[i]} " * 80 for i in range(12)]
    lines = (f"{i}\t{one}\t{other}\n" for i, (one, other) in enumerate(zip(texts, reversed(texts), strict=True)))
    (tmp_path / "pairs" / "mine.tsv").write_text("".join(lines))
    model = backbone_folders["bert"]
    main([model, "--pooling", "avg", "--data_dir", str(tmp_path), "--tasks", "pairs", "--max_seq_length", "16"])
    assert "warning: mine: " in (said := capsys.readouterr().err)
    assert "which cuts off 80% of all" in said
    main([model, "--pooling", "avg", "--data_dir", str(data_dir), "--tasks", "stsb_dev"])
    assert "its tokenizer allows 64 tokens, the model has 66 positions" in (said := capsys.readouterr().err)
    assert "cuts off" not in said


def test_options_are_those_of_the_function() -> None:
    """The command line and a call from Python have the same defaults."""
    defaults = {name: one.default for name, one in inspect.signature(search_sets).parameters.items()}
    assert {name: defaults[name] for name in TASKS["retrieval"].options} == {
        name: option.default for name, option in TASKS["retrieval"].options.items()
    }


def test_scifact_counts() -> None:
    """The shared SciFact has BEIR's numbers of passages, scored queries and judgments."""
    if not (DATA / "beir" / "scifact" / "corpus.jsonl").is_file():
        pytest.skip(f"needs beir/scifact under {DATA}; set CMLMCSE_DATA")
    one = load_retrieval(str(DATA))["scifact"]
    assert one is not None
    assert (len(one.passages), len(one.queries)) == (5183, 300)
    assert sum(map(len, one.qrels.values())) == 339
    assert next(one.texts()).startswith("Microstructural development of human newborn cerebral white matter assessed")
