"""How many arms fit into the time, and how many steps of each."""

from collections.abc import Iterator

from .runs import EVERY, Trial

FINALISTS = 2  # arms that the second round trains on
LONGER = 3  # the second round ends at this many times the steps of the first one, or later if time is left
FIRST_STEPS = 20  # of the run that measures the time of a step
COMPARED_STEPS = 40  # of an arm before it is compared; a choice by hand: after 20, the warm-up is half of them
ENCODER_COMPARED_STEPS = 20  # of a finished encoder, so that arms of two kinds fit into the default time
MAX_STEPS = 160  # of an arm in the first round; the trials behind the recipe rose for 40 to 120 steps
# Of a finished encoder, in the first round and in all: no more than 80 were measured (docs/results/adapting-score.md).
ENCODER_MAX_STEPS = 40, 80
# Of the time of all arms, for the one that starts from a plain backbone's best one. A choice by hand: in the default
# time of 15 minutes it was enough for 240 steps on NPL and TIME, and for 140 on SciFact
# (benchmarks/records/adapting-last-arm-240.json).
LAST_ARM = 0.4
LAST_ARM_STEPS = 240  # at most; more were not measured (docs/results/adapting.md)
# Steps of the first round, if there is time for one arm only: after fewer it gained nothing on MED and CACM
# (docs/results/records/adapting-last-arm-trials.json).
LAST_ARM_AFTER = 60
GRAIN = 5  # steps that a finished encoder's second round is planned in; its last step is the one that is kept


def compared_steps(finished: bool) -> int:
    """Steps of an arm before it is compared."""
    return ENCODER_COMPARED_STEPS if finished else COMPARED_STEPS


def most_steps(finished: bool) -> tuple[int, int]:
    """Steps of an arm at most, in the first round and in all."""
    return ENCODER_MAX_STEPS if finished else (MAX_STEPS, LONGER * MAX_STEPS)


def plan_steps(
    names: list[str], kinds: int, trial: Trial, spent: float, seconds: float, finished: bool
) -> tuple[list[str], int, float, float]:
    """How many arms fit into the time, and how long they train at first.

    As many arms as possible are tried, with finalists that train `LONGER` as long, and so do a finished encoder's runs
    on the other split. If time is short, they train less before a kind that is averaged is left out. What the first
    arm's teachers took is paid once, and once more for the other split of the text.

    Args:
        names: of the arms.
        kinds: how many of them are averaged.
        trial: the run of the first arm for `FIRST_STEPS`, which gives the seconds of a step.
        spent: the seconds that this run took in all.
        seconds: the time for all arms, and for this run.
        finished: whether the start is a finished encoder.

    Returns:
        The arms that fit; the steps of the first round, a multiple of `EVERY`; the seconds that a run costs besides its
        steps; and, if there is not even time for one arm's second round, those that an arm of each kind lacks for both.
    """
    step, unscored = trial.record["seconds_per_step"], trial.record["unscored_seconds_per_step"]
    prepared = prepared_seconds(trial)
    besides = max(spent - FIRST_STEPS * step - prepared, 0.0)
    left = seconds - spent + FIRST_STEPS * step - prepared  # the first arm goes on from there

    def cost(count: int, longer: int) -> tuple[float, float]:
        """The seconds besides the steps, and those of a step of the first round with what follows from it, of all."""
        finalists, again = min(FINALISTS, count), min(kinds, count) * finished
        each = step * (count + (longer - 1) * finalists) + unscored * longer * again
        return (count + finalists * (longer > 1) + again) * besides, each

    for count, longer in ways_to_plan(len(names), kinds):
        fixed, each = cost(count, longer)
        first = min(rounded((left - fixed) / each), most_steps(finished)[0])
        if first >= compared_steps(finished) or (count == 1 and first >= EVERY):
            return names[:count], first, besides, 0.0
    fixed, each = cost(kinds, LONGER)
    return names[:1], EVERY, besides, fixed + each * compared_steps(finished) - left


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


def finalist_steps(each: list[float], again: list[float], done: int, seconds: float, besides: float) -> int:
    """The step that the finalists can train on to in this time, and then those runs on another split.

    Args:
        each: seconds of a step of each finalist.
        again: the same of those that are trained once more.
        done: steps of the first round.
        seconds: the time for all of them.
        besides: seconds that a run costs besides its steps.
    """
    left = seconds - (len(each) + len(again)) * besides
    steps = (left + done * sum(each)) / (sum(each) + sum(again))
    return rounded(steps, GRAIN if again else EVERY)


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


def prepared_seconds(trial: Trial) -> float:
    """What a run's teachers took; next to nothing where an earlier run has left their vectors."""
    return trial.record.get("prepared_seconds", 0.0)


def rounded(steps: float, grain: int = EVERY) -> int:
    """A multiple of `grain` that is not larger."""
    return int(steps) // grain * grain
