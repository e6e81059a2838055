"""Training with LoRA: what changes, what the files hold, and what is refused. How it resumes: test_resume.py."""

import json
import sys

import pytest
import torch
from safetensors.torch import load_file

from cmlmcse.models.encoders import load_encoder
from cmlmcse.training.frozen_weights import checkpoint_weights
from cmlmcse.training.lora import ADAPTER
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from support.training import run

pytest.importorskip("peft")


@pytest.mark.slow
def test_trains_matrices_alone(recipe, monkeypatch, tmp_path, backbone_folders, sentences) -> None:
    """Only the linear layers of the blocks change, each by a matrix of the rank; checkpoint and export are merged, load
    as all others do."""
    run(monkeypatch, recipe, "--lora_r", 2, "--learning_rate", "1e-2")
    checkpoint = tmp_path / "run" / json.loads((tmp_path / "run" / "run.json").read_text())["best_checkpoint"]
    weights = load_file(tmp_path / "run" / "export" / "model.safetensors")
    assert not [name for name in weights if "lora" in name or "base_layer" in name]
    start = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders["shallow"]).backbone.state_dict()
    changed = {name for name, value in start.items() if not torch.equal(value, weights[name])}
    assert changed == {name for name in start if "layer." in name and name.endswith("weight") and "Norm" not in name}
    for name in changed:
        values = torch.linalg.svdvals((weights[name] - start[name]).double())
        assert values[0] > 1e-3
        assert values[2] < 1e-5 * max(1.0, values[0])
    model = CMLMCSEForSentenceEmbedding.from_pretrained(checkpoint).eval()
    encoder = load_encoder(str(tmp_path / "run"), show_progress_bar=False)
    torch.testing.assert_close(
        model.encode(sentences, encoder.tokenizer, convert_to_tensor=True), torch.tensor(encoder(sentences))
    )
    assert len(load_file(checkpoint / ADAPTER)) == 2 * len(changed)
    assert "auxiliary.cmlm.head.dense.weight" in checkpoint_weights(checkpoint)


@pytest.mark.slow
def test_wrong_checkpoint(recipe, monkeypatch, tmp_path, capsys) -> None:
    """A checkpoint without matrices, and one with matrices of another rank."""
    run(monkeypatch, recipe, "--lora_r", 2, "--max_steps", 6)
    for options, message in (
        (("--lora_r", 4), "expected matrices of this run's lora_r, found others"),
        (("--lora_r", 2), "expected a checkpoint of a run with lora_r, found none"),
    ):
        with pytest.raises(SystemExit) as stop:
            run(monkeypatch, recipe, *options, "--resume_from_checkpoint", "auto")
        assert stop.value.code == 2
        assert message in capsys.readouterr().err
        (tmp_path / "run" / "checkpoint-6" / ADAPTER).unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (("--lora_r", 0), "lora_r must be at least 1"),
        (("--lora_r", 8, "--stage", "pretrain"), "lora_r is for stage train"),
        (
            ("--lora_r", 8, "--augmentation", "del_span+reorder"),
            "lora_r expects an augmentation without the token [DEL]",
        ),
    ],
)
def test_refused(fields, message, recipe, monkeypatch, capsys) -> None:
    """A rank below 1, stage 1, and a new token, whose embedding would stay random."""
    with pytest.raises(SystemExit) as stop:
        run(monkeypatch, recipe, *fields)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_without_peft(recipe, monkeypatch, capsys) -> None:
    """One line that names the package."""
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(SystemExit) as stop:
        run(monkeypatch, recipe, "--lora_r", 8)
    assert stop.value.code == 2
    assert "lora_r expects the package peft, found none; install it: pip install peft" in capsys.readouterr().err
