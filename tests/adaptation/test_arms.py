"""The arms of adapt: which ones, how long, and which goes on."""

import numpy as np
import pytest

from cmlmcse.adaptation import arms
from cmlmcse.adaptation.arms import (
    Common,
    Trial,
    best_of_each_kind,
    default_arms,
    finalist_steps,
    further_steps,
    plan_steps,
    run_arms,
)
from cmlmcse.adaptation.crew import run
from cmlmcse.common.names import split_names
from cmlmcse.evaluation.bm25 import WEIGHT
from cmlmcse.training.searches import LEXICAL_SCALE


def test_arms():
    """Titles give arms of their own; what the user sets holds in all arms, and equal arms run once."""
    names = list(default_arms("start", True, False, {}))
    assert names[0] == "title_body, rate 0.0003"
    assert len(names) == len(default_arms("start", True, True, {})) == 5
    assert not any("title" in name for name in default_arms("start", False, True, {}))
    crops = default_arms("start", True, True, {"views": "crops"})
    assert set(crops) == {"crops, rate 3e-05", "crops, rate 0.0001"}
    assert all(fields["backbone_dropout"] == 0 for fields in crops.values())
    assert default_arms("start", True, True, {"backbone_dropout": "0.1"}).popitem()[1]["backbone_dropout"] == "0.1"
    first = [list(default_arms("start", titles, True, {}))[:3] for titles in (False, True)]
    assert first[0] == ["search, rate 3e-05", "search, rate 0.0001", "dropout, rate 3e-05"]
    assert first[1] == ["search, rate 3e-05", "title_body, rate 3e-05", "search, rate 0.0001"]
    search = default_arms("start", False, True, {})["search, rate 0.0001"]
    assert (search["teacher"], search["contrastive_weight"]) == ("start,bm25", 0)
    assert search["teacher_temp"] / search["distillation_temp"] == pytest.approx(search["teacher_share"])
    share = search["teacher_share"]  # of the model; the teachers together are what `search --bm25` ranks by
    assert LEXICAL_SCALE * (1 - share) / share == pytest.approx(WEIGHT)
    quoted = default_arms("a,b", False, True, {})["search, rate 0.0001"]["teacher"]
    assert split_names(quoted) == ["a,b", "bm25"]
    assert default_arms("start", False, True, {"teacher": "other"})["search, rate 3e-05"]["teacher"] == "other"
    for own in ("cmlm_weight", "mined_negatives"):  # the user's objective is that of all arms
        assert not any("search" in name for name in default_arms("start", True, True, {own: "1"}))
    plain = default_arms("start", True, False, {"views": "search"})["search, rate 0.0003"]
    assert (plain["teacher"], plain["teacher_temp"]) == ("bm25", search["teacher_temp"])
    alike = default_arms("start", False, True, {"views": "dropout"})  # which nothing else makes two views of
    assert all("backbone_dropout" not in fields for fields in alike.values())


@pytest.mark.parametrize(
    "minutes, step, expected",
    [
        (15, 1.0, ((5, 60, 200), (5, 20, 80))),
        (8, 1.0, ((3, 40, 120), (3, 20, 60))),
        (5, 1.0, ((1, 60, 180), (2, 40, 40))),
        (2.5, 1.0, ((1, 20, 80), (1, 20, 40))),
        (1.5, 1.0, ((1, 20, 20), (1, 20, 20))),
        (1, 1.0, ((1, 20, 20), (1, 20, 20))),
        (500, 0.1, ((5, 160, 480), (5, 40, 80))),
    ],
)
@pytest.mark.parametrize("prepared", [0.0, 90.0])
@pytest.mark.parametrize("finished", [False, True])
def test_plan(minutes, step, expected, prepared, finished, monkeypatch, tmp_path):
    """More time gives more arms, then more steps, and all of them fit into it; the finalists get what is left. So do
    the runs on another split. What the first arm's teachers took is paid once for each split."""
    record = {"seconds_per_step": step, "prepared_seconds": prepared}
    monkeypatch.setattr(arms, "run_arm", lambda *_: Trial(tmp_path, 20, 0.0, record))
    monkeypatch.setattr(arms.time, "perf_counter", iter((0.0, 30.0 + prepared)).__next__)
    named = default_arms("start", True, finished, {})
    seconds = 45 * minutes + 2 * prepared
    common = Common(tmp_path, {}, np.zeros(1), run, finished)
    names, first, besides, paid = plan_steps(named, common, seconds)
    assert (besides, paid) == (30 - 20 * step, prepared)
    count, finalists = len(names), min(2, len(names))
    again = min(2, count) if finished else 0
    spent = 30 + prepared + count * besides + (count * first - 20) * step
    last = finalist_steps([step] * finalists, [step] * again, first, seconds - spent - prepared, besides)
    last = max(min(last, common.most[1]), first)
    assert (count, first, last) == expected[finished]
    taken = step * (count * first + finalists * (last - first) + again * last)
    taken += (count + 1 + finalists * (last > first) + again) * besides
    over = 10 * step * (finalists + again)  # the finalists' steps are rounded to the nearest 20
    assert taken <= 45 * minutes + over or (count, first, last) == (1, 20, 20)


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

    monkeypatch.setattr(arms, "run_arm", run_arm)
    monkeypatch.setattr(arms, "plan_steps", lambda *_: (["other", "best"], 20, 10.0, 7.0))
    monkeypatch.setattr(arms.time, "perf_counter", lambda: now[0])
    common = Common(tmp_path, {}, np.zeros(1), run)
    alike = {"other": {"views": "words"}, "best": {"views": "words"}}
    found = run_arms(alike, common, 300.0, None)
    assert asked[2:4] == [("best", 120), ("other", 120)]  # 240 seconds are left, less 7 for teachers and 10 for each
    assert asked[4:] == [("best", 320)]  # 223 seconds are left, less 10; then the score no longer rises
    assert found["best"].steps == 320
    again = list(asked)
    asked.clear()
    run_arms(alike, common, 0.0, None)
    assert asked == again


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

    monkeypatch.setattr(arms, "run_arm", run_arm)
    trials = run_arms(tried, Common(tmp_path, {}, np.zeros(1), run, finished=True), 0.0, 60)
    assert asked[5:] == [("title2", 60), ("search", 60)]
    assert best_of_each_kind(trials, tried, finished=True) == ["title2", "search"]
    assert best_of_each_kind(trials, tried, finished=False) == ["other"]
    del trials["search"], trials["search2"]
    assert best_of_each_kind(trials, tried, finished=True) == ["other"]
