"""In-domain retrieval on pairs whose neighbours are known."""

from pathlib import Path

import numpy as np
import pytest

from cmlmcse.common.errors import InputError
from cmlmcse.evaluation import sts_data
from cmlmcse.evaluation.indomain import indomain
from cmlmcse.evaluation.sts_data import MissingData, Pairs, load_stsb_test
from cmlmcse.evaluation.tasks import TASKS
from support.paths import DATA
from support.retrieval_sets import at_angle


def pairs_of(*rows: tuple[float, str, str]) -> Pairs:
    """Rows of score and two sentences as pairs."""
    scores, first, second = zip(*rows, strict=True)
    return Pairs(np.array(scores), list(first), list(second))


def test_recall_by_hand() -> None:
    """The paraphrases of three queries are the nearest, the fourth and the sixth; the rest is corpus."""
    rows = [(5.0, "a 0", "b 1"), (5.0, "a 100", "b 104"), (5.0, "a 200", "b 206"), (4.9, "a 300", "b 300.1")]
    rows += [(0.0, f"c {100 + i}", f"c {200 + i}") for i in (1, 2, 3)]
    rows += [(0.0, f"d {200 + i}", f"d {90 - i}") for i in (4, 5)]
    result = indomain(at_angle, pairs_of(*rows))
    assert result == {
        "r@1": pytest.approx(100 / 3, abs=1e-4),
        "r@5": pytest.approx(200 / 3, abs=1e-4),
        "r@10": 100.0,
        "queries": 3,
        "sentences": 18,
    }


def test_copies_count_once() -> None:
    """Copies of the query, of its paraphrase or of others take no place; a query with two paraphrases counts twice."""
    rows = [(5.0, "a 0", "b 1"), (5.0, "a 0", "b 2"), (0.0, "a 0", "b 1"), (0.0, "c 5", "a 0"), (0.0, "c 5", "c 5")]
    result = indomain(at_angle, pairs_of(*rows))
    assert (result["r@1"], result["r@5"], result["queries"], result["sentences"]) == (50.0, 100.0, 2, 4)


def test_equal_embeddings_find_nothing() -> None:
    """A constant encoder answers every query with the first sentences of the set."""
    rows = [(0.0, f"x {i}", f"y {i}") for i in range(20)]
    result = indomain(lambda texts: np.ones((len(texts), 3)), pairs_of(*rows, (5.0, "q", "r"), (5.0, "s", "x 0")))
    assert (result["r@1"], result["r@10"]) == (50.0, 50.0)


def test_no_positive_pair() -> None:
    """Identical sentences are no query; without any query there is no recall."""
    result = indomain(at_angle, pairs_of((5.0, "a 0", "a 0"), (4.0, "b 1", "c 2")))
    assert result == {"r@1": None, "r@5": None, "r@10": None, "queries": 0, "sentences": 3}


def test_loading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The STS-B test set alone is read; it may be missing, short, or on a Hub that cannot be reached."""
    one = sts_data.STS_SETS["STSBenchmark"]
    monkeypatch.setitem(sts_data.STS_SETS, "STSBenchmark", one._replace(counts={"test": 2}))
    (tmp_path / "sts" / "stsb").mkdir(parents=True)
    with pytest.raises(MissingData, match=r"STS-B test: no .*test.tsv"):
        load_stsb_test(str(tmp_path))
    file = tmp_path / "sts" / "stsb" / "test.tsv"
    file.write_text("5\ta 0\tb 1\n")
    with pytest.raises(InputError, match="expected 2 pairs, as published, found 1"):
        load_stsb_test(str(tmp_path))
    file.write_text("5\ta 0\tb 1\n0\tc 9\td 8\n")
    task = TASKS["indomain"]
    assert task.run(at_angle, task.load(str(tmp_path)))["indomain"]["r@1"] == 100.0
    with pytest.raises(InputError, match=r"mteb/stsbenchmark-sts from the Hub .* pass --data_dir"):
        load_stsb_test(None)


def test_counts_of_the_paper() -> None:
    """The shared STS-B test set has the paper's 97 positive pairs, and as many sentences as the docstring says."""
    if not (DATA / "sts" / "stsb" / "test.tsv").is_file():
        pytest.skip(f"needs sts/stsb/test.tsv under {DATA}; set CMLMCSE_DATA")
    pairs = load_stsb_test(str(DATA))
    result = indomain(lambda texts: np.ones((len(texts), 2)), pairs)
    assert (result["queries"], result["sentences"], 2 * len(pairs.scores)) == (97, 2551, 2758)
    queries = [text for score, text in zip(pairs.scores, pairs.first, strict=True) if score >= 5]
    sides = pairs.first + pairs.second
    assert sum(sides.count(text) > 1 for text in queries) == 31  # with a copy of themselves among the 2,758
    assert len(set(queries)) == 86
