"""Cheap dropout: its rate, its expectation, its reproducibility, and that it stands in the whole encoder."""

import pytest
import torch
from conftest import tiny_backbone
from torch import nn

from modeling_cmlmcse.backbone import build_encoder
from modeling_cmlmcse.dropout import Dropout, drop
from modeling_cmlmcse.packing import attention_with_dropout


@pytest.mark.parametrize("p", [0.05, 0.1, 0.5, 0.9])
def test_rate_and_expectation(p):
    torch.manual_seed(0)
    noise = drop(torch.ones(1001, 999), p)
    zeros = (noise == 0).double().mean().item()
    assert zeros == pytest.approx(p, abs=5 * (p * (1 - p) / noise.numel()) ** 0.5 + 1 / 65536)
    assert noise[noise != 0].unique().tolist() == pytest.approx([1 / (1 - p)], rel=2e-4)
    assert noise.mean().item() == pytest.approx(1.0, abs=5e-3)


def test_neighbours_are_independent():
    """Four elements come from one word of random bits."""
    torch.manual_seed(0)
    dropped = (drop(torch.ones(400_000), 0.5) == 0).double().view(-1, 4)
    correlations = torch.corrcoef(dropped.T)
    assert (correlations - torch.eye(4)).abs().max() < 5 / 100_000**0.5


@pytest.mark.parametrize("p", [0.0, 1e-7, 1.0])
def test_ends_of_the_range(p):
    states = torch.ones(1000)
    assert torch.equal(Dropout(p)(states), torch.zeros(1000) if p == 1.0 else states)


def test_reproduced_by_the_generator_state():
    layer, states = Dropout(0.1), torch.ones(37, 11)
    state = torch.get_rng_state()
    first = layer(states)
    assert not torch.equal(first, layer(states))
    torch.set_rng_state(state)
    assert torch.equal(first, layer(states))


def test_gradient_and_evaluation():
    states = torch.randn(50, 20, requires_grad=True)
    layer = Dropout(0.3)
    dropped = layer(states)
    dropped.sum().backward()
    assert torch.equal(states.grad * states, dropped)
    assert torch.equal(layer.eval()(states), states)


def test_a_byte_is_kept_for_an_element():
    """Not a number; and nothing of the input."""
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        drop(torch.randn(50, 20, requires_grad=True), 0.1)
    assert [(tensor.dtype, tensor.shape) for tensor in kept] == [(torch.bool, (50, 20))]


def test_attention_matches_pytorch_in_expectation():
    """The mean over many draws is PyTorch's attention without dropout; masked keys get nothing."""
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 1, 2, 5, 8).unbind(0)
    mask = torch.tensor([True, True, False, True, True])[None, None, None]
    expected = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    draws = torch.stack([attention_with_dropout(query, key, value, mask, 0.1, None) for _ in range(4000)])
    assert (draws.mean(0) - expected).abs().max() < 0.03
    exact = attention_with_dropout(query, key, value, mask, 1e-7, None)
    assert (exact - expected).abs().max() < 1e-6


def test_no_other_dropout_is_left():
    encoder = build_encoder(tiny_backbone("bert").config)
    kinds = {type(module) for module in encoder.modules() if isinstance(module, nn.Dropout)}
    assert kinds == {Dropout}
