"""`torch.compile`: a step is one graph, for any number of tokens; and train.py's switch for it."""

import json
import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters
from transformers import AutoModel

import train as command
from cmlmcse.data.batches import Example
from cmlmcse.data.collator import ViewCollator
from cmlmcse.data.masking import Masking
from cmlmcse.training.training_losses import TrainingLosses
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from support.tiny import tiny_backbone, tiny_tokenizer

pytestmark = pytest.mark.slow
LINES = [f"{'the big red dog ' * count}sat on the mat" for count in range(1, 7)]


@pytest.fixture(scope="module")
def backbone(tmp_path_factory) -> str:
    """A folder with a backbone of one block, for each is traced by itself."""
    folder = tmp_path_factory.mktemp("bert")
    tiny_backbone("bert", num_hidden_layers=1).save_pretrained(folder)
    tiny_tokenizer("bert").save_pretrained(folder)
    return str(folder)


@pytest.fixture(autouse=True)
def forget_compiled_code():
    """Each test compiles its own."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def build(folder: str, dropout: float, weight: float) -> CMLMCSEForSentenceEmbedding:
    """A tiny model in training mode."""
    fields = {"lexical_layers": 1, "fusion_layers": 1} if weight else {}
    return CMLMCSEForSentenceEmbedding.from_backbone(
        folder, cmlm_weight=weight, backbone_dropout=dropout, **fields
    ).train()


def batches(weight: float) -> list[dict[str, Any]]:
    """Packed batches of different numbers of tokens."""
    tokenizer = tiny_tokenizer("bert")
    masking = Masking.of(tokenizer, 0.3)
    collator = ViewCollator(tokenizer, 0, masking if weight else None, masked_views=2 if weight else 0)
    tokens = tokenizer(LINES)["input_ids"]
    parts = (tokens[:3], tokens[1:5], tokens[2:6])
    return [collator([Example(row, 0, number) for number, row in enumerate(part)]) for part in parts]


def gradients(model: torch.nn.Module, loss: Tensor) -> Tensor:
    """All gradients in a row."""
    model.zero_grad()
    loss.backward()
    return torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])


def test_a_step_is_one_graph_of_any_length(backbone):
    """Both losses. `fullgraph` refuses a part that would run uncompiled. The second length makes the sizes dynamic, the
    third is not compiled anew."""
    model, made = build(backbone, 0.0, 0.1), batches(0.1)
    expected = [TrainingLosses(model)(**batch).loss.item() for batch in made]
    wanted = [gradients(model, TrainingLosses(model)(**batch).loss) for batch in made]
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(TrainingLosses(model), backend=counter, fullgraph=True)
    for batch, number, gradient in zip(made, expected, wanted, strict=True):
        loss = compiled(**batch).loss
        assert loss.item() == pytest.approx(number, rel=1e-6)
        torch.testing.assert_close(gradients(model, loss), gradient, rtol=1e-4, atol=1e-6)
    assert counter.frame_count == 2


def test_filled_up_batches_of_one_shape_share_a_graph(backbone):
    """Compiled for fixed shapes, as CUDA graphs are: once for three batches, which without filler take three. Their
    longest sentence is the same."""
    model, tokenizer = build(backbone, 0.0, 0.0), tiny_tokenizer("bert")
    rows = [Example(tokens, 0, number) for number, tokens in enumerate(tokenizer(LINES)["input_ids"])]
    for multiple, graphs in ((256, 1), (None, 3)):
        torch.compiler.reset()
        counter = CompileCounterWithBackend("eager")
        compiled = torch.compile(TrainingLosses(model), backend=counter, fullgraph=True, dynamic=False)
        collator = ViewCollator(tokenizer, 0, pad_to_multiple_of=multiple)
        for batch in (collator([*rows[first : first + 3], rows[-1]]) for first in range(3)):
            expected = TrainingLosses(model)(**batch).loss.item()
            assert compiled(**batch).loss.item() == pytest.approx(expected, rel=1e-6)
        assert counter.frame_count == graphs


def test_dropout_is_compiled_too(backbone):
    model, batch = build(backbone, 0.1, 0.1), batches(0.1)[0]
    compiled = torch.compile(TrainingLosses(model), backend="eager", fullgraph=True)
    losses = {compiled(**batch).loss.item() for _ in range(3)}
    assert len(losses) == 3
    model.eval()
    assert compiled(**batch).loss.item() == pytest.approx(TrainingLosses(model)(**batch).loss.item(), rel=1e-6)


def test_the_plain_view_is_compiled_without_dropout(backbone):
    """SimCSE++'s: the other view differs from call to call, it does not."""
    fields = {"cmlm_weight": 0.0, "contrastive_loss": "off_dropout", "backbone_dropout": 0.1}
    losses = TrainingLosses(CMLMCSEForSentenceEmbedding.from_backbone(backbone, **fields).train())
    packed = batches(0.0)[0]["views"]
    views = {**packed, "num_views": 1, "plain": packed}
    compiled = torch.compile(losses.sentence_vectors, backend="eager", fullgraph=True)
    first, second, expected = compiled(views), compiled(views), losses.sentence_vectors(views)
    torch.testing.assert_close(first[1], expected[1], rtol=1e-5, atol=1e-6)
    assert torch.equal(first[1], second[1])
    assert not torch.equal(first[0], second[0])
    assert losses.model.backbone.training


def test_train(tmp_path, text_file, backbone, monkeypatch):
    """With `--torch_compile` under Accelerate's launcher, which says that no size is dynamic: the same losses, two
    graphs for five batches of different lengths, an export that loads. The first test compiles the backward pass."""
    monkeypatch.setenv("ACCELERATE_DYNAMO_USE_DYNAMIC", "False")
    counters.clear()
    common = {
        "model_name_or_path": backbone, "train_file": text_file, "backbone_dropout": 0.0,
        "cmlm_weight": 0.1, "lexical_layers": 1, "fusion_layers": 1, "per_device_train_batch_size": 16, "max_steps": 5,
        "logging_steps": 1, "dev_set": "none", "final_evaluation": "none", "use_cpu": True, "disable_tqdm": True,
    }  # fmt: skip
    losses = {}
    for name, extra in (("plain", {}), ("compiled", {"torch_compile": True, "torch_compile_backend": "eager"})):
        fields = {**common, **extra, "output_dir": tmp_path / name}
        arguments = [part for field, value in fields.items() for part in (f"--{field}", str(value))]
        monkeypatch.setattr(sys, "argv", ["train.py", "cmlmcse-bert-base", *arguments])
        command.main()
        log = json.loads((tmp_path / name / "run.json").read_text())["log"]
        losses[name] = [row["loss"] for row in log if "loss" in row]
    assert counters["stats"]["unique_graphs"] == 2
    assert losses["compiled"] == pytest.approx(losses["plain"], rel=1e-4)
    assert AutoModel.from_pretrained(tmp_path / "compiled" / "export", add_pooling_layer=False).config.hidden_size == 32
