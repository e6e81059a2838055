"""A run of an arm, in a folder of its own."""

import contextlib
import json
import math
import sys
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray

from cmlmcse.common.errors import Diverged, InputError, Stopped
from cmlmcse.common.run_files import ARMS, RESULTS, RUN
from cmlmcse.data.unchanged import InputChanged
from cmlmcse.training.command import field_arguments

from .processes import Train
from .recipe_fields import RECIPE
from .same_text import SameText

EVERY = 20  # steps between development scores; of a plain backbone the best is kept, so too many steps do no harm


class Trial(NamedTuple):
    """An arm after training.

    Attributes:
        folder: its run's folder; `export/` in it is the encoder with the arm's best development score, or of a finished
            encoder the last one.
        steps: how long it was trained.
        score: the development score of the export; NaN for a run that takes none.
        record: the content of its run.json, and of its log `dev_scores`, `seconds_per_step` with its part of the
            development scores, `unscored_seconds_per_step` without, and `score_seconds` of the last score.
        best_step: the step of that score, and of the export.
    """

    folder: Path
    steps: int
    score: float
    record: dict[str, Any]
    best_step: int = 0


class Common(NamedTuple):
    """What all arms share.

    Attributes:
        folder: holds a folder for each arm, and the plan.
        fields: fields of the recipe.
        start_values: (N,) the values of the choosing documents before training, so that no arm scores the start again.
            None for an arm that starts elsewhere.
        train: what trains a run, on all processes of the launch.
        finished: whether the start is a finished encoder, and not a plain backbone.
        same_text: the text of all runs, if it is watched.
    """

    folder: Path
    fields: dict[str, Any]
    start_values: NDArray[np.float64] | None
    train: Train
    finished: bool = False
    same_text: SameText | None = None


def run_arm(name: str, fields: dict[str, Any], common: Common, steps: int, every: int) -> Trial:
    """Train one arm to `steps` steps, scored and saved `every` so many and at the end; a run that has them already is
    only read."""
    own = {"max_steps": steps, "eval_steps": every, "save_steps": every, "logging_steps": every}
    return train_run(name, run_folder(common.folder, name), {**fields, **own}, common, common.start_values)


def train_run(
    title: str, run: Path, fields: dict[str, Any], common: Common, start_values: NDArray[np.float64] | None
) -> Trial:
    """Train a run to `max_steps` steps, from its newest checkpoint if it has one. A run that has so many is only read.

    Args:
        title: what the screen calls it.
        run: its folder.
        fields: its own fields, `max_steps` among them.
        common: what all runs share.
        start_values: of the choosing documents, where they are scored.

    Raises:
        InputError, Stopped, Diverged: the run cannot go on; the message begins with its title.
        InputChanged: the text is not as it was; the run is not kept.
    """
    done, steps = read_trial(run), fields["max_steps"]
    if done is not None and done.steps >= steps:
        return done
    resume = "auto" if any(run.glob("checkpoint-*")) else None
    own = {"output_dir": run, "disable_tqdm": True, "resume_from_checkpoint": resume}
    watched = contextlib.nullcontext() if common.same_text is None else common.same_text.around(run)
    try:
        with watched, new_log(run) as log, contextlib.redirect_stdout(log):
            print(f"{title}: training to step {steps} …", file=sys.stderr, flush=True)
            common.train([RECIPE, *field_arguments({**common.fields, **fields, **own})], start_values)
    except InputChanged:  # of no run alone
        raise
    except InputError as error:
        raise InputError(f"{title}: {error}") from error
    except Diverged as stop:
        advice = "start again with a lower --learning_rate and another --output_dir"
        raise Diverged(f"{title}: {stop.found}", advice) from stop
    except Stopped as stop:
        raise Stopped(f"{title}: {stop}", status=stop.status) from stop
    done = read_trial(run)
    assert done is not None
    if not math.isnan(done.score):
        print(f"{title}: score {done.score:.2f}", file=sys.stderr, flush=True)
    return done


def new_log(run: Path) -> TextIO:
    """The log of a run, at its end, in a folder that is made for it."""
    run.mkdir(parents=True, exist_ok=True)
    return open(run / "train.log", "a", encoding="utf-8")


def read_trial(run: Path) -> Trial | None:
    """A finished run of an arm; None if it has not finished."""
    if not (run / RESULTS).exists():
        return None
    results, record = (json.loads((run / name).read_text(encoding="utf-8")) for name in (RESULTS, RUN))
    steps = record["steps"]
    scores = [row["eval_runtime"] for row in record["log"] if "eval_runtime" in row]
    training = max(record["train_seconds"] - sum(scores), 0.0) / max(steps, 1)
    record["dev_scores"] = [row["eval_dev_score"] for row in record["log"] if row.get("eval_dev_score") is not None]
    record["unscored_seconds_per_step"] = training
    record["score_seconds"] = scores[-1] if scores else 0.0
    record["seconds_per_step"] = training + record["score_seconds"] / EVERY  # a score belongs to its steps
    kept = record["best_checkpoint"] if record["fields"].get("load_best_model_at_end", True) else None
    best = int(kept.split("-")[-1]) if kept else steps
    score = results.get("dev", {}).get("score", math.nan)
    return Trial(run, record["fields"].get("max_steps", steps), score, record, best)


def run_folder(folder: Path, name: str) -> Path:
    """The folder of an arm's run."""
    return folder / ARMS / name.replace(", rate ", "-").replace(" ", "-").replace("+", "-")
