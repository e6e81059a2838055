"""The method `encode`, and the batches that it makes."""

import numpy as np
import pytest
import torch

from modeling_cmlmcse.text_encoding import choose_limits, split_batches
from support.encoding import expected, without_special_tokens
from support.tiny import tiny_tokenizer


@pytest.mark.parametrize("batch_size", (1, 64))
def test_a_text_without_tokens(batch_size, model) -> None:
    """It has no embedding: refused by its place, where a NaN or torch's own words came before."""
    message = r"found none in text 1 \(counted from 0\), '': leave it out, or use a tokenizer that adds special tokens"
    with pytest.raises(ValueError, match=message):
        model.encode(["the cat", "", "dog"], without_special_tokens(), batch_size=batch_size)
    assert np.isfinite(model.encode(["the cat", "dog"], without_special_tokens())).all()
    assert np.isfinite(model.encode([""], tiny_tokenizer("bert"))).all()


@pytest.mark.parametrize("length", (-3, 0, 1, 2))
def test_a_maximum_without_room_for_a_word(length, model) -> None:
    """Below [CLS] word [SEP] the tokenizer overflowed, cut nothing, or left no word."""
    with pytest.raises(ValueError, match=f"max_length must be at least 3, special tokens and a word, found {length}"):
        model.encode(["the cat sat"], tiny_tokenizer("bert"), max_length=length)


def test_the_least_maximum(model) -> None:
    """One word beside [CLS] and [SEP], and a word alone."""
    for tokenizer, length in ((tiny_tokenizer("bert"), 3), (without_special_tokens(), 1)):
        cut, whole = model.encode(["the cat sat", "the"], tokenizer, max_length=length)
        np.testing.assert_allclose(cut, whole, atol=1e-6)


def test_method(model, lines) -> None:
    """Batches by sentences or by tokens, tensors, truncation before normalisation."""
    tokenizer = tiny_tokenizer("bert")
    whole = expected(model, lines)
    for options in ({"batch_size": 1}, {"batch_size": 7}, {"batch_tokens": 40}, {"batch_tokens": 1}):
        np.testing.assert_allclose(model.encode(lines, tokenizer, **options), whole, atol=1e-5)
    tensor = model.encode(lines, tokenizer, convert_to_tensor=True)
    assert isinstance(tensor, torch.Tensor)
    np.testing.assert_allclose(tensor.numpy(), whole, atol=1e-5)
    cut = whole[:, :5] / np.linalg.norm(whole[:, :5], axis=1, keepdims=True)
    np.testing.assert_allclose(model.encode(lines, tokenizer, normalize=True, truncate_dim=5), cut, atol=1e-5)
    assert model.encode([], tokenizer, truncate_dim=5).shape == (0, 5)
    for wrong in ({"truncate_dim": 33}, {"truncate_dim": 0}, {"batch_size": 0}, {"batch_tokens": 0}):
        with pytest.raises(ValueError, match="found"):
            model.encode(lines, tokenizer, **wrong)


def test_split_batches() -> None:
    """No batch holds more than it may, but for a sentence that alone does."""
    assert list(split_batches([9, 5, 4, 3, 1], 2, None)) == [slice(0, 2), slice(2, 4), slice(4, 5)]
    assert list(split_batches([9, 5, 4, 3, 1], 2, 8)) == [slice(0, 1), slice(1, 2), slice(2, 5)]
    assert list(split_batches([], 2, 8)) == []


def test_batches_of_a_gpu() -> None:
    """By tokens, because it waits for the host in small batches; whoever asks for sentences gets them."""
    assert choose_limits("cpu", None, None) == (64, None)
    assert choose_limits("cuda", None, None) == (None, 16_384)
    assert choose_limits("cuda", 32, None) == (32, None)
    assert choose_limits("mps", None, 4096) == (None, 4096)
