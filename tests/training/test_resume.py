"""A run that is stopped and resumed is, to the bit, the run that was not: in every method, however its text is read."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

from cmlmcse.training.contrastive_trainer import ContrastiveTrainer
from support.training import history, run, write_pairs

pytestmark = pytest.mark.slow
AUXILIARY = {"cmlm_weight": 0.1, "mlm_probability": 0.4}
RTD = {"rtd_weight": 0.1, "projection": "batchnorm", "mlm_probability": 0.3}
LABELLED = {"train_file": "pairs.csv", "text_column": "text", "positive_column": "same", "negative_column": "other"}
METHODS = {
    "simcse": {"cmlm_weight": 0},
    "simcse with mlm": {"cmlm_weight": 0, "mlm_weight": 0.1},
    "cmlm-cse": AUXILIARY,
    "infocse": {**AUXILIARY, "projection": "batchnorm", "lexical_dropout": True, "fusion_init": "random"},
    "diffcse": {**RTD, "cmlm_weight": 0},
    "diffcse, sampled": {**RTD, "cmlm_weight": 0, "rtd_fill": "sample"},
    "rtd and cmlm": {**RTD, **AUXILIARY},
    "clear": {
        "cmlm_weight": 0,
        "mlm_weight": 1,
        "masked_views": "first",
        "augmentation": "del_span+reorder",
        "augmented_views": "both",
        "contrastive_loss": "nt_xent",
        "projection": "nonlinear",
    },
    "labelled triplets": {**AUXILIARY, **LABELLED, "hard_negative_weight": 1},
    "retromae": {"cmlm_weight": 0, "retromae_weight": 0.1, "masked_views": "first"},
    "lora": {**AUXILIARY, "lora_r": 4},
    "in parts": {**AUXILIARY, "mini_batch_size": 5},
    "accumulated": {**AUXILIARY, "gradient_accumulation_steps": 2, "auxiliary_learning_rate": "1e-2"},
    "pre-training": {
        "stage": "pretrain",
        "lexical_layers": 2,
        "fusion_layers": 1,
        "auxiliary_weight": 1,
        "learning_rate": "1e-3",
    },
}


@pytest.fixture
def recipe(tmp_path, text_file, backbone_folders):
    """Writes a recipe of 20 steps in batches of 16, of which the second epoch begins after the 13th."""
    dev_set = write_pairs(tmp_path / "dev.tsv")
    lines = text_file.read_text().splitlines()
    rows = [",".join((lines[i], lines[i][::-1], lines[i - 1])) for i in range(len(lines))]
    (tmp_path / "pairs.csv").write_text("\n".join(["text,same,other", *rows]) + "\n")

    def write(**fields: object) -> Path:
        common = {
            "model_name_or_path": backbone_folders["bert"],
            "train_file": "text.txt",
            "dev_set": str(dev_set),
            "final_evaluation": "none",
            "learning_rate": "1e-3",
            "per_device_train_batch_size": 16,
            "max_steps": 20,
            "eval_steps": 5,
            "save_steps": 5,
            "save_total_limit": 9,
            "logging_steps": 1,
            "use_cpu": True,
            "disable_tqdm": True,
        }
        fields = {**common, **fields}
        fields["train_file"] = str(tmp_path / str(fields["train_file"]))
        (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(fields))
        return tmp_path / "recipe.yaml"

    return write


def resumed(monkeypatch, recipe: Path, whole: Path, step: int, *options: object) -> Path:
    """Go on from a checkpoint of the run `whole`, in a folder that has that one alone."""
    folder = whole.with_name(f"from-{step}")
    shutil.copytree(whole / f"checkpoint-{step}", folder / f"checkpoint-{step}")
    run(monkeypatch, recipe, "--output_dir", folder, "--resume_from_checkpoint", "auto", *options)
    return folder


def state(folder: Path) -> dict[str, object]:
    """What Trainer knows at the end: its log, without times; the best score and where it was."""
    (last,) = {int(path.name.split("-")[1]) for path in folder.glob("checkpoint-*")} & {20}
    found = json.loads((folder / f"checkpoint-{last}" / "trainer_state.json").read_text())
    for row in found["log_history"]:
        for name in ("eval_runtime", "tokens_per_second"):
            row.pop(name, None)
    names = ("best_metric", "best_global_step", "global_step", "num_input_tokens_seen", "log_history", "total_flos")
    return {name: found[name] for name in names}


def assert_same_end(part: Path, whole: Path) -> None:
    """The same losses, scores and gradients at every step; the same weights, exported, saved and in the optimizer."""
    assert state(part) == state(whole)
    for file in ("export/model.safetensors", "checkpoint-20/model.safetensors"):
        assert (part / file).read_bytes() == (whole / file).read_bytes(), file


@pytest.mark.parametrize("method", METHODS)
def test_every_method(method, recipe, monkeypatch, tmp_path):
    """From the middle of the second epoch, where the text is read by two workers instead of by none."""
    path = recipe(**METHODS[method])
    run(monkeypatch, path, "--output_dir", tmp_path / "whole")
    part = resumed(monkeypatch, path, tmp_path / "whole", 15, "--dataloader_num_workers", 2)
    assert_same_end(part, tmp_path / "whole")
    assert len(history(part, "loss")) == 20
    if method == "pre-training":
        auxiliary = [
            load_file(folder / "export" / "auxiliary_network.safetensors") for folder in (part, tmp_path / "whole")
        ]
        assert auxiliary[0].keys() == auxiliary[1].keys()
        assert all(np.array_equal(value, auxiliary[1][name]) for name, value in auxiliary[0].items())


@pytest.mark.parametrize("workers", (0, 2))
@pytest.mark.parametrize("step", (5, 15))
def test_streamed_text(step, workers, recipe, monkeypatch, tmp_path):
    """A stream is read again up to where the run was; in the second epoch, which has an order of its own, too."""
    path = recipe(**METHODS["clear"], streaming=True, dataloader_num_workers=workers)
    run(monkeypatch, path, "--output_dir", tmp_path / "whole")
    assert_same_end(resumed(monkeypatch, path, tmp_path / "whole", step), tmp_path / "whole")


@pytest.mark.parametrize("step", (5, 10, 15))
def test_early_stopping(step, recipe, monkeypatch, tmp_path):
    """Scores that are no better count from where they had got to; the best checkpoint is what is exported."""
    scores = {5: 50.0, 10: 40.0, 15: 45.0, 20: 60.0}
    monkeypatch.setattr(ContrastiveTrainer, "dev_metrics", lambda self: {"dev_score": scores[self.state.global_step]})
    path = recipe(cmlm_weight=0, early_stopping_patience=2)
    whole = tmp_path / "whole"
    run(monkeypatch, path, "--output_dir", whole)
    part = resumed(monkeypatch, path, whole, step)
    for folder in (part, whole):
        assert history(folder, "eval_dev_score")[1:] == [50.0, 40.0, 45.0]
        assert len(history(folder, "loss")) == 15
    if step == 5:  # the best one is there
        assert (part / "export" / "model.safetensors").read_bytes() == (
            whole / "export" / "model.safetensors"
        ).read_bytes()


def test_more_patience_than_before(recipe, monkeypatch, tmp_path):
    """A run that had lost patience goes on where it is given more: the patience asked for now counts."""
    scores = {5: 50.0, 10: 40.0, 15: 45.0, 20: 60.0}
    monkeypatch.setattr(ContrastiveTrainer, "dev_metrics", lambda self: {"dev_score": scores[self.state.global_step]})
    path = recipe(cmlm_weight=0, early_stopping_patience=2)
    run(monkeypatch, path, "--output_dir", tmp_path / "whole")
    part = resumed(monkeypatch, path, tmp_path / "whole", 15, "--early_stopping_patience", 3)
    assert history(part, "eval_dev_score")[1:] == [50.0, 40.0, 45.0, 60.0]


def test_auto_without_a_checkpoint_starts_anew(recipe, monkeypatch, tmp_path, capsys):
    """One command line serves a scheduler's first start and every later one."""
    path = recipe(cmlm_weight=0)
    run(monkeypatch, path, "--output_dir", tmp_path / "new", "--resume_from_checkpoint", "auto", "--max_steps", 5)
    assert "new holds no checkpoint yet: training starts from the beginning" in capsys.readouterr().out
    assert len(history(tmp_path / "new", "loss")) == 5


def test_a_run_that_had_ended(recipe, monkeypatch, tmp_path):
    """Resumed from its end, in the middle of an epoch, it trains no further and exports the same again."""
    path = recipe(cmlm_weight=0)
    run(monkeypatch, path, "--output_dir", tmp_path / "whole")
    before = (tmp_path / "whole" / "export" / "model.safetensors").read_bytes()
    run(monkeypatch, path, "--output_dir", tmp_path / "whole", "--resume_from_checkpoint", "auto")
    assert (tmp_path / "whole" / "export" / "model.safetensors").read_bytes() == before
    assert len(history(tmp_path / "whole", "loss")) == 20
    assert json.loads((tmp_path / "whole" / "run.json").read_text())["steps"] == 20


def test_the_time_before_counts(recipe, monkeypatch, tmp_path):
    """run.json's training time is that of all parts, as its steps and tokens are."""
    path = recipe(cmlm_weight=0)
    run(monkeypatch, path, "--output_dir", tmp_path / "whole")
    kept = tmp_path / "whole" / "checkpoint-15" / "trainer_state.json"
    found = json.loads(kept.read_text())
    assert found["stateful_callbacks"]["TrainingTime"]["attributes"]["before"] > 0
    found["stateful_callbacks"]["TrainingTime"]["attributes"]["before"] = 5000.0
    kept.write_text(json.dumps(found))
    part = resumed(monkeypatch, path, tmp_path / "whole", 15)
    assert 5000 < json.loads((part / "run.json").read_text())["train_seconds"] < 5100


def test_a_checkpoint_that_knew_less(recipe, monkeypatch, tmp_path):
    """Of a run without early stopping, and without a clock as older versions had none: both are there from now on."""
    scores = {5: 50.0, 10: 40.0, 15: 45.0, 20: 60.0}
    monkeypatch.setattr(ContrastiveTrainer, "dev_metrics", lambda self: {"dev_score": scores[self.state.global_step]})
    path = recipe(cmlm_weight=0)
    run(monkeypatch, path, "--output_dir", tmp_path / "whole")
    kept = tmp_path / "whole" / "checkpoint-5" / "trainer_state.json"
    found = json.loads(kept.read_text())
    del found["stateful_callbacks"]["TrainingTime"]
    kept.write_text(json.dumps(found))
    part = resumed(monkeypatch, path, tmp_path / "whole", 5, "--early_stopping_patience", 2)
    assert history(part, "eval_dev_score")[1:] == [50.0, 40.0, 45.0]
