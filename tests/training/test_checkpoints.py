"""A run that is killed anywhere, saving included, goes on to the very weights of a run that was not."""

import os
import random
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from safetensors.numpy import load_file

from cmlmcse.training import checkpoints
from support import warm
from support.paths import ROOT
from support.tiny import WORDS
from support.training import history, run, write_pairs

pytestmark = pytest.mark.slow
KILLS = int(os.environ.get("CMLMCSE_KILLS", "6"))  # CMLMCSE_KILLS=20 for the figure in the README
STEPS = 8


@pytest.fixture
def recipe(tmp_path, backbone_folders) -> Path:
    """CMLM-CSE with dropout, a checkpoint every second step, of which the best and the newest are kept."""
    rng = random.Random(0)
    lines = [" ".join(rng.choices(WORDS, k=rng.randint(3, 12))) for _ in range(64)]
    (tmp_path / "text.txt").write_text("\n".join(lines) + "\n")
    dev_set = write_pairs(tmp_path / "dev.tsv")
    fields = {
        "model_name_or_path": backbone_folders["shallow"],
        "train_file": str(tmp_path / "text.txt"),
        "dev_set": str(dev_set),
        "final_evaluation": "none",
        "cmlm_weight": 0.1,
        "per_device_train_batch_size": 8,
        "max_steps": STEPS,
        "eval_steps": 2,
        "save_steps": 2,
        "save_total_limit": 2,
        "logging_steps": 1,
        "use_cpu": True,
        "disable_tqdm": True,
        "report_to": "none",
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(fields))
    return tmp_path / "recipe.yaml"


def killed_at(event: int | None, recipe: Path, folder: Path) -> tuple[bool, int]:
    """Train until the so-manieth event in the folder, and go on from what is there. Whether the run died, and how many
    such events there were."""
    resume = ["--resume_from_checkpoint", "auto"] if list(folder.glob("checkpoint-*")) else []
    if not resume:
        shutil.rmtree(folder, ignore_errors=True)
    script = ROOT / "tests" / "support" / "killable.py"
    command = [warm.python(), script, folder, "none" if event is None else event, recipe, "--output_dir", folder]
    done = subprocess.run(list(map(str, [*command, *resume])), capture_output=True, text=True, check=False, timeout=240)
    died = done.returncode == -signal.SIGKILL
    assert died or done.returncode == 0, done.stderr[-2000:]
    return died, folder.with_suffix(".events").stat().st_size


def assert_whole(folder: Path) -> None:
    """Whatever is called a checkpoint holds all its files, and they can be read."""
    for path in folder.glob("checkpoint-*"):
        names = {item.name for item in path.iterdir()}
        assert {"model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"} <= names
        assert len(load_file(path / "model.safetensors")) > 100


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_anywhere(recipe, tmp_path) -> None:
    """At random moments, in a row: every checkpoint is whole, and the end is that of the run that was left alone."""
    died, events = killed_at(None, recipe, tmp_path / "whole")
    assert not died
    expected = load_file(tmp_path / "whole" / f"checkpoint-{STEPS}" / "model.safetensors")
    rng, kills, folder = random.Random(1), 0, tmp_path / "killed"
    while kills < KILLS:
        died, _ = killed_at(rng.randrange(events), recipe, folder)
        assert_whole(folder)
        kills += died
        if not died or kills == KILLS:
            if died:
                assert not killed_at(None, recipe, folder)[0]
            found = load_file(folder / f"checkpoint-{STEPS}" / "model.safetensors")
            assert all((found[name] == value).all() for name, value in expected.items())
            for name in ("loss", "grad_norm", "eval_dev_score"):
                assert history(folder, name) == history(tmp_path / "whole", name)
            assert not (folder / checkpoints.TEMPORARY).exists()
            shutil.rmtree(folder)


def test_disk_full(recipe, tmp_path, monkeypatch, capsys) -> None:
    """One line and status 2; the checkpoint before is whole and is gone on from."""
    save = checkpoints.Trainer._save_checkpoint

    def full(self, model, trial) -> None:
        save(self, model, trial)
        if self.state.global_step == 4:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints.Trainer, "_save_checkpoint", full)
    with pytest.raises(SystemExit) as stop:
        run(monkeypatch, recipe, "--output_dir", tmp_path / "run")
    assert stop.value.code == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert "checkpoint-4 cannot be written: No space left on device; earlier checkpoints are complete" in error
    assert [path.name for path in (tmp_path / "run").glob("checkpoint-*")] == ["checkpoint-2"]
    monkeypatch.setattr(checkpoints.Trainer, "_save_checkpoint", save)
    run(monkeypatch, recipe, "--output_dir", tmp_path / "run", "--resume_from_checkpoint", "auto")
    assert (tmp_path / "run" / f"checkpoint-{STEPS}").is_dir()


def test_read_only_folder(recipe, tmp_path, monkeypatch, capsys) -> None:
    """Known before the first step, not at the first checkpoint: one line and status 2."""

    def refused(*_, **__) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(tempfile, "TemporaryFile", refused)
    monkeypatch.setattr("cmlmcse.training.build.build_model", None)  # not reached
    with pytest.raises(SystemExit) as stop:
        run(monkeypatch, recipe, "--output_dir", tmp_path / "run")
    assert stop.value.code == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert "output_dir must be a folder that can be written" in error
    assert "(Read-only file system); choose another" in error


def test_best_checkpoint_is_kept(recipe, tmp_path, monkeypatch) -> None:
    """With a limit of 1 the best checkpoint stays beside the newest, and is what is exported."""
    scores = iter([50.0, 80.0, 60.0, 70.0])
    from cmlmcse.training.contrastive_trainer import ContrastiveTrainer

    monkeypatch.setattr(ContrastiveTrainer, "dev_metrics", lambda self: {"dev_score": next(scores)})
    folder = tmp_path / "run"
    run(monkeypatch, recipe, "--output_dir", folder, "--save_total_limit", 1)
    assert {path.name for path in folder.glob("checkpoint-*")} <= {"checkpoint-4", "checkpoint-8"}
    best, exported = (load_file(folder / name / "model.safetensors") for name in ("checkpoint-4", "export"))
    name = "encoder.layer.0.output.dense.weight"
    assert (best[f"backbone.{name}"] == exported[name]).all()


def test_checkpoints_by_time(recipe, tmp_path, monkeypatch) -> None:
    """Too soon after the one before only a new best and the last step are saved; a run that goes on from there has the
    same end."""
    from cmlmcse.training.contrastive_trainer import ContrastiveTrainer

    monkeypatch.setattr(
        ContrastiveTrainer, "dev_metrics", lambda self: {"dev_score": 50 + 30 * (self.state.global_step == 4)}
    )
    fields = ("--save_total_limit", 9, "--save_minutes")
    folders = {minutes: tmp_path / f"every {minutes}" for minutes in (0, 60)}
    for minutes, folder in folders.items():
        run(monkeypatch, recipe, "--output_dir", folder, *fields, minutes)
    kept = {minutes: {path.name for path in folder.glob("checkpoint-*")} for minutes, folder in folders.items()}
    assert kept == {
        0: {f"checkpoint-{step}" for step in (2, 4, 6, 8)},
        60: {f"checkpoint-{step}" for step in (2, 4, 8)},
    }
    shutil.rmtree(folders[60] / "checkpoint-8")
    run(monkeypatch, recipe, "--output_dir", folders[60], *fields, 60, "--resume_from_checkpoint", "auto")
    ends = [load_file(folder / "checkpoint-8" / "model.safetensors") for folder in folders.values()]
    assert all((ends[1][name] == value).all() for name, value in ends[0].items())


@pytest.mark.parametrize(("seconds", "step", "saved"), [(59, 6, False), (61, 6, True), (59, 8, True)])
def test_time_since_the_last_checkpoint(seconds, step, saved) -> None:
    """After its minutes a due checkpoint is saved; before, only that of the last step. Others are not saved."""
    callback, state = checkpoints.SavesByTime(1.0), SimpleNamespace(global_step=step, max_steps=8)
    callback.saved -= seconds
    for due in (True, False):
        control = SimpleNamespace(should_save=due)
        callback.on_step_end(None, state, control)
        assert control.should_save == (due and saved)
        assert callback.left_out == (due and not saved)


def test_sigterm_saves_and_stops(recipe, tmp_path, monkeypatch, capsys) -> None:
    """The step is finished and saved, also where none was due, and the end is that of the run that was left alone."""
    from cmlmcse.training.contrastive_trainer import ContrastiveTrainer

    run(monkeypatch, recipe, "--output_dir", tmp_path / "whole", "--save_total_limit", 9)
    step = ContrastiveTrainer.training_step

    def signalled(self, *args, **kwargs):
        if self.state.global_step == 4:  # during the fifth
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, *args, **kwargs)

    monkeypatch.setattr(ContrastiveTrainer, "training_step", signalled)
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as stop:
        run(monkeypatch, recipe, "--output_dir", tmp_path / "run", "--save_minutes", 60)
    assert stop.value.code == 143
    assert capsys.readouterr().err.strip().splitlines()[-1] == (
        "stopped: by SIGTERM after step 5, which is saved; go on with --resume_from_checkpoint auto"
    )
    assert signal.getsignal(signal.SIGTERM) is handler
    assert not (tmp_path / "run" / "export").exists()
    monkeypatch.setattr(ContrastiveTrainer, "training_step", step)
    run(monkeypatch, recipe, "--output_dir", tmp_path / "run", "--resume_from_checkpoint", "auto")
    for name in ("loss", "eval_dev_score"):
        assert history(tmp_path / "run", name) == history(tmp_path / "whole", name)


@pytest.mark.parametrize(
    ("options", "good"), [((), 3), (("--mini_batch_size", 4), 3), (("--gradient_accumulation_steps", 2), 7)]
)
def test_a_loss_that_is_no_number(options, good, recipe, tmp_path, monkeypatch, capsys) -> None:
    """Training stops before it learns from it, with one line that names the step; the checkpoint before is kept."""
    from cmlmcse.training.training_losses import TrainingLosses

    calls, contrast = [], TrainingLosses.contrast

    def broken(self, *given):
        loss, *rest = contrast(self, *given)
        calls.append(0)
        return (loss * (1.0 if len(calls) <= good else float("nan")), *rest)

    monkeypatch.setattr(TrainingLosses, "contrast", broken)
    with pytest.raises(SystemExit) as stop:
        run(monkeypatch, recipe, "--output_dir", tmp_path / "run", *options)
    assert stop.value.code == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("stopped: the loss of a batch of step 4 (epoch ")
    assert "is nan; checkpoints before it are good" in error
    assert [path.name for path in (tmp_path / "run").glob("checkpoint-*")] == ["checkpoint-2"]


def test_spare_checkpoints(tmp_path) -> None:
    """The oldest ones beyond the limit go, by their number; the newest and the best stay."""
    for step in (2, 10, 4, 8, 6):
        (tmp_path / f"checkpoint-{step}").mkdir()
    (tmp_path / "checkpoint-final").mkdir()

    def spare(limit, best=None):
        return [path.name for path in checkpoints.spare_checkpoints(tmp_path, limit, best and str(tmp_path / best))]

    assert spare(None) == spare(5) == spare(9) == []
    assert spare(3) == ["checkpoint-2", "checkpoint-4"]
    assert spare(3, "checkpoint-2") == ["checkpoint-4", "checkpoint-6"]
    assert spare(1, "checkpoint-4") == ["checkpoint-2", "checkpoint-6", "checkpoint-8"]
    assert spare(1) == ["checkpoint-2", "checkpoint-4", "checkpoint-6", "checkpoint-8"]
