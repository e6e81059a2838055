"""The settings that adapt tries, the rounds in which it trains them, and which of them it averages."""

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cmlmcse.common.errors import InputError
from cmlmcse.common.files import atomic_write
from cmlmcse.common.names import join_names
from cmlmcse.data.searches import LEXICAL, SEARCH
from cmlmcse.hub.export import write_json
from cmlmcse.training.command import field_arguments

from .crew import Train

RECIPE = "adapt"
PLAN = "plan.json"
ENCODER_RATES = (3e-5, 1e-4)  # a finished encoder moves little: a quick trial took 2e-5 to 3e-5
BACKBONE_RATES = (3e-4, 1e-4)  # a plain backbone has far to go
FINALISTS = 2  # arms that the second round trains on
# Kinds of arms whose weights are averaged, of a finished encoder. On the labels of CISI, SciFact and CACM the average
# gained 2.7 points, `search` alone 1.6 and `title_body` alone 1.4 (docs/results/adapting.md).
AVERAGED = ("title_body", SEARCH)
LONGER = 3  # the second round ends at this many times the steps of the first one, or later if time is left
EVERY = 20  # steps between development scores; of a plain backbone the best is kept, so too many steps do no harm
FIRST_STEPS = 20  # of the run that measures the time of a step
COMPARED_STEPS = 40  # of an arm before it is compared; a choice by hand: after 20, the warm-up is half of them
ENCODER_COMPARED_STEPS = 20  # of a finished encoder, so that arms of two kinds fit into the default time
DOCUMENT_VIEWS = {"backbone_dropout": 0.0}  # their two texts differ by themselves (docs/results/adapting.md, on MED)
# The start and BM25 search the documents together, and the arm learns what they find. With this share it is the cosine
# and a fifth of BM25 (evaluation/bm25.py says why; training/searches.py scales BM25 by 0.05).
START_SHARE = 0.2
SEARCHING: dict[str, Any] = {"contrastive_weight": 0.0, "distillation_weight": 1.0, "distillation_loss": "list_net",
                             "distillation_temp": 0.05}  # fmt: skip
# Who sets one of these, or a weight, wants that objective; the arm that searches has its own.
OBJECTIVE = {"contrastive_loss", "mined_negatives", "negative_prompt_template", "matryoshka_dims"}
MAX_STEPS = 160  # of an arm in the first round; the trials behind the recipe rose for 40 to 120 steps
# Of a finished encoder, in the first round and in all: no more than 80 were measured (docs/results/adapting.md).
ENCODER_MAX_STEPS = 40, 80

Arms = dict[str, dict[str, Any]]


class Trial(NamedTuple):
    """An arm after training.

    Attributes:
        folder: its run's folder; `export/` in it is the encoder with the arm's best development score, or of a finished
            encoder the last one.
        steps: how long it was trained.
        score: the development score of the export.
        record: the content of its run.json.
        best_step: the step of that score, and of the export.
    """

    folder: Path
    steps: int
    score: float
    record: dict[str, Any]
    best_step: int = 0


def default_arms(model: str, titles: bool, finished: bool, given: dict[str, Any]) -> Arms:
    """The arms by name, each with the fields of its run.

    Args:
        model: the model that is adapted; a finished encoder is a teacher of the arm that searches.
        titles: whether enough documents have titles that are good queries.
        finished: whether the model is a finished encoder, and not a plain backbone.
        given: fields that the user set. They hold in every arm; arms that become equal are tried once.
    """
    searches = not any(name.endswith("_weight") or name in OBJECTIVE for name in given)
    if finished:  # `words`, alone or with `sentence`, lost on MED (docs/results/adapting.md)
        views = [SEARCH] * searches + ["title_body"] * titles  # first what has a teacher, so that its time is known
    elif titles:
        views = ["title_body", "title_body+words"]
    else:
        views = ["words+sentence", "words"]
    rates = ENCODER_RATES if finished else BACKBONE_RATES
    choices = [(name, rate) for rate in rates for name in views] + [("dropout", rates[0])]
    arms: Arms = {}
    for name, rate in choices:
        fields = {"views": name, "learning_rate": rate, **given}
        if fields["views"] != "dropout":
            fields = DOCUMENT_VIEWS | fields
        if fields["views"] == SEARCH:
            fields = searching_fields(model, finished) | fields
        if fields not in arms.values():
            arms[f"{fields['views']}, rate {float(fields['learning_rate']):g}"] = fields
    return arms


def searching_fields(model: str, finished: bool) -> dict[str, Any]:
    """The fields of an arm that learns what its teachers find: a finished encoder and BM25, or for a plain backbone
    BM25 alone."""
    temp = START_SHARE * SEARCHING["distillation_temp"]  # shares shrink the differences of the similarities
    if not finished:
        return SEARCHING | {"teacher": LEXICAL, "teacher_temp": temp}
    return SEARCHING | {"teacher": join_names([model, LEXICAL]), "teacher_share": START_SHARE, "teacher_temp": temp}


class Common(NamedTuple):
    """What all arms share.

    Attributes:
        folder: holds a folder for each arm, and the plan.
        fields: fields of the recipe.
        start_values: (N,) the values of the choosing documents before training, so that no arm scores the start again.
        train: what trains a run, on all processes of the launch.
        finished: whether the start is a finished encoder, and not a plain backbone.
    """

    folder: Path
    fields: dict[str, Any]
    start_values: NDArray[np.float64]
    train: Train
    finished: bool = False

    @property
    def compared(self) -> int:
        """Steps of an arm before it is compared."""
        return ENCODER_COMPARED_STEPS if self.finished else COMPARED_STEPS

    @property
    def most(self) -> tuple[int, int]:
        """Steps of an arm at most, in the first round and in all."""
        return ENCODER_MAX_STEPS if self.finished else (MAX_STEPS, LONGER * MAX_STEPS)


def best_of_each_kind(trials: dict[str, Trial], arms: Arms, finished: bool) -> list[str]:
    """The arms whose weights are averaged: the best one of each kind in `AVERAGED`. Without one of them, or from a
    plain backbone, the best one of all."""
    kinds = [[name for name in trials if arms[name]["views"] == kind] for kind in AVERAGED]
    if not finished or not all(kinds):
        kinds = [list(trials)]
    return [max(names, key=lambda name: trials[name].score) for names in kinds]


def run_arms(arms: Arms, common: Common, seconds: float, max_steps: int | None) -> dict[str, Trial]:
    """Train every arm, then train the best ones on (successive halving). A best one that is not averaged with another
    then goes on for as long as its score rises and time is left. A repeated call goes on where it stopped.

    Args:
        arms: the arms.
        common: what they share.
        seconds: the time for all of it. The first call measures the time of a step and plans by it.
        max_steps: steps of a finalist, instead of a time.
    """
    end = time.perf_counter() + seconds
    folder = common.folder
    plan = read_plan(folder)
    if plan is None:
        if max_steps is None:
            names, first, besides, prepared = plan_steps(arms, common, seconds)
            steps = [first]
        else:
            first = max(max_steps // LONGER, min(common.compared, max_steps))
            names, steps, besides, prepared = list(arms), [first, max_steps], None, 0.0
        plan = {"arms": {name: arms[name] for name in names}, "steps": steps, "every": min(EVERY, first)}
        plan |= {"besides": besides, "prepared": prepared, "further": [], "bf16": common.fields.get("bf16", False)}
        plan["max_seq_length"] = common.fields.get("max_seq_length")
        write_plan(folder, plan)
    elif {name: arms.get(name) for name in plan["arms"]} != plan["arms"]:
        raise InputError(
            f"{folder} expects the arms that it was started with ({', '.join(plan['arms'])}), found other "
            "fields; start again with another --output_dir"
        )
    elif plan["besides"] is not None:
        end -= seconds_spent(folder, list(plan["arms"]), plan["besides"])
    first, every = plan["steps"][0], plan["every"]
    trials = {name: run_arm(name, arms[name], common, first, every) for name in plan["arms"]}
    best = best_of_each_kind(trials, arms, common.finished)
    averaged = len(best) > 1
    if not averaged:
        best = sorted(trials, key=lambda name: trials[name].score, reverse=True)[:FINALISTS]
    if len(plan["steps"]) == 1:  # the time that is left says the rest
        plan["prepared"] = max(plan.get("prepared", 0.0), *(prepared_seconds(trial) for trial in trials.values()))
        left = end - time.perf_counter() - plan["prepared"]
        each = [trials[name].record["seconds_per_step"] for name in best]
        again = [trials[name].record["unscored_seconds_per_step"] for name in best]
        again = again if averaged else [max(again)] * common.finished
        last = min(finalist_steps(each, again, first, left, plan["besides"]), common.most[1])
        plan["steps"].append(max(last, first))
        write_plan(folder, plan)
    last = plan["steps"][1]
    trials |= {name: run_arm(name, arms[name], common, last, every) for name in best}
    for name, further in plan["further"]:  # of an earlier call
        trials[name] = run_arm(name, arms[name], common, further, every)
    while plan["besides"] is not None and not averaged and not plan.get("ended"):
        name = max(trials, key=lambda name: trials[name].score)
        left = end - time.perf_counter() - plan["prepared"]
        further = min(further_steps(trials[name], left, plan["besides"], common.finished), common.most[1])
        if further <= trials[name].steps:
            plan["ended"] = True  # a later call may have more time left than is known
            write_plan(folder, plan)
            break
        plan["further"].append([name, further])
        write_plan(folder, plan)
        trials[name] = run_arm(name, arms[name], common, further, every)
    return trials


def seconds_spent(folder: Path, names: list[str], besides: float) -> float:
    """The time that an earlier call has spent on these arms, so that going on does not start the clock again."""
    done = [read_trial(run_folder(folder, name)) for name in names]
    return sum(trial.record["train_seconds"] + besides for trial in done if trial is not None)


def run_folder(folder: Path, name: str) -> Path:
    """The folder of an arm's run."""
    return folder / "arms" / name.replace(", rate ", "-").replace("+", "-")


def prepared_seconds(trial: Trial) -> float:
    """What a run's teachers took; next to nothing where an earlier run has left their vectors."""
    return trial.record.get("prepared_seconds", 0.0)


def further_steps(trial: Trial, seconds: float, besides: float, again: bool) -> int:
    """The step that a trial can train on to in this time, a multiple of `EVERY`; 0 if its score no longer rises.

    Args:
        trial: the best one.
        seconds: the time for it.
        besides: seconds that a run costs besides its steps.
        again: whether a run on another split is then trained to the same step.
    """
    scores = trial.record["dev_scores"]
    if len(scores) < 2 or scores[-1] <= max(scores[:-1]):
        return 0
    step = trial.record["seconds_per_step"]
    left = seconds - besides
    if again:
        left = (left - besides - trial.steps * step) / 2
    more = max(int(left / step), 0) // EVERY * EVERY
    return trial.steps + more


def read_plan(folder: Path) -> dict[str, Any] | None:
    """The plan of an earlier call; None if there was none."""
    path = folder / PLAN
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def write_plan(folder: Path, plan: dict[str, Any]) -> None:
    """Keep the plan for a later call."""
    with atomic_write(folder / PLAN) as temporary:
        write_json(temporary, plan)


def rounded(steps: float) -> int:
    """A multiple of `EVERY` that is not larger."""
    return int(steps) // EVERY * EVERY


def finalist_steps(each: list[float], again: list[float], done: int, seconds: float, besides: float) -> int:
    """The step that the finalists can train on to in this time, and then those runs on another split.

    Args:
        each: seconds of a step of each finalist, with its part of the development scores.
        again: the same of those that are trained once more, without any score.
        done: steps of the first round.
        seconds: the time for all of them.
        besides: seconds that a run costs besides its steps.
    """
    left = seconds - (len(each) + len(again)) * besides
    steps = (left + done * sum(each)) / (sum(each) + sum(again))
    return rounded(steps + EVERY / 2 if again else steps)  # what besides costs is less on the second split


def plan_steps(arms: Arms, common: Common, seconds: float) -> tuple[list[str], int, float, float]:
    """The arms that fit into the time; the steps of the first round, a multiple of `EVERY`; the seconds that a run
    costs besides its steps; and those that the first arm's teachers took.

    The first arm runs for some steps. That gives the seconds of a step, and those that every run costs besides; what
    its teachers took is paid once, and once more for the other split of the text. As many arms as possible are tried,
    with finalists that train `LONGER` as long, and so do a finished encoder's runs on the other split. If time is
    short, they train less before a kind that is averaged is left out.
    """
    names = list(arms)
    start = time.perf_counter()
    trial = run_arm(names[0], arms[names[0]], common, FIRST_STEPS, EVERY)
    spent = time.perf_counter() - start
    step = trial.record["seconds_per_step"]
    prepared = prepared_seconds(trial)
    besides = max(spent - FIRST_STEPS * step - prepared, 0.0)
    left = seconds - spent + FIRST_STEPS * step  # the first arm goes on from there
    left -= prepared
    kinds = len(best_of_each_kind(dict.fromkeys(names, trial), arms, common.finished))
    for count, longer in ways_to_plan(len(names), kinds):
        finalists, again = min(FINALISTS, count), min(kinds, count) * common.finished
        available = (left - (count + finalists * (longer > 1) + again) * besides) / step  # steps of all arms together
        first = min(rounded(available / (count + (longer - 1) * finalists + longer * again)), common.most[0])
        if first >= common.compared or (count == 1 and first >= EVERY):
            return names[:count], first, besides, prepared
    return names[:1], EVERY, besides, prepared  # not even time for one arm's second round


def ways_to_plan(arms: int, kinds: int) -> Iterator[tuple[int, int]]:
    """Numbers of arms, and how many times as long the finalists train: what is planned first if it fits.

    Args:
        arms: how many there are.
        kinds: how many of them are averaged; the first ones in the list are of different kinds.
    """
    for count in range(arms, kinds - 1, -1):
        yield count, LONGER
    if kinds > 1:
        for longer in range(LONGER - 1, 0, -1):
            yield kinds, longer
        yield 1, LONGER


def run_arm(name: str, fields: dict[str, Any], common: Common, steps: int, every: int) -> Trial:
    """Train one arm to `steps` steps, scored and saved `every` so many; a run that has them already is only read."""
    run = run_folder(common.folder, name)
    done = read_trial(run)
    if done is None or done.steps < steps:
        resume = "auto" if any(run.glob("checkpoint-*")) else None
        run.mkdir(parents=True, exist_ok=True)
        print(f"{name}: training to step {steps} …", file=sys.stderr, flush=True)
        with open(run / "train.log", "a", encoding="utf-8") as log, contextlib.redirect_stdout(log):
            own = {"output_dir": run, "max_steps": steps, "eval_steps": every, "save_steps": every,
                   "logging_steps": every, "disable_tqdm": True, "resume_from_checkpoint": resume}  # fmt: skip
            common.train([RECIPE, *field_arguments({**common.fields, **fields, **own})], common.start_values)
        done = read_trial(run)
        assert done is not None
        print(f"{name}: score {done.score:.2f}", file=sys.stderr, flush=True)
    return done


def read_trial(run: Path) -> Trial | None:
    """A finished run of an arm; None if it has not finished."""
    if not (run / "results.json").exists():
        return None
    results, record = (json.loads((run / name).read_text(encoding="utf-8")) for name in ("results.json", "run.json"))
    steps = record["steps"]
    scores = [row["eval_runtime"] for row in record["log"] if "eval_runtime" in row]
    training = max(record["train_seconds"] - sum(scores), 0.0) / max(steps, 1)
    record["dev_scores"] = [row["eval_dev_score"] for row in record["log"] if row.get("eval_dev_score") is not None]
    record["unscored_seconds_per_step"] = training
    record["seconds_per_step"] = training + (scores[-1] if scores else 0.0) / EVERY  # a score belongs to its steps
    kept = record["best_checkpoint"] if record["fields"].get("load_best_model_at_end", True) else None
    best = int(kept.split("-")[-1]) if kept else steps
    return Trial(run, record["fields"].get("max_steps", steps), results["dev"]["score"], record, best)
