"""A run that is stopped and resumed is, to the bit, the run that was not: in every method, however its text is read."""

import functools
import json
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
import yaml
from safetensors.numpy import load_file

from cmlmcse.training.command import main
from cmlmcse.training.contrastive_trainer import ContrastiveTrainer
from support.training import history, write_pairs, write_text

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
    "denosent": {"cmlm_weight": 0, "denosent_weight": 0.1, "denosent_layers": 1, "masked_views": "first"},
    "mined and negated": {
        **AUXILIARY,
        "mined_negatives": 1,
        "mining_margin": 0.02,
        "mining_candidates": 4,
        "pooling": "prompt",
        "negative_prompt_template": "the {sentence} w3 {mask}",
        "prompt_template": "{sentence} w1 {mask}",
        "second_prompt_template": "{sentence} w2 {mask}",
        "prompt_denoising": "pad",
        "contrastive_loss": "extended_info_nce",
    },
    "mined pieces": {"cmlm_weight": 0, "mined_negatives": 1, "mining_margin": 0.02, "views": "crops"},
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


STEPS, EVERY = 12, 3  # of 7 steps an epoch; development scores and checkpoints
LATE = 9  # a checkpoint within the second epoch
SCORES = {3: 50.0, 6: 40.0, 9: 45.0, 12: 60.0}  # with a patience of 2 a run stops at step 9


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with 100 sentences, the same as labelled triplets, and a development set."""
    folder = tmp_path_factory.mktemp("place")
    lines = write_text(folder / "text.txt", 100).read_text().splitlines()
    rows = [",".join((lines[i], lines[i][::-1], lines[i - 1])) for i in range(len(lines))]
    (folder / "pairs.csv").write_text("\n".join(["text,same,other", *rows]) + "\n")
    write_pairs(folder / "dev.tsv")
    return folder


@pytest.fixture(scope="module")
def recipe(place, backbone_folders):
    """Writes a recipe of 12 steps in batches of 16."""

    def write(name: str, **fields: object) -> Path:
        common = {
            "model_name_or_path": backbone_folders["shallow"],
            "train_file": "text.txt",
            "dev_set": str(place / "dev.tsv"),
            "final_evaluation": "none",
            "learning_rate": "1e-3",
            "per_device_train_batch_size": 16,
            "max_steps": STEPS,
            "eval_steps": EVERY,
            "save_steps": EVERY,
            "save_total_limit": 9,
            "logging_steps": 1,
            "use_cpu": True,
            "disable_tqdm": True,
        }
        fields = {**common, **fields}
        fields["train_file"] = str(place / str(fields["train_file"]))
        path = place / f"{name.replace(' ', '-')}.yaml"
        path.write_text(yaml.safe_dump(fields))
        return path

    return write


class Run(NamedTuple):
    """An uninterrupted run that several tests resume."""

    recipe: Path
    folder: Path


def whole(path: Path) -> Run:
    """Train a recipe from its beginning to its end."""
    folder = path.with_suffix("")
    main([str(path), "--output_dir", str(folder)])
    return Run(path, folder)


@pytest.fixture(scope="module")
def simcse(recipe):
    """SimCSE, uninterrupted."""
    return whole(recipe("simcse", **METHODS["simcse"]))


@pytest.fixture(scope="module")
def impatient(recipe):
    """A run that early stopping ended at step 9."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ContrastiveTrainer, "dev_metrics", forged_score)
        return whole(recipe("impatient", cmlm_weight=0, early_stopping_patience=2))


@pytest.fixture(scope="module")
def stream(recipe):
    """CLEAR's run over streamed text, uninterrupted, read by so many workers, on which the order depends.

    A function that keeps its runs: pytest may build a module's fixture with parameters more than once.
    """

    @functools.cache
    def read_by(workers: int) -> Run:
        fields = {**METHODS["clear"], "streaming": True, "dataloader_num_workers": workers}
        return whole(recipe(f"stream {workers}", **fields))

    return read_by


def forged_score(trainer: ContrastiveTrainer) -> dict[str, float]:
    """Stands for `dev_metrics`."""
    return {"dev_score": SCORES[trainer.state.global_step]}


def copied(run: Run, step: int, folder: Path) -> Path:
    """A new run's folder that has this checkpoint alone → the checkpoint."""
    return shutil.copytree(run.folder / f"checkpoint-{step}", folder / f"checkpoint-{step}")


def go_on(run: Run, folder: Path, *options: object) -> None:
    """Go on from the newest checkpoint in the folder."""
    main([str(run.recipe), "--output_dir", str(folder), "--resume_from_checkpoint", "auto", *map(str, options)])


def resumed(run: Run, step: int, folder: Path, *options: object) -> Path:
    """Go on from a checkpoint of a run, in a folder that has that one alone."""
    copied(run, step, folder)
    go_on(run, folder, *options)
    return folder


def state(folder: Path) -> dict[str, object]:
    """What Trainer knows at the end: its log, without times; the best score and where it was."""
    (last,) = {int(path.name.split("-")[1]) for path in folder.glob("checkpoint-*")} & {STEPS}
    found = json.loads((folder / f"checkpoint-{last}" / "trainer_state.json").read_text())
    for row in found["log_history"]:
        for name in ("eval_runtime", "tokens_per_second"):
            row.pop(name, None)
    names = ("best_metric", "best_global_step", "global_step", "num_input_tokens_seen", "log_history", "total_flos")
    return {name: found[name] for name in names}


def assert_same_end(part: Path, whole: Path) -> None:
    """The same losses, scores and gradients at every step; the same weights, exported, saved and in the optimizer."""
    assert state(part) == state(whole)
    weights = [path.relative_to(whole) for path in whole.glob(f"checkpoint-{STEPS}/model*.safetensors")]
    assert weights
    for file in (Path("export", "model.safetensors"), *weights):
        assert (part / file).read_bytes() == (whole / file).read_bytes(), file


@pytest.mark.parametrize("method", METHODS)
def test_every_method(method, recipe, request, tmp_path):
    """From the middle of the second epoch, where the text is read by two workers instead of by none."""
    of = request.getfixturevalue("simcse") if method == "simcse" else whole(recipe(method, **METHODS[method]))
    part = resumed(of, LATE, tmp_path / "part", "--dataloader_num_workers", 2)
    assert_same_end(part, of.folder)
    assert len(history(part, "loss")) == STEPS
    if method == "pre-training":
        auxiliary = [load_file(folder / "export" / "auxiliary_network.safetensors") for folder in (part, of.folder)]
        assert auxiliary[0].keys() == auxiliary[1].keys()
        assert all(np.array_equal(value, auxiliary[1][name]) for name, value in auxiliary[0].items())


@pytest.mark.parametrize("workers", (0, 2))
@pytest.mark.parametrize("step", (EVERY, LATE))
def test_streamed_text(step, workers, stream, tmp_path):
    """A stream is read again up to where the run was; in the second epoch, which has an order of its own, too."""
    assert_same_end(resumed(stream(workers), step, tmp_path / "part"), stream(workers).folder)


@pytest.mark.parametrize("step", (3, 6, 9))
def test_early_stopping(step, impatient, monkeypatch, tmp_path):
    """Scores that are no better count from where they had got to; the best checkpoint is what is exported."""
    monkeypatch.setattr(ContrastiveTrainer, "dev_metrics", forged_score)
    part = resumed(impatient, step, tmp_path / "part")
    for folder in (part, impatient.folder):
        assert history(folder, "eval_dev_score")[1:] == [50.0, 40.0, 45.0]
        assert len(history(folder, "loss")) == 9
    if step == 3:  # the best one is there
        assert (part / "export" / "model.safetensors").read_bytes() == (
            impatient.folder / "export" / "model.safetensors"
        ).read_bytes()


def test_more_patience_than_before(impatient, monkeypatch, tmp_path):
    """A run that had lost patience goes on where it is given more: the patience asked for now counts."""
    monkeypatch.setattr(ContrastiveTrainer, "dev_metrics", forged_score)
    part = resumed(impatient, 9, tmp_path / "part", "--early_stopping_patience", 3)
    assert history(part, "eval_dev_score")[1:] == [50.0, 40.0, 45.0, 60.0]


def test_auto_without_a_checkpoint_starts_anew(simcse, tmp_path, capsys):
    """One command line serves a scheduler's first start and every later one."""
    go_on(simcse, tmp_path / "new", "--max_steps", EVERY)
    assert "new holds no checkpoint yet: training starts from the beginning" in capsys.readouterr().out
    assert len(history(tmp_path / "new", "loss")) == EVERY


def test_a_run_that_had_ended(simcse, tmp_path):
    """Resumed from its end, in the middle of an epoch, it trains no further and exports the same again."""
    ended = shutil.copytree(simcse.folder, tmp_path / "ended")
    (ended / "export" / "model.safetensors").write_bytes(b"")
    go_on(simcse, ended)
    exported = "export/model.safetensors"
    assert (ended / exported).read_bytes() == (simcse.folder / exported).read_bytes()
    assert len(history(ended, "loss")) == STEPS
    assert json.loads((ended / "run.json").read_text())["steps"] == STEPS


def test_the_time_before_counts(simcse, tmp_path):
    """run.json's training time is that of all parts, as its steps and tokens are."""
    kept = copied(simcse, LATE, tmp_path / "part") / "trainer_state.json"
    found = json.loads(kept.read_text())
    assert found["stateful_callbacks"]["TrainingTime"]["attributes"]["before"] > 0
    found["stateful_callbacks"]["TrainingTime"]["attributes"]["before"] = 5000.0
    kept.write_text(json.dumps(found))
    go_on(simcse, tmp_path / "part")
    assert 5000 < json.loads((tmp_path / "part" / "run.json").read_text())["train_seconds"] < 5100


def test_a_checkpoint_that_knew_less(simcse, monkeypatch, tmp_path):
    """Of a run without early stopping, and without a clock as older versions had none: both are there from now on."""
    monkeypatch.setattr(ContrastiveTrainer, "dev_metrics", forged_score)
    kept = copied(simcse, 3, tmp_path / "part") / "trainer_state.json"
    found = json.loads(kept.read_text())
    del found["stateful_callbacks"]["TrainingTime"]
    for row in [found, *found["log_history"]]:  # the score that this checkpoint had
        row.update(
            {name: SCORES[3] for name in ("eval_dev_score", "best_metric") if row.get("step") != 0 and name in row}
        )
    kept.write_text(json.dumps(found))
    go_on(simcse, tmp_path / "part", "--early_stopping_patience", 2)
    assert history(tmp_path / "part", "eval_dev_score")[1:] == [50.0, 40.0, 45.0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("--cmlm_weight", 0.1), "cmlm_weight that the run was started with, 0.0, found 0.1"),
        (("--projection", "mlp"), "projection that the run was started with, "),
        (("--pooling", "avg"), "pooling that the run was started with, cls_before_pooler, found avg"),
        (("--fusion_layers", 1), "fusion_layers that the run was started with, none, found 1"),
        (("--lexical_layers", 1), "lexical_layers that the run was started with, none, found 1"),
        (("--temp", 0.1), "temp that the run was started with, 0.05, found 0.1"),
        (("--seed", 7), "seed that the run was started with, 42, found 7"),
        (("--optim", "adafactor"), "found adafactor; give the same one, or start another run"),
        (("--weight_decay", 0.1), "weight_decay that the run was started with, 0.0, found 0.1"),
        (("--dev_set", "auto"), "dev_set that the run was started with, another, found auto"),
        ("text", "train_file that the run was started with, text.txt, found another content under that name"),
    ],
)
def test_what_a_run_was_started_with(change, words, simcse, place, recipe, tmp_path, capsys):
    """A run with other fields or another text does not go on from the state of this one, and nothing is written."""
    options = change
    if change == "text":
        lines = (place / "text.txt").read_text().splitlines()
        (tmp_path / "text.txt").write_text("\n".join(reversed(lines)) + "\n")
        options = ("--train_file", tmp_path / "text.txt")
    copied(simcse, LATE, tmp_path / "part")
    with pytest.raises(SystemExit) as stop:
        go_on(simcse, tmp_path / "part", *options)
    assert stop.value.code == 2
    (said,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert f"checkpoint-{LATE} expects the " in said
    assert words in said
    assert [path.name for path in (tmp_path / "part").iterdir()] == [f"checkpoint-{LATE}"]


def test_what_may_differ(simcse, tmp_path):
    """How long it trains, when it logs, saves and scores; where the text and the backbone are."""
    fields = yaml.safe_load(simcse.recipe.read_text())
    for name in ("train_file", "model_name_or_path"):
        kept = Path(fields[name])
        shutil.copytree(kept, tmp_path / kept.name) if kept.is_dir() else shutil.copy(kept, tmp_path)
        fields[name] = str(tmp_path / kept.name)
    moved = tmp_path / "moved.yaml"
    moved.write_text(yaml.safe_dump(fields))
    more = ("--dev_set", "none", "--save_steps", 4, "--logging_steps", 2, "--max_steps", 10, "--mini_batch_size", 8)
    part = resumed(Run(moved, simcse.folder), LATE, tmp_path / "part", *more)
    assert json.loads((part / "run.json").read_text())["steps"] == 10
    assert history(part, "learning_rate")[-1] == pytest.approx(1e-3 / 10)  # the last of ten steps, linear


def test_another_learning_rate(simcse, tmp_path):
    """It holds from the next step on: every logged rate is half of what it was, and run.json says the new one."""
    part = resumed(simcse, LATE, tmp_path / "part", "--learning_rate", "5e-4")
    before, now = (history(folder, "learning_rate") for folder in (simcse.folder, part))
    assert now[:LATE] == before[:LATE]
    assert now[LATE:] == pytest.approx([rate / 2 for rate in before[LATE:]], rel=1e-12)
    assert now[LATE] > 0
    assert json.loads((part / "run.json").read_text())["fields"]["learning_rate"] == 5e-4
    weights = [load_file(folder / f"checkpoint-{STEPS}" / "model.safetensors") for folder in (simcse.folder, part)]
    assert any(not np.array_equal(value, weights[1][name]) for name, value in weights[0].items())


def test_another_learning_rate_of_the_auxiliary_networks(recipe, tmp_path):
    """Each group of weights has its own, and the optimizer of the checkpoint after it."""
    part = resumed(whole(recipe("two rates", **METHODS["accumulated"])), LATE, tmp_path / "part",
                   "--auxiliary_learning_rate", "4e-3", "--learning_rate", "2e-3")  # fmt: skip
    groups = torch.load(part / f"checkpoint-{STEPS}" / "optimizer.pt", weights_only=True)["param_groups"]
    assert {group["initial_lr"] for group in groups} == {2e-3, 4e-3}
    schedule = torch.load(part / f"checkpoint-{STEPS}" / "scheduler.pt", weights_only=True)
    assert schedule["base_lrs"] == [group["initial_lr"] for group in groups]
