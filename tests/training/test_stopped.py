"""A run that ends early: killed anywhere, saving included, stopped by a signal, or by a loss that is no number."""

import os
import random
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from cmlmcse.training import checkpoints, resume
from cmlmcse.training.command import kept_checkpoint
from cmlmcse.training.contrastive_trainer import ContrastiveTrainer
from cmlmcse.training.frozen_weights import FROZEN, TRAINED, checkpoint_weights
from support import warm
from support.paths import ROOT
from support.training import STEPS, history, run

pytestmark = pytest.mark.slow
KILLS = int(os.environ.get("CMLMCSE_KILLS", "6"))  # CMLMCSE_KILLS=20 for the figure in robustness.md


def killed_at(event: int | None, saving_recipe: Path, folder: Path) -> tuple[bool, int]:
    """Train until the so-manieth event in the folder, and go on from what is there. Whether the run died, and how many
    such events there were."""
    resume = ["--resume_from_checkpoint", "auto"] if list(folder.glob("checkpoint-*")) else []
    if not resume:
        shutil.rmtree(folder, ignore_errors=True)
    script = ROOT / "tests" / "support" / "killable.py"
    command = [warm.python(), script, folder, "none" if event is None else event, saving_recipe, "--output_dir", folder]
    done = subprocess.run(list(map(str, [*command, *resume])), capture_output=True, text=True, check=False, timeout=240)
    died = done.returncode == -signal.SIGKILL
    assert died or done.returncode == 0, done.stderr[-2000:]
    return died, folder.with_suffix(".events").stat().st_size


def assert_whole(folder: Path) -> None:
    """Whatever is called a checkpoint holds all its files, and they can be read."""
    for path in folder.glob("checkpoint-*"):
        names = {item.name for item in path.iterdir()}
        assert {TRAINED, FROZEN, "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"} <= names
        assert len(checkpoint_weights(path)) > 100


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_anywhere(saving_recipe, tmp_path) -> None:
    """At random moments, in a row: every checkpoint is whole, and the end is that of the run that was left alone."""
    died, events = killed_at(None, saving_recipe, tmp_path / "whole")
    assert not died
    expected = checkpoint_weights(tmp_path / "whole" / f"checkpoint-{STEPS}")
    rng, kills, folder = random.Random(1), 0, tmp_path / "killed"
    while kills < KILLS:
        died, _ = killed_at(rng.randrange(events), saving_recipe, folder)
        assert_whole(folder)
        kills += died
        if not died or kills == KILLS:
            if died:
                assert not killed_at(None, saving_recipe, folder)[0]
            found = checkpoint_weights(folder / f"checkpoint-{STEPS}")
            assert all((found[name] == value).all() for name, value in expected.items())
            for name in ("loss", "grad_norm", "eval_dev_score"):
                assert history(folder, name) == history(tmp_path / "whole", name)
            assert not (folder / checkpoints.TEMPORARY).exists()
            shutil.rmtree(folder)


@pytest.mark.parametrize("during", (4, 5))
def test_sigterm_saves_and_stops(during, saving_recipe, tmp_path, monkeypatch, capsys) -> None:
    """The step is finished and saved, also where none was due, or was too soon, and the end is that of the run that was
    left alone."""
    run(monkeypatch, saving_recipe, "--output_dir", tmp_path / "whole", "--save_total_limit", 9)
    step = ContrastiveTrainer.training_step

    def signalled(self, *args, **kwargs):
        if self.state.global_step == during - 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, *args, **kwargs)

    monkeypatch.setattr(ContrastiveTrainer, "training_step", signalled)
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as stop:
        run(monkeypatch, saving_recipe, "--output_dir", tmp_path / "run", "--save_minutes", 60)
    assert stop.value.code == 143
    assert capsys.readouterr().err.strip().splitlines()[-1] == (
        f"stopped: by SIGTERM after step {during}, which is saved; go on with --resume_from_checkpoint auto"
    )
    assert signal.getsignal(signal.SIGTERM) is handler
    assert not (tmp_path / "run" / "export").exists()
    assert resume.can_go_on(tmp_path / "run" / f"checkpoint-{during}")
    monkeypatch.setattr(ContrastiveTrainer, "training_step", step)
    run(monkeypatch, saving_recipe, "--output_dir", tmp_path / "run", "--resume_from_checkpoint", "auto")
    for name in ("loss", "eval_dev_score"):
        assert history(tmp_path / "run", name) == history(tmp_path / "whole", name)


def test_sigterm_after_the_last_step(saving_recipe, tmp_path, monkeypatch, capsys) -> None:
    """While the last checkpoint is scored: it is saved, and nothing is exported until the run is resumed."""
    score, folder = ContrastiveTrainer.dev_metrics, tmp_path / "run"

    def signalled(self):
        if self.state.global_step == STEPS:
            os.kill(os.getpid(), signal.SIGTERM)
        return score(self)

    monkeypatch.setattr(ContrastiveTrainer, "dev_metrics", signalled)
    with pytest.raises(SystemExit) as stop:
        run(monkeypatch, saving_recipe, "--output_dir", folder)
    assert stop.value.code == 143
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith(f"stopped: by SIGTERM after step {STEPS}, which is saved")
    assert resume.can_go_on(folder / f"checkpoint-{STEPS}")
    assert not (folder / "export").exists()
    run(monkeypatch, saving_recipe, "--output_dir", folder, "--resume_from_checkpoint", "auto")
    assert len(history(folder, "eval_dev_score")) == 1 + STEPS // 2


@pytest.mark.parametrize(
    ("options", "good"), [((), 3), (("--mini_batch_size", 4), 3), (("--gradient_accumulation_steps", 2), 7)]
)
def test_a_loss_that_is_no_number(options, good, saving_recipe, tmp_path, monkeypatch, capsys) -> None:
    """Training stops before it learns from it, with one line that names the step; the checkpoint before is kept."""
    from cmlmcse.training.training_losses import TrainingLosses

    calls, contrast = [], TrainingLosses.contrast

    def broken(self, *given, **targets):
        loss, *rest = contrast(self, *given, **targets)
        calls.append(0)
        return (loss * (1.0 if len(calls) <= good else float("nan")), *rest)

    monkeypatch.setattr(TrainingLosses, "contrast", broken)
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as stop:
        run(monkeypatch, saving_recipe, "--output_dir", tmp_path / "run", *options)
    assert stop.value.code == 1
    assert signal.getsignal(signal.SIGTERM) is handler  # not that of the training which has ended
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("stopped: the loss of a batch of step 4 (epoch ")
    assert "is nan; checkpoints before it are good" in error
    assert [path.name for path in (tmp_path / "run").glob("checkpoint-*")] == ["checkpoint-2"]


def test_what_an_interrupted_run_says(tmp_path) -> None:
    """The line after Ctrl-C tells what the same command can do."""
    assert "the same command starts again" in kept_checkpoint(tmp_path)
    (tmp_path / "checkpoint-2").mkdir()  # weights alone
    assert kept_checkpoint(tmp_path) == (
        "only weights were saved yet; --resume_from_checkpoint auto starts from the beginning"
    )
    for name in ("trainer_state.json", "rng_state.pth"):
        (tmp_path / "checkpoint-2" / name).touch()
    assert kept_checkpoint(tmp_path).endswith("checkpoint-2 is kept; go on with --resume_from_checkpoint auto")
