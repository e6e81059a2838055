"""From which checkpoint a run goes on, with which fields, and what its records then say."""

import hashlib
import json
from functools import partial

import pytest

from cmlmcse.common.errors import InputError
from cmlmcse.training import resume
from cmlmcse.training.contrastive_trainer import ContrastiveTrainer
from cmlmcse.training.started_with import FIELDS, check_started_with
from support.training import run

pytestmark = pytest.mark.slow


def test_processes_that_see_different_folders(tmp_path, monkeypatch) -> None:
    """On a machine whose disk is its own there is no checkpoint: one line, before anything is trained."""
    monkeypatch.setattr(resume, "from_first_process", lambda step: 125)
    with pytest.raises(InputError, match="found checkpoint-125 on the first process and no checkpoint on process 0"):
        resume.find_checkpoint(tmp_path, "auto")


def test_going_on_from_an_earlier_checkpoint(saving_recipe, tmp_path, monkeypatch) -> None:
    """The later ones are set aside at the first save, damaged or not, so that none of them is taken for the newest."""
    folder = tmp_path / "run"
    run(monkeypatch, saving_recipe, "--output_dir", folder, "--save_total_limit", 9)
    (folder / "checkpoint-8" / "trainer_state.json").write_text("{")
    run(monkeypatch, saving_recipe, "--output_dir", folder, "--resume_from_checkpoint", folder / "checkpoint-4",
        "--max_steps", 6, "--save_total_limit", 9)  # fmt: skip
    assert resume.newest_checkpoint(folder) == folder / "checkpoint-6"
    assert sorted(path.name for path in folder.glob("*checkpoint-*")) == [
        "abandoned-checkpoint-8", "checkpoint-2", "checkpoint-4", "checkpoint-6"
    ]  # fmt: skip


def test_a_run_goes_on_in_its_own_folder(saving_recipe, tmp_path, monkeypatch, capsys) -> None:
    """Neither another run nor what somebody keeps under these names is overwritten by a run that goes on; a new folder
    is fine, and knows the scores of the start."""
    first = tmp_path / "first"
    run(monkeypatch, saving_recipe, "--output_dir", first, "--max_steps", 4)
    before = json.loads((first / "results.json").read_text())["dev"]["before"]
    other, mine = tmp_path / "other", tmp_path / "mine"
    for place, resumed in ((other, first / "checkpoint-4"), (mine, "auto")):
        (place / "export").mkdir(parents=True)
        (place / "export" / "thesis.txt").write_text("years of work")
        with pytest.raises(SystemExit):
            run(monkeypatch, saving_recipe, "--output_dir", place, "--resume_from_checkpoint", resumed)
        assert "output_dir must be new or empty of runs, found export of another run" in capsys.readouterr().err
        assert (place / "export" / "thesis.txt").read_text() == "years of work"
    for wrong in (first, "nosuch"):  # not another run: the folder is not to blame
        with pytest.raises(SystemExit):
            run(monkeypatch, saving_recipe, "--output_dir", first, "--resume_from_checkpoint", wrong)
        assert "--resume_from_checkpoint expects auto or a checkpoint folder" in capsys.readouterr().err
    run(
        monkeypatch, saving_recipe, "--output_dir", tmp_path / "new", "--resume_from_checkpoint", first / "checkpoint-4"
    )
    assert json.loads((tmp_path / "new" / "results.json").read_text())["dev"]["before"] == before


def test_what_run_json_says(saving_recipe, tmp_path, monkeypatch) -> None:
    """The text is that of the start, though somebody changed the file meanwhile; and a schedule has its settings."""
    text = tmp_path / "text.txt"
    content = text.read_bytes()
    train = ContrastiveTrainer.train

    def changed(self, *args, **kwargs):
        text.unlink()
        return train(self, *args, **kwargs)

    monkeypatch.setattr(ContrastiveTrainer, "train", changed)
    run(monkeypatch, saving_recipe, "--output_dir", tmp_path / "run", "--max_steps", 2, "--lr_scheduler_type",
        "cosine_with_restarts", "--lr_scheduler_kwargs", '{"num_cycles": 3}')  # fmt: skip
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["train_data"]["sha256"] == hashlib.sha256(content).hexdigest()
    assert record["fields"]["lr_scheduler_kwargs"] == {"num_cycles": 3}


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


def test_another_text_is_named(tmp_path) -> None:
    """The line says which text the run was started with, and which it is given."""
    (tmp_path / FIELDS).write_text(json.dumps({"train_file": [{"file": "a.txt"}], "synonyms": [], "seed": 1}))
    with pytest.raises(InputError, match=r"the run was started with, a\.txt, found b\.txt"):
        check_started_with(str(tmp_path), {"train_file": [{"file": "b.txt"}], "synonyms": [], "seed": 1})
