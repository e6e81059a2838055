"""What docs/results/wikipedia.md takes from records, its picture, and which aims were met (benchmarks/HISTORY.md)."""

import csv
import importlib
import json
from collections import defaultdict
from collections.abc import Iterator
from statistics import fmean, stdev
from types import ModuleType
from typing import Any

import pytest
from matplotlib import pyplot as plt

from cmlmcse.study.statistics import Estimate
from support.paths import ROOT
from support.text import one_space

RESULTS = ROOT / "docs" / "results"
PAGE = one_space((RESULTS / "wikipedia.md").read_text("utf-8").replace("**", ""))
HISTORY = " ".join((ROOT / "benchmarks" / "HISTORY.md").read_text("utf-8").replace("**", "").split())
AIMS = HISTORY.partition("## What we had aimed at")[2]


def record(name: str) -> Any:
    """A record of the results' pages."""
    return json.loads((RESULTS / "records" / name).read_text("utf-8"))


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The picture's script as a module."""
    monkeypatch.syspath_prepend(ROOT / "docs" / "figures")
    yield importlib.import_module("draw_wikipedia")
    plt.close("all")


def of_a_study(name: str) -> dict[str, tuple[float, float]]:
    """An arm → the means of its seeds, similarity and search."""
    rows = list(csv.DictReader((ROOT / "studies" / name / "runs.csv").open(encoding="utf-8")))
    seeds = defaultdict(list)
    for row in rows:
        five = [float(row[column]) for column in row if column.endswith(".ndcg@10")]
        search = fmean(five) if five else float(row["retrieval.avg"])
        seeds[row["arm"]].append((float(row["sts.avg"]), search))
    return {arm: tuple(map(fmean, zip(*scores, strict=True))) for arm, scores in seeds.items()}


def test_the_picture_has_the_records_figures(script: ModuleType) -> None:
    """Each dot stands where its own record says, and its label names the run. The asset's record once moved under an
    older run's label."""
    panels = script.picture().axes
    drawn = [
        {
            line.get_label(): (line.get_xdata()[0], line.get_ydata()[0])
            for line in axes.lines
            if len(line.get_xdata()) == 1
        }
        for axes in panels
    ]
    views, sentences = of_a_study("wikipedia-search-bert-mini-59m"), of_a_study("wikipedia-first-tests")
    for titles, means in ((script.VIEWS, views), (script.SENTENCES, sentences)):
        for arm, title in titles.items():
            assert next(dot for label, dot in drawn[0].items() if label.startswith(f"{title} (")) == pytest.approx(
                means[arm]
            )

    steps = {656: "encoder-656-steps.json", 2624: "encoder-2624-steps.json"}
    for count, name in steps.items():
        found = record(name)
        dot = next(dot for label, dot in drawn[0].items() if f"{count:,} steps" in label and "then" not in label)
        assert found["run"]["steps"] == count
        assert dot == (found["results"]["sts"]["avg"], found["results"]["retrieval"]["avg"])
        assert f"{dot[1]:.2f} |" in PAGE
    assert drawn[0][next(label for label in drawn[0] if "de4844c" in label)] == pytest.approx((57.19, 25.36), abs=0.005)

    after = {label: dot for label, dot in drawn[1].items() if not label.startswith("_")}
    assert list(after) == [script.EARLIER, *script.BACKBONES.values(), script.MEAN]
    named = {"commit a7f3281": "encoder-800-steps.json", "assets/encoder-mini-en": "encoder-mini-en.json"}
    for part, name in named.items():
        found = record(name)["results"]
        dot = next(dot for label, dot in after.items() if part in label)
        assert dot == (found["sts"]["avg"], found["retrieval"]["avg"])
    assert after[script.EARLIER] == drawn[0][next(label for label in drawn[0] if "de4844c" in label)]
    before = [dot for label, dot in drawn[1].items() if label.startswith("_")]
    assert before == [pytest.approx(found, abs=0.005) for found in ((49.44, 13.15), (51.20, 13.98), (55.98, 24.42))]


def test_the_shorter_run() -> None:
    """The rows and differences of its two studies are those of the records."""
    part = PAGE.partition("### A shorter run on a CPU finds more")[2].partition("###")[0]
    found: dict[str, list[list[float]]] = defaultdict(list)
    for study, arms in (("wikipedia-search", ("words+sentence", "cmlm")), ("wikipedia-search-2", ("retromae",))):
        path = ROOT / "studies" / f"{study}-bert-mini-208m" / "runs.csv"
        for row in csv.DictReader(path.open(encoding="utf-8")):
            search = [float(row[f"retrieval.{name}.ndcg@10"]) for name in FIVE]
            if row["arm"] in arms:
                found[row["arm"]].append([*search, fmean(search), float(row["sts.avg"])])
    cells = {
        arm: " | ".join(f"{fmean(seeds):.2f} ± {stdev(seeds):.2f}" for seeds in zip(*rows, strict=True))
        for arm, rows in found.items()
    }
    assert f"| `words+sentence`, 100 steps of 128 | {cells['words+sentence']} |" in part
    assert f"| the same and CMLM-CSE, λ 0.5 | {cells['cmlm']} |" in part
    assert f"| the same and RetroMAE's decoder, weight 0.1 | {cells['retromae']} |" in part
    drawn = record("shorter-run.json")["drawn from all passages"]
    assert f"have {drawn['seed 2']['avg']:.2f} and {drawn['seed 3']['avg']:.2f} in search" in part
    few = [seed[5] for seed in found["words+sentence"]]
    assert f"where the study has {few[0]:.2f} and {few[1]:.2f}." in part
    pairs = list(zip(found["retromae"], found["words+sentence"], strict=True))  # of seeds 2, 3 and 4
    for measure, said in ((5, "−0.21 (−0.85 to 0.44) in search"), (6, "+0.01 (−0.07 to 0.09) on the seven STS sets")):
        difference = Estimate.of([one[measure] - other[measure] for one, other in pairs])
        assert f"{difference.mean:+.2f} ({difference.low:.2f} to {difference.high:.2f})".replace("-", "−") in said
        assert said in part


FIVE, THREE = ("med", "cisi", "cacm", "npl", "scifact"), ("cranfield", "lisa", "time")
FOUR = FIVE[:4]
Scores = dict[str, float]


def adapted(name: str, seed: int | None = None) -> tuple[Scores, Scores]:
    """The score of each collection before `adapt` and after it, of one seed or as the mean of all."""
    rows = json.loads((ROOT / "benchmarks" / "records" / name).read_text("utf-8"))
    found: dict[str, dict[str, list[float]]] = {"before": defaultdict(list), "after": defaultdict(list)}
    for row in rows:
        if seed in (None, row["seed"]):
            for when, scores in found.items():
                scores[row["collection"]].append(row["ndcg@10"][when])
    before, after = ({name: fmean(several) for name, several in scores.items()} for scores in found.values())
    return before, after


def mean_of(scores: Scores, names: tuple[str, ...]) -> float:
    """The average of some collections."""
    return fmean(scores[name] for name in names)


def test_twice_the_untrained_score() -> None:
    """The four collections without SciFact, before and after, adapted and from Wikipedia."""

    def passed(before: Scores, after: Scores) -> str:
        first, last = mean_of(before, FOUR), mean_of(after, FOUR)
        return f"{'met' if last >= 2 * first else 'missed'}: {first:.2f} → {last:.2f}, {last / first:.1f} times"

    def wikipedia(name: str) -> Scores:
        return {each: record(name)["results"]["retrieval"][each]["ndcg@10"] for each in FIVE}

    earlier, in_domain = adapted("adapting-backbone.json")
    today, in_domain_today = adapted("adapting-backbone-208m.json", 42)
    _, second = adapted("adapting-backbone-208m.json", 43)
    _, third = adapted("adapting-backbone-208m.json", 44)
    ours, ours_today = wikipedia("encoder-2624-steps.json"), wikipedia("encoder-mini-en.json")
    more = [mean_of(each, FOUR) for each in (second, third)]
    times = {f"{each / mean_of(today, FOUR):.1f}" for each in more}
    again = "two more seeds {:.2f} and {:.2f}, {} times".format(*more, *times)
    row = "at least twice the untrained score"
    both = f"{passed(earlier, in_domain)} | {passed(today, in_domain_today)}; {again} |"
    assert f"| the four adapted: {row} | {both}" in AIMS
    assert f"| the four from Wikipedia: {row} | {passed(earlier, ours)} | {passed(today, ours_today)} |" in AIMS

    gains = [mean_of(last, FOUR) - mean_of(first, FOUR) for last, first in (
        (in_domain_today, today), (in_domain, earlier), (ours_today, today), (ours, earlier))]  # fmt: skip
    assert "{:.2f} adapted (earlier: {:.2f}) and {:.2f} from Wikipedia ({:.2f})".format(*gains) in AIMS
    assert f"Untrained it has {today['scifact']:.2f} on SciFact" in AIMS
    assert f"missed: [{in_domain['scifact']:.2f}]" in AIMS
    assert f"met: [{in_domain_today['scifact']:.2f}, {second['scifact']:.2f} and {third['scifact']:.2f}]" in AIMS
    assert f"met: [{ours['scifact']:.2f}](../docs/results/wikipedia.md#" in AIMS
    assert f"met: [{ours_today['scifact']:.2f}](../docs/results/wikipedia.md#" in AIMS


def test_the_aims_of_adapt() -> None:
    """Average gains from the small backbones, and from all-MiniLM-L6-v2 with the rule of the least gain and without."""

    def gain(name: str, seed: int | None, *several: tuple[str, ...], kept: str = "") -> list[float]:
        before, after = adapted(name, seed)
        return [fmean(0 if each == kept else after[each] - before[each] for each in names) for names in several]

    small = "adapting-backbone-208m.json"
    assert "met: {:+.2f} on the five |".format(*gain("adapting-backbone.json", None, FIVE)) in AIMS
    assert "met: {:+.2f} on the five, {:+.2f} on the three;".format(*gain(small, 42, FIVE, THREE)) in AIMS
    more = (*gain(small, 43, FIVE, THREE), *gain(small, 44, FIVE))
    assert "a second seed {:+.2f} and {:+.2f}, a third {:+.2f} on the five |".format(*more) in AIMS

    titles, none = ("cisi", "cacm", "scifact"), ("med", "npl")
    runs = (("adapting-time-42.json", 42), ("adapting-time.json", 43), ("adapting-time-44.json", 44))
    ruled = [gain(*run, titles, none, THREE[:2], THREE[2:], kept="scifact") for run in runs]
    with_titles, without, others, time = zip(*ruled, strict=True)
    assert min(with_titles) >= 2.0
    assert min(without) >= 1.0
    assert "met: {:+.2f}, {:+.2f} and {:+.2f}. Two versions before missed it".format(*with_titles) in AIMS
    assert "at least +1.0 on average | met: {:+.2f}, {:+.2f} and {:+.2f} |".format(*without) in AIMS
    assert (
        "gain {:.2f}, {:.2f} and {:.2f} on average. TIME, without titles, has {:+.2f}, {:+.2f} and {:+.2f}.".format(
            *others, *time
        )
        in AIMS
    )
    bare = [gain(*run, titles)[0] for run in runs[1:]]  # seed 42 has the rule
    assert "with titles is then {:+.2f} and {:+.2f} (seeds".format(*bare) in AIMS
