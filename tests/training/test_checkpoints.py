"""A run that is killed anywhere, saving included, goes on to the very weights of a run that was not."""

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from safetensors.torch import save_file

from cmlmcse.common.errors import InputError
from cmlmcse.training import checkpoints, frozen_weights, resume
from cmlmcse.training.command import kept_checkpoint
from cmlmcse.training.contrastive_trainer import ContrastiveTrainer
from cmlmcse.training.frozen_weights import FROZEN, TRAINED, checkpoint_weights
from cmlmcse.training.started_with import FIELDS, check_started_with
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from support import warm
from support.paths import ROOT
from support.tiny import WORDS
from support.training import history, run, write_pairs

pytestmark = pytest.mark.slow
KILLS = int(os.environ.get("CMLMCSE_KILLS", "6"))  # CMLMCSE_KILLS=20 for the figure in robustness.md
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
        assert {TRAINED, FROZEN, "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"} <= names
        assert len(checkpoint_weights(path)) > 100


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_anywhere(recipe, tmp_path) -> None:
    """At random moments, in a row: every checkpoint is whole, and the end is that of the run that was left alone."""
    died, events = killed_at(None, recipe, tmp_path / "whole")
    assert not died
    expected = checkpoint_weights(tmp_path / "whole" / f"checkpoint-{STEPS}")
    rng, kills, folder = random.Random(1), 0, tmp_path / "killed"
    while kills < KILLS:
        died, _ = killed_at(rng.randrange(events), recipe, folder)
        assert_whole(folder)
        kills += died
        if not died or kills == KILLS:
            if died:
                assert not killed_at(None, recipe, folder)[0]
            found = checkpoint_weights(folder / f"checkpoint-{STEPS}")
            assert all((found[name] == value).all() for name, value in expected.items())
            for name in ("loss", "grad_norm", "eval_dev_score"):
                assert history(folder, name) == history(tmp_path / "whole", name)
            assert not (folder / checkpoints.TEMPORARY).exists()
            shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(28, "No space left on device"), "No space left on device"),
        (RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 7"), "[enforce fail at inline_conta"),
    ],
)
def test_disk_full(error, reason, recipe, tmp_path, monkeypatch, capsys) -> None:
    """One line and status 2; the checkpoint before is whole and is gone on from. PyTorch's writer has its own error."""
    save = checkpoints.Trainer._save_checkpoint

    def full(self, model, trial) -> None:
        save(self, model, trial)
        if self.state.global_step == 4:
            raise error

    monkeypatch.setattr(checkpoints.Trainer, "_save_checkpoint", full)
    with pytest.raises(SystemExit) as stop:
        run(monkeypatch, recipe, "--output_dir", tmp_path / "run")
    assert stop.value.code == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert f"checkpoint-4 cannot be written: {reason}" in line
    assert "earlier checkpoints are complete" in line
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"checkpoint-2", "dev_start.npz"}
    monkeypatch.setattr(checkpoints.Trainer, "_save_checkpoint", save)
    run(monkeypatch, recipe, "--output_dir", tmp_path / "run", "--resume_from_checkpoint", "auto")
    assert (tmp_path / "run" / f"checkpoint-{STEPS}").is_dir()


def test_read_only_folder(recipe, tmp_path, monkeypatch, capsys) -> None:
    """Known before the first step, not at the first checkpoint: one line and status 2."""

    def refused(*_, **__) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(tempfile, "TemporaryFile", refused)
    monkeypatch.setattr("cmlmcse.training.encoder_training.build_model", None)  # not reached
    with pytest.raises(SystemExit) as stop:
        run(monkeypatch, recipe, "--output_dir", tmp_path / "run")
    assert stop.value.code == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert "output_dir must be a folder that can be written" in error
    assert "(Read-only file system); choose another" in error


def test_best_checkpoint_is_kept(recipe, tmp_path, monkeypatch) -> None:
    """With a limit of 1 the best checkpoint stays beside the newest, and is what is exported."""
    scores = iter([50.0, 80.0, 60.0, 70.0])
    monkeypatch.setattr(ContrastiveTrainer, "dev_metrics", lambda self: {"dev_score": next(scores)})
    folder = tmp_path / "run"
    run(monkeypatch, recipe, "--output_dir", folder, "--save_total_limit", 1)
    assert {path.name for path in folder.glob("checkpoint-*")} <= {"checkpoint-4", "checkpoint-8"}
    best, exported = (checkpoint_weights(folder / name) for name in ("checkpoint-4", "export"))
    name = "encoder.layer.0.output.dense.weight"
    assert (best[f"backbone.{name}"] == exported[name]).all()


def by_the_clock(monkeypatch) -> None:
    """An hour passes between the second step and the fourth; the best score is that of the sixth."""
    clock, scores = [0.0], {2: 50.0, 4: 60.0, 6: 80.0, 8: 70.0}

    def score(trainer: ContrastiveTrainer) -> dict[str, float]:
        clock[0] += 3600 * (trainer.state.global_step == 2)
        return {"dev_score": scores[trainer.state.global_step]}

    monkeypatch.setattr(ContrastiveTrainer, "dev_metrics", score)
    monkeypatch.setattr(checkpoints, "time", SimpleNamespace(monotonic=lambda: clock[0]))


def test_checkpoints_by_time(recipe, tmp_path, monkeypatch) -> None:
    """Too soon after the one before, the last step is saved, and a new best by its weights alone. A run that is resumed
    goes on from one that holds more, and has the same end."""
    by_the_clock(monkeypatch)
    fields, folder = ("--save_total_limit", 9, "--save_minutes", 50), tmp_path / "run"
    run(monkeypatch, recipe, "--output_dir", folder, *fields)
    whole = {path.name: resume.can_go_on(path) for path in folder.glob("checkpoint-*")}
    assert whole == {"checkpoint-2": False, "checkpoint-4": True, "checkpoint-6": False, "checkpoint-8": True}
    sizes = {name: sum(file.stat().st_size for file in (folder / name).iterdir()) for name in whole}
    assert sizes["checkpoint-6"] < 0.6 * sizes["checkpoint-4"]
    ends = [checkpoint_weights(folder / name) for name in ("checkpoint-8", "export")]
    for step in (8, 4):  # what it would go on from: the end, the middle, and in the end nothing
        assert resume.newest_checkpoint(folder) == folder / f"checkpoint-{step}"
        shutil.rmtree(folder / f"checkpoint-{step}")
        (folder / "results.json").unlink()  # the run had not ended
        by_the_clock(monkeypatch)
        run(monkeypatch, recipe, "--output_dir", folder, *fields, "--resume_from_checkpoint", "auto")
        again = [checkpoint_weights(folder / name) for name in ("checkpoint-8", "export")]
        for one, other in zip(ends, again, strict=True):
            assert all(torch.equal(one[name], value) for name, value in other.items())
        shutil.rmtree(folder / "checkpoint-8")
    assert resume.newest_checkpoint(folder) == folder / "checkpoint-4"


def test_weights_alone_cannot_be_gone_on_from(recipe, tmp_path, monkeypatch) -> None:
    """Named, such a checkpoint is refused, and so is one that lacks a part of its weights."""
    by_the_clock(monkeypatch)
    folder = tmp_path / "run"
    run(monkeypatch, recipe, "--output_dir", folder, "--save_minutes", 50)
    assert {path.name for path in folder.glob("checkpoint-*")} == {
        "checkpoint-6",
        "checkpoint-8",
    }  # the best, the newest
    with pytest.raises(InputError, match="name a checkpoint-N folder that holds more than weights"):
        resume.find_checkpoint(folder, str(folder / "checkpoint-6"))
    assert resume.find_checkpoint(folder, "auto") == str(folder / "checkpoint-8")
    (folder / "checkpoint-8" / FROZEN).unlink()
    with pytest.raises(InputError, match=f"checkpoint-8/{FROZEN}: expected tensors and plain values"):
        resume.find_checkpoint(folder, "auto")


def test_frozen_weights_are_written_once(recipe, tmp_path, monkeypatch) -> None:
    """All checkpoints of a run name one file; each is whole by itself, moved or the last one left. Without hard links
    each has a file of its own. All load, and hold what a checkpoint in one file held."""
    fields = ("--save_total_limit", 9, "--output_dir")
    run(monkeypatch, recipe, *fields, tmp_path / "run")
    found = [tmp_path / "run" / f"checkpoint-{step}" for step in (2, 4, 6, 8)]
    assert len({(path / FROZEN).stat().st_ino for path in found}) == 1
    assert len({(path / TRAINED).stat().st_ino for path in found}) == 4
    monkeypatch.setattr(frozen_weights.os, "link", lambda *_: (_ for _ in ()).throw(OSError(1, "not permitted")))
    run(monkeypatch, recipe, *fields, tmp_path / "copies")
    assert len({(path / FROZEN).stat().st_ino for path in (tmp_path / "copies").glob("checkpoint-*")}) == 4
    moved = shutil.copytree(found[3], tmp_path / "elsewhere")
    expected = checkpoint_weights(found[3])
    shutil.rmtree(tmp_path / "run")
    for path in (moved, tmp_path / "copies" / "checkpoint-8"):
        model = CMLMCSEForSentenceEmbedding.from_pretrained(path)
        assert model.state_dict().keys() == expected.keys()
        assert all(torch.equal(expected[name], weight) for name, weight in model.state_dict().items())
    frozen = {name for name in expected if name.startswith("auxiliary.cmlm.extractor.")}
    assert frozen_weights.frozen_names(model) == frozen
    index = json.loads((moved / "model.safetensors.index.json").read_text())
    assert index["weight_map"] == {name: FROZEN if name in frozen else TRAINED for name in expected}


def test_a_checkpoint_of_before_in_one_file(recipe, tmp_path, monkeypatch) -> None:
    """Older versions wrote all weights into one file: a run goes on from it to the same end."""
    run(monkeypatch, recipe, "--save_total_limit", 9, "--output_dir", tmp_path / "run")
    old = shutil.copytree(tmp_path / "run" / "checkpoint-4", tmp_path / "old" / "checkpoint-4")
    save_file(checkpoint_weights(old), old / "model.safetensors", {"format": "pt"})
    for name in (TRAINED, FROZEN, "model.safetensors.index.json"):
        (old / name).unlink()
    run(monkeypatch, recipe, "--output_dir", tmp_path / "old", "--resume_from_checkpoint", "auto")
    one, other = (checkpoint_weights(tmp_path / name / "checkpoint-8") for name in ("run", "old"))
    assert all(torch.equal(one[name], weight) for name, weight in other.items())


def test_processes_that_see_different_folders(tmp_path, monkeypatch) -> None:
    """On a machine whose disk is its own there is no checkpoint: one line, before anything is trained."""
    monkeypatch.setattr(resume, "from_first_process", lambda step: 125)
    with pytest.raises(InputError, match="found checkpoint-125 on the first process and no checkpoint on process 0"):
        resume.find_checkpoint(tmp_path, "auto")


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


def test_a_pooling_that_keeps_its_head(recipe, tmp_path, monkeypatch) -> None:
    """Its checkpoints have the head in a file for sentence-transformers too."""
    run(monkeypatch, recipe, "--pooling", "cls", "--projection", "mlp", "--output_dir", tmp_path / "run")
    assert list((tmp_path / "run").glob("checkpoint-*/*_Dense/model.safetensors"))


@pytest.mark.parametrize("during", (4, 5))
def test_sigterm_saves_and_stops(during, recipe, tmp_path, monkeypatch, capsys) -> None:
    """The step is finished and saved, also where none was due, or was too soon, and the end is that of the run that was
    left alone."""
    run(monkeypatch, recipe, "--output_dir", tmp_path / "whole", "--save_total_limit", 9)
    step = ContrastiveTrainer.training_step

    def signalled(self, *args, **kwargs):
        if self.state.global_step == during - 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, *args, **kwargs)

    monkeypatch.setattr(ContrastiveTrainer, "training_step", signalled)
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as stop:
        run(monkeypatch, recipe, "--output_dir", tmp_path / "run", "--save_minutes", 60)
    assert stop.value.code == 143
    assert capsys.readouterr().err.strip().splitlines()[-1] == (
        f"stopped: by SIGTERM after step {during}, which is saved; go on with --resume_from_checkpoint auto"
    )
    assert signal.getsignal(signal.SIGTERM) is handler
    assert not (tmp_path / "run" / "export").exists()
    assert resume.can_go_on(tmp_path / "run" / f"checkpoint-{during}")
    monkeypatch.setattr(ContrastiveTrainer, "training_step", step)
    run(monkeypatch, recipe, "--output_dir", tmp_path / "run", "--resume_from_checkpoint", "auto")
    for name in ("loss", "eval_dev_score"):
        assert history(tmp_path / "run", name) == history(tmp_path / "whole", name)


def test_sigterm_after_the_last_step(recipe, tmp_path, monkeypatch, capsys) -> None:
    """While the last checkpoint is scored: it is saved, and nothing is exported until the run is resumed."""
    score, folder = ContrastiveTrainer.dev_metrics, tmp_path / "run"

    def signalled(self):
        if self.state.global_step == STEPS:
            os.kill(os.getpid(), signal.SIGTERM)
        return score(self)

    monkeypatch.setattr(ContrastiveTrainer, "dev_metrics", signalled)
    with pytest.raises(SystemExit) as stop:
        run(monkeypatch, recipe, "--output_dir", folder)
    assert stop.value.code == 143
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith(f"stopped: by SIGTERM after step {STEPS}, which is saved")
    assert resume.can_go_on(folder / f"checkpoint-{STEPS}")
    assert not (folder / "export").exists()
    run(monkeypatch, recipe, "--output_dir", folder, "--resume_from_checkpoint", "auto")
    assert len(history(folder, "eval_dev_score")) == 1 + STEPS // 2


@pytest.mark.parametrize(
    ("options", "good"), [((), 3), (("--mini_batch_size", 4), 3), (("--gradient_accumulation_steps", 2), 7)]
)
def test_a_loss_that_is_no_number(options, good, recipe, tmp_path, monkeypatch, capsys) -> None:
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
        run(monkeypatch, recipe, "--output_dir", tmp_path / "run", *options)
    assert stop.value.code == 1
    assert signal.getsignal(signal.SIGTERM) is handler  # not that of the training which has ended
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

    assert spare(None) == spare(5) == spare(9) == spare(0) == spare(-1) == []
    assert spare(3) == ["checkpoint-2", "checkpoint-4"]
    assert spare(3, "checkpoint-2") == ["checkpoint-4", "checkpoint-6"]
    assert spare(1, "checkpoint-4") == ["checkpoint-2", "checkpoint-6", "checkpoint-8"]
    assert spare(1) == ["checkpoint-2", "checkpoint-4", "checkpoint-6", "checkpoint-8"]
    (tmp_path / "checkpoint-6" / "trainer_state.json").write_text("{}")
    (tmp_path / "checkpoint-6" / "rng_state.pth").touch()  # the others hold weights alone
    assert spare(1, "checkpoint-10") == ["checkpoint-2", "checkpoint-4", "checkpoint-8"]
    state = {"best_model_checkpoint": "elsewhere/checkpoint-4"}  # a run that goes on from checkpoint-6 may export it
    (tmp_path / "checkpoint-6" / "trainer_state.json").write_text(json.dumps(state))
    assert spare(1, "checkpoint-10") == ["checkpoint-2", "checkpoint-8"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_disks_of_torch() -> None:
    """What PyTorch raises where nothing can be written names the file that the check looks for."""
    with pytest.raises(RuntimeError, match=checkpoints.ZIP_WRITER):
        torch.save(torch.zeros(100_000), "/dev/full")


def test_going_on_from_an_earlier_checkpoint(recipe, tmp_path, monkeypatch) -> None:
    """The later ones are set aside at the first save, damaged or not, so that none of them is taken for the newest."""
    folder = tmp_path / "run"
    run(monkeypatch, recipe, "--output_dir", folder, "--save_total_limit", 9)
    (folder / "checkpoint-8" / "trainer_state.json").write_text("{")
    run(monkeypatch, recipe, "--output_dir", folder, "--resume_from_checkpoint", folder / "checkpoint-4",
        "--max_steps", 6, "--save_total_limit", 9)  # fmt: skip
    assert resume.newest_checkpoint(folder) == folder / "checkpoint-6"
    assert sorted(path.name for path in folder.glob("*checkpoint-*")) == [
        "abandoned-checkpoint-8", "checkpoint-2", "checkpoint-4", "checkpoint-6"
    ]  # fmt: skip


def test_a_run_goes_on_in_its_own_folder(recipe, tmp_path, monkeypatch, capsys) -> None:
    """Neither another run nor what somebody keeps under these names is overwritten by a run that goes on; a new folder
    is fine, and knows the scores of the start."""
    first = tmp_path / "first"
    run(monkeypatch, recipe, "--output_dir", first, "--max_steps", 4)
    before = json.loads((first / "results.json").read_text())["dev"]["before"]
    other, mine = tmp_path / "other", tmp_path / "mine"
    for place, resumed in ((other, first / "checkpoint-4"), (mine, "auto")):
        (place / "export").mkdir(parents=True)
        (place / "export" / "thesis.txt").write_text("years of work")
        with pytest.raises(SystemExit):
            run(monkeypatch, recipe, "--output_dir", place, "--resume_from_checkpoint", resumed)
        assert "output_dir must be new or empty of runs, found export of another run" in capsys.readouterr().err
        assert (place / "export" / "thesis.txt").read_text() == "years of work"
    for wrong in (first, "nosuch"):  # not another run: the folder is not to blame
        with pytest.raises(SystemExit):
            run(monkeypatch, recipe, "--output_dir", first, "--resume_from_checkpoint", wrong)
        assert "--resume_from_checkpoint expects auto or a checkpoint folder" in capsys.readouterr().err
    run(monkeypatch, recipe, "--output_dir", tmp_path / "new", "--resume_from_checkpoint", first / "checkpoint-4")
    assert json.loads((tmp_path / "new" / "results.json").read_text())["dev"]["before"] == before


def test_what_run_json_says(recipe, tmp_path, monkeypatch) -> None:
    """The text is that of the start, though somebody changed the file meanwhile; and a schedule has its settings."""
    text = tmp_path / "text.txt"
    content = text.read_bytes()
    train = ContrastiveTrainer.train

    def changed(self, *args, **kwargs):
        text.unlink()
        return train(self, *args, **kwargs)

    monkeypatch.setattr(ContrastiveTrainer, "train", changed)
    run(monkeypatch, recipe, "--output_dir", tmp_path / "run", "--max_steps", 2, "--lr_scheduler_type",
        "cosine_with_restarts", "--lr_scheduler_kwargs", '{"num_cycles": 3}')  # fmt: skip
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["train_data"]["sha256"] == hashlib.sha256(content).hexdigest()
    assert record["fields"]["lr_scheduler_kwargs"] == {"num_cycles": 3}


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


def test_another_number_of_processes(tmp_path) -> None:
    """The batch of all processes together must stay; of a stream the number of processes too. Older versions did not
    keep it."""
    two = {"per_device_train_batch_size": 9, "processes": 2, "streaming": False}
    check, path = partial(check_started_with, str(tmp_path)), tmp_path / FIELDS
    path.write_text(json.dumps(two))
    check({**two, "per_device_train_batch_size": 18, "processes": 1})
    with pytest.raises(InputError, match=r"expects a batch of 9 on each of 2 processes \(18 in all\), as "):
        check({**two, "processes": 1})
    with pytest.raises(InputError, match=r"found 10 on each of 2 \(20 in all\); give a .*_batch_size of 9, or "):
        check({**two, "per_device_train_batch_size": 10})
    path.write_text(json.dumps({**two, "streaming": True}))
    for size in (9, 18):  # also where the batch of both together stays
        with pytest.raises(InputError, match=r"expects 2 processes, .* found 1: .* on with 2 and a .*_size of 9, or "):
            check({"per_device_train_batch_size": size, "processes": 1, "streaming": True})
    with pytest.raises(InputError, match="expects the per_device_train_batch_size that the run was started with, 9"):
        check({"per_device_train_batch_size": 18, "processes": 2, "streaming": True})
    path.write_text(json.dumps({"per_device_train_batch_size": 9, "streaming": False}))
    with pytest.raises(InputError, match="expects the per_device_train_batch_size that the run was started"):
        check({**two, "per_device_train_batch_size": 18})


def test_a_checkpoint_that_kept_one_text(tmp_path) -> None:
    """Older versions kept the text without a list around it."""
    kept = {"train_file": {"file": "a.txt"}, "synonyms": None, "seed": 1}
    (tmp_path / FIELDS).write_text(json.dumps(kept))
    check_started_with(str(tmp_path), {"train_file": [{"file": "a.txt"}], "synonyms": [], "seed": 1})
    with pytest.raises(InputError, match=r"the run was started with, a\.txt, found b\.txt"):
        check_started_with(str(tmp_path), {"train_file": [{"file": "b.txt"}], "synonyms": [], "seed": 1})
