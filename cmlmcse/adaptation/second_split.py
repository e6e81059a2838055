"""Train what was chosen once more, on another split of the text.

The documents that this run does not see confirm the choice too, so that twice as many do or more. And the average of
both runs, which is handed back, knows almost all documents.
"""

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

from cmlmcse.data.collection import next_seed
from cmlmcse.training.command import field_arguments

from .runs import EVERY, RECIPE, Common, Trial, read_trial, run_folder

FOLDER = "second-split"


def train_again(name: str, trial: Trial, fields: dict[str, Any], common: Common) -> tuple[Path, dict[str, Any]]:
    """Train an arm with the next seed, which splits the text anew, to the step at which its score was best.

    A finished run of as many steps is only read.

    Args:
        name: of the arm.
        trial: its run on the first split.
        fields: its fields.
        common: what all arms share.

    Returns:
        The run's folder, whose `export/` is the encoder after the last step, and its run.json.
    """
    folder = run_folder(common.folder / FOLDER, name)
    done = read_trial(folder)
    if done is None or done.steps != trial.best_step:
        resume = "auto" if any(folder.glob("checkpoint-*")) else None
        folder.mkdir(parents=True, exist_ok=True)
        print(f"{name}, on another split: training to step {trial.best_step} …", file=sys.stderr, flush=True)
        own = {"output_dir": folder, "seed": next_seed(common.fields["seed"]), "dev_set": "auto_unscored",
               "early_stopping_patience": None, "max_steps": trial.best_step, "save_steps": EVERY,
               "logging_steps": EVERY, "disable_tqdm": True, "resume_from_checkpoint": resume}  # fmt: skip
        with open(folder / "train.log", "a", encoding="utf-8") as log, contextlib.redirect_stdout(log):
            common.train([RECIPE, *field_arguments({**common.fields, **fields, **own})], None)
    return folder, json.loads((folder / "run.json").read_text(encoding="utf-8"))
