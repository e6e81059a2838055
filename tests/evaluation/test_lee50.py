"""The Lee (2005) document similarities."""

from pathlib import Path

import numpy as np
import pytest

from cmlmcse.common.errors import InputError
from cmlmcse.evaluation.encoding import Encode
from cmlmcse.evaluation.lee50 import lee50, load_lee50
from cmlmcse.evaluation.sts_data import Pairs
from cmlmcse.evaluation.tasks import TASKS

UPPER = np.triu_indices(50, 1)


def write(folder: Path, documents: int = 50, rows: int = 50) -> Path:
    """A folder with files of the set's form."""
    (folder / "lee.cor").write_text("\n".join(f"document {i}" for i in range(documents)), "latin-1")
    np.savetxt(folder / "similarities0-1.txt", np.triu(np.full((rows, 50), 0.5)), delimiter="\t")
    return folder


def pairs_of(scores: np.ndarray) -> Pairs:
    """Pairs of the documents "0" to "49" with these scores (50, 50)."""
    first, second = UPPER
    return Pairs(scores[UPPER], [str(i) for i in first], [str(i) for i in second])


def rows_of(vectors: np.ndarray) -> Encode:
    """An encoder of the documents "0" to "49": a row each."""
    return lambda texts: vectors[[int(text) for text in texts]]


def test_load_lee_reads_the_published_set() -> None:
    """50 documents and 1225 scores from 0 to 1, as gensim carries them."""
    pytest.importorskip("gensim")
    pairs = load_lee50()
    assert pairs.first[0].startswith("The national executive of the strife-torn Democrats")
    assert len({*pairs.first, *pairs.second}) == 50
    assert len(set(zip(pairs.first, pairs.second, strict=True))) == len(pairs.scores) == 1225
    assert (pairs.scores[0], pairs.scores.min(), pairs.scores.max()) == (0.3, 0.2, 1.0)


def test_the_task_reads_its_data_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without gensim a run ends at once, and not after its last step."""
    monkeypatch.setattr("cmlmcse.evaluation.lee50.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r'pip install "cmlmcse\[wiki\]"'):
        TASKS["lee50"].load(None)


def test_lee_of_the_human_scores_themselves_is_100() -> None:
    """Vectors whose cosines are the scores correlate fully, whatever their lengths."""
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(50, 8)) * rng.uniform(0.1, 9, size=(50, 1))
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    result = lee50(rows_of(vectors), pairs_of(unit @ unit.T))
    assert result["spearman"] == pytest.approx(100)
    assert result["pearson"] == pytest.approx(100)
    assert result["pairs"] == 1225


def test_lee_agrees_with_an_independent_computation() -> None:
    """Pearson by its definition and Spearman as Pearson of the ranks."""
    rng = np.random.default_rng(1)
    vectors, scores = rng.normal(size=(50, 4)), rng.uniform(size=(50, 50))  # no ties
    cosine = np.array(
        [
            vectors[i] @ vectors[j] / np.linalg.norm(vectors[i]) / np.linalg.norm(vectors[j])
            for i, j in zip(*UPPER, strict=True)
        ]
    )
    human = scores[UPPER]
    result = lee50(rows_of(vectors.astype(np.float32)), pairs_of(scores))
    ranks = np.corrcoef(cosine.argsort().argsort(), human.argsort().argsort())[0, 1]
    assert result["pearson"] == pytest.approx(100 * np.corrcoef(cosine, human)[0, 1], abs=1e-4)
    assert result["spearman"] == pytest.approx(100 * ranks, abs=1e-2)


def test_lee_of_a_constant_encoder_is_none_not_zero() -> None:
    """Equal embeddings have no correlation, and JSON has no NaN."""
    result = lee50(rows_of(np.ones((50, 3))), pairs_of(np.random.default_rng(2).random((50, 50))))
    assert (result["spearman"], result["pearson"]) == (None, None)


def test_lee_refuses_a_wrong_number_of_rows() -> None:
    """The encoder must return a row a document."""
    with pytest.raises(ValueError, match=r"must return \(50, H\) for 50 sentences, found \(49, 3\)"):
        lee50(lambda texts: np.ones((49, 3)), pairs_of(np.ones((50, 50))))


def test_load_lee_names_the_file_with_a_wrong_count(tmp_path: Path) -> None:
    """Documents and pairs are counted."""
    scores, first, second = load_lee50(write(tmp_path))
    assert (first[0], second[0], first[-1], second[-1]) == ("document 0", "document 1", "document 48", "document 49")
    assert scores.tolist() == [0.5] * 1225
    with pytest.raises(InputError, match=r"lee.cor: expected 50 documents, found 49; reinstall gensim"):
        load_lee50(write(tmp_path, documents=49))
    with pytest.raises(InputError, match=r"similarities0-1.txt: expected 1225 pairs \(50 x 50\), found 48 x 50"):
        load_lee50(write(tmp_path, rows=48))
    (tmp_path / "similarities0-1.txt").write_text("a\tb\n")
    with pytest.raises(InputError, match=r"similarities0-1.txt: expected a matrix, found"):
        load_lee50(tmp_path)
    np.savetxt(tmp_path / "similarities0-1.txt", np.full((50, 50), 5.0))
    with pytest.raises(InputError, match="expected 1225 pairs with scores from 0 to 1, found other values"):
        load_lee50(tmp_path)
    (tmp_path / "similarities0-1.txt").unlink()
    with pytest.raises(InputError, match=r"similarities0-1.txt: expected it in gensim's test data, found no such"):
        load_lee50(tmp_path)


def test_load_lee_without_gensim(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra to install."""
    monkeypatch.setattr("cmlmcse.evaluation.lee50.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r'pip install "cmlmcse\[wiki\]"'):
        load_lee50()
