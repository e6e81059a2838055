"""What checkpoints hold, when they are written, and what a full disk does."""

import json
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from cmlmcse.common.errors import InputError
from cmlmcse.training import checkpoints, frozen_weights, resume
from cmlmcse.training.contrastive_trainer import ContrastiveTrainer
from cmlmcse.training.frozen_weights import FROZEN, TRAINED, checkpoint_weights
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from support.training import STEPS, run

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(28, "No space left on device"), "No space left on device"),
        (RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 7"), "[enforce fail at inline_conta"),
    ],
)
def test_disk_full(error, reason, saving_recipe, tmp_path, monkeypatch, capsys) -> None:
    """One line and status 2; the checkpoint before is whole and is gone on from. PyTorch's writer has its own error."""
    save = checkpoints.Trainer._save_checkpoint

    def full(self, model, trial) -> None:
        save(self, model, trial)
        if self.state.global_step == 4:
            raise error

    monkeypatch.setattr(checkpoints.Trainer, "_save_checkpoint", full)
    with pytest.raises(SystemExit) as stop:
        run(monkeypatch, saving_recipe, "--output_dir", tmp_path / "run")
    assert stop.value.code == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert f"checkpoint-4 cannot be written: {reason}" in line
    assert "earlier checkpoints are complete" in line
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"checkpoint-2", "dev_start.npz"}
    monkeypatch.setattr(checkpoints.Trainer, "_save_checkpoint", save)
    run(monkeypatch, saving_recipe, "--output_dir", tmp_path / "run", "--resume_from_checkpoint", "auto")
    assert (tmp_path / "run" / f"checkpoint-{STEPS}").is_dir()


def test_read_only_folder(saving_recipe, tmp_path, monkeypatch, capsys) -> None:
    """Known before the first step, not at the first checkpoint: one line and status 2."""

    def refused(*_, **__) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(tempfile, "TemporaryFile", refused)
    monkeypatch.setattr("cmlmcse.training.encoder_training.build_model", None)  # not reached
    with pytest.raises(SystemExit) as stop:
        run(monkeypatch, saving_recipe, "--output_dir", tmp_path / "run")
    assert stop.value.code == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert "output_dir must be a folder that can be written" in error
    assert "(Read-only file system); choose another" in error


def test_best_checkpoint_is_kept(saving_recipe, tmp_path, monkeypatch) -> None:
    """With a limit of 1 the best checkpoint stays beside the newest, and is what is exported."""
    scores = iter([50.0, 80.0, 60.0, 70.0])
    monkeypatch.setattr(ContrastiveTrainer, "dev_metrics", lambda self: {"dev_score": next(scores)})
    folder = tmp_path / "run"
    run(monkeypatch, saving_recipe, "--output_dir", folder, "--save_total_limit", 1)
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


def test_checkpoints_by_time(saving_recipe, tmp_path, monkeypatch) -> None:
    """Too soon after the one before, the last step is saved, and a new best by its weights alone. A run that is resumed
    goes on from one that holds more, and has the same end."""
    by_the_clock(monkeypatch)
    fields, folder = ("--save_total_limit", 9, "--save_minutes", 50), tmp_path / "run"
    run(monkeypatch, saving_recipe, "--output_dir", folder, *fields)
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
        run(monkeypatch, saving_recipe, "--output_dir", folder, *fields, "--resume_from_checkpoint", "auto")
        again = [checkpoint_weights(folder / name) for name in ("checkpoint-8", "export")]
        for one, other in zip(ends, again, strict=True):
            assert all(torch.equal(one[name], value) for name, value in other.items())
        shutil.rmtree(folder / "checkpoint-8")
    assert resume.newest_checkpoint(folder) == folder / "checkpoint-4"


def test_weights_alone_cannot_be_gone_on_from(saving_recipe, tmp_path, monkeypatch) -> None:
    """Named, such a checkpoint is refused, and so is one that lacks a part of its weights."""
    by_the_clock(monkeypatch)
    folder = tmp_path / "run"
    run(monkeypatch, saving_recipe, "--output_dir", folder, "--save_minutes", 50)
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


def test_frozen_weights_are_written_once(saving_recipe, tmp_path, monkeypatch) -> None:
    """All checkpoints of a run name one file; each is whole by itself, moved or the last one left. Without hard links
    each has a file of its own. All load, and hold what a checkpoint in one file held."""
    fields = ("--save_total_limit", 9, "--output_dir")
    run(monkeypatch, saving_recipe, *fields, tmp_path / "run")
    found = [tmp_path / "run" / f"checkpoint-{step}" for step in (2, 4, 6, 8)]
    assert len({(path / FROZEN).stat().st_ino for path in found}) == 1
    assert len({(path / TRAINED).stat().st_ino for path in found}) == 4
    monkeypatch.setattr(frozen_weights.os, "link", lambda *_: (_ for _ in ()).throw(OSError(1, "not permitted")))
    run(monkeypatch, saving_recipe, *fields, tmp_path / "copies")
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


def test_a_checkpoint_of_before_in_one_file(saving_recipe, tmp_path, monkeypatch) -> None:
    """Older versions wrote all weights into one file: a run goes on from it to the same end."""
    run(monkeypatch, saving_recipe, "--save_total_limit", 9, "--output_dir", tmp_path / "run")
    old = shutil.copytree(tmp_path / "run" / "checkpoint-4", tmp_path / "old" / "checkpoint-4")
    save_file(checkpoint_weights(old), old / "model.safetensors", {"format": "pt"})
    for name in (TRAINED, FROZEN, "model.safetensors.index.json"):
        (old / name).unlink()
    run(monkeypatch, saving_recipe, "--output_dir", tmp_path / "old", "--resume_from_checkpoint", "auto")
    one, other = (checkpoint_weights(tmp_path / name / "checkpoint-8") for name in ("run", "old"))
    assert all(torch.equal(one[name], weight) for name, weight in other.items())


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


def test_a_pooling_that_keeps_its_head(saving_recipe, tmp_path, monkeypatch) -> None:
    """Its checkpoints have the head in a file for sentence-transformers too."""
    run(monkeypatch, saving_recipe, "--pooling", "cls", "--projection", "mlp", "--output_dir", tmp_path / "run")
    assert list((tmp_path / "run").glob("checkpoint-*/*_Dense/model.safetensors"))


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
