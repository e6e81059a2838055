"""Anisotropy and spectrum of embeddings against closed forms; alignment and uniformity are in test_evaluation.py."""

import json
import math

import numpy as np
import pytest

from cmlmcse.evaluation.geometry import geometry, spectrum
from cmlmcse.evaluation.sts_data import Pairs
from cmlmcse.evaluation.tables import format_measures
from support.text import one_space

PAIRS = Pairs(np.array([5.0, 4.0, 0.0]), ["a", "b", "c"], ["d", "e", "f"])


def result_of(vectors: np.ndarray) -> dict:
    """The measures of six vectors, one a sentence."""
    rows = dict(zip("adbecf", vectors, strict=True))
    return geometry(lambda texts: np.array([rows[text] for text in texts]), PAIRS)


def test_orthonormal() -> None:
    """Six orthogonal directions: no common one, and a flat spectrum; lengths do not matter."""
    result = result_of(np.diag([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])[:, ::-1])
    assert result["anisotropy"] == 0.0
    assert result["effective_rank"] == 6.0
    assert result["top_share"] == pytest.approx(1 / 6, abs=1e-4)
    assert result["spectrum"] == [round(1 / 6, 6)] * 6


def test_identical() -> None:
    """One direction: every cosine 1, one singular value."""
    result = result_of(np.tile([3.0, 4.0, 0.0], (6, 1)))
    assert (result["anisotropy"], result["effective_rank"], result["top_share"]) == (1.0, 1.0, 1.0)
    assert result["spectrum"] == [1.0, 0.0, 0.0]


def test_opposite() -> None:
    """Three vectors and three opposite ones: 6 cosines of 1 and 9 of −1; not centred, so still one singular value."""
    result = result_of(np.array([[1.0, 0.0]] * 3 + [[-1.0, 0.0]] * 3))
    assert result["anisotropy"] == pytest.approx((6 - 9) / 15)
    assert result["effective_rank"] == 1.0


def test_two_clusters_of_unequal_size() -> None:
    """Four along one axis and two along another: σ = 2 and √2; 7 of 15 pairs have cosine 1."""
    result = result_of(np.array([[1.0, 0.0]] * 4 + [[0.0, 1.0]] * 2))
    shares = np.array([2, math.sqrt(2)]) / (2 + math.sqrt(2))
    assert result["anisotropy"] == pytest.approx(7 / 15, abs=1e-4)
    assert result["top_share"] == pytest.approx(4 / 6, abs=1e-4)
    assert result["effective_rank"] == pytest.approx(math.exp(-(shares * np.log(shares)).sum()), abs=1e-4)
    assert result["spectrum"] == pytest.approx(list(shares), abs=1e-6)


def test_anisotropy_against_all_cosines() -> None:
    """The sum of vectors gives what the cosines of all pairs give."""
    vectors = np.random.default_rng(0).normal(0.3, 1.0, size=(6, 9))
    cosines = np.corrcoef(np.hstack([vectors, -vectors]))  # mirrored rows have mean 0, so correlation is cosine
    expected = cosines[np.triu_indices(6, 1)].mean()
    assert result_of(vectors)["anisotropy"] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("value", (0.0, np.nan))
def test_undefined_is_none(value: float) -> None:
    """Zeros have no spectrum, and what is no number has no measure; JSON can hold both."""
    result = result_of(np.full((6, 2), value))
    assert result["effective_rank"] is None
    assert result["top_share"] is None
    assert result["spectrum"] == []
    assert (result["alignment"], result["uniformity"]) == (None, None)
    assert result["anisotropy"] == (0.0 if value == 0.0 else None)
    json.dumps(result, allow_nan=False)


def test_one_zero_vector() -> None:
    """It spoils what is a mean over it, and no more: the vectors of the pair of score 0 are not in the alignment."""
    vectors = np.eye(6)
    vectors[-1] = 0
    result = result_of(vectors)
    assert (result["alignment"], result["uniformity"]) == (2.0, None)
    result = result_of(vectors[::-1])
    assert (result["alignment"], result["uniformity"]) == (None, None)
    assert result["effective_rank"] == 5.0


def test_table_leaves_the_spectrum_out() -> None:
    """Numbers are printed, the list is not."""
    table = one_space(format_measures({"geometry": {"anisotropy": 0.25, **spectrum(np.eye(2))}}))
    assert "| geometry anisotropy | 0.250 |" in table
    assert "| geometry effective_rank | 2.000 |" in table
    assert "spectrum" not in table
