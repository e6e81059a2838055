"""`pad_to_multiple_of`: filler rounds the tokens of a batch up, and nothing but the shapes changes."""

import json
from contextlib import nullcontext

import numpy as np
import pytest
import torch

from cmlmcse.common.errors import InputError
from cmlmcse.data.batches import Example
from cmlmcse.data.collator import ViewCollator
from cmlmcse.data.filler import fill_up
from cmlmcse.data.masking import Masking
from cmlmcse.data.special_tokens import special_tokens
from cmlmcse.data.templates import Templates, read_template
from cmlmcse.training.large_batch import backward_in_parts
from cmlmcse.training.parse import parse_recipe
from cmlmcse.training.trainer import count_tokens
from cmlmcse.training.training_losses import TrainingLosses
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from modeling_cmlmcse.packing import pack_sequences
from support.tiny import KINDS, OTHER_KINDS, tiny_tokenizer
from support.training import history, run

SENTENCES = [" ".join(f"w{(7 * i + j * j) % 60}" for j in range(2 + i % 7)) for i in range(9)]
PROMPT = {"pooling": "prompt", "projection": "mlp", "temp": 1.0}
CASES = {
    "simcse": ({"pooling": "cls_before_pooler", "projection": "mlp"}, {}),
    "batchnorm": ({"pooling": "avg_first_last", "projection": "batchnorm"}, {}),
    "cmlm": ({"pooling": "avg", "cmlm_weight": 0.5}, {}),
    "rtd": ({"pooling": "cls_before_pooler", "rtd_weight": 0.5}, {}),
    "retromae": ({"pooling": "avg", "retromae_weight": 0.5}, {}),
    "simcse++, teacher": ({"contrastive_loss": "off_dropout", "dimension_weight": 0.3, "distillation_weight": 0.1},
                          {"plain_view": True}),
    "scored pairs": ({"contrastive_loss": "cosent", "pooling": "avg"}, {"scored": True}),
    "prompt": (PROMPT, {"denoising": "none"}),
    "prompt, position": (PROMPT, {"denoising": "position"}),
    "prompt, pad": (PROMPT, {"denoising": "pad"}),
}  # fmt: skip


def make_batch(kind, size, multiple, plain_view=False, scored=False, denoising=None):
    """The sentences, with masked ones, vectors of a teacher, and perhaps scores and templates."""
    tokenizer = tiny_tokenizer(kind)
    masking = Masking.of(tokenizer, 0.4)
    templates = None
    if denoising is not None:
        prompts = [read_template(f"w1 {{sentence}} {word} {{mask}}", tokenizer) for word in ("w2", "w3")]
        templates = Templates(prompts, special_tokens(tokenizer), denoising, tokenizer.pad_token_id)
    collator = ViewCollator(tokenizer, 3, masking, mini_batch_size=size, plain_view=plain_view, templates=templates,
                            pad_to_multiple_of=multiple)  # fmt: skip
    taught = np.random.default_rng(0).standard_normal((len(SENTENCES), 1 + scored, 4))
    tokens = tokenizer(SENTENCES)["input_ids"]
    examples = [Example(tokens[row], 0, row, teachers=[taught[row]]) for row in range(len(SENTENCES))]
    if scored:
        examples = [each._replace(others=[tokens[each.row - 3]], score=float(each.row % 4)) for each in examples]
    return collator(examples)


def step(model, batch):
    """The loss of a step and all its gradients; what is random besides dropout is drawn alike."""
    torch.manual_seed(2)
    model.zero_grad()
    losses = TrainingLosses(model)
    if "parts" in batch:
        loss, _ = backward_in_parts(losses, batch["parts"], lambda loss: loss.backward(), nullcontext)
    else:
        loss = losses(**batch).loss
        loss.backward()
    return loss.detach(), {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize("size", (None, 4), ids=("whole", "parts"))
@pytest.mark.parametrize(
    ("kind", "case"),
    [*(("bert", case) for case in CASES), *((kind, "cmlm") for kind in (*KINDS, *OTHER_KINDS) if kind != "bert")],
)
def test_loss_and_gradients_are_those_without(kind, case, size, backbone_folders):
    """In fp64, so that nothing hides in rounding. No gradient is that of filler, and no token of it is counted."""
    fields, options = CASES[case]
    fields = {"cmlm_weight": 0, "lexical_layers": 1, "fusion_layers": 1, "backbone_dropout": 0.0, **fields}
    torch.manual_seed(1)
    model = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders[kind], **fields).double().train()
    plain, filled = (make_batch(kind, size, multiple, **options) for multiple in (None, 32))
    views = [part["views"] for part in filled.get("parts", [filled])]
    assert all(each["input_ids"].numel() % 32 == 0 and each["filler_tokens"] > 0 for each in views)
    assert count_tokens(filled) == count_tokens(plain)
    loss, gradients = step(model, plain)
    found, others = step(model, filled)
    assert loss > 0
    assert found.item() == pytest.approx(loss.item(), rel=1e-9)
    torch.testing.assert_close(others, gradients, rtol=1e-7, atol=1e-9)


def test_filler_by_hand():
    """Seven tokens of rows of up to four: two rows have room for at least one token each and up to seven in all."""
    plain = pack_sequences([[5, 6, 7, 8], [5, 6, 7]])
    packed = fill_up(plain, 8, 9)
    assert plain["input_ids"].tolist() == [5, 6, 7, 8, 5, 6, 7]
    assert packed["input_ids"].tolist() == [5, 6, 7, 8, 5, 6, 7, *[9] * 9]
    assert packed["lengths"].tolist() == [4, 3, 3, 3, 3]
    assert (packed["width"], packed["filler_rows"], packed["filler_tokens"]) == (4, 3, 9)


@pytest.mark.parametrize("multiple", (2, 3, 8, 64, 100))
def test_any_length_has_its_place(multiple):
    """Every row has a token and none is too long, and the rows depend on the width alone."""
    for width in range(1, 12):
        rows = set()
        for others in range(1, 40):
            packed = fill_up(pack_sequences([[1] * width, *[[1]] * others]), multiple, 0)
            lengths = packed["lengths"]
            assert len(packed["input_ids"]) == lengths.sum()
            assert len(packed["input_ids"]) % multiple == 0
            assert 1 <= lengths.min() <= lengths.max() <= packed["width"] == max(width, 2)
            rows.add(packed["filler_rows"])
        assert len(rows) == 1


def test_few_shapes_are_left_in_an_epoch():
    """Of 60 batches of 16 sentences."""
    rng, tokenizer = np.random.default_rng(0), tiny_tokenizer("bert")
    rows = [[2, *rng.integers(5, 60, rng.integers(1, 14)), 3] for _ in range(60 * 16)]
    shapes = {}
    for multiple in (None, 64):
        collator = ViewCollator(tokenizer, 0, pad_to_multiple_of=multiple)
        made = [
            collator([Example(row, 0, number) for number, row in enumerate(rows[first : first + 16])])["views"]
            for first in range(0, len(rows), 16)
        ]
        shapes[multiple] = {(len(each["input_ids"]), len(each["lengths"]), each["width"]) for each in made}
    assert len(shapes[None]) > 30
    assert len(shapes[64]) < 10


@pytest.mark.slow
def test_a_run(recipe, monkeypatch, tmp_path):
    """The same losses and the same number of tokens."""
    for name, words in (("plain", ()), ("filled", ("--pad_to_multiple_of", 64))):
        run(monkeypatch, recipe, "--dev_set", "none", "--max_steps", 4, "--logging_steps", 1, "--backbone_dropout", 0,
            "--augmentation", "delete_tokens", "--dataloader_num_workers", 1, "--output_dir", tmp_path / name,
            *words)  # fmt: skip
    assert history(tmp_path / "filled", "loss") == pytest.approx(history(tmp_path / "plain", "loss"), rel=1e-5)
    tokens = [json.loads((tmp_path / name / "run.json").read_text())["tokens"] for name in ("plain", "filled")]
    assert tokens[0] == tokens[1] > 0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--pad_to_multiple_of", "1"], "pad_to_multiple_of must be at least 2 tokens, found 1"),
        (["--pad_to_multiple_of", "64", "--stage", "pretrain"], "pad_to_multiple_of is for stage train"),
    ],
)
def test_wrong_input(words, expected):
    with pytest.raises(InputError, match=expected):
        parse_recipe(["simcse-bert-base", "--dev_set", "none", *words])
