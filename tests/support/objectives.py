"""Every objective and every kind of contrast, as fields of a recipe."""

from itertools import pairwise
from pathlib import Path
from typing import Any

OBJECTIVES: dict[str, dict[str, Any]] = {
    "simcse": {"cmlm_weight": 0},
    "clear": {"cmlm_weight": 0, "contrastive_loss": "nt_xent", "mlm_weight": 1, "mlm_tied": True},
    "cmlm": {"pooling": "cls_before_pooler", "projection": "mlp"},
    "infocse": {"projection": "batchnorm", "pooling": "avg_first_last", "lexical_frozen": False},
    "diffcse": {"cmlm_weight": 0, "rtd_weight": 0.1},
    "diffcse, sampled": {"cmlm_weight": 0, "rtd_weight": 0.1, "rtd_positions": "masked", "rtd_fill": "sample"},
    "condenser": {"cmlm_weight": 0, "condenser_weight": 0.1, "lexical_layers": 1},
    "consistency": {"cmlm_weight": 0, "consistency_weight": 1},
    "retromae": {"cmlm_weight": 0, "retromae_weight": 0.1},
    "denosent": {"cmlm_weight": 0, "denosent_weight": 0.1, "denosent_layers": 1},
}
PROMPT = {"pooling": "prompt", "prompt_template": "w1 {sentence} w2 {mask}", "projection": "mlp",
          "second_prompt_template": "w3 {sentence} {mask}"}  # fmt: skip
CONTRASTS: dict[str, dict[str, Any]] = {
    "simcse++": {"cmlm_weight": 0, "contrastive_loss": "off_dropout", "dimension_weight": 0.1},  # with a plain view
    "teacher": {"distillation_weight": 0.1, "teacher": "itself", "teacher_pooling": "avg"},
    "teacher, list_net": {"cmlm_weight": 0, "distillation_weight": 0.1, "teacher": "itself", "teacher_pooling": "avg",
                         "distillation_loss": "list_net"},
    "teacher, mse": {"cmlm_weight": 0, "distillation_weight": 0.1, "teacher": "itself", "teacher_pooling": "avg",
                     "distillation_loss": "mse"},
    "nested": {"matryoshka_dims": "16,8"},
    "prompt": {**PROMPT, "cmlm_weight": 0.1},
    "negated prompt": {**PROMPT, "cmlm_weight": 0, "negative_prompt_template": "w1 {sentence} w4 {mask}",
                       "contrastive_loss": "extended_info_nce", "prompt_denoising": "pad"},
    "mined negatives": {"mined_negatives": 2},
    "mined, weighted": {"cmlm_weight": 0, "mined_negatives": 1, "hard_negative_weight": 1.0},
    "scored pairs": {"contrastive_loss": "cosent", "train_file": "pairs.csv", "text_column": "one",
                     "positive_column": "two", "score_column": "score"},
}  # fmt: skip


def fields_of(fields: dict[str, Any], folder: str) -> dict[str, Any]:
    """The fields of one of them, with this model as the backbone, the generator and the teacher."""
    others = {"rtd_generator": folder} | ({"teacher": folder} if "teacher" in fields else {})
    return {**fields, **others, "model_name_or_path": folder}


def write_scored_pairs(text: Path, path: Path) -> None:
    """Neighbours in a text, with scores from 0 to 4: the text of `scored pairs`."""
    rows = [f"{one},{two},{i % 5}" for i, (one, two) in enumerate(pairwise(text.read_text().splitlines()))]
    path.write_text("\n".join(["one,two,score", *rows]) + "\n")
