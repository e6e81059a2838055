"""A recipe of the tests of checkpoints, and an empty cache."""

import random
from pathlib import Path

import pytest
import yaml

from support.tiny import WORDS
from support.training import STEPS, write_pairs


@pytest.fixture
def saving_recipe(tmp_path, backbone_folders) -> Path:
    """CMLM-CSE with dropout, a checkpoint every second step, of which the best and the newest are kept."""
    rng = random.Random(0)
    lines = [" ".join(rng.choices(WORDS, k=rng.randint(3, 12))) for _ in range(64)]
    (tmp_path / "text.txt").write_text("\n".join(lines) + "\n")
    dev_set = write_pairs(tmp_path / "dev.tsv")
    fields = {
        "model_name_or_path": backbone_folders["shallow"],
        "train_file": str(tmp_path / "text.txt"),
        "dev_set": str(dev_set),
        "final_evaluation": "none",
        "cmlm_weight": 0.1,
        "per_device_train_batch_size": 8,
        "max_steps": STEPS,
        "eval_steps": 2,
        "save_steps": 2,
        "save_total_limit": 2,
        "logging_steps": 1,
        "use_cpu": True,
        "disable_tqdm": True,
        "report_to": "none",
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(fields))
    return tmp_path / "recipe.yaml"
