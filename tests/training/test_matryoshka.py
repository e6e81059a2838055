"""Matryoshka dimensions: the contrast is the sum of the losses of the cut vectors."""

import json
import math
import re
from functools import partial

import pytest
import torch

from cmlmcse.evaluation.encoding import EncodeOnce
from cmlmcse.evaluation.tasks import TASKS
from cmlmcse.evaluation.truncation import truncated
from cmlmcse.hub.export import export
from cmlmcse.training.command import train
from cmlmcse.training.training_losses import TrainingLosses
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from modeling_cmlmcse.configuration_cmlmcse import CMLMCSEConfig
from modeling_cmlmcse.losses import CONTRASTIVE_LOSSES
from support.processes import run_together
from support.tiny import tiny_backbone, tiny_tokenizer

DIMS = [32, 7, 2]


def build(folder, **fields) -> TrainingLosses:
    """The losses of a model in fp64, without auxiliary objective."""
    tiny_backbone("bert").save_pretrained(folder)
    fields = {"cmlm_weight": 0.0, "pooling": "avg", "temp": 0.5, "matryoshka_dims": DIMS, **fields}
    return TrainingLosses(CMLMCSEForSentenceEmbedding.from_backbone(folder, **fields).double())


def vectors(views: int, rows: int = 5) -> torch.Tensor:
    """(V, N, 32) in fp64."""
    return torch.randn(views, rows, 32, generator=torch.Generator().manual_seed(views), dtype=torch.float64)


def test_closed_form(tmp_path):
    """Two sentences that differ in the second dimension alone: cut to one dimension they are the same."""
    losses = build(tmp_path, temp=1.0, matryoshka_dims="1,2")
    views = torch.zeros(2, 2, 32, dtype=torch.float64)
    views[:, :, 0], views[:, 0, 1], views[:, 1, 1] = 1.0, 1.0, -1.0  # at right angles in two dimensions
    loss, _, logs = losses.contrast(views)
    assert loss.item() == pytest.approx(math.log(2) + math.log(1 + 1 / math.e), rel=1e-12)
    assert logs["contrastive_loss"].item() == pytest.approx(loss.item())


@pytest.mark.parametrize("name", CONTRASTIVE_LOSSES)
@pytest.mark.parametrize(("pooling", "views"), [("avg", 2), ("avg", 3), ("cls", 2)])
def test_sum_over_the_cut_vectors(name, pooling, views, tmp_path):
    """Value and gradient, by the loss of each cut; with the pooling `cls` behind its head."""
    views = 3 if CONTRASTIVE_LOSSES[name].plain_view else views
    loss = CONTRASTIVE_LOSSES[name]
    fields = {} if loss.scored else {loss.option: 0.3}
    losses = build(tmp_path, pooling=pooling, contrastive_loss=name, contrastive_weight=2.0, **fields)
    given, again = vectors(views).requires_grad_(), vectors(views).requires_grad_()
    scores = torch.arange(given.shape[1]) if loss.scored else None
    losses.contrast(given, scores=scores)[0].backward()
    behind = losses.model.projection(again)
    (2 * sum(loss.compute(behind[..., :size], 0.5, scores if loss.scored else 0.3) for size in DIMS)).backward()
    torch.testing.assert_close(given.grad, again.grad, rtol=1e-9, atol=1e-12)


def test_as_sentence_transformers(tmp_path, sentences):
    """Its MatryoshkaLoss, with its default weights, around its InfoNCE, on an export."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import MatryoshkaLoss, MultipleNegativesRankingLoss

    losses = build(tmp_path / "backbone")
    folder = export(losses.model.float(), tiny_tokenizer("bert"), tmp_path / "export", trust_free=True)
    other = SentenceTransformer(str(folder), device="cpu").eval()
    columns = sentences, sentences[::-1]
    loss = MatryoshkaLoss(other, MultipleNegativesRankingLoss(other, scale=2.0), DIMS)
    expected = loss([other.preprocess(column) for column in columns], None)
    views = torch.stack([torch.from_numpy(other.encode(column)) for column in columns])
    assert losses.contrast(views)[0].item() == pytest.approx(expected.item(), rel=1e-5)


def process(rank: int, size: int, out: str, folder: str) -> None:
    """One of several processes with its share of the rows."""
    rows = vectors(2, 6)[:, 3 * rank : 3 * rank + 3].clone().requires_grad_()
    losses = TrainingLosses(CMLMCSEForSentenceEmbedding.from_pretrained(folder).double())
    loss = losses.contrast(rows)[0]
    loss.backward()
    torch.save((loss.detach(), rows.grad), f"{out}/{rank}.pt")


@pytest.mark.slow
def test_two_processes(tmp_path):
    """Candidates of both processes, at every number of dimensions."""
    losses = build(tmp_path / "backbone")
    losses.model.save_pretrained(tmp_path / "model")
    whole = vectors(2, 6).requires_grad_()
    expected = losses.contrast(whole)[0]
    expected.backward()
    run_together(process, 2, tmp_path, str(tmp_path / "model"))
    parts = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    assert sum(loss.item() for loss, _ in parts) / 2 == pytest.approx(expected.item(), rel=1e-9)
    found = torch.cat([gradient for _, gradient in parts], dim=1) / 2  # DDP averages over the processes
    torch.testing.assert_close(found, whole.grad, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_scores_of_cut_vectors(recipe, data_dir, tmp_path, capsys):
    """The final tasks score the vectors cut to each size too: in results.json, on the screen and in the card."""
    train(recipe, cmlm_weight=0, projection="none", matryoshka_dims="32,8", final_evaluation="stsb_dev")
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert list(results["truncated"]) == ["8"]
    model = CMLMCSEForSentenceEmbedding.from_pretrained(tmp_path / "run" / "export")
    encode = partial(model.encode, tokenizer=tiny_tokenizer("bert"))
    task = TASKS["stsb_dev"]
    cut = task.run(truncated(EncodeOnce(encode), 8), task.load(str(data_dir)))["stsb_dev"]
    assert results["truncated"]["8"]["stsb_dev"]["spearman"] == pytest.approx(cut["spearman"], abs=0.01)
    assert results["truncated"]["8"] != {"stsb_dev": results["stsb_dev"]}
    row = f"{results['stsb_dev']['spearman']:.2f} | {cut['spearman']:.2f} |"
    for text in (capsys.readouterr().out, (tmp_path / "run" / "export" / "README.md").read_text()):
        assert "8 dimensions" in text
        assert re.sub(" +", " ", row) in re.sub(" +", " ", text)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"matryoshka_dims": "256,0"}, "different whole numbers from 1 to 768, as 256,128,64, found '256,0'"),
        ({"matryoshka_dims": [769]}, "from 1 to 768"),
        ({"matryoshka_dims": [64, 64]}, "different"),
        ({"matryoshka_dims": ""}, "different"),
        ({"matryoshka_dims": [64], "projection": "mlp"}, "found projection 'mlp' after pooling 'avg'"),
        ({"matryoshka_dims": [64], "pooling": "cls_before_pooler"}, "set projection to none, or pooling to cls"),
    ],
)
def test_refusals(fields, words):
    """Where the model is made, in one line."""
    with pytest.raises(ValueError, match=words):
        CMLMCSEConfig(**{"pooling": "avg", **fields})
