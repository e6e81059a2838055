"""Contrastive losses, alignment and uniformity against closed forms and independent computations."""

import math

import pytest
import torch

from modeling_cmlmcse.losses import alignment, info_nce, uniformity


def test_equal_views_give_log_batch():
    """All embeddings equal: every sentence is as likely as every other, the loss is log N."""
    assert info_nce(torch.ones(2, 8, 5), 0.05).item() == pytest.approx(math.log(8), abs=1e-5)


def test_orthogonal_sentences():
    """Orthonormal sentences with equal views: −log(e^{1/τ} / (e^{1/τ} + N − 1))."""
    eye = torch.eye(4)
    expected = -math.log(math.exp(2) / (math.exp(2) + 3))
    assert info_nce(torch.stack([eye, 3 * eye]), 0.5).item() == pytest.approx(expected, abs=1e-6)


def test_one_direction():
    """Anchors are the first view, candidates the second: an independent double loop."""
    torch.manual_seed(0)
    views = torch.randn(2, 5, 7)
    cosine = torch.nn.CosineSimilarity(dim=0)
    losses = []
    for i in range(5):
        scores = torch.stack([cosine(views[0, i], views[1, j]) / 0.05 for j in range(5)])
        losses.append(-torch.log_softmax(scores, dim=0)[i])
    assert info_nce(views, 0.05).item() == pytest.approx(torch.stack(losses).mean().item(), rel=1e-5)


def test_fp32_under_autocast():
    """Under bf16 autocast the loss is computed in fp32, to the last digit."""
    torch.manual_seed(0)
    views = torch.randn(2, 16, 32)
    with torch.autocast("cpu", torch.bfloat16):
        inside = info_nce(views, 0.05)
    assert inside.dtype == torch.float32
    assert inside.item() == info_nce(views, 0.05).item()


def test_alignment_and_uniformity():
    """Opposite pairs are 4 apart; two opposite points have uniformity log e^{−8} = −8, equal points 0."""
    point = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    assert alignment(torch.stack([point, -point])).item() == pytest.approx(4.0)
    assert uniformity(torch.tensor([[1.0, 0.0], [-1.0, 0.0]])).item() == pytest.approx(-8.0)
    assert uniformity(point).item() == pytest.approx(0.0, abs=1e-6)
