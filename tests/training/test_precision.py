"""The precision of training where nobody names one. Which one this machine is faster in is pretended."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from cmlmcse.training import precision
from cmlmcse.training.fields import RunArguments
from cmlmcse.training.parse import parse_recipe
from modeling_cmlmcse import linear
from support.processes import run_together
from support.training import history, run

SHORT = ("--dev_set", "none", "--max_steps", 4, "--save_steps", 2, "--logging_steps", 1, "--save_total_limit", 5)


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    """The tests' own environment says fp32, as a launcher would."""
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION")


def pretend(monkeypatch, faster: bool) -> None:
    """Let this CPU be faster in bf16, or not."""
    monkeypatch.setattr(precision, "bf16_is_faster", lambda: faster)


@pytest.mark.slow
def test_a_run_and_a_resumed_one(recipe, monkeypatch, tmp_path, capsys):
    """bf16 where it is faster, in the records and in the sums; a resumed run keeps what it had, either way. The record
    names the precision even where it is fp32, so that its fields give the same run on any machine."""
    records = {}
    for name, faster, words in (
        ("bf16", True, ()),
        ("named", False, ("--bf16", "true")),
        ("fp32", True, ("--bf16", "false")),
        ("slow", False, ()),
    ):
        pretend(monkeypatch, faster)
        run(monkeypatch, recipe, *SHORT, "--output_dir", tmp_path / name, *words)
        said = "bf16, because this CPU is faster in it; --bf16 false" in capsys.readouterr().out
        assert said == (name == "bf16")
        records[name] = json.loads((tmp_path / name / "run.json").read_text())
    expected = {"bf16": "bf16", "named": "bf16", "fp32": "fp32", "slow": "fp32"}
    assert {name: record["hardware"]["precision"] for name, record in records.items()} == expected
    assert {name: record["fields"]["bf16"] for name, record in records.items()} == {
        name: one == "bf16" for name, one in expected.items()
    }
    losses = {name: history(tmp_path / name, "loss") for name in expected}
    assert losses["bf16"] == losses["named"] != losses["fp32"] == losses["slow"]

    for name, faster in (("bf16", False), ("slow", True)):
        pretend(monkeypatch, faster)
        again = ("--output_dir", tmp_path / f"{name}-on", "--resume_from_checkpoint", tmp_path / name / "checkpoint-2")
        run(monkeypatch, recipe, *SHORT, *again)
        assert ("bf16, because the checkpoint was" in capsys.readouterr().out) == (name == "bf16")
        assert history(tmp_path / f"{name}-on", "loss") == losses[name]
        record = json.loads((tmp_path / f"{name}-on" / "run.json").read_text())
        assert record["hardware"]["precision"] == expected[name]


@pytest.mark.slow
def test_pretraining_chooses_too(recipe, monkeypatch, tmp_path):
    pretend(monkeypatch, True)
    run(monkeypatch, recipe, "--stage", "pretrain", "--max_steps", 2, "--dev_set", "none", "--cmlm_weight", 0,
        "--eval_strategy", "no", "--load_best_model_at_end", "false")  # fmt: skip
    assert json.loads((tmp_path / "run" / "run.json").read_text())["hardware"]["precision"] == "bf16"


@pytest.mark.parametrize(
    ("words", "launcher", "device", "expected"),
    [
        ((), None, "cpu", True),
        (("--bf16", "true"), "no", "cpu", True),
        (("--bf16",), "no", "cpu", True),
        (("--bf16", "false"), None, "cpu", False),
        ((), "no", "cpu", False),
        ((), "bf16", "cpu", True),
        ((), None, "cuda", False),
    ],
)
def test_who_names_a_precision_gets_it(words, launcher, device, expected, monkeypatch):
    """On the command line or by a launcher; and GPUs compute in fp32 unless asked, as everybody knows them."""
    pretend(monkeypatch, True)
    if launcher is not None:
        monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", launcher)
    run_args = parse_recipe(["simcse-bert-base", "--dev_set", "none", "--use_cpu", "true", *words])[3]
    monkeypatch.setattr(RunArguments, "device", torch.device(device))
    precision.choose_precision(run_args, None)
    assert run_args.bf16 is expected
    assert run_args.mixed_precision == ("bf16" if expected else "no")


@pytest.mark.skipif(torch.accelerator.is_available(), reason="a machine with a GPU trains on it")
def test_bf16_needs_no_use_cpu():
    assert parse_recipe(["simcse-bert-base", "--dev_set", "none", "--bf16", "true"])[3].device.type == "cpu"


def test_a_checkpoint_of_an_earlier_version_goes_on_in_fp32(monkeypatch, tmp_path):
    pretend(monkeypatch, True)
    (tmp_path / "trainer_state.json").write_text(json.dumps({"stateful_callbacks": {}}))
    run_args = SimpleNamespace(bf16=None, fp16=False, device=torch.device("cpu"), mixed_precision="no")
    precision.choose_precision(run_args, str(tmp_path))
    assert (run_args.bf16, run_args.mixed_precision) == (False, "no")


@pytest.mark.parametrize("choice", [True, False])
def test_a_checkpoint_goes_on_with_its_library(choice, monkeypatch, tmp_path):
    """Whatever is faster now, products in fp32 are made by the library that the checkpoint names."""
    monkeypatch.setattr(linear, "_choice", [choice])
    monkeypatch.setattr(linear, "has_onednn", lambda: True)
    written = {"RecordsPrecision": precision.RecordsPrecision().state()}
    (tmp_path / "trainer_state.json").write_text(json.dumps({"stateful_callbacks": written}))
    linear._choice[:] = [not choice]
    run_args = SimpleNamespace(bf16=None, fp16=False, device=torch.device("cpu"), mixed_precision="no")
    precision.choose_precision(run_args, str(tmp_path))
    assert linear.onednn_is_faster() is choice


def choose(rank: int, size: int, folder: str) -> None:
    """Two choices: the first process alone finds bf16 faster, then the last one alone."""
    os.environ.pop("ACCELERATE_MIXED_PRECISION", None)
    for name, fastest in (("first", 0), ("last", size - 1)):
        precision.bf16_is_faster = lambda fastest=fastest: rank == fastest
        run_args = SimpleNamespace(bf16=None, fp16=False, device=torch.device("cpu"), mixed_precision="no")
        precision.choose_precision(run_args, None)
        Path(folder, f"{name}{rank}").write_text(run_args.mixed_precision)


@pytest.mark.slow
def test_all_processes_choose_alike(tmp_path):
    """The first one measures."""
    run_together(choose, 2, tmp_path)
    assert [(tmp_path / f"first{rank}").read_text() for rank in range(2)] == ["bf16", "bf16"]
    assert [(tmp_path / f"last{rank}").read_text() for rank in range(2)] == ["no", "no"]
