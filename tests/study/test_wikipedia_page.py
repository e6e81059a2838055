"""What docs/results/wikipedia.md shows of several records: its picture."""

import csv
import importlib
import json
from collections import defaultdict
from collections.abc import Iterator
from statistics import fmean
from types import ModuleType
from typing import Any

import pytest
from matplotlib import pyplot as plt

from support.paths import ROOT
from support.text import one_space

RESULTS = ROOT / "docs" / "results"
PAGE = one_space((RESULTS / "wikipedia.md").read_text("utf-8").replace("**", ""))


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
    assert list(after) == [script.EARLIER, *script.BACKBONES.values()]
    asset = record("encoder-mini-en.json")["results"]
    today = next(dot for label, dot in after.items() if "assets/encoder-mini-en" in label)
    assert today == (asset["sts"]["avg"], asset["retrieval"]["avg"])
    assert after[script.EARLIER] == dot
    before = [dot for label, dot in drawn[1].items() if label.startswith("_")]
    assert before == [pytest.approx(found, abs=0.005) for found in ((49.44, 13.15), (51.20, 13.98), (55.98, 24.42))]
