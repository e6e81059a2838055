"""The Lee (2005) document similarities."""

from pathlib import Path

import numpy as np
import pytest

from cmlmcse.common.errors import InputError
from cmlmcse.evaluation.lee50 import lee50, load_lee50

UPPER = np.triu_indices(50, 1)


def write(folder: Path, documents: int = 50, rows: int = 50) -> Path:
    """A folder with files of the set's form."""
    (folder / "lee.cor").write_text("\n".join(f"document {i}" for i in range(documents)), "latin-1")
    np.savetxt(folder / "similarities0-1.txt", np.triu(np.full((rows, 50), 0.5)), delimiter="\t")
    return folder


def test_load_lee_reads_the_published_set() -> None:
    """50 documents and 1225 scores from 0 to 1, as gensim carries them."""
    pytest.importorskip("gensim")
    documents, scores = load_lee50()
    assert documents[0].startswith("The national executive of the strife-torn Democrats")
    assert len(set(documents)) == 50
    assert scores.shape == (50, 50)
    assert scores[0, 1] == 0.3
    assert scores[UPPER].min() == 0.2
    assert scores[UPPER].max() == 1.0


def test_lee_of_the_human_scores_themselves_is_100() -> None:
    """Vectors whose cosines are the scores correlate fully, whatever their lengths."""
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(50, 8)) * rng.uniform(0.1, 9, size=(50, 1))
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    result = lee50(lambda texts: vectors, (["text"] * 50, unit @ unit.T))
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
    result = lee50(lambda texts: vectors.astype(np.float32), (["text"] * 50, scores))
    ranks = np.corrcoef(cosine.argsort().argsort(), human.argsort().argsort())[0, 1]
    assert result["pearson"] == pytest.approx(100 * np.corrcoef(cosine, human)[0, 1], abs=1e-4)
    assert result["spearman"] == pytest.approx(100 * ranks, abs=1e-2)


def test_lee_of_a_constant_encoder_is_none_not_zero() -> None:
    """Equal embeddings have no correlation, and JSON has no NaN."""
    result = lee50(lambda texts: np.ones((len(texts), 3)), (["text"] * 50, np.random.default_rng(2).random((50, 50))))
    assert (result["spearman"], result["pearson"]) == (None, None)


def test_lee_refuses_a_wrong_number_of_rows() -> None:
    """The encoder must return a row a document."""
    with pytest.raises(ValueError, match=r"must return \(50, H\) for its documents, found \(49, 3\)"):
        lee50(lambda texts: np.ones((49, 3)), (["text"] * 50, np.ones((50, 50))))


def test_load_lee_names_the_file_with_a_wrong_count(tmp_path: Path) -> None:
    """Documents and pairs are counted."""
    documents, scores = load_lee50(write(tmp_path))
    assert (documents[49], scores[0, 1], scores[1, 0]) == ("document 49", 0.5, 0.0)
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
