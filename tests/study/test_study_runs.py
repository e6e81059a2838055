"""The runs of a study: each is done once, and gone on with if it was stopped.

Most are of a script that writes records at once; the last ones train tiny models.
"""

import csv
import dataclasses
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from transformers import set_seed

from cmlmcse.common.errors import InputError
from cmlmcse.study import runner
from cmlmcse.study.command import main
from cmlmcse.study.plan import Study, load_study
from cmlmcse.study.runner import RunPool, claim_run, is_done
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from support.paths import ROOT
from support.studies import PLAN, logs, wait_for, write
from support.text import one_space


def test_only_and_index(tmp_path: Path, stand_in: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--only does an arm's runs, --index one run, as a SLURM array's task does; together they do all."""
    path = write(tmp_path)
    study = load_study(path)
    main([str(path), "--only", "hot"])
    assert [is_done(run) for run in study.runs] == [False, True] * 3
    assert "| plain | 0 | – | – | – | – | – |" in one_space(capsys.readouterr().out)
    before = (study.folder / "summary.md").read_text()
    for index in range(6):
        main([str(path), "--index", str(index)])
    assert all(map(is_done, study.runs))
    assert (study.folder / "summary.md").read_text() == before
    assert "3 of 6 runs are done" in before


@pytest.mark.slow
def test_failing_arm(tmp_path: Path, stand_in: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that fails is named at the end, with exit status 1; the others are done; it is tried again next time."""
    path = write(tmp_path, arms={**PLAN["arms"], "bad": {"temp": 1, "run_name": "fail"}}, seeds=[4, 5])
    for count in (1, 2):
        with pytest.raises(SystemExit) as stop:
            main([str(path), "--workers", "2"])
        assert stop.value.code == 1
        errors = capsys.readouterr().err.splitlines()
        assert [line for line in errors if line.startswith("failed: bad, seed 4: status 1, error: this cannot work")]
        assert len([line for line in errors if line.startswith("failed: ")]) == 2
        study = load_study(path)
        assert [run.arm for run in study.runs if is_done(run)] == ["plain", "hot"] * 2
        assert logs(study)["bad-4"].count("fresh") == count
        assert "| bad | 0 | – |" in one_space((study.folder / "summary.md").read_text())


def test_half_done_run_goes_on(tmp_path: Path, stand_in: Path) -> None:
    """A run that was killed goes on from its newest whole checkpoint, which is removed when it is done; one without a
    checkpoint begins anew in a cleared folder; what is done is left alone."""
    study = load_study(
        write(tmp_path, arms={"plain": {"temp": 1}, "half": {"temp": 1, "run_name": "half"}}, seeds=[7], published=None)
    )
    first = RunPool(study)
    first.run_all(study.runs)
    plain, half = study.runs
    assert list(first.failed) == [half.index]
    assert [runner.state(run) for run in study.runs] == ["done", "to go on with"]
    RunPool(study).run_all(study.runs)
    assert all(map(is_done, study.runs))
    assert [logs(study)[f"{run.arm}-7"].count("resumed") for run in study.runs] == [0, 1]
    assert not list(half.folder.glob("checkpoint-*"))
    (plain.folder / "results.json").write_text('{"dev"')  # cut off
    (plain.folder / "export").mkdir()
    RunPool(study).run_all(study.runs)
    assert is_done(plain)
    assert not (plain.folder / "export").exists()
    assert logs(study)["plain-7"].count("fresh") == 2


def run_all(study: Study) -> None:
    """A pool of two in a process of its own."""
    pool = RunPool(study, workers=2)
    pool.run_all(study.runs)
    assert not pool.failed, pool.failed


def test_no_run_twice(tmp_path: Path, stand_in: Path) -> None:
    """Three processes with two workers each: every run is done, by one of them."""
    study = load_study(write(tmp_path, seeds=[1, 2, 3, 4]))
    processes = [multiprocessing.get_context("fork").Process(target=run_all, args=(study,)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert all(map(is_done, study.runs))
    assert {log.count("fresh") for log in logs(study).values()} == {1}


@pytest.mark.parametrize(("number", "cause"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")])
def test_stopped(number: int, cause: str, tmp_path: Path, stand_in: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The run that is being done ends with the study, and a line says what was kept."""
    path = write(tmp_path, arms={"plain": {"temp": 1, "warmup_steps": 60}}, seeds=[1], published=None)
    (run,) = load_study(path).runs

    def stop() -> None:
        wait_for(run.folder / "busy")
        os.kill(os.getpid(), number)

    threading.Thread(target=stop).start()
    with pytest.raises(SystemExit) as end:
        main([str(path)])
    assert end.value.code == 128 + number
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"stopped: by {cause}; finished runs are kept in {tmp_path / 'small'}; the same command continues"
    assert runner.state(run) == "to do"


@pytest.mark.slow
def test_killed_worker(tmp_path: Path, stand_in: Path) -> None:
    """The lock outlives a killed worker as long as its run goes on, and no longer: nobody begins it a second time."""
    study = load_study(write(tmp_path, arms={"plain": {"temp": 1, "warmup_steps": 2}}, seeds=[1], published=None))
    (run,) = study.runs
    process = multiprocessing.get_context("fork").Process(target=run_all, args=(study,))
    process.start()
    wait_for(run.folder / "busy")
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join(20)
    assert runner.state(run) == "running"
    RunPool(study).run_all(study.runs)
    assert not is_done(run)
    wait_for(run.folder / "run.json")
    time.sleep(0.3)  # until the script has ended
    with claim_run(run) as lock:
        assert lock is not None
    assert is_done(run)


def test_workers_share_gpus_and_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUs are dealt in turn, unless a launcher deals them; cores are divided. Runs are in fp32 by default."""
    study = load_study(write(tmp_path))
    for name in ("OMP_NUM_THREADS", "ACCELERATE_MIXED_PRECISION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    pool = RunPool(study, workers=3, gpus=["4", "6"])
    assert [pool._environment(number)["CUDA_VISIBLE_DEVICES"] for number in range(3)] == ["4", "6", "4"]
    assert pool._environment(0)["OMP_NUM_THREADS"] == "2"
    assert pool._environment(0)["ACCELERATE_MIXED_PRECISION"] == "no"
    launched = RunPool(load_study(write(tmp_path, launch="accelerate launch --num_processes 2")), gpus=["4", "6"])
    assert launched.command[1:] == ["-m", "accelerate.commands.launch", "--num_processes", "2"]
    assert launched._environment(0).get("CUDA_VISIBLE_DEVICES") == os.environ.get("CUDA_VISIBLE_DEVICES")


def test_changed_fields_are_refused(tmp_path: Path, stand_in: Path) -> None:
    """Runs of an arm whose fields were changed since are not mixed with new ones."""
    study = load_study(write(tmp_path))
    RunPool(study).run_all(study.runs[:2])
    runner.check_unchanged(study.with_fields({"data_dir": "elsewhere"}).runs)
    with pytest.raises(InputError, match=r"plain, seed 1 expects temp 0\.7, found a run with 0\.5"):
        runner.check_unchanged(load_study(write(tmp_path, arms={"plain": {"temp": 0.7}, "hot": {"temp": 0.6}})).runs)
    with pytest.raises(InputError, match="expects max_steps 9, found a run with 5"):
        runner.check_unchanged(study.with_fields({"max_steps": "9"}).runs)


def test_a_changed_recipe_is_refused(tmp_path: Path, stand_in: Path) -> None:
    """Another recipe, and the same file with other fields. A comment changes nothing."""
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("cmlm_weight: 0\ntemp: 0.1\n")
    study = load_study(write(tmp_path, recipe=str(recipe)))
    RunPool(study).run_all(study.runs[:1])
    recipe.write_text("# a comment\ncmlm_weight: 0\ntemp: 0.1\n")
    runner.check_unchanged(study.runs)
    recipe.write_text("cmlm_weight: 0.1\ntemp: 0.1\n")
    with pytest.raises(InputError, match="as it is now, found a run from before it was changed"):
        runner.check_unchanged(study.runs)
    with pytest.raises(InputError, match="expects the recipe simcse-bert-base, found a run of"):
        runner.check_unchanged(load_study(write(tmp_path, recipe="simcse-bert-base")).runs)


@pytest.mark.slow
@pytest.mark.parametrize("projection", ["mlp", "batchnorm"])
def test_arms_of_a_seed_start_alike(projection: str, backbone_folders: dict[str, str]) -> None:
    """At one seed the training head starts the same whatever objectives stand beside it, and so does each objective;
    at another seed it does not."""

    def build(seed: int, **fields: object) -> dict[str, torch.Tensor]:
        set_seed(seed)
        fields = {"cmlm_weight": 0.0, "fusion_init": "random", "projection": projection, **fields}
        return CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders["bert"], **fields).state_dict()

    everything = build(3, cmlm_weight=0.005, rtd_weight=0.1, mlm_weight=0.1)
    head = [name for name in everything if name.startswith("projection.") and everything[name].is_floating_point()]
    for fields in (
        {},
        {"cmlm_weight": 0.1},
        {"rtd_weight": 0.005},
        {"mlm_weight": 1.0},
        {"rtd_weight": 1, "mlm_weight": 1},
    ):
        weights = build(3, **fields)
        assert any(name.startswith("auxiliary") for name in weights) == bool(fields)
        for name, weight in weights.items():
            assert torch.equal(weight, everything[name]), name
    other = build(4)
    assert not any(torch.equal(other[name], everything[name]) for name in head if everything[name].ndim == 2)


@pytest.mark.slow
@pytest.mark.usefixtures("warm_python")
def test_real_runs(recipe: Path, tmp_path: Path) -> None:
    """Real training: a run stopped after its first checkpoint is gone on with by `cmlmcse study STUDY --index I` from
    elsewhere, as a SLURM array's task does it, through `accelerate launch`; that run alone, and the report has it."""
    path = write(
        tmp_path,
        recipe=str(recipe),
        baseline="cmlm",
        seeds=[1],
        metrics=["dev.spearman"],
        common={"max_steps": 60, "save_steps": 10, "eval_strategy": "no", "load_best_model_at_end": False},
        arms={"simcse": {"cmlm_weight": 0}, "cmlm": {"cmlm_weight": 0.005}},
        launch="accelerate launch --cpu --num_processes 1 --num_machines 1 --mixed_precision no --dynamo_backend no",
        published=None,
    )
    study = load_study(path).with_fields({"final_evaluation": "none"})
    other, run = study.runs
    pool = RunPool(dataclasses.replace(study, launch=None))
    thread = threading.Thread(target=pool.run_all, args=([run],))
    thread.start()
    wait_for(run.folder / "checkpoint-10" / "trainer_state.json", 200)
    pool.stop()
    thread.join(30)
    assert not thread.is_alive()
    assert not pool.failed
    assert runner.state(run) == "to go on with"
    script = f'{sys.executable} -m cmlmcse study {path.name} --final_evaluation none --index "$SLURM_ARRAY_TASK_ID"'
    done = subprocess.run(
        ["sh", "-c", script], cwd=tmp_path, env={**os.environ, "SLURM_ARRAY_TASK_ID": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert [is_done(one) for one in (other, run)] == [False, True]
    record = json.loads((run.folder / "run.json").read_text())
    assert (record["steps"], record["seed"], record["fields"]["cmlm_weight"]) == (60, 1, 0.005)
    assert "--resume_from_checkpoint auto" in (run.folder / "log.txt").read_text()
    main([str(path), "--report"])
    (row,) = csv.DictReader((study.folder / "runs.csv").open())
    assert float(row["dev.spearman"]) == json.loads((run.folder / "results.json").read_text())["dev"]["spearman"]
