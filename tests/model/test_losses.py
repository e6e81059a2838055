"""Contrastive losses, the terms beside them, alignment and uniformity: closed forms, other computations, processes."""

import math

import pytest
import torch
from sentence_transformers.losses import CoSENTLoss

from modeling_cmlmcse.contrast_terms import dimension_contrast
from modeling_cmlmcse.distributed import gather_rows
from modeling_cmlmcse.losses import (
    CONTRASTIVE_LOSSES,
    alignment,
    anisotropy,
    cosent,
    extended_info_nce,
    info_nce,
    nt_xent,
    off_dropout,
    uniformity,
)
from modeling_cmlmcse.ranking import ranking_consistency, ranking_distillation
from support.processes import run_together

# every contrastive loss without labels, without hard negatives, with one and with two
CASES = [
    (name, views + loss.plain_view)
    for name, loss in CONTRASTIVE_LOSSES.items()
    if not loss.scored
    for views in (2, 3, 4)
]


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


def test_nt_xent_closed_forms():
    """All embeddings equal: log(2N − 1). Orthonormal sentences with equal views: the candidates are the positive with
    cosine 1 and 2N − 2 others with cosine 0. One sentence has its positive alone: 0."""
    assert nt_xent(torch.ones(2, 8, 5), 0.05).item() == pytest.approx(math.log(15), abs=1e-5)
    eye = torch.eye(4)
    expected = -math.log(math.exp(2) / (math.exp(2) + 6))
    assert nt_xent(torch.stack([eye, 3 * eye]), 0.5).item() == pytest.approx(expected, abs=1e-6)
    assert nt_xent(torch.randn(2, 1, 5), 0.05).item() == pytest.approx(0.0, abs=1e-6)


def test_hard_negatives_closed_forms():
    """All embeddings equal, so that the weights alone count: N − 1 negatives of weight 1 more than without, and the own
    hard negative of weight e^α."""
    ones = torch.ones(3, 8, 5)
    for weight in (-math.inf, -1.0, 0.0, 2.0):
        hard = 7 + math.exp(weight)
        assert info_nce(ones, 0.05, weight).item() == pytest.approx(math.log(8 + hard), abs=1e-5)
        assert nt_xent(ones, 0.05, weight).item() == pytest.approx(math.log(15 + hard), abs=1e-5)
        assert extended_info_nce(ones, 0.05, weight).item() == pytest.approx(math.log(8 + 2 * hard), abs=1e-5)


def test_negatives_of_the_positive():
    """CoT-BERT's Eq. 3: anchor and hard negative are at right angles, and the positive is between them. SimCSE's loss
    does not see how near the hard negative is to the positive, and this one does."""
    eye = torch.eye(8)
    views = torch.stack([eye[:4] + eye[4:], eye[:4], eye[:4] - eye[4:]])
    near = math.exp(math.sqrt(0.5) / 0.5)
    expected = -math.log(near / (near + 3 + 4 + near + 3))
    assert extended_info_nce(views, 0.5).item() == pytest.approx(expected, abs=1e-6)
    assert info_nce(views, 0.5).item() == pytest.approx(-math.log(near / (near + 3 + 4)), abs=1e-6)
    assert extended_info_nce(views[:2], 0.5).item() == info_nce(views[:2], 0.5).item()


def test_off_dropout_closed_forms():
    """All embeddings equal: −r/τ + log(e^{r/τ} + (N − 1) e^{1/τ}). Orthonormal sentences: the negatives have cosine 0.
    The negatives are the sentences without dropout alone: views b and c that have collapsed change nothing else."""
    for ratio in (0.9, 1.0):
        positive, negatives = math.exp(ratio / 0.5), 7 * math.exp(1 / 0.5)
        expected = -math.log(positive / (positive + negatives))
        assert off_dropout(torch.ones(3, 8, 5), 0.5, ratio).item() == pytest.approx(expected, abs=1e-5)
        expected = -math.log(positive / (positive + 7))
        collapsed = torch.stack([torch.ones(8, 8), torch.ones(8, 8), torch.eye(8)])
        assert off_dropout(collapsed, 0.5, ratio).item() == pytest.approx(expected, abs=1e-5)
    assert off_dropout(torch.randn(3, 1, 5), 0.05, 0.9).item() == pytest.approx(0.0, abs=1e-6)
    with pytest.raises(ValueError, match="off_dropout expects two views and the sentences without dropout, found 2"):
        off_dropout(torch.ones(2, 2, 3), 0.05)


def test_dimension_contrast_closed_forms():
    """Columns of a Hadamard matrix have mean 0, variance 1 and no correlation: −log(e^{1/t} / (e^{1/t} + H − 1)) at any
    scale and offset. A constant dimension correlates with nothing, and one sentence has no variance: log H."""
    pairs = torch.tensor([[1.0, 1.0], [1.0, -1.0]])
    columns = torch.kron(pairs, torch.kron(pairs, pairs))[:, 1:]  # (8, 7)
    variance = 1 / (1 + 1e-5)  # BatchNorm adds 1e-5 to it
    expected = -math.log(math.exp(variance / 5) / (math.exp(variance / 5) + 6))
    scaled = torch.stack([columns, 100 * columns + 3, torch.randn(8, 7)])  # a third view is not read
    assert dimension_contrast(scaled, 5.0).item() == pytest.approx(expected, abs=1e-5)
    assert dimension_contrast(torch.ones(2, 8, 7), 5.0).item() == pytest.approx(math.log(7), abs=1e-6)
    assert dimension_contrast(torch.randn(2, 1, 7), 5.0).item() == pytest.approx(math.log(7), abs=1e-6)


def test_dimension_contrast_equals_batchnorm():
    """Value and gradient against PyTorch's BatchNorm1d and cross-entropy in fp64; in fp32 under bf16 autocast."""
    torch.manual_seed(0)
    views = torch.randn(2, 6, 4, dtype=torch.float64, requires_grad=True)
    norm = torch.nn.BatchNorm1d(4, affine=False, dtype=torch.float64)
    correlations = norm(views[0]).T @ norm(views[1]) / 6
    expected = torch.nn.functional.cross_entropy(correlations / 0.7, torch.arange(4))
    found = dimension_contrast(views, 0.7)
    assert found.item() == pytest.approx(expected.item(), rel=1e-10)
    torch.testing.assert_close(*(torch.autograd.grad(loss, views)[0] for loss in (found, expected)))
    single = views.detach().float()
    with torch.autocast("cpu", torch.bfloat16):
        inside = dimension_contrast(single, 0.7)
    assert inside.dtype == torch.float32
    assert inside.item() == dimension_contrast(single, 0.7).item()


def by_loops(name: str, views: torch.Tensor, temp: float, weight: float) -> torch.Tensor:
    """A contrastive loss, one anchor and one candidate after the other."""
    count, size = views.shape[:2]
    cosine = torch.nn.CosineSimilarity(dim=0)
    # view of the anchor → views of its candidates
    compared = {
        "info_nce": [{0: range(1, count)}],
        "extended_info_nce": [{0: range(1, count), 1: range(2, count)}],
        "nt_xent": [{0: range(count)}, {1: range(count)}],
        "off_dropout": [{2: range(2, count)}],
    }[name]
    losses = []
    for groups in compared:
        for i in range(size):
            scores, positive = [], None
            for anchor, candidates in groups.items():
                for view in candidates:
                    for j in range(size):
                        score = cosine(views[anchor, i], views[view, j]) / temp
                        if name == "off_dropout" and (view, j) == (2, i):  # its place is the positive's
                            positive = score = weight * cosine(views[0, i], views[1, i]) / temp
                        elif (view, j) == (anchor, i):
                            continue
                        elif name != "off_dropout" and view >= 2 and i == j:
                            score = score + weight
                        elif {anchor, view} == {0, 1} and i == j:
                            positive = score
                        scores.append(score)
            losses.append(torch.stack(scores).logsumexp(0) - positive)
    return torch.stack(losses).mean()


@pytest.mark.parametrize(("name", "count"), CASES)
@pytest.mark.parametrize("weight", (0.0, 1.5))
def test_losses_and_gradients_equal_loops(name, count, weight):
    """Value and gradient of every contrastive loss, without and with hard negatives, against loops in fp64."""
    torch.manual_seed(0)
    views = torch.randn(count, 5, 7, dtype=torch.float64, requires_grad=True)
    found, expected = CONTRASTIVE_LOSSES[name].compute(views, 0.3, weight), by_loops(name, views, 0.3, weight)
    assert found.item() == pytest.approx(expected.item(), rel=1e-10)
    torch.testing.assert_close(*(torch.autograd.grad(loss, views)[0] for loss in (found, expected)))


@pytest.mark.parametrize(("name", "count"), CASES)
def test_fp32_under_autocast(name, count):
    """Under bf16 autocast the loss is computed in fp32, to the last digit."""
    torch.manual_seed(0)
    loss, views = CONTRASTIVE_LOSSES[name], torch.randn(count, 16, 32)
    with torch.autocast("cpu", torch.bfloat16):
        inside = loss.compute(views, 0.05, 0.5)
    assert inside.dtype == torch.float32
    assert inside.item() == loss.compute(views, 0.05, 0.5).item()


def test_cosent_closed_forms():
    """The pair with the higher score has cosine 1 and the other one 0, or the reverse: log(1 + e^{∓1/τ}). Equal scores
    say nothing: 0, and no gradient. Three equal cosines with three scores: three pairs are ordered, log 4."""
    views = torch.tensor([[[1.0, 0.0], [1.0, 0.0]], [[2.0, 0.0], [0.0, 3.0]]]).requires_grad_()
    for scores, sign in (((5, 1), -1), ((1, 5), 1)):
        expected = math.log(1 + math.exp(sign / 0.5))
        assert cosent(views, 0.5, torch.tensor(scores)).item() == pytest.approx(expected, rel=1e-6)
    same = cosent(views, 0.05, torch.tensor([2.0, 2.0]))
    same.backward()
    assert same.item() == 0.0 == views.grad.abs().max().item()
    assert cosent(torch.ones(2, 3, 4), 0.05, torch.tensor([0.1, 0.3, 0.2])).item() == pytest.approx(
        math.log(4), rel=1e-6
    )
    with pytest.raises(ValueError, match="cosent expects the pairs' scores in the batch, found none; set score_column"):
        cosent(views, 0.05, None)


@pytest.mark.parametrize("temp", (0.05, 0.3))
def test_cosent_equals_loops_and_sentence_transformers(temp):
    """Value and gradient in fp64, with tied scores, of any scale: by loops over pairs of pairs, and by the library's
    loss with the scale 1/τ. In bf16 autocast it is computed in fp32."""
    torch.manual_seed(0)
    views = torch.randn(2, 9, 7, dtype=torch.float64, requires_grad=True)
    scores = torch.tensor([0.0, 5.0, 2.5, 2.5, -1.0, 4.0, 5.0, 3.2, 0.0], dtype=torch.float64)
    cosines = [torch.nn.CosineSimilarity(dim=0)(*views[:, i]) for i in range(9)]
    wrong = [cosines[i] - cosines[j] for i in range(9) for j in range(9) if scores[j] > scores[i]]
    assert len(wrong) == 33  # of 36 pairs of pairs three are tied
    by_loops = (1 + sum((gap / temp).exp() for gap in wrong)).log()
    theirs = CoSENTLoss(None, scale=1 / temp).compute_loss_from_embeddings(list(views), scores)
    found = cosent(views, temp, scores)
    for expected in (by_loops, theirs, cosent(views, temp, 20 * scores - 7)):
        assert found.item() == pytest.approx(expected.item(), rel=1e-12)
        torch.testing.assert_close(
            *(torch.autograd.grad(loss, views, retain_graph=True)[0] for loss in (found, expected)),
            rtol=1e-9,
            atol=1e-12,
        )
    single = views.detach().float()
    with torch.autocast("cpu", torch.bfloat16):
        inside = cosent(single, temp, scores)
    assert inside.dtype == torch.float32
    assert inside.item() == cosent(single, temp, scores).item() == pytest.approx(found.item(), rel=1e-5)


def functions() -> dict:
    """Every contrastive loss, and every term beside it, as a function of views; by name and number of views."""
    losses = {(name, count): lambda views, name=name: CONTRASTIVE_LOSSES[name].compute(views, 0.3, 1.5)
              for name, count in CASES}  # fmt: skip
    terms = {
        "cosent": lambda views: cosent(views, 0.3, scores_of(views)),
        "dimension": lambda views: dimension_contrast(views, 0.7),
        "consistency": lambda views: ranking_consistency(views, 0.3),
        "list_mle": lambda views: ranking_distillation(views, taught(views), "list_mle", 0.3, 0.2, 0.33),
        "list_net": lambda views: ranking_distillation(views, taught(views), "list_net", 0.3, 0.2, 0.33),
        "mse": lambda views: ranking_distillation(views, taught(views), "mse", 0.3, 0.2, 0.33),
        "mse of pairs": lambda views: ranking_distillation(views, taught_pairs(views), "mse", 0.3, 0.2, 0.33),
    }
    return losses | {(name, 2): term for name, term in terms.items()}


def scores_of(views: torch.Tensor) -> torch.Tensor:
    """(N,) scores, each a function of its pair, some of them equal."""
    return (2 * views[0, :, 0].detach()).round()


def taught(views: torch.Tensor) -> list[torch.Tensor]:
    """The vectors of two teachers, (N, 1, 4) and (N, 1, 5), each a function of its sentence."""
    return [views[0].detach()[:, None, :4] ** 3, views[1].detach()[:, None].sin()]


def taught_pairs(views: torch.Tensor) -> list[torch.Tensor]:
    """The vectors of a teacher, (N, 2, 5), of both texts of a pair."""
    return [views[:2].detach().sin().transpose(0, 1)]


def shares_of_loss(rank: int, size: int, folder: str) -> None:
    """One of `size` processes: its loss of its share of the sentences, and the gradient of its own views."""
    found = {}
    for (name, count), compute in functions().items():
        views = sample(count).chunk(size, dim=1)[rank].clone().requires_grad_()
        value = compute(gather_rows(views, dim=1))
        value.backward()
        found[name, count] = value.detach(), views.grad
    torch.save(found, f"{folder}/{rank}.pt")


def sample(count: int) -> torch.Tensor:
    """(count, 6, 5) views of 6 sentences."""
    return torch.randn(count, 6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(count))


@pytest.mark.slow
def test_two_processes(tmp_path):
    """Every loss over two processes is the loss of the whole batch, and so are the gradients, averaged over them."""
    run_together(shares_of_loss, 2, tmp_path)
    parts = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for (name, count), compute in functions().items():
        whole = sample(count).requires_grad_()
        loss = compute(whole)
        loss.backward()
        assert sum(part[name, count][0] for part in parts).item() / 2 == pytest.approx(loss.item(), rel=1e-10)
        gradient = torch.cat([part[name, count][1] for part in parts], dim=1) / 2
        torch.testing.assert_close(gradient, whole.grad)


def test_alignment_and_uniformity():
    """Opposite pairs are 4 apart; two opposite points have uniformity log e^{−8} = −8, equal points 0."""
    point = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    assert alignment(torch.stack([point, -point])).item() == pytest.approx(4.0)
    assert uniformity(torch.tensor([[1.0, 0.0], [-1.0, 0.0]])).item() == pytest.approx(-8.0)
    assert uniformity(point).item() == pytest.approx(0.0, abs=1e-6)


def test_anisotropy():
    """Equal directions have 1, orthogonal ones 0, two opposite ones −1, and a cluster of four and one of two 7 / 15."""
    axes = torch.eye(4)
    assert anisotropy(3 * axes[:1].expand(5, -1)).item() == pytest.approx(1.0)
    assert anisotropy(axes).item() == pytest.approx(0.0, abs=1e-6)
    assert anisotropy(torch.stack([axes[0], -axes[0]])).item() == pytest.approx(-1.0)
    assert anisotropy(axes[[0, 0, 0, 0, 1, 1]].bfloat16()).item() == pytest.approx(7 / 15)
    assert anisotropy(axes[:1]).item() == 0.0  # one sentence has no pair
