"""Draw what each training gives to similarity and to search, an arm a dot: docs/results/wikipedia.png.

python docs/figures/draw_wikipedia.py
"""

import csv
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from cmlmcse.common.figures import COLOURS, GREY, set_labels

ROOT = Path(__file__).resolve().parents[2]
RECORDS = ROOT / "docs" / "results" / "records"
VIEWS = {  # arms of the study of views, which learn from passages alone
    "crops": "random pieces (crops)",
    "words+sentence": "words+sentence",
    "cmlm": "words+sentence and CMLM-CSE",
    "cmlm-retromae": "words+sentence, CMLM-CSE\nand RetroMAE's decoder",
}
LONGER = {  # records of one run each
    "encoder-656-steps.json": "words+sentence, 656 steps",
    "encoder-2624-steps.json": "words+sentence, 2,624 steps:\nthe encoder up to commit de4844c",
}
SENTENCES = {  # after the passages
    "simcse": "656 steps, then sentences: SimCSE",
    "mined": "656 steps, then sentences:\nSimCSE with mined negatives",
}
EARLIER = "4 layers, pre-trained beside InfoCSE's network,\nthen 2,624 steps: the encoder up to commit de4844c"
BACKBONES = {  # of today's size, by the arm of backbone-208m.json
    "fusion": "6 layers, pre-trained beside InfoCSE's network",
    "retromae": "6 layers, pre-trained beside RetroMAE's decoder:\nthe encoder up to commit a7f3281",
}
MEAN = "the mean of this run and three short ones:\nassets/encoder-mini-en"
ARROWS = (COLOURS[5], "#8C510A", "#6A3D9A")  # the first is the same run in both panels
Point = tuple[float, float]  # the average of the seven STS sets, and that of five collections
Points = dict[str, list[Point]]


def read_study(name: str, arms: dict[str, str]) -> Points:
    """The point of each seed of an arm, by the arm's title."""
    found: Points = defaultdict(list)
    with open(ROOT / "studies" / name / "runs.csv", newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["arm"] in arms:
                several = [float(value) for column, value in row.items() if column.endswith("ndcg@10")]
                search = float(row["retrieval.avg"]) if "retrieval.avg" in row else float(np.mean(several))
                found[arms[row["arm"]]].append((float(row["sts.avg"]), search))
    return found


def read_record(name: str) -> Any:
    """A record of one run, or of a few."""
    return json.loads((RECORDS / name).read_text(encoding="utf-8"))


def point_of(results: Any) -> Point:
    """The point of what `cmlmcse evaluate` wrote."""
    return results["sts"]["avg"], results["retrieval"]["avg"]


def read_backbones() -> dict[str, tuple[Point, Point]]:
    """A backbone's points before its longest contrast on passages and after it."""
    untrained = point_of(read_record("wikipedia-search.json")["untrained"])
    found = {EARLIER: (untrained, point_of(read_record("encoder-2624-steps.json")["results"]))}
    for arm, title in BACKBONES.items():
        scores = read_record("backbone-208m.json")["arms"][arm]
        before, after = (scores[when] for when in ("before contrast, mean", "after contrast"))
        found[title] = (
            (before["sts"]["avg"], before["ndcg@10"]["avg"]),
            (after["sts"]["avg"], after["ndcg@10"]["avg"]),
        )
    return found


def draw(points: Points, marker: str, colours: Iterator[str], axes: Axes) -> None:
    """A dot for each arm with the 95 % intervals (Student's t) of three seeds and more; one of fewer is hollow."""
    for title, seeds in points.items():
        values, colour = np.array(seeds), next(colours)  # (S, 2)
        similarity, search = values.mean(axis=0)
        few = len(values) < 3
        if not few:
            widths = stats.t.ppf(0.975, len(values) - 1) * values.std(axis=0, ddof=1) / np.sqrt(len(values))
            axes.errorbar(similarity, search, xerr=widths[0], yerr=widths[1], color=colour, lw=1, capsize=2)
        seeds_text = f"{len(values)} seed{'s' * (len(values) > 1)}"
        filling = "white" if few else colour
        axes.plot(
            similarity, search, marker, color=colour, mfc=filling, ms=8, zorder=3, label=f"{title} ({seeds_text})"
        )


def draw_backbones(axes: Axes) -> None:
    """An arrow for each backbone, from its cross before the contrast to its hollow dot after it; the mean is a star."""
    for (title, points), colour in zip(read_backbones().items(), ARROWS, strict=True):
        before, after = points
        axes.annotate("", after, before, arrowprops={"arrowstyle": "->", "color": colour, "shrinkA": 6, "shrinkB": 6})
        axes.plot(*before, "X", color=colour, ms=8)
        axes.plot(*after, "o", color=colour, mfc="white", ms=8, zorder=3, label=title)
    mean = point_of(read_record("encoder-mini-en.json")["results"])
    axes.plot(*mean, "*", color=ARROWS[-1], ms=13, zorder=3, label=MEAN)


def picture() -> Figure:
    """Read the records → both panels: the arms from the earlier backbone, and backbones before and after."""
    figure, (arms, backbones) = plt.subplots(1, 2, figsize=(12, 7), layout="constrained")
    colours = iter((*COLOURS, GREY, "#000000"))
    draw(read_study("wikipedia-search-bert-mini-59m", VIEWS), "o", colours, arms)
    draw({title: [point_of(read_record(name)["results"])] for name, title in LONGER.items()}, "o", colours, arms)
    draw(read_study("wikipedia-first-tests", SENTENCES), "s", colours, arms)
    draw_backbones(backbones)
    titles = (
        "The earlier backbone: passages of Wikipedia\n(circles), and sentences after them (squares)",
        "Three backbones before the contrast on passages\n(crosses) and after it (circles), one seed; a mean (star)",
    )
    for axes, title in zip((arms, backbones), titles, strict=True):
        set_labels(axes, "seven STS sets, Spearman × 100", "search in five collections, nDCG@10 × 100", title)
        axes.margins(x=0.1, y=0.1)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), frameon=False, fontsize=9, labelspacing=0.8)
    return figure


def main() -> None:
    """Write the picture."""
    picture().savefig(ROOT / "docs" / "results" / "wikipedia.png", dpi=130)


if __name__ == "__main__":
    main()
