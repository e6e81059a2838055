"""How long adapt trains its arms, and which of them go on."""

from functools import partial

import numpy as np
import pytest

from cmlmcse.adaptation import rounds
from cmlmcse.adaptation.arms import last_arm
from cmlmcse.adaptation.budget import finalist_steps, further_steps, most_steps, plan_steps
from cmlmcse.adaptation.processes import run
from cmlmcse.adaptation.rounds import Plan, best_of_each_kind, run_arms
from cmlmcse.adaptation.runs import Common, Trial
from cmlmcse.common.errors import Diverged


class Killed(Exception):
    """The process ends here."""


@pytest.mark.parametrize(
    "minutes, step, expected",
    [
        (15, 1.0, ((5, 60, 200), (5, 40, 80))),
        (8, 1.0, ((3, 40, 120), (5, 20, 65))),
        (5, 1.0, ((1, 60, 180), (2, 20, 50))),
        (2.5, 1.0, ((1, 20, 80), (2, 20, 20))),
        (1.5, 1.0, ((1, 20, 20), (1, 20, 20))),
        (1, 1.0, ((1, 20, 20), (1, 20, 20))),
        (500, 0.1, ((5, 160, 480), (5, 40, 80))),
    ],
)
@pytest.mark.parametrize("prepared", [0.0, 90.0])
@pytest.mark.parametrize("finished", [False, True])
def test_plan(minutes, step, expected, prepared, finished, tmp_path):
    """More time gives more arms, then more steps, and all of them fit into it; the finalists get what is left. So do
    the runs on another split, whose steps take half the time without scores. What the first arm's teachers took is paid
    once for each split."""
    trial = Trial(
        tmp_path,
        20,
        0.0,
        {"seconds_per_step": step, "unscored_seconds_per_step": step / 2, "prepared_seconds": prepared},
    )
    seconds = 45 * minutes + 2 * prepared
    kinds = 2 if finished else 1
    planned = partial(plan_steps, list("abcde"), kinds, trial, 30.0 + prepared, finished=finished)
    names, first, besides, missing = planned(seconds)
    assert besides == 30 - 20 * step
    count, finalists = len(names), min(2, len(names))
    again = min(2, count) if finished else 0
    spent = 30 + prepared + count * besides + (count * first - 20) * step
    bare = step / 2
    last = finalist_steps([step] * finalists, [bare] * again, first, seconds - spent - prepared, besides)
    last = max(min(last, most_steps(finished)[1]), first)
    assert (count, first, last) == expected[finished]
    taken = step * count * first + step * finalists * (last - first) + bare * again * last
    taken += (count + (first > 20) + finalists * (last > first) + again) * besides
    assert taken <= 45 * minutes or (count, first, last) == (1, 20, 20)
    assert (missing > 0) >= (taken > 45 * minutes)
    if missing:
        more, steps, _, lacks = planned(seconds + missing + 1e-6)
        assert (len(more), steps, lacks) == ((2, 20, 0.0) if finished else (1, 40, 0.0))
        assert finished or planned(seconds + missing - 1)[1] < 40


@pytest.mark.parametrize(("minutes", "enough"), [(3.0, 6), (15.0, None)])
def test_too_few_minutes_are_named(minutes, enough, monkeypatch, tmp_path, capsys):
    """The scores take three minutes; a step takes a second, and a run 9 more. An arm of 20, 40 and then 120 steps takes
    147 seconds, which is 5.45 minutes in all."""
    record = {"seconds_per_step": 1.0, "unscored_seconds_per_step": 1.0}
    now = [0.0]

    def run_arm(name, fields, common, steps, every):
        now[0] += 29.0
        return Trial(tmp_path, steps, 0.0, record)

    monkeypatch.setattr(rounds, "run_arm", run_arm)
    monkeypatch.setattr(rounds.time, "perf_counter", lambda: now[0])
    arms = {"other": {"views": "words"}, "best": {"views": "words"}}
    rounds.new_plan(arms, Common(tmp_path, {}, np.zeros(1), run), 60 * (minutes - 3), None, minutes)
    said = (
        "--minutes 3 is too short for this text on this machine: one arm trains for about 20 steps only; "
        f"--minutes {enough} is enough for 1 arm of 120 steps\n"
    )
    assert capsys.readouterr().err == (said if enough else "")


@pytest.mark.parametrize(
    "scores, seconds, expected",
    [
        ([10, 11, 12], 50, 80),
        ([10, 12, 11], 50, 0),
        ([10, 11, 12], 19, 40),
        ([10, 11, 12], -9, 40),
        ([1, 2], 9999, 10_020),
    ],
)
def test_further_steps(scores, seconds, expected, tmp_path):
    """An arm whose last score is its best goes on for as many steps as fit into the time, in blocks of 20."""
    trial = Trial(tmp_path, 40, 12.0, {"dev_scores": scores, "seconds_per_step": 1.0})
    assert further_steps(trial, seconds + 10, 10.0, again=False) == expected
    twice = seconds + max(expected - 40, 0) + 40 + 20  # all steps on another split, and what two runs cost besides
    assert further_steps(trial, twice, 10.0, again=True) == expected


def test_the_best_arm_goes_on(monkeypatch, tmp_path):
    """After both rounds, while its score rises and time is left; a repeated call trains to the same steps again, and no
    further without time."""
    asked, now = [], [0.0]

    def run_arm(name, fields, common, steps, every):
        asked.append((name, steps))
        now[0] += 30.0 if len(asked) <= 2 else 5.0  # the finalists are faster than was planned
        scores = [0.0, *(float(min(step, 120)) for step in range(20, steps + 1, 20))]
        return Trial(
            tmp_path,
            steps,
            max(scores) + (name == "best"),
            {"seconds_per_step": 1.0, "unscored_seconds_per_step": 1.0, "dev_scores": scores},
        )

    monkeypatch.setattr(rounds, "run_arm", run_arm)
    planned = partial(Plan, steps=[20], every=20, besides=10.0, prepared=7.0)
    monkeypatch.setattr(rounds, "new_plan", lambda arms, *_: planned(arms))
    monkeypatch.setattr(rounds.time, "perf_counter", lambda: now[0])
    common = Common(tmp_path, {}, np.zeros(1), run)
    alike = {"other": {"views": "words"}, "best": {"views": "words"}}
    found, chosen, _ = run_arms(alike, common, 300.0, None)
    assert asked[2:4] == [("best", 120), ("other", 120)]  # 240 seconds are left, less 7 for teachers and 10 for each
    assert asked[4:] == [("best", 320)]  # 223 seconds are left, less 10; then the score no longer rises
    assert found["best"].steps == 320
    assert chosen == ["best"]
    again = list(asked)
    asked.clear()
    run_arms(alike, common, 0.0, None)
    assert asked == again


def test_a_later_call_has_the_time_that_is_left(monkeypatch, tmp_path):
    """What an earlier call spent on its arms is taken from the time; the hours between the calls are not."""
    asked, now, done = [], [0.0], {}

    def run_arm(name, fields, common, steps, every):
        asked.append((name, steps))
        if name == "b" and now[0] < 1000:
            raise Killed
        if done.get(name, 0) < steps:
            now[0] += (steps - done.get(name, 0)) * 1.0 + 10.0
            done[name] = steps
        return trial(name)

    def trial(name):
        record = {"seconds_per_step": 1.0, "unscored_seconds_per_step": 1.0, "train_seconds": 1.0 * done[name]}
        return Trial(tmp_path, done[name], 1.0, record | {"dev_scores": [1.0, 0.0]})

    monkeypatch.setattr(rounds, "run_arm", run_arm)
    monkeypatch.setattr(rounds, "read_trial", lambda folder: trial(folder.name) if folder.name in done else None)
    planned = partial(Plan, steps=[20], every=20, besides=10.0)
    monkeypatch.setattr(rounds, "new_plan", lambda arms, *_: planned(arms))
    monkeypatch.setattr(rounds.time, "perf_counter", lambda: now[0])
    tried = {name: {"views": "words"} for name in "ab"}
    with pytest.raises(Killed):
        run_arms(tried, Common(tmp_path, {}, np.zeros(1), run), 300.0, None)
    now[0] = 5000.0
    run_arms(tried, Common(tmp_path, {}, np.zeros(1), run), 300.0, None)
    # The first arm took 30 seconds in the first call and the second one 30 in this call. Of 240 each needs 10 besides
    # its steps, so each trains 110 more, in whole blocks of 20.
    assert asked == [("a", 20), ("b", 20), ("a", 20), ("b", 20), ("a", 120), ("b", 120)]


def test_two_kinds_go_on_together(monkeypatch, tmp_path):
    """Of a finished encoder the best arm of each averaged kind is trained on, whatever else has a higher score; a plain
    backbone has no such kinds."""
    kinds = {"title": "title_body", "title2": "title_body", "search": "search", "search2": "search", "other": "dropout"}
    tried = {name: {"views": views} for name, views in kinds.items()}
    scores = dict(zip(kinds, (1.0, 2.0, 4.0, 3.0, 9.0), strict=True))
    asked = []

    def run_arm(name, fields, common, steps, every):
        asked.append((name, steps))
        return Trial(
            tmp_path,
            steps,
            scores[name],
            {"seconds_per_step": 1.0, "unscored_seconds_per_step": 1.0, "dev_scores": [0.0, 1.0]},
        )

    monkeypatch.setattr(rounds, "run_arm", run_arm)
    trials, chosen, _ = run_arms(tried, Common(tmp_path, {}, np.zeros(1), run, finished=True), 0.0, 60)
    assert asked[5:] == [("title2", 60), ("search", 60)]
    assert chosen == ["title2", "search"]
    assert best_of_each_kind(trials, tried, finished=True) == ["title2", "search"]
    assert best_of_each_kind(trials, tried, finished=False) == ["other"]
    del trials["search"], trials["search2"]
    assert best_of_each_kind(trials, tried, finished=True) == ["other"]


def test_a_repeated_call_trains_the_same_finalists(monkeypatch, tmp_path):
    """A finished encoder keeps its last step, so a finalist's score may fall below that of an arm which was not trained
    on. A call after a kill goes on with the finalists of the first call, and they are chosen."""
    tried = {f"{kind}, {rate}": {"views": views} for kind, views in (("title", "title_body"), ("search", "search"))
             for rate in (1, 2)}  # fmt: skip
    scores = {("title, 1", 20): 3.0, ("title, 2", 20): 2.0, ("search, 1", 20): 5.0, ("search, 2", 20): 4.0,
              ("title, 1", 60): 1.0, ("search, 1", 60): 3.0}  # fmt: skip
    done, asked, killed = dict.fromkeys(tried, 0), [], []

    def run_arm(name, fields, common, steps, every):
        if (name, steps) == ("search, 1", 60) and not killed:
            killed.append(name)
            raise Killed
        done[name] = max(done[name], steps)  # a run that has so many steps is only read
        asked.append((name, steps))
        return Trial(tmp_path, done[name], scores[name, done[name]], {"dev_scores": []})

    monkeypatch.setattr(rounds, "run_arm", run_arm)
    common = Common(tmp_path, {}, np.zeros(1), run, finished=True)
    with pytest.raises(Killed):
        run_arms(tried, common, 0.0, 60)
    assert asked[4:] == [("title, 1", 60)]
    asked.clear()
    _, chosen, _ = run_arms(tried, common, 0.0, 60)
    assert asked[4:] == [("title, 1", 60), ("search, 1", 60)]
    assert chosen == ["title, 1", "search, 1"]


def test_an_arm_that_diverges_is_left_out(monkeypatch, tmp_path, capsys):
    """The others go on without it; one that diverges later stays as it was. Where all do, the command ends."""
    limits = {"a": 0, "b": 40, "c": 60}

    def run_arm(name, fields, common, steps, every):
        if steps > limits[name]:
            raise Diverged(f"{name}: the loss of a batch of step 5 is nan", "lower the rate")
        return Trial(tmp_path, steps, {"b": 2.0, "c": 1.0}[name], {"dev_scores": []})

    monkeypatch.setattr(rounds, "run_arm", run_arm)
    tried = {name: {"views": "words"} for name in limits}
    trials, chosen, _ = run_arms(tried, Common(tmp_path, {}, np.zeros(1), run), 0.0, 60)
    assert {name: trial.steps for name, trial in trials.items()} == {"b": 40, "c": 60}
    assert chosen == ["b"]
    assert "a: the loss of a batch of step 5 is nan; the other arms go on without it" in capsys.readouterr().err
    (tmp_path / "plan.json").unlink()
    with pytest.raises(Diverged, match="a: the loss of a batch of step 5 is nan; lower the rate"):
        run_arms({"a": {"views": "words"}}, Common(tmp_path, {}, np.zeros(1), run), 0.0, 60)
    (tmp_path / "plan.json").unlink()
    monkeypatch.setenv("WORLD_SIZE", "2")  # the others may not know it
    with pytest.raises(Diverged):
        run_arms(tried, Common(tmp_path, {}, np.zeros(1), run), 0.0, 60)


@pytest.mark.parametrize(("seconds", "steps"), [(100.0, 60), (2000.0, 240)])
def test_a_last_arm_starts_from_the_best_one(seconds, steps, monkeypatch, tmp_path):
    """It gets what the others left of the time, trains for 240 steps at most, scores its own start, and is chosen,
    whatever its score: the best one practised the questions. A repeated call trains it to the same steps."""
    asked, now, done = [], [0.0], {}
    name = "words then search, rate 0.0001"

    def run_arm(arm, fields, common, step, every):
        assert (common.start_values is None) == (arm == name)
        asked.append((arm, step, fields.get("model_name_or_path")))
        now[0] += max(step - done.get(arm, 0), 0)
        done[arm] = max(step, done.get(arm, 0))
        record = {"seconds_per_step": 1.0, "unscored_seconds_per_step": 1.0, "dev_scores": [9.0, 8.0]}
        return Trial(tmp_path / arm, step, {"words, 1": 20.0, name: 19.0}.get(arm, 10.0), record)

    monkeypatch.setattr(rounds, "run_arm", run_arm)
    monkeypatch.setattr(rounds, "new_plan", lambda arms, *_: Plan(arms, [20], 20, besides=0.0, goes_on=True))
    monkeypatch.setattr(rounds.time, "perf_counter", lambda: now[0])
    tried = {"words, 1": {"views": "words"}, "words, 2": {"views": "words"}}
    common, last = Common(tmp_path, {}, np.zeros(1), run), last_arm({}, small=True)
    _, chosen, arms = run_arms(tried, common, seconds, None, last_arm=last)
    assert asked[-2:] == [(name, step, str(tmp_path / "words, 1" / "export")) for step in (20, steps)]
    assert chosen == [name]
    assert list(arms) == ["words, 1", "words, 2", name]
    again = list(asked)
    asked.clear()
    run_arms(tried, common, 0.0, None, last_arm=last)
    assert asked == again


@pytest.mark.parametrize(("seconds", "goes_on", "first"), [(400.0, True, 80), (200.0, False, 60), (100.0, False, 20)])
def test_a_short_time_has_no_last_arm(seconds, goes_on, first, monkeypatch, tmp_path):
    """Where the other arms would not have steps enough in three fifths of the time, they get all of it."""
    record = {"seconds_per_step": 1.0, "unscored_seconds_per_step": 1.0}
    monkeypatch.setattr(rounds, "run_arm", lambda name, fields, common, steps, every: Trial(tmp_path, 20, 0.0, record))
    plan = rounds.new_plan({"a": {"views": "words"}}, Common(tmp_path, {}, np.zeros(1), run), seconds, None, 9.0, True)
    assert (plan.goes_on, plan.steps) == (goes_on, [first])
