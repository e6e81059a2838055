"""Train the chosen arm once more, on all documents.

A score needs documents that training does not see. The model that is handed back need not do without them. On MED, with
a fifth held out, a run without them had two points less; on CACM it had more (docs/results/adapting.md).
"""

import contextlib
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

from cmlmcse.training.command import field_arguments

from .arms import EVERY, RECIPE, Common, Trial

FOLDER = "all-documents"


class Again(NamedTuple):
    """The run on all documents: its folder, whose `export/` is the encoder after the last step, and its run.json."""

    folder: Path
    record: dict[str, Any]


def train_again(trial: Trial, fields: dict[str, Any], common: Common) -> Again:
    """Train an arm on all documents, to the step at which its score was best. A finished run is only read.

    Args:
        trial: the arm.
        fields: its fields.
        common: what all arms share.
    """
    folder = common.folder / FOLDER
    finished = folder / "results.json"
    if not finished.exists():
        resume = "auto" if any(folder.glob("checkpoint-*")) else None
        folder.mkdir(parents=True, exist_ok=True)
        print(f"all documents: training to step {trial.best_step} …", file=sys.stderr, flush=True)
        own = {"output_dir": folder, "dev_set": "none", "max_steps": trial.best_step, "save_steps": EVERY,
               "logging_steps": EVERY, "disable_tqdm": True, "resume_from_checkpoint": resume}  # fmt: skip
        with open(folder / "train.log", "a", encoding="utf-8") as log, contextlib.redirect_stdout(log):
            common.train([RECIPE, *field_arguments({**common.fields, **fields, **own})], None)
    return Again(folder, json.loads((folder / "run.json").read_text(encoding="utf-8")))
