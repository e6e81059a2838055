"""What only a GPU shows: kernels compute what a CPU computes, a step waits for nothing, and training, resuming and
encoding run in every precision. Without a GPU all of it is skipped.

    python -m pytest tests/gpu
"""

import json
import shutil
import warnings
from collections.abc import Iterator
from typing import Any

import datasets
import pytest
import torch
from transformers import AutoModel, TrainerCallback

from cmlmcse.training.training_losses import TrainingLosses
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from modeling_cmlmcse.variable_length import flash, generation_of, memory_efficient, padded_attention, passes, varlen
from support.batches import make_batch, moved
from support.objectives import CONTRASTS, OBJECTIVES, fields_of, write_scored_pairs
from support.tiny import KINDS, OTHER_KINDS, tiny_tokenizer
from support.training import build_trainer, history, run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="a GPU is needed"),
]
DRAWN = ("retromae", "denosent", "diffcse, sampled")  # they draw on the device, and so differ from a CPU
TOLERANCES = {torch.float32: 2e-3, torch.bfloat16: 6e-2}  # of the norm; fp32 may compute in TF32
WAIT = "called a synchronizing CUDA operation"


@pytest.fixture(autouse=True)
def apart(tmp_path, monkeypatch) -> None:
    """A folder and a cache for each test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def build(kind: str, folder: str, fields: dict[str, Any], dropout: float = 0.0) -> CMLMCSEForSentenceEmbedding:
    """A model in training mode, on the CPU."""
    given = {"cmlm_weight": 0.1, "pooling": "avg", "backbone_dropout": dropout, **fields}
    if "rtd_weight" in given:
        given["rtd_generator"] = folder
    torch.manual_seed(0)
    return CMLMCSEForSentenceEmbedding.from_backbone(folder, **given).train()


def loss_and_gradient(model: CMLMCSEForSentenceEmbedding, batch: dict[str, Any], dtype: torch.dtype) -> torch.Tensor:
    """The loss and all gradients in a row, on the CPU."""
    model.zero_grad()
    torch.manual_seed(1)
    with torch.autocast(model.device.type, dtype=dtype, enabled=dtype != torch.float32):
        loss = TrainingLosses(model)(**batch).loss
    loss.backward()
    found = [loss.detach()[None], *(each.grad.flatten() for each in model.parameters() if each.grad is not None)]
    return torch.cat([each.float().cpu() for each in found])


def near(found: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    """By the norm of the difference."""
    off = float((found - expected).norm() / expected.norm())
    assert off <= tolerance, f"{off:.2e} off"


@pytest.mark.parametrize("size", [8, 32, 64, 128])
@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [(kernel, dtype) for kernel in (varlen, flash) for dtype in (torch.float16, torch.bfloat16)]
    + [(memory_efficient, dtype) for dtype in (torch.float16, torch.float32)],
)
def test_kernels(kernel, dtype, size):
    """Each kernel that attention may take passes its check; the public one has none. The memory-efficient one may fail
    with dropout, as on an H100 with PyTorch 2.11: then attention pads."""
    device = torch.device("cuda")
    if kernel is not memory_efficient and generation_of(device) < 8:
        pytest.skip("FlashAttention needs Ampere")
    if kernel is varlen:
        query = torch.randn(60, 4, size, device=device, dtype=dtype)
        bounds = torch.tensor([0, 3, 43, 60], dtype=torch.int32, device=device)
        one, other = (each(query, query, query, (bounds, bounds), (40, 40), 0.0) for each in (varlen, flash))
        near(one, other, 1e-2)
    else:
        assert passes(kernel, device, dtype, size, False)
        assert passes(kernel, device, dtype, size, True) or kernel is memory_efficient


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("kind", (*KINDS, *OTHER_KINDS))
def test_gradients_of_backbones(kind, dtype, backbone_folders, sentences):
    """CMLM-CSE of every kind of backbone: the loss and the gradients of a CPU."""
    model, batch = build(kind, backbone_folders[kind], {}), make_batch(kind, sentences)
    expected = loss_and_gradient(model, batch, torch.float32)
    near(loss_and_gradient(model.cuda(), moved(batch, "cuda"), dtype), expected, TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("name", OBJECTIVES)
def test_gradients_of_objectives(name, dtype, backbone_folders, sentences):
    """Every objective: those of a CPU, and those of attention that pads."""
    model, batch = build("bert", backbone_folders["bert"], OBJECTIVES[name]), make_batch("bert", sentences)
    expected = loss_and_gradient(model, batch, torch.float32)
    found = loss_and_gradient(model.cuda(), moved(batch, "cuda"), dtype)
    if name not in DRAWN:
        near(found, expected, TOLERANCES[dtype])
    with padded_attention():
        near(found, loss_and_gradient(model, moved(batch, "cuda"), dtype), TOLERANCES[dtype])


class Waits(TrainerCallback):
    """What waits for the GPU from the third step on, from its beginning until the weights are changed. The first two
    check the kernels and choose algorithms."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.catching = warnings.catch_warnings(record=True)
        self.caught: list[warnings.WarningMessage] | None = None

    def on_step_begin(self, args, state, control, **kwargs) -> None:
        if state.global_step >= 2:
            self.caught = self.catching.__enter__()
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")

    def on_optimizer_step(self, *args, **kwargs) -> None:
        if self.caught is not None:
            torch.cuda.set_sync_debug_mode("default")
            self.catching.__exit__(None, None, None)
            self.found += [f"{each.filename}:{each.lineno}" for each in self.caught if WAIT in str(each.message)]
            self.caught, self.catching = None, warnings.catch_warnings(record=True)


@pytest.mark.parametrize("parts", [{}, {"mini_batch_size": 8}], ids=["whole", "parts"])
@pytest.mark.parametrize("name", OBJECTIVES | CONTRASTS)
def test_a_step_waits_for_nothing(name, parts, recipe, text_file, tmp_path, backbone_folders):
    """Every objective and contrast, in real runs of the trainer in bf16."""
    write_scored_pairs(text_file, tmp_path / "pairs.csv")
    fields = fields_of((OBJECTIVES | CONTRASTS)[name], backbone_folders["roberta"])
    fields |= {"dev_set": "none", "max_steps": 4, "use_cpu": False, "bf16": True, **parts}
    waits = Waits()
    build_trainer(recipe, fields, callbacks=(waits,)).train()
    assert waits.found == []


RUNS: dict[str, tuple[str, ...]] = {
    "fp32": (),
    "bf16": ("--bf16", "true"),
    "fp16": ("--fp16", "true"),
    "padded": ("--bf16", "true", "--variable_length_attention", "false"),
    "parts": ("--bf16", "true", "--mini_batch_size", "8"),
    "recomputed": ("--bf16", "true", "--gradient_checkpointing", "true"),
    "compiled": ("--bf16", "true", "--torch_compile", "true"),
    "graphs": ("--bf16", "true", "--torch_compile", "true", "--torch_compile_mode", "reduce-overhead",
               "--pad_to_multiple_of", "256", "--cmlm_weight", "0"),
}  # fmt: skip


@pytest.fixture
def on_a_gpu(recipe) -> Iterator[Any]:
    """The tiny recipe, on a GPU."""
    recipe.write_text(recipe.read_text().replace("use_cpu: true", "use_cpu: false"))
    yield recipe
    torch.compiler.reset()


@pytest.mark.parametrize("name", RUNS)
def test_training(name, on_a_gpu, monkeypatch, tmp_path, capfd):
    """The command in every precision: the loss falls, no kernel is refused that should not be, the export loads."""
    run(monkeypatch, on_a_gpu, *RUNS[name], "--max_steps", "24")
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert torch.cuda.get_device_name() in record["hardware"]["device"]
    losses = history(tmp_path / "run", "loss")
    assert losses[-1] < losses[0]
    model = AutoModel.from_pretrained(tmp_path / "run" / "export", trust_remote_code=True).cuda()
    vectors = model.encode(["the cat sat", "a dog"], tiny_tokenizer("bert"))
    assert vectors.shape == (2, 32)
    assert name == "fp32" or "failed its check" not in capfd.readouterr().err


def test_resumed(on_a_gpu, monkeypatch, tmp_path):
    """A run that goes on from a checkpoint has the losses of one that was not interrupted."""
    common = (on_a_gpu, "--bf16", "true", "--logging_steps", "1", "--save_minutes", "0")
    run(monkeypatch, *common, "--output_dir", tmp_path / "whole")
    shutil.copytree(tmp_path / "whole" / "checkpoint-6", tmp_path / "half" / "checkpoint-6")
    run(monkeypatch, *common, "--output_dir", tmp_path / "half", "--resume_from_checkpoint", "auto")
    whole, half = history(tmp_path / "whole", "loss"), history(tmp_path / "half", "loss")
    assert half == pytest.approx(whole, rel=1e-2)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("kind", (*KINDS, *OTHER_KINDS))
def test_vectors(kind, dtype, backbone_folders, sentences):
    """`encode` gives the vectors of a CPU."""
    tokenizer = tiny_tokenizer(kind)
    model = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders[kind], cmlm_weight=0.0, pooling="avg").eval()
    expected = torch.as_tensor(model.encode(sentences, tokenizer))
    found = torch.as_tensor(model.to("cuda", dtype).encode(sentences, tokenizer)).float().cpu()
    near(found, expected, TOLERANCES[dtype])
