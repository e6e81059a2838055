"""A training step asks a GPU for work and never waits for an answer: recorded on a CPU, in real runs of the trainer,
and on the meta device, whose tensors have no values to wait for and take the path of a GPU.

The recorder sees what makes the host wait on any device: a number read, a size that depends on values, a copy of
numbers. It cannot see which kernels a GPU chooses, nor how long they take.
"""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
import torch.distributed as dist

from cmlmcse.training.training_losses import TrainingLosses
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from modeling_cmlmcse import attention as attention_module
from modeling_cmlmcse.variable_length import flash, memory_efficient
from support.batches import make_batch, moved
from support.combinations import ALL
from support.objectives import CONTRASTS, OBJECTIVES, fields_of, write_scored_pairs
from support.processes import launch
from support.recorder import Recorder, RecordsSteps
from support.tiny import KINDS, OTHER_KINDS
from support.training import build_trainer, run

KERNELS = (None, flash, memory_efficient)
EVERY = OBJECTIVES | CONTRASTS


@pytest.fixture
def pairs(text_file, tmp_path, monkeypatch, cache):
    """`pairs.csv`: neighbours in the text, with scores from 0 to 4. And an empty cache for vectors and neighbours."""
    write_scored_pairs(text_file, tmp_path / "pairs.csv")
    monkeypatch.chdir(tmp_path)


def steps(recipe: object, folder: str, fields: dict[str, Any], parts: dict[str, int]) -> Recorder:
    """What two steps of a run ask for, so that the loss of a step is checked."""
    fields = {**fields_of(fields, folder), "dev_set": "none", "max_steps": 2, **parts}
    records = RecordsSteps()
    build_trainer(recipe, fields, callbacks=(records,)).train()
    assert records.recorder.names.count("embedding_dense_backward") >= 2  # it saw backward passes of every step
    return records.recorder


PARTS: dict[str, dict[str, int]] = {"whole": {}, "parts": {"mini_batch_size": 8}}
# In two processes: one with each kind of row that is exchanged. SimCSE and InfoCSE exchange least and most.
ROWS = EVERY if ALL else ("simcse", "infocse", "diffcse", "simcse++", "teacher", "mined negatives", "scored pairs")
TOGETHER = [(name, "whole") for name in ROWS] + [(name, "parts") for name in (EVERY if ALL else ROWS[:2])]


@pytest.mark.slow
@pytest.mark.usefixtures("pairs")
@pytest.mark.parametrize("how", PARTS)
@pytest.mark.parametrize("name", EVERY)
def test_a_step(name, how, recipe, backbone_folders):
    """Every objective and every kind of contrast, whole and in parts."""
    folder = backbone_folders["roberta"]  # its embeddings do more than BERT's
    assert steps(recipe, folder, EVERY[name], PARTS[how]).waits == []


def steps_of_a_process(arguments: list[str]) -> None:
    """Steps in one of several processes; it writes the waits of each, and how many sums are exchanged."""
    datasets.config.HF_DATASETS_CACHE = Path("cache").absolute()  # of this process
    found = {}
    recipe, folder = arguments
    for name, how in TOGETHER:
        recorder = steps(recipe, folder, EVERY[name], PARTS[how])
        found[f"{name}, {how}"] = recorder.waits, sum(each.startswith("allreduce") for each in recorder.names)
    Path(f"found-{dist.get_rank()}.json").write_text(json.dumps(found))


@pytest.mark.slow
@pytest.mark.usefixtures("pairs")
def test_a_step_of_two_processes(recipe, tmp_path, backbone_folders):
    """What processes exchange is not waited for either."""
    launch(steps_of_a_process, 2, tmp_path, recipe, backbone_folders["roberta"])
    for rank in range(2):
        found = json.loads((tmp_path / f"found-{rank}.json").read_text())
        assert len(found) == len(TOGETHER)
        assert {name: waits for name, (waits, _) in found.items() if waits} == {}
        assert all(exchanged > 0 for _, exchanged in found.values())


@pytest.mark.parametrize(
    ("kind", "fields", "kernel"),
    [
        *((kind, OBJECTIVES["cmlm"], each) for kind in (*KINDS, *OTHER_KINDS) for each in KERNELS),
        *(("bert", each, flash) for name, each in OBJECTIVES.items() if name != "cmlm"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, dict) else getattr(value, "__name__", str(value)),
)
def test_a_step_without_values(kind, fields, kernel, backbone_folders, sentences, monkeypatch):
    """Forward and backward with dropout: every kind of backbone, padded and in both kernels for rows of different
    lengths, and every objective in one of them."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # meta has none
    monkeypatch.setattr(attention_module, "find_kernel", lambda *_, **__: kernel)
    folder = backbone_folders[kind]
    given = {"cmlm_weight": 0.1, "pooling": "avg", **fields}
    if "rtd_weight" in given:
        given["rtd_generator"] = folder
    model = CMLMCSEForSentenceEmbedding.from_backbone(folder, **given).train().to("meta")
    batch = moved(make_batch(kind, sentences, 0.4), "meta")
    with Recorder() as recorder:
        TrainingLosses(model)(**batch).loss.backward()
    assert recorder.waits == []
    assert all(weight.grad is not None for weight in model.parameters() if weight.requires_grad)
    used = sum(name in ("_flash_attention_backward", "_efficient_attention_backward") for name in recorder.names)
    assert (used > 0) == (kernel is not None and kind not in ("mpnet",))


@pytest.mark.slow
def test_development_scores_in_the_precision_of_training(recipe, monkeypatch, tmp_path):
    """Under bf16 the scores between steps are computed in bf16, those of the start and of the export in fp32."""
    found = []
    encode = CMLMCSEForSentenceEmbedding.encode

    def recorded(self, *args, **kwargs):
        found.append(torch.is_autocast_enabled("cpu"))
        return encode(self, *args, **kwargs)

    monkeypatch.setattr(CMLMCSEForSentenceEmbedding, "encode", recorded)
    run(monkeypatch, recipe, "--bf16", "true")
    assert found == [False, True, True, False, False]  # the last one for the card
    dev = json.loads((tmp_path / "run" / "results.json").read_text())["dev"]
    log = json.loads((tmp_path / "run" / "run.json").read_text())["log"]
    scores = {row["step"]: row["eval_dev_score"] for row in log if "eval_dev_score" in row}
    assert scores[0] == pytest.approx(dev["before"], abs=1e-4)
    assert max(scores[6], scores[12]) == pytest.approx(dev["score"], abs=1.0)  # rounding of bf16 moves few ranks
