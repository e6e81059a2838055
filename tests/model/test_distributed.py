"""The same global batch on 1, 2 and 4 processes gives the same losses and gradients (gloo, dropout off)."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from cmlmcse.data.batches import Example
from cmlmcse.data.collator import ViewCollator
from cmlmcse.data.masking import Masking
from cmlmcse.training.training_losses import TrainingLosses
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from modeling_cmlmcse.distributed import gather_rows, own_rows
from support.processes import run_together
from support.recorder import Recorder
from support.tiny import tiny_backbone, tiny_tokenizer

STEPS = {(0.0, "mlp"): (2, 1), (0.1, "mlp"): (3, 1), (0.1, "batchnorm"): (5, 2)}  # sums and gathers of each
SENTENCES = [" ".join(f"w{(7 * i + j * j) % 60}" for j in range(3 + i % 5)) for i in range(8)]


def losses_and_gradients(
    folder: str, projection: str, rank: int, size: int
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """One backward pass on this process's share of the sentences; gradients averaged as DDP averages them."""
    torch.manual_seed(0)
    fields = {"cmlm_weight": 0.5, "projection": projection, "temp": 1.0}  # at 0.05 the loss is 0 and so is its gradient
    model = CMLMCSEForSentenceEmbedding.from_backbone(folder, **fields).double().train()  # rounding out of the way
    tokenizer = tiny_tokenizer("bert")
    masking = Masking.of(tokenizer, 0.3)
    share = range(rank * 8 // size, (rank + 1) * 8 // size)
    examples = [Example(tokenizer(SENTENCES[row])["input_ids"], 0, row) for row in share]
    training = TrainingLosses(model)
    wrapped = torch.nn.parallel.DistributedDataParallel(training) if size > 1 else training
    output = wrapped(**ViewCollator(tokenizer, 1, masking)(examples))
    output.loss.backward()
    losses = torch.stack([output.loss.detach(), output.logs["contrastive_loss"], output.logs["cmlm_loss"]])
    if size > 1:
        dist.all_reduce(losses)
    named = {name: p.grad.numpy() for name, p in model.named_parameters() if p.grad is not None}
    return dict(zip(("loss", "contrastive", "cmlm"), (losses / size).tolist(), strict=True)), named


def recorded_process(rank: int, size: int, out: str, folder: str) -> None:
    """One of several processes; the first writes what a step exchanges, and what it waits for, with each objective."""
    tokenizer, found = tiny_tokenizer("bert"), {}
    masking = Masking.of(tokenizer, 0.3)
    examples = [Example(tokenizer(s)["input_ids"], 0, row) for row, s in enumerate(SENTENCES[4 * rank : 4 * rank + 4])]
    for weight, projection in STEPS:
        model = CMLMCSEForSentenceEmbedding.from_backbone(folder, cmlm_weight=weight, projection=projection).train()
        batch = ViewCollator(tokenizer, 1, masking if weight else None)(examples)
        with Recorder() as recorder:
            TrainingLosses(model)(**batch).loss.backward()
        counts = Counter(name for name in recorder.names if name.startswith(("allreduce", "allgather", "broadcast")))
        found[f"{weight} {projection}"] = {"counts": counts, "waits": recorder.waits}
    if rank == 0:
        Path(out, "recorded.json").write_text(json.dumps(found))


def uneven_process(rank: int, size: int, out: str) -> None:
    """One of several processes, each with another number of rows; writes down how gathering them is answered."""
    try:
        gather_rows(torch.zeros(3 - rank, 4))
    except RuntimeError as error:
        Path(out, f"{rank}.txt").write_text(str(error))


def process(rank: int, size: int, out: str, folder: str, projection: str) -> None:
    """One of several processes; the first writes what came out."""
    losses, gradients = losses_and_gradients(folder, projection, rank, size)
    if rank == 0:
        Path(out, "losses.json").write_text(json.dumps(losses))
        np.savez(Path(out, "gradients.npz"), **gradients)


def gathering_process(rank: int, size: int, out: str) -> None:
    """One of several processes, which gather rows of many shapes: values, order, and the gradients that come back."""
    rng = np.random.default_rng(0)  # the same on all
    for _ in range(50):
        shape = (int(rng.integers(1, 9)), *rng.integers(1, 6, size=rng.integers(0, 3)).tolist())
        everyone, factors = (torch.from_numpy(rng.standard_normal((size, *shape))) for _ in range(2))
        rows = everyone[rank].clone().requires_grad_()
        gathered = gather_rows(rows)
        assert torch.equal(gathered, everyone.flatten(0, 1))
        assert torch.equal(own_rows(gathered), rows)
        (gathered * (rank + 1) * factors.flatten(0, 1)).sum().backward()  # a loss of its own on each
        torch.testing.assert_close(rows.grad, sum(range(1, size + 1)) * factors[rank])
    Path(out, f"{rank}.done").touch()


@pytest.mark.slow
@pytest.mark.parametrize(("size", "projection"), [(2, "mlp"), (2, "batchnorm"), (4, "mlp")])
def test_world_size_changes_nothing(size, projection, tmp_path):
    """Losses and all gradients at a relative difference of 1e-5; λ does not depend on the number of processes."""
    folder = str(tmp_path / "backbone")
    tiny_backbone("bert", dropout=0.0).save_pretrained(folder)
    expected_losses, expected = losses_and_gradients(folder, projection, 0, 1)
    run_together(process, size, tmp_path, folder, projection)
    losses = json.loads((tmp_path / "losses.json").read_text())
    assert losses == pytest.approx(expected_losses, rel=1e-5)
    gradients = np.load(tmp_path / "gradients.npz")
    assert set(gradients.files) == expected.keys()
    for name, gradient in expected.items():
        difference = np.linalg.norm(gradients[name] - gradient)
        # the gradient of a key's bias, for one, is zero but for rounding: below 1e-6 the difference counts absolutely
        assert difference <= 1e-5 * max(np.linalg.norm(gradient), 1e-6), (name, difference)


@pytest.mark.slow
@pytest.mark.parametrize("size", (2, 3))
def test_gathering_rows_of_any_shape(size, tmp_path):
    """All rows in the order of the processes; a row's gradient is the sum of what all processes make of it."""
    run_together(gathering_process, size, tmp_path)
    assert len(list(tmp_path.glob("*.done"))) == size


@pytest.mark.slow
def test_what_a_step_exchanges(tmp_path, backbone_folders):
    """Every vector is gathered once: a check of the sizes, the gather, and the sum of its gradients; one sum more for
    the number of masked words. The BatchNorm head gathers once more. Nothing is copied from numbers of the host."""
    run_together(recorded_process, 2, tmp_path, backbone_folders["bert"])
    found = json.loads((tmp_path / "recorded.json").read_text())
    for (weight, projection), (sums, gathers) in STEPS.items():
        step = found[f"{weight} {projection}"]
        assert step == {"counts": {"allreduce_": sums, "allgather_": gathers}, "waits": []}


@pytest.mark.slow
def test_unequal_numbers_of_rows_are_an_error(tmp_path):
    """3 rows here and 2 there: both processes say so, instead of waiting for one another or mixing up rows."""
    run_together(uneven_process, 2, tmp_path)
    for rank in range(2):
        assert f"as many rows, {3 - rank} as here" in (tmp_path / f"{rank}.txt").read_text()


@pytest.mark.parametrize("share", (0.3, 1e-9), ids=("masked", "nothing masked"))
@pytest.mark.parametrize(
    "fields",
    (
        {"cmlm_weight": 0.1},
        {"cmlm_weight": 0.0},
        {"cmlm_weight": 0.1, "projection": "batchnorm", "pooling": "avg_first_last"},
        {"cmlm_weight": 0.1, "contrastive_weight": 0.0},
        {"cmlm_weight": 0.1, "lexical_frozen": False},
        {"cmlm_weight": 0.0, "rtd_weight": 0.1},
        {"cmlm_weight": 0.0, "mlm_weight": 0.1},
        {"cmlm_weight": 0.1, "contrastive_loss": "off_dropout", "dimension_weight": 0.1},
    ),
    ids=str,
)
@pytest.mark.parametrize("kind", ("bert", "roberta"))
def test_every_weight_has_a_gradient(kind, fields, share, backbone_folders):
    """In every batch, if only zero: DDP need not search for weights that wait for none."""
    model = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders[kind], **fields).train()
    tokenizer = tiny_tokenizer(kind)
    masking = Masking.of(tokenizer, share)
    plain = {"plain_view": fields.get("contrastive_loss") == "off_dropout"}
    collator = ViewCollator(tokenizer, 1, masking if model.auxiliary else None, **plain)
    TrainingLosses(model)(
        **collator([Example(tokenizer(s)["input_ids"], 0, i) for i, s in enumerate(SENTENCES)])
    ).loss.backward()
    assert not [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
