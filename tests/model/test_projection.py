"""Training heads against independent computations."""

import torch

from modeling_cmlmcse.projection import PROJECTIONS


def test_batchnorm_statistics_run_over_all_views():
    """The projector normalises with the mean and variance of all rows together, without bias and affine at its end."""
    torch.manual_seed(0)
    head = PROJECTIONS["batchnorm"](6).train()
    rows = torch.randn(10, 6)
    first, norm, _, second, last = head.layers
    hidden = rows @ first.weight.T
    hidden = (hidden - hidden.mean(0)) / (hidden.var(0, unbiased=False) + norm.eps).sqrt()
    expected = torch.relu(hidden * norm.weight + norm.bias) @ second.weight.T
    expected = (expected - expected.mean(0)) / (expected.var(0, unbiased=False) + last.eps).sqrt()
    torch.testing.assert_close(head(rows), expected, rtol=1e-5, atol=1e-5)
    assert first.bias is None
    assert second.bias is None
    assert last.weight is None


def test_nonlinear():
    """CLEAR's head: linear, ReLU, linear."""
    torch.manual_seed(0)
    rows = torch.randn(3, 6)
    head = PROJECTIONS["nonlinear"](6)
    first, _, second = head.layers
    hidden = (rows @ first.weight.T + first.bias).clamp(min=0)
    torch.testing.assert_close(head(rows), hidden @ second.weight.T + second.bias)


def test_mlp_and_none():
    """MLP is one linear layer and tanh; none is the vector itself."""
    torch.manual_seed(0)
    rows = torch.randn(3, 6)
    head = PROJECTIONS["mlp"](6)
    torch.testing.assert_close(head(rows), torch.tanh(rows @ head.dense.weight.T + head.dense.bias))
    assert PROJECTIONS["none"](6)(rows) is rows
