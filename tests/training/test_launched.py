"""Training on several processes, launched for real: as on one process, with DDP and with FSDP, to an uneven end."""

import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
import yaml
from accelerate.data_loader import prepare_data_loader
from accelerate.utils import DistributedType
from packaging.version import Version
from torch.utils.data import DataLoader

from cmlmcse.common.errors import InputError
from cmlmcse.common.launch import say_once
from cmlmcse.data.batches import EpochSampler, Example
from cmlmcse.data.collator import ViewCollator
from cmlmcse.training.frozen_weights import checkpoint_weights
from cmlmcse.training.parse import parse_recipe
from cmlmcse.training.run_checks import check_launch, check_precision
from cmlmcse.training.started_with import FIELDS
from cmlmcse.training.training_losses import TrainingLosses
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from support import warm
from support.machines import on_two_machines
from support.paths import ROOT
from support.processes import train_together
from support.tiny import tiny_backbone, tiny_tokenizer
from support.training import history, run, write_pairs

CONFIGURATIONS = ROOT / "configuration" / "accelerate"
MEASURES = (
    "loss",
    "grad_norm",
    "contrastive_loss",
    "cmlm_loss",
    "cmlm_accuracy",
    "alignment",
    "uniformity",
    "anisotropy",
)


def launched(
    config: Path, script: Path, *arguments: object, python: str = sys.executable, **environment: str
) -> subprocess.CompletedProcess:
    """`accelerate launch` a script to its end, on any free port."""
    command = [python, "-m", "accelerate.commands.launch", "--config_file", config, "--main_process_port", 0]
    return subprocess.run(
        [str(part) for part in (*command, script, *arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **environment},
        cwd=arguments[0].parent, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


def words_of_the_workers(done: subprocess.CompletedProcess) -> str:
    """What the workers said, without the launcher's account of its own calls, which is long and the same each time."""
    return done.stderr.split("torch/distributed/elastic/multiprocessing/api.py")[0][-10_000:]


def launch_sharded(config: Path, folder: Path, checkpoint: Path | None = None) -> Path:
    """Train on two processes under FSDP, from a checkpoint if one is given; returns the run's folder.

    Sharding on CPU processes is a stand-in that PyTorch is not made for. Once, in some hundreds of runs, a process
    ended by SIGABRT, and its words were lost. So that is tried once more, in processes that are really new, and shown
    as a warning; but not if they met with different collectives, which would be a fault of this project."""
    script = ROOT / "tests" / "support" / "fsdp_on_cpu.py"
    run = folder / config.stem
    command = (folder / "tiny.yaml", "--per_device_train_batch_size", 8, "--use_cpu", "false", "--output_dir", run)
    command += ("--resume_from_checkpoint", "auto") if checkpoint else ()
    for tries_left in (1, 0):
        shutil.rmtree(run, ignore_errors=True)
        if checkpoint:
            shutil.copytree(checkpoint, run / checkpoint.name)
        done = launched(config, script, *command, python=warm.python() if tries_left else sys.executable)
        said = words_of_the_workers(done)
        aborted = "(SIGABRT)" in done.stderr and "distributed collective mismatch" not in said
        if not (tries_left and aborted):
            break
        warnings.warn(f"tried once more, for a process was aborted: {said}", stacklevel=2)
    assert done.returncode == 0, said
    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A backbone without dropout, 200 sentences, a dev set and a recipe, which lead to one run in `one`: one process,
    batches of 16 accumulated in pairs over an epoch's end, a BatchNorm head."""
    folder = tmp_path_factory.mktemp("launched")
    tiny_backbone("bert", dropout=0.0, num_hidden_layers=3).save_pretrained(folder / "backbone")
    tiny_tokenizer("bert").save_pretrained(folder / "backbone")
    rng = np.random.default_rng(0)
    lines = [" ".join(f"w{word}" for word in rng.integers(60, size=rng.integers(3, 12))) for _ in range(200)]
    (folder / "text.txt").write_text("\n".join(lines) + "\n")
    dev_set = write_pairs(folder / "dev.tsv", 1500)  # rounding moves few ranks of many
    fields = {
        "model_name_or_path": str(folder / "backbone"),
        "train_file": str(folder / "text.txt"),
        "dev_set": str(dev_set),
        "final_evaluation": "none",
        "cmlm_weight": 0.1,
        "projection": "batchnorm",
        "temp": 0.5,
        "learning_rate": "1e-4",
        "gradient_accumulation_steps": 2,
        "dataloader_drop_last": True,
        "max_steps": 8,
        "eval_steps": 4,
        "save_steps": 4,
        "logging_steps": 1,
        "use_cpu": True,
        "disable_tqdm": True,
    }
    (folder / "tiny.yaml").write_text(yaml.safe_dump(fields))
    with pytest.MonkeyPatch.context() as patch:
        run(patch, folder / "tiny.yaml", "--per_device_train_batch_size", 16, "--output_dir", folder / "one")
    return folder


def assert_equal_runs(found: Path, expected: Path) -> None:
    """The same log, step by step, at a relative 1e-4; the same dev scores, tokens and exported weights."""
    for name in MEASURES:
        assert len(history(expected, name)) == 8
        assert history(found, name) == pytest.approx(history(expected, name), rel=1e-4, abs=1e-6), name
    assert history(found, "eval_dev_score") == pytest.approx(history(expected, "eval_dev_score"), abs=0.05)
    records = [json.loads((path / "run.json").read_text()) for path in (found, expected)]
    assert records[0]["tokens"] == records[1]["tokens"]
    assert_same_weights(*(path / "checkpoint-8" for path in (found, expected)), expected / "checkpoint-4", 0.01)
    assert_same_weights(found / "export", expected / "export", expected.parent / "backbone", 0.01, prefix="bert.")


def assert_same_weights(found: Path, expected: Path, start: Path, tolerance: float, prefix: str = "") -> None:
    """Equal but for a share of the way that training has moved them from `start`; not weight by weight, and without
    those whose gradient is zero but for rounding, of which Adam makes steps: a bias of all keys moves no softmax, and
    the last bias before a BatchNorm is subtracted again."""
    one, other, before = (checkpoint_weights(path) for path in (found, expected, start))
    assert one.keys() == other.keys()
    no_gradient = ("key.bias", "layer.2.output.LayerNorm.bias")
    names = [name for name in other if name.endswith((".weight", ".bias")) and prefix + name in before]
    names = [name for name in names if not name.endswith(no_gradient)]
    assert len(names) > 40
    way = sum(float((other[name] - before[prefix + name]).square().sum()) for name in names)
    difference = sum(float((one[name] - other[name]).square().sum()) for name in names)
    assert difference < tolerance**2 * way, (difference / way) ** 0.5


@pytest.mark.slow
def test_two_machines_train_as_one_though_one_fails(folder):
    """DDP with 2 × 8 sentences a batch is one process with 16: losses, measures, gradients, tokens, weights. The
    processes are those of two launchers that meet on the loopback. One is killed in the sixth step; the same command,
    started again by the launchers, goes on from the fourth, which was saved. Filler, which no process shares with the
    other, changes nothing."""
    command = (ROOT / "tests" / "support" / "dies_once.py", folder / "tiny.yaml", "--per_device_train_batch_size", 8)
    command += ("--output_dir", folder / "two", "--resume_from_checkpoint", "auto", "--pad_to_multiple_of", 64)
    said = on_two_machines(folder, *command, restarts=3)
    assert said.count("holds no checkpoint yet") == 1
    assert (folder / "went-on").read_text() == "4"
    assert json.loads((folder / "two" / "run.json").read_text())["hardware"]["processes"] == 2
    assert_equal_runs(folder / "two", folder / "one")


@pytest.fixture(scope="module")
def sharded(folder) -> Path:
    """The folder of the same run under FSDP 2 in fp32; beside it the launcher's files `fp32.yaml` and `bf16.yaml`."""
    if not hasattr(torch.cpu.Stream, "record_event"):
        pytest.skip("this PyTorch shards on GPUs alone")
    config = yaml.safe_load((CONFIGURATIONS / "fsdp.yaml").read_text())
    for name, precision in (("fp32", "no"), ("bf16", config["mixed_precision"])):
        fields = {**config, "num_processes": 2, "mixed_precision": precision}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(fields))
    return launch_sharded(folder / "fp32.yaml", folder)


@pytest.mark.slow
def test_fsdp_trains_as_one(folder, sharded):
    """So does FSDP 2, through dev scores, checkpoints and export; a checkpoint is whole and has this project's code."""
    assert_equal_runs(sharded, folder / "one")
    checkpoint = sharded / "checkpoint-4"
    loaded = CMLMCSEForSentenceEmbedding.from_pretrained(checkpoint)
    assert loaded.auxiliary
    assert json.loads((checkpoint / "config.json").read_text())["auto_map"]["AutoModel"] == (
        "modeling_cmlmcse.CMLMCSEForSentenceEmbedding"
    )


@pytest.mark.slow
def test_fsdp_goes_on_in_bf16(folder, sharded):
    """From a checkpoint, here with the configuration's bf16, which is autocast as without FSDP."""
    checkpoint = sharded / "checkpoint-4"
    resumed = launch_sharded(folder / "bf16.yaml", folder, checkpoint)
    ends = [path / "checkpoint-8" for path in (resumed, folder / "one")]
    records = [json.loads((path.parent / "run.json").read_text()) for path in ends]
    assert [record["hardware"]["precision"] for record in records] == ["bf16", "fp32"]
    assert_same_weights(*ends, checkpoint, tolerance=0.3)
    for name in ("contrastive_loss", "cmlm_loss"):
        half, full = (history(path.parent, name) for path in ends)
        assert half == pytest.approx(full, rel=2e-3)
        assert half != pytest.approx(full, rel=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(
    Version(transformers.__version__) < Version("5.18"),
    reason="Trainer then resumed several CPU processes to a device cpu:0, which PyTorch does not know",
)
@pytest.mark.parametrize("streaming", (False, True))
def test_resume_on_two_processes(streaming, folder, tmp_path):
    """With dropout, over an epoch's end: a resumed run has, to the bit, the losses and weights of the other."""
    tiny_backbone("bert", num_hidden_layers=3).save_pretrained(tmp_path / "backbone")
    tiny_tokenizer("bert").save_pretrained(tmp_path / "backbone")
    (tmp_path / "text.txt").write_text("".join((folder / "text.txt").read_text().splitlines(True)[:100]))
    options = ("--per_device_train_batch_size", 8, "--gradient_accumulation_steps", 1, "--streaming", streaming)
    options += ("--model_name_or_path", tmp_path / "backbone", "--train_file", tmp_path / "text.txt")
    options += ("--dev_set", write_pairs(tmp_path / "dev.tsv"))
    for name, more in (("whole", ()), ("part", ("--resume_from_checkpoint", tmp_path / "whole" / "checkpoint-4"))):
        train_together(2, folder, folder / "tiny.yaml", *options, *more, "--output_dir", tmp_path / name)
        assert json.loads((tmp_path / name / "run.json").read_text())["hardware"]["processes"] == 2
    for name in (*MEASURES, "eval_dev_score"):
        assert history(tmp_path / "part", name) == history(tmp_path / "whole", name), name
    one, other = (checkpoint_weights(tmp_path / name / "checkpoint-8") for name in ("part", "whole"))
    assert all(torch.equal(value, one[name]) for name, value in other.items())
    if not streaming:  # one process goes on with the batch of both, and reads the same rows
        options = (*options, "--per_device_train_batch_size", 16, "--output_dir", tmp_path / "alone")
        train_together(1, folder, folder / "tiny.yaml", *options, *more)
        kept = [json.loads((tmp_path / name / "checkpoint-8" / FIELDS).read_text()) for name in ("whole", "alone")]
        assert [each["processes"] for each in kept] == [2, 1]
        tokens = [json.loads((tmp_path / name / "run.json").read_text())["tokens"] for name in ("whole", "alone")]
        assert tokens[0] == tokens[1]


@pytest.mark.slow
def test_uneven_last_batch_on_two_processes(folder, tmp_path):
    """37 sentences in batches of 2 × 8 for 2 epochs, with dropout: 3 steps an epoch, finite, and in TensorBoard."""
    tiny_backbone("bert").save_pretrained(tmp_path / "backbone")
    tiny_tokenizer("bert").save_pretrained(tmp_path / "backbone")
    options = ("--model_name_or_path", tmp_path / "backbone", "--max_train_samples", 37, "--dev_set", "none")
    options += ("--per_device_train_batch_size", 8, "--gradient_accumulation_steps", 1, "--dataloader_drop_last", False)
    options += ("--max_steps", -1, "--num_train_epochs", 2, "--eval_steps", 6, "--save_steps", 6)
    options += ("--report_to", "tensorboard", "--use_cpu", torch.accelerator.is_available())  # else of itself
    train_together(2, folder, folder / "tiny.yaml", *options, "--output_dir", tmp_path / "run",
                   TENSORBOARD_LOGGING_DIR=str(tmp_path))  # fmt: skip
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (record["steps"], record["hardware"]["processes"]) == (6, 2)
    assert history(tmp_path / "run", "epoch")[2:6:3] == [1.0, 2.0]
    for name in MEASURES:
        values = history(tmp_path / "run", name)
        assert len(values) == 6
        assert np.isfinite(values).all(), name
    assert min(history(tmp_path / "run", "contrastive_loss")) > 0.01
    assert list(tmp_path.rglob("events.out.tfevents.*"))


def rows_of(sentences: int, batch_size: int, processes: int, drop_last: bool) -> list[list[list[int]]]:
    """The rows that each process gets at each step of an epoch, from Accelerate's loaders."""
    loaders = [
        prepare_data_loader(
            DataLoader(range(3 * sentences), batch_size, sampler=EpochSampler(sentences, 0), drop_last=drop_last),
            num_processes=processes,
            process_index=process,
            put_on_device=False,
        )
        for process in range(processes)
    ]  # fmt: skip
    return [[step.tolist() for step in loader] for loader in loaders]


@pytest.mark.parametrize(("sentences", "processes"), [(37, 2), (33, 2), (48, 2), (41, 4), (16, 2)])
def test_global_batches_do_not_depend_on_the_number_of_processes(sentences, processes):
    """The rows of a step are those of one process with the whole batch, in order; only an uneven last batch is
    filled up, with the epoch's first sentences, so that all processes take as many steps with as many rows."""
    (whole,) = rows_of(sentences, 16, 1, drop_last=False)
    shares = rows_of(sentences, 16 // processes, processes, drop_last=False)
    assert {len(share) for share in shares} == {len(whole)}
    steps = [[row for rows in step for row in rows] for step in zip(*shares, strict=True)]
    for step, expected in zip(steps, whole, strict=True):
        assert step[: len(expected)] == expected
        assert step[len(expected) :] == steps[0][: 16 - len(expected)]
        assert len(set(step)) == 16
    (whole,) = rows_of(sentences, 16, 1, drop_last=True)
    shares = rows_of(sentences, 16 // processes, processes, drop_last=True)
    assert [[row for rows in step for row in rows] for step in zip(*shares, strict=True)] == whole


@pytest.mark.slow
def test_last_batch_of_one_sentence(folder, tmp_path, monkeypatch):
    """33 sentences in batches of 16 on one process: the last one has no negatives, a contrast of 0, and no NaN."""
    run(monkeypatch, folder / "tiny.yaml", "--max_train_samples", 33, "--dev_set", "none", "--max_steps", 3,
        "--per_device_train_batch_size", 16, "--gradient_accumulation_steps", 1, "--dataloader_drop_last", False,
        "--output_dir", tmp_path / "run")  # fmt: skip
    contrastive = history(tmp_path / "run", "contrastive_loss")
    assert contrastive[0] > 0.1 < contrastive[1]
    assert contrastive[2] == pytest.approx(0.0, abs=1e-6)
    assert history(tmp_path / "run", "uniformity")[2] == 0.0
    assert np.isfinite([history(tmp_path / "run", name) for name in MEASURES]).all()


@pytest.mark.slow
def test_one_sentence_gives_no_contrastive_gradient(folder):
    """Without negatives there is nothing to learn from: every gradient is zero."""
    model = CMLMCSEForSentenceEmbedding.from_backbone(folder / "backbone", cmlm_weight=0.0).train()
    tokenizer = tiny_tokenizer("bert")
    output = TrainingLosses(model)(**ViewCollator(tokenizer, 0)([Example(tokenizer("the cat sat")["input_ids"], 0, 0)]))
    output.loss.backward()
    assert output.loss.item() == pytest.approx(0.0, abs=1e-6)
    assert all(torch.count_nonzero(weight.grad) == 0 for weight in model.parameters())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "expected"),
    [(["--per_device_train_batch_size", "64", "--dataloader_drop_last", "true"], "at least 64 sentences")],
)
def test_too_few_sentences_for_a_batch(fields, expected, folder, tmp_path, monkeypatch, capsys):
    """Sentences that fill no batch at all, where a batch must be filled."""
    with pytest.raises(SystemExit) as stop:
        run(monkeypatch, folder / "tiny.yaml", "--max_train_samples", 37, "--output_dir", tmp_path / "run", *fields)
    assert stop.value.code == 2
    assert f"{expected}, because each needs others as negatives, found 37" in capsys.readouterr().err


def test_launch_for_absent_gpus_is_refused(monkeypatch, capsys):
    """Processes that know nothing of one another, and FSDP that Accelerate would leave out, are errors."""
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="expects GPUs for its 2 processes, found none"):
        check_launch(SimpleNamespace(world_size=1, distributed_state=None))
    state = SimpleNamespace(distributed_type=DistributedType.MULTI_CPU)
    launched = SimpleNamespace(world_size=2, distributed_state=state, device=torch.device("cpu"), process_index=0)
    say_once.cache_clear()
    check_launch(launched)
    assert capsys.readouterr().err == "no GPU is used: 2 processes train on CPUs\n"
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(InputError, match="FSDP expects GPUs, found use_cpu"):
        check_launch(launched)


def test_fp16_of_a_launcher_without_a_gpu_is_refused(monkeypatch):
    """Accelerate would train in fp32, and the records and the card would say fp16. A field that names bf16 counts
    more."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    words = ["simcse-bert-base", "--dev_set", "none", "--use_cpu", "true"]
    assert parse_recipe([*words, "--bf16", "true"])[3].mixed_precision == "bf16"
    with pytest.raises(InputError, match="mixed_precision fp16 needs a GPU"):
        parse_recipe(words)
    with pytest.raises(InputError, match="mixed_precision fp16 needs a GPU, found none; launch with --mixed_precision"):
        check_precision(SimpleNamespace(mixed_precision="fp16", device=torch.device("cpu")))


LEAVES_EARLY = """
import datetime, time, torch, torch.distributed as dist
from cmlmcse.common.command import command

@command
def main():
    # gloo does not always see that the other one is gone, and would wait for half an hour
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=30))
    dist.barrier()  # both are connected
    rows = [torch.ones(8) for _ in range(50)]
    waiting = [dist.all_reduce(row, async_op=True) for row in rows]
    if dist.get_rank() == 0:
        for work in waiting:
            try:
                work.wait()
            except RuntimeError:  # the other process is gone, which is the point
                pass
        time.sleep(1)
        print("written")

main()
"""


@pytest.mark.slow
def test_a_process_that_ends_early_is_not_aborted(tmp_path):
    """Gloo's threads still hold rows when the second process ends: it ends with status 0, so the first may write."""
    script = tmp_path / "leaves_early.py"
    script.write_text(LEAVES_EARLY)
    done = launched(CONFIGURATIONS / "multi-cpu.yaml", script, tmp_path, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, words_of_the_workers(done)
