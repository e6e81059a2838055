"""Vectors of length 1."""

import numpy as np
import pytest

from cmlmcse.common.vectors import unit


@pytest.mark.parametrize("dtype", (np.float16, np.float32, np.float64))
def test_length_one_in_the_same_precision(dtype):
    """A zero vector stays zero, and no precision changes."""
    found = unit(np.array([[3, 4], [0, 0], [-2, 0]], dtype))
    assert found.dtype == dtype
    np.testing.assert_allclose(found, [[0.6, 0.8], [0, 0], [-1, 0]], rtol=1e-3 if dtype == np.float16 else 1e-7)


@pytest.mark.parametrize("scale", (1e-4, 300, 60_000))
def test_length_one_of_long_and_short_half_precision_vectors(scale):
    """The sum of their squares is no number of fp16: it overflows, or is zero; nor is the length of the longest."""
    vectors = np.full((1, 16), scale, np.float16)
    found = unit(vectors)
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, np.full((1, 16), 0.25), rtol=1e-3)
