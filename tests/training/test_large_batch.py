"""A batch in parts gives the gradient of the whole batch, auxiliary objectives included."""

from contextlib import nullcontext
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

from cmlmcse.common.distributed import average_gradients
from cmlmcse.data.batches import Example
from cmlmcse.data.collator import ViewCollator
from cmlmcse.data.masking import Masking
from cmlmcse.training.large_batch import backward_in_parts
from cmlmcse.training.training_losses import TrainingLosses
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from support.processes import run_together
from support.tiny import tiny_backbone, tiny_tokenizer

SENTENCES = [" ".join(f"w{(7 * i + j * j) % 60}" for j in range(3 + i % 5)) for i in range(11)]


def collate(mini_batch_size: int | None, rows=range(11), scored: bool = False, **options):
    """The same sentences, in parts or whole; `scored`: each with another one and a score."""
    tokenizer = tiny_tokenizer("bert")
    masking = Masking.of(tokenizer, 0.4)
    collator = ViewCollator(tokenizer, 3, masking, mini_batch_size=mini_batch_size, **options)
    taught = np.random.default_rng(0).standard_normal((2, len(SENTENCES), 1 + scored, 4))  # by two teachers
    tokens = tokenizer(SENTENCES)["input_ids"]
    examples = [Example(tokens[row], 0, row, teachers=list(taught[:, row])) for row in rows]
    if scored:
        examples = [each._replace(others=[tokens[each.row - 3]], score=float(each.row % 4)) for each in examples]
    return collator(examples)


SIMCSE_PP = {"contrastive_loss": "off_dropout", "positive_ratio": 0.9, "dimension_weight": 0.3}
RANKCSE = {"consistency_weight": 2.0, "distillation_weight": 0.1}
COSENT = {"contrastive_loss": "cosent", "distillation_weight": 0.5, "distillation_loss": "mse"}
METHODS = {"views": (SIMCSE_PP | RANKCSE, {"plain_view": True}), "pairs": (COSENT, {"scored": True})}


def load(folder, dropout: float, **fields) -> CMLMCSEForSentenceEmbedding:
    """A model in fp64, so that no rounding hides a difference."""
    if not (folder / "config.json").exists():
        tiny_backbone("bert", dropout=dropout).save_pretrained(folder)
    torch.manual_seed(1)
    fields = {"cmlm_weight": 0.5, "temp": 1.0, **fields}
    return CMLMCSEForSentenceEmbedding.from_backbone(folder, **fields).double().train()


def gradients(model) -> dict[str, torch.Tensor]:
    """All gradients by name, and none of them left behind."""
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


def step_in_parts(model, parts):
    """One step of the trainer, without trainer."""
    return backward_in_parts(TrainingLosses(model), parts, lambda loss: loss.backward(), nullcontext)


def assert_equal(found, expected):
    """At a relative difference of 1e-5, in the norm of each gradient."""
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        difference = (found[name] - gradient).norm()
        assert difference <= 1e-5 * gradient.norm().clamp(min=1e-6), (name, difference)


def test_mlm_alone(tmp_path):
    """MLM on the encoder, which reads no sentence vector, as the only objective beside the contrast (CLEAR)."""
    model = load(tmp_path, 0.0, cmlm_weight=0.0, mlm_weight=1.0, contrastive_loss="nt_xent", projection="nonlinear")
    output = TrainingLosses(model)(**collate(None, masked_views=1))
    output.loss.backward()
    expected = gradients(model)
    loss, logs = step_in_parts(model, collate(4, masked_views=1)["parts"])
    assert loss.item() == pytest.approx(output.loss.item(), rel=1e-5)
    assert logs["mlm_loss"].item() == pytest.approx(output.logs["mlm_loss"].item(), rel=1e-5)
    assert_equal(gradients(model), expected)


@pytest.mark.parametrize(
    ("projection", "views", "condition"),
    (("mlp", 2, "before_head"), ("batchnorm", 2, "after_head"), ("mlp", 1, "after_head")),
)
@pytest.mark.parametrize(
    "weights",
    (
        {},
        {"rtd_weight": 0.3, "mlm_weight": 0.2},
        {"mlm_weight": 0.2, **SIMCSE_PP, **RANKCSE},
        {"matryoshka_dims": "32,8"},
        {"condenser_weight": 0.4, "lexical_layers": 2, "consistency_weight": 2.0},
        COSENT,
    ),
)
def test_equals_the_whole_batch(condition, projection, views, weights, tmp_path):
    """Without dropout: loss, log and every gradient of one pass over the whole batch, from parts of 1, 3 and 4."""
    fields = weights | {
        "projection": projection,
        "cmlm_condition": condition,
        "masked_views": {1: "first", 2: "both"}[views],
    }
    if "matryoshka_dims" in weights:
        if projection != "mlp":
            pytest.skip("matryoshka_dims expects the vector that users get")
        fields["pooling"] = "cls"
    model = load(tmp_path, 0.0, **fields)
    options = {"masked_views": views, "plain_view": "positive_ratio" in weights, "scored": weights == COSENT}
    output = TrainingLosses(model)(**collate(None, **options))
    output.loss.backward()
    expected = gradients(model)
    assert {"backbone.encoder.layer.0.attention.self.query.weight", "auxiliary.cmlm.head.decoder.weight"} <= set(
        expected
    )
    for size in (1, 3, 4):
        parts = collate(size, **options)["parts"]
        assert [len(part["views"]["lengths"]) // 2 for part in parts][-1] == (11 % size or size)
        loss, logs = step_in_parts(model, parts)
        assert loss.item() == pytest.approx(output.loss.item(), rel=1e-5)
        assert {name: value.item() for name, value in logs.items()} == pytest.approx(
            {name: value.item() for name, value in output.logs.items()}, rel=1e-5
        )
        assert_equal(gradients(model), expected)


@pytest.mark.parametrize("fields", ({}, SIMCSE_PP), ids=("SimCSE", "SimCSE++"))
def test_dropout_is_replayed(fields, tmp_path):
    """With dropout: the gradient is that of one graph through the very same parts and dropout."""
    model = load(tmp_path, 0.1, **fields)
    parts = collate(4, plain_view=bool(fields))["parts"]
    state = torch.get_rng_state()
    loss, _ = step_in_parts(model, parts)
    found, after = gradients(model), torch.get_rng_state()
    torch.set_rng_state(state)
    vectors = torch.cat([TrainingLosses(model).sentence_vectors(part["views"]) for part in parts], dim=1)
    expected_loss, sentences, _ = TrainingLosses(model).contrast(vectors)
    counts = TrainingLosses(model).auxiliary_terms([part["masked"] for part in parts])
    sizes = [len(part["views"]["lengths"]) // 2 for part in parts]
    for part, own in zip(parts, sentences.split(sizes, dim=2), strict=True):
        expected_loss = expected_loss + TrainingLosses(model).auxiliary_loss(own, part["masked"], counts)[0]
    expected_loss.backward()
    assert loss.item() == pytest.approx(expected_loss.item(), rel=1e-9)
    assert_equal(found, gradients(model))
    assert torch.equal(after, torch.get_rng_state())  # the next step draws what follows, not the same again


def test_simcse_needs_no_masked_part(tmp_path):
    model = load(tmp_path, 0.0, cmlm_weight=0.0)
    TrainingLosses(model)(views=collate(None)["views"]).loss.backward()
    expected = gradients(model)
    step_in_parts(model, [{"views": part["views"]} for part in collate(2)["parts"]])
    assert_equal(gradients(model), expected)


def test_small_batch_stays_whole():
    assert collate(11).keys() == collate(100).keys() == {"views", "masked"}


def process(rank: int, size: int, out: str, folder: str) -> None:
    """One of two processes with half the batch each, in parts of 2, under DDP as the trainer has it."""
    for name, (fields, options) in METHODS.items():
        model = load(Path(folder), 0.0, projection="batchnorm", **fields)
        torch.nn.parallel.DistributedDataParallel(model)  # its hooks must not interfere
        half = collate(2, rows=range(rank * 4, rank * 4 + 4), **options)
        step_in_parts(model, half["parts"])
        with mock.patch.object(torch.distributed, "all_reduce", wraps=torch.distributed.all_reduce) as sent:
            average_gradients(model.parameters())
        assert sent.call_count == 1
        if rank == 0:
            torch.save(gradients(model), f"{out}/{name}.pt")


@pytest.mark.slow
def test_two_processes(tmp_path):
    """Two processes, each with parts of its half, have the gradient of one process with all."""
    (tmp_path / "0").mkdir()
    expected = {}
    for name, (fields, options) in METHODS.items():
        model = load(tmp_path / "0", 0.0, projection="batchnorm", **fields)
        TrainingLosses(model)(**collate(None, rows=range(8), **options)).loss.backward()
        expected[name] = gradients(model)
    run_together(process, 2, tmp_path, str(tmp_path / "0"))
    for name, found in expected.items():
        assert_equal(torch.load(tmp_path / f"{name}.pt", weights_only=True), found)
