"""RankCSE's losses of rankings: closed forms, and one sentence and one place of its ranking after the other in fp64."""

import math

import pytest
import torch
from torch import Tensor

from modeling_cmlmcse.ranking import (
    DISTILLATION_LOSSES,
    list_mle,
    list_net,
    ranking_consistency,
    ranking_distillation,
)


def cosines(first: Tensor, second: Tensor) -> Tensor:
    """(N, N) cosines, pair by pair."""
    cosine = torch.nn.CosineSimilarity(dim=0)
    return torch.stack([torch.stack([cosine(one, other) for other in second]) for one in first])


def test_consistency_closed_forms():
    """Equal views rank alike: 0. All vectors equal: the lists are flat, 0. Each view near another sentence than its
    partner: at a low temperature each list is one sentence, and not the same one: log 2."""
    views = torch.randn(1, 6, 5).expand(2, -1, -1)
    assert ranking_consistency(views, 0.05).item() == pytest.approx(0.0, abs=1e-6)
    assert ranking_consistency(torch.ones(2, 4, 3), 0.05).item() == pytest.approx(0.0, abs=1e-6)
    axes = torch.eye(3)
    turned = torch.stack([axes, axes[[1, 2, 0]]])  # b_i likes c_{i−1}, c_i likes b_{i+1}
    assert ranking_consistency(turned, 0.01).item() == pytest.approx(math.log(2), abs=1e-6)


def test_consistency_equals_loops():
    """Value and gradient by the definition of the Jensen-Shannon divergence; the gradient is not 0."""
    torch.manual_seed(0)
    views = torch.randn(3, 5, 7, dtype=torch.float64, requires_grad=True)
    rows = zip(cosines(views[0], views[1]), cosines(views[1], views[0]), strict=True)
    losses = []
    for forward, backward in rows:
        one, other = (forward / 0.3).softmax(0), (backward / 0.3).softmax(0)
        middle = (one + other) / 2
        losses.append(sum((p * (p / middle).log()).sum() for p in (one, other)) / 2)
    found, expected = ranking_consistency(views, 0.3), torch.stack(losses).mean()
    assert 0.001 < found.item() == pytest.approx(expected.item(), rel=1e-10)
    gradients = [torch.autograd.grad(loss, views)[0] for loss in (found, expected)]
    torch.testing.assert_close(*gradients)
    assert gradients[0][:2].abs().max() > 1e-3
    assert gradients[0][2].abs().max() == 0  # a view without dropout is not read


def test_distillation_closed_forms():
    """Equal scores of the student: each of the C! orders is as likely, and each of the C sentences comes first. One
    sentence far ahead of all others: it comes first for sure. Nobody to rank: 0."""
    flat, teacher = torch.zeros(4, 6), torch.randn(4, 6)
    assert list_mle(flat, teacher, 0.05, 1.0).item() == pytest.approx(math.log(math.factorial(6)), rel=1e-6)
    assert list_net(flat, teacher, 0.05, 0.025).item() == pytest.approx(math.log(6), rel=1e-6)
    ahead = torch.tensor([[0.0, 1.0]])
    assert list_net(ahead, ahead, 0.01, 0.01).item() == pytest.approx(0.0, abs=1e-6)
    assert list_mle(ahead, ahead, 0.01, 0.01).item() == pytest.approx(0.0, abs=1e-6)
    assert list_mle(ahead, -ahead, 0.5, 0.01).item() == pytest.approx(2 + math.log(1 + math.exp(-2)), rel=1e-6)
    axes = torch.eye(3)
    for teacher, expected in ((axes, 0.0), (torch.ones(3, 3), 1.0), (-torch.ones(3, 3), 1.0)):  # cosines of 0 and 1
        found = ranking_distillation(torch.stack([axes, axes]), [teacher[:, None]], "mse", 0.05, 0.025, 0.33)
        assert found.item() == pytest.approx(expected, abs=1e-6)
    opposite = torch.stack([axes, -axes], dim=1)  # of a pair; its own cosine, −1 for 1, is one of 9
    found = ranking_distillation(torch.stack([axes, axes]), [opposite], "mse", 0.05, 0.025, 0.33)
    assert found.item() == pytest.approx(3 * 2**2 / 9)
    for name in DISTILLATION_LOSSES:
        alone = torch.randn(2, 1, 5, requires_grad=True)
        loss = ranking_distillation(alone, [torch.randn(1, 1, 3)], name, 0.05, 0.025, 0.33)
        loss.backward()
        assert loss.item() == 0.0


@pytest.mark.parametrize("name", sorted(DISTILLATION_LOSSES))
@pytest.mark.parametrize("count", (1, 2))
@pytest.mark.parametrize("texts", (1, 2))
def test_distillation_equals_loops(name, count, texts):
    """Value and gradient, with one teacher and with two of different widths. The own positive is not ranked where it is
    the same text, and it is where a teacher has its vector."""
    torch.manual_seed(0)
    views = torch.randn(2, 6, 7, dtype=torch.float64, requires_grad=True)
    teachers = [torch.randn(6, texts, width, dtype=torch.float64) for width in (4, 9)[:count]]
    student = cosines(views[0], views[1]) / (1 if name == "mse" else 0.3)
    target = [cosines(vectors[:, 0], vectors[:, texts - 1]) for vectors in teachers]
    target = target[0] if count == 1 else 0.33 * target[0] + 0.67 * target[1]
    losses = []
    for i in range(6):
        others = [j for j in range(6) if j != i or texts == 2]
        if name == "mse":
            losses.append(sum((student[i, j] - target[i, j]) ** 2 for j in others) / len(others))
        elif name == "list_net":
            weights = (target[i, others] / 0.2).softmax(0)
            losses.append(-(weights * student[i, others].log_softmax(0)).sum())
        else:
            left = sorted(others, key=lambda j: -target[i, j].item())
            places = []
            while left:
                places.append(student[i, left].logsumexp(0) - student[i, left[0]])
                left.pop(0)
            losses.append(torch.stack(places).sum())
    found = ranking_distillation(views, teachers, name, 0.3, 0.2, 0.33)
    expected = torch.stack(losses).mean()
    assert found.item() == pytest.approx(expected.item(), rel=1e-10)
    torch.testing.assert_close(*(torch.autograd.grad(loss, views)[0] for loss in (found, expected)))


@pytest.mark.parametrize("name", sorted(DISTILLATION_LOSSES))
def test_fp32_under_autocast(name):
    """Under bf16 autocast both losses are computed in fp32, to the last digit."""
    torch.manual_seed(0)
    views, teachers = torch.randn(2, 16, 32), [torch.randn(16, 1, 8)]
    given = (views, teachers, name, 0.05, 0.025, 0.33)
    with torch.autocast("cpu", torch.bfloat16):
        inside = ranking_distillation(*given), ranking_consistency(views, 0.05)
    assert {loss.dtype for loss in inside} == {torch.float32}
    assert inside == (ranking_distillation(*given), ranking_consistency(views, 0.05))


def test_the_number_of_teachers():
    for teachers in ([], [torch.ones(4, 1, 3)] * 3):
        with pytest.raises(ValueError, match=f"expects the vectors of one teacher or two .* found {len(teachers)}"):
            ranking_distillation(torch.ones(2, 4, 3), teachers, "list_net", 0.05, 0.025, 0.33)
