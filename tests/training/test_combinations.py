"""Every option of the contrast together with every auxiliary objective: a run of two steps, whole and in parts."""

from collections import defaultdict
from itertools import pairwise

import pytest

from cmlmcse.common.errors import InputError
from modeling_cmlmcse.modeling_cmlmcse import AUXILIARY_OBJECTIVES
from support.training import build_trainer

WEIGHT = 0.1
PROMPT = {"pooling": "prompt", "prompt_template": "w1 {sentence} w2 {mask}", "projection": "mlp",
          "second_prompt_template": "w3 {sentence} {mask}"}  # fmt: skip
NEGATED = {**PROMPT, "negative_prompt_template": "w1 {sentence} w4 {mask}", "contrastive_loss": "extended_info_nce"}
OPTIONS = {
    "negated prompt": NEGATED,
    "dimensions": {"dimension_weight": WEIGHT},
    "consistency": {"consistency_weight": WEIGHT},
    "teacher": {"distillation_weight": WEIGHT, "teacher": "itself", "teacher_pooling": "avg"},
    "mined negatives": {"mined_negatives": 1},
    "mined, no dropout": {"mined_negatives": 1, "contrastive_loss": "off_dropout", "positive_ratio": 0.9},
    "nested": {"matryoshka_dims": "16,8"},
    "scored pairs": {"contrastive_loss": "cosent", "train_file": "pairs.csv", "text_column": "one",
                     "positive_column": "two", "score_column": "score"},
}  # fmt: skip
PARTS = {"dimension_weight": "dimension_loss", "consistency_weight": "consistency_loss",
         "distillation_weight": "distillation_loss"}  # fmt: skip

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture(autouse=True)
def pairs(tmp_path, text_file, monkeypatch):
    """`pairs.csv`: neighbours in the text, with scores from 0 to 4."""
    lines = text_file.read_text().splitlines()
    rows = [f"{one},{two},{i % 5}" for i, (one, two) in enumerate(pairwise(lines))]
    (tmp_path / "pairs.csv").write_text("\n".join(["one,two,score", *rows]) + "\n")
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("objective", AUXILIARY_OBJECTIVES)
@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_beside_an_objective(option, objective, recipe, backbone_folders):
    """The loss is the weighted sum of its logged parts, each of which has a value, and GradCache gives the same ones.
    Nothing is dropped out, as parts of a batch draw other numbers; deleted words make the views differ."""
    given = dict(OPTIONS[option])
    if given.get("teacher"):
        given["teacher"] = backbone_folders["bert"]
    fields = {"cmlm_weight": 0, f"{objective}_weight": WEIGHT, "lexical_layers": 1, "fusion_layers": 1,
              "denosent_layers": 1, "denosent_noise": 0, "backbone_dropout": 0, "augmentation": "delete_tokens",
              "augmented_views": "both", "dev_set": "none", "max_steps": 2, "logging_steps": 1, **given}  # fmt: skip
    if objective == "condenser" and given.get("pooling") == "prompt":
        with pytest.raises(InputError, match=r"condenser_weight reads .* masked sentence, which has no template"):
            build_trainer(recipe, fields)
        return
    names = ["contrastive_loss", f"{objective}_loss", *(PARTS[name] for name in PARTS if name in given)]
    trainer = build_trainer(recipe, fields)
    whole = logged(trainer)
    parts = [whole[name] for name in names]
    assert all(len(part) == 2 and min(part) > 0 for part in parts)
    expected = [first + WEIGHT * sum(others) for first, *others in zip(*parts, strict=True)]
    assert whole["loss"] == pytest.approx(expected, rel=1e-3)
    in_parts = logged(build_trainer(recipe, {**fields, "mini_batch_size": 6}, trainer.train_dataset))
    for name, part in zip(names, parts, strict=True):
        assert in_parts[name] == pytest.approx(part, rel=1e-3), name


def logged(trainer):
    """Trains, and gives all values of what is logged, by name."""
    trainer.train()
    found = defaultdict(list)
    for row in trainer.state.log_history:
        for name, value in row.items():
            found[name].append(value)
    return found
