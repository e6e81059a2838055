"""The rounds in which adapt trains its arms: all of them, then the best ones for longer, then the best of these for as
long as its score rises, and of a plain backbone one more arm that starts from it. The plan is kept in a file, so that a
later call goes on."""

import json
import math
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

from cmlmcse.common.errors import Diverged, InputError
from cmlmcse.common.files import replace_json
from cmlmcse.common.launch import launched_processes

from .arms import AVERAGED, Arms, LastArm
from .budget import (
    FINALISTS,
    FIRST_STEPS,
    LAST_ARM,
    LAST_ARM_AFTER,
    LAST_ARM_STEPS,
    LONGER,
    compared_steps,
    finalist_steps,
    further_steps,
    most_steps,
    plan_steps,
    prepared_seconds,
    rounded,
)
from .files import EXPORT, PLAN
from .runs import EVERY, Common, Trial, read_trial, run_arm, run_folder


@dataclass
class Plan:
    """What the rounds are to train.

    Attributes:
        arms: the arms that are tried.
        steps: of the first round, and of the second once it is known.
        every: steps between development scores.
        besides: seconds that a run costs besides its steps; None where `max_steps` says the steps.
        prepared: seconds that the teachers took.
        finalists: the arms of the second round, once they are known.
        averaged: whether the weights of the finalists are averaged. Else the best of them is taken.
        further: [arm, step] of each time that the best one went on.
        ended: whether it goes on no more.
        goes_on: whether a last arm starts from the best one.
        last: that arm, once it is known.
        last_steps: the steps that it is trained to, one after the other.
        bf16, max_seq_length: which all runs share, whatever is faster in a later call.
    """

    arms: Arms
    steps: list[int]
    every: int
    besides: float | None
    prepared: float = 0.0
    finalists: list[str] = field(default_factory=list)
    averaged: bool = False
    further: list[tuple[str, int]] = field(default_factory=list)
    ended: bool = False
    goes_on: bool = False
    last: Arms = field(default_factory=dict)
    last_steps: list[int] = field(default_factory=list)
    bf16: bool = False
    max_seq_length: int | None = None

    def write(self, folder: Path) -> None:
        """Keep it for a later call."""
        replace_json(folder / PLAN, asdict(self))


def read_plan(folder: Path) -> Plan | None:
    """The plan of an earlier call; None if there was none.

    Raises:
        InputError: another version wrote it.
    """
    path = folder / PLAN
    if not path.exists():
        return None
    try:
        return Plan(**json.loads(path.read_text(encoding="utf-8")))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{path}: expected the plan of this version of cmlmcse, found {error}; start again with another "
            "--output_dir"
        ) from error


class Trained(NamedTuple):
    """What was trained, the names of the arms that are chosen (those whose weights are averaged, or the best one), and
    the fields of all arms."""

    trials: dict[str, Trial]
    chosen: list[str]
    arms: Arms


def run_arms(
    arms: Arms,
    common: Common,
    seconds: float,
    max_steps: int | None,
    minutes: float = 0.0,
    last_arm: LastArm | None = None,
) -> Trained:
    """Train every arm, then train the best ones on (successive halving). A best one that is not averaged with another
    then goes on for as long as its score rises and time is left. A repeated call goes on where it stopped.

    An arm whose loss becomes NaN is left out, or stays as it was after the first round.

    Args:
        arms: the arms.
        common: what they share.
        seconds: the time for all of it. The first call measures the time of a step and plans by it.
        max_steps: steps of a finalist, instead of a time.
        minutes: the time of the whole command, for a line that says how many are enough.
        last_arm: makes an arm that starts from the best one, if there is time for it.

    Raises:
        Diverged: the loss of every arm became NaN.
    """
    start = time.perf_counter()
    plan = read_plan(common.folder)
    if plan is None:
        plan = new_plan(arms, common, seconds, max_steps, minutes, last_arm is not None)
        plan.write(common.folder)
    else:
        check_arms(plan, arms, common.folder)
        start -= seconds_spent(plan, common.folder)
    rounds = Rounds(plan, common, start + (seconds * (1 - LAST_ARM) if plan.goes_on else seconds))
    rounds.first()
    rounds.second()
    rounds.further()
    if last_arm is not None and plan.goes_on:
        rounds.end = start + seconds
        rounds.last(last_arm)
    return Trained(rounds.trials, rounds.chosen(), plan.arms | plan.last)


def new_plan(
    arms: Arms, common: Common, seconds: float, max_steps: int | None, minutes: float, goes_on: bool = False
) -> Plan:
    """The plan for this time, by a short run of the first arm, or for so many steps of a finalist. If the time is too
    short for a second round, a line says so. The arguments are those of :func:`run_arms`; `goes_on` says whether there
    may be a last arm."""
    names, besides, prepared = list(arms), None, 0.0
    if max_steps is None:
        start = time.perf_counter()
        trial = run_arm(names[0], arms[names[0]], common, FIRST_STEPS, EVERY)
        spent, prepared = time.perf_counter() - start, prepared_seconds(trial)
        kinds = len(best_of_each_kind(dict.fromkeys(names, trial), arms, common.finished))
        reserved = seconds * (1 - LAST_ARM) if goes_on else seconds
        planned = plan_steps(names, kinds, trial, spent, reserved, common.finished)
        if goes_on and len(planned[0]) == 1 and planned[1] < LAST_ARM_AFTER:  # then the other arms need all of it
            goes_on, planned = False, plan_steps(names, kinds, trial, spent, seconds, common.finished)
        names, first, besides, missing = planned
        steps = [first]
        if missing:
            arms_and_steps = f"{kinds} arm{'s' * (kinds > 1)} of {LONGER * compared_steps(common.finished)} steps"
            said = f"--minutes {minutes:g} is too short for this text on this machine: one arm trains for about "
            said += f"{first} steps only; --minutes {math.ceil(minutes + missing / 60)} is enough for {arms_and_steps}"
            print(said, file=sys.stderr, flush=True)
    else:
        first = max(max_steps // LONGER, min(compared_steps(common.finished), max_steps))
        steps = [first, max_steps]
    shared = {name: common.fields[name] for name in ("bf16", "max_seq_length") if name in common.fields}
    tried = {name: arms[name] for name in names}
    return Plan(tried, steps, min(EVERY, first), besides, prepared, goes_on=goes_on, **shared)


def check_arms(plan: Plan, arms: Arms, folder: Path) -> None:
    """Check that a later call asks for the arms of the first one.

    Raises:
        InputError: it does not.
    """
    if {name: arms.get(name) for name in plan.arms} != plan.arms:
        raise InputError(
            f"{folder} expects the arms that it was started with ({', '.join(plan.arms)}), found other fields, or the "
            "plan of another version of cmlmcse; start again with another --output_dir"
        )


def seconds_spent(plan: Plan, folder: Path) -> float:
    """The time that an earlier call has spent on the arms, so that going on does not start the clock again."""
    if plan.besides is None:
        return 0.0
    done = [read_trial(run_folder(folder, name)) for name in plan.arms | plan.last]
    return sum(trial.record["train_seconds"] + plan.besides for trial in done if trial is not None)


class Rounds:
    """The arms while they are trained.

    Args:
        plan: what to train. It is written again whenever more is known.
        common: what the arms share.
        end: when the time is over.
    """

    def __init__(self, plan: Plan, common: Common, end: float) -> None:
        self.plan, self.common, self.end = plan, common, end
        self.trials: dict[str, Trial] = {}
        self.diverged: list[Diverged] = []

    def first(self) -> None:
        """Train every arm."""
        for name in self.plan.arms:
            self.train(name, self.plan.steps[0])
        if not self.trials:
            raise self.diverged[-1]

    def second(self) -> None:
        """Train the best ones on: those that are averaged, else the best `FINALISTS`."""
        plan = self.plan
        if not plan.finalists:
            kinds = best_of_each_kind(self.trials, plan.arms, self.common.finished)
            plan.averaged = len(kinds) > 1
            best = sorted(self.trials, key=lambda name: self.trials[name].score, reverse=True)
            plan.finalists = kinds if plan.averaged else best[:FINALISTS]
        if len(plan.steps) == 1:  # the time that is left says the rest
            plan.prepared = max(plan.prepared, *map(prepared_seconds, self.trials.values()))
            plan.steps.append(self.steps_of(plan.finalists))
        plan.write(self.common.folder)  # a later call must not choose again, by scores of this round
        for name in plan.finalists:
            self.train(name, plan.steps[1])

    def steps_of(self, names: list[str]) -> int:
        """The step that these arms can train on to."""
        assert self.plan.besides is not None
        records, first, seconds = [self.trials[name].record for name in names], self.plan.steps[0], self.left()
        each, again = [record["seconds_per_step"] for record in records], []
        if self.common.finished:  # the last step is scored too; and then they are trained on the second split
            seconds -= sum(record["score_seconds"] for record in records)
            again = [record["unscored_seconds_per_step"] for record in records]
            again = again if self.plan.averaged else [max(again)]
        last = finalist_steps(each, again, first, seconds, self.plan.besides)
        return max(min(last, most_steps(self.common.finished)[1]), first)

    def further(self) -> None:
        """Train the best one on for as long as its score rises and time is left, if it is averaged with no other."""
        plan = self.plan
        for name, step in plan.further:  # of an earlier call
            self.train(name, step)
        while plan.besides is not None and not plan.ended and not plan.averaged:
            (name,) = self.chosen()
            step = further_steps(self.trials[name], self.left(), plan.besides, self.common.finished)
            step = min(step, most_steps(self.common.finished)[1])
            if step <= self.trials[name].steps:
                plan.ended = True  # a later call may have more time left than is known
            else:
                plan.further.append((name, step))
            plan.write(self.common.folder)
            if not plan.ended:
                plan.ended = not self.train(name, step)

    def last(self, last_arm: LastArm) -> None:
        """Train one more arm, which starts from the best one, for as long as time is left."""
        plan = self.plan
        if not plan.last:
            (best,) = self.chosen()
            plan.last = last_arm(best, str(self.trials[best].folder / EXPORT))
            plan.last_steps = [min(plan.steps[1], LAST_ARM_STEPS) if plan.besides is None else FIRST_STEPS]
            plan.write(self.common.folder)
        (name,) = plan.last
        for step in plan.last_steps:
            if not self.train(name, step):
                return
        if plan.besides is not None and len(plan.last_steps) == 1:
            trial = self.trials[name]
            more = (self.end - time.perf_counter() - plan.besides) / trial.record["seconds_per_step"]
            plan.last_steps.append(min(trial.steps + max(rounded(more), 0), LAST_ARM_STEPS))
            plan.write(self.common.folder)
            self.train(name, plan.last_steps[-1])

    def train(self, name: str, step: int) -> bool:
        """Train an arm to this step, and say whether its loss stayed finite.

        Raises:
            Diverged: it did not, on several processes, of which some may not know it.
        """
        try:
            arms, common = self.plan.arms, self.common
            if name in self.plan.last:  # it starts from other weights, which it scores itself
                arms, common = self.plan.last, common._replace(start_values=None)
            self.trials[name] = run_arm(name, arms[name], common, step, self.plan.every)
        except Diverged as stop:
            if launched_processes() > 1:
                raise
            self.diverged.append(stop)
            print(f"{stop.found}; the other arms go on without it", file=sys.stderr, flush=True)
            return False
        return True

    def left(self) -> float:
        """Seconds that are left for training. The teachers prepare once more, for the second split."""
        return self.end - time.perf_counter() - self.plan.prepared

    def chosen(self) -> list[str]:
        """The finalists whose weights are averaged, or the last arm, or the best finalist.

        No score chooses between the last arm and the one that it starts from, which practised the questions of the
        score. On MED this score fell by 1.0, and by labels the last arm gained 5.3 (docs/results/adapting.md)."""
        if last := [name for name in self.plan.last if name in self.trials]:
            return last
        names = self.plan.finalists
        return names if self.plan.averaged else [max(names, key=lambda name: self.trials[name].score)]


def best_of_each_kind(trials: dict[str, Trial], arms: Arms, finished: bool) -> list[str]:
    """The arms whose weights are averaged: the best one of each kind in `AVERAGED`. Without one of them, or from a
    plain backbone, the best one of all."""
    kinds = [[name for name in trials if arms[name]["views"] == kind] for kind in AVERAGED]
    if not finished or not all(kinds):
        kinds = [list(trials)]
    return [max(names, key=lambda name: trials[name].score) for names in kinds]
