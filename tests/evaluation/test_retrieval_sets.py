"""Retrieval sets that are whole, lack a file, are broken, or come from the Hub."""

import math
from pathlib import Path

import pytest

from cmlmcse.common.errors import InputError
from cmlmcse.evaluation.beir_data import load_retrieval, missing_retrieval
from cmlmcse.evaluation.retrieval import retrieval
from cmlmcse.evaluation.sts_data import MissingData
from support.paths import DATA
from support.retrieval_sets import HEADER, at_angle, write


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


def test_scifact_counts() -> None:
    """The shared SciFact has BEIR's numbers of passages, scored queries and judgments."""
    if not (DATA / "beir" / "scifact" / "corpus.jsonl").is_file():
        pytest.skip(f"needs beir/scifact under {DATA}; set CMLMCSE_DATA")
    one = load_retrieval(str(DATA))["scifact"]
    assert one is not None
    assert (len(one.passages), len(one.queries)) == (5183, 300)
    assert sum(map(len, one.qrels.values())) == 339
    assert next(one.texts()).startswith("Microstructural development of human newborn cerebral white matter assessed")
