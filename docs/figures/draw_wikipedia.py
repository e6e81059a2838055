"""Draw what each training gives to similarity and to search, an arm a dot: docs/results/wikipedia.png.

python docs/figures/draw_wikipedia.py
"""

import csv
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
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
SENTENCES = {  # after the passages
    "simcse": "656 steps, then sentences: SimCSE",
    "mined": "656 steps, then sentences:\nSimCSE with mined negatives",
}
Points = dict[str, list[tuple[float, float]]]


def read_study(name: str, arms: dict[str, str]) -> Points:
    """The average of the seven STS sets and of nDCG@10 of each seed of an arm, by the arm's title."""
    found: Points = defaultdict(list)
    with open(ROOT / "studies" / name / "runs.csv", newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["arm"] in arms:
                several = [float(value) for column, value in row.items() if column.endswith("ndcg@10")]
                search = float(row["retrieval.avg"]) if "retrieval.avg" in row else float(np.mean(several))
                found[arms[row["arm"]]].append((float(row["sts.avg"]), search))
    return found


def read_record(name: str) -> list[tuple[float, float]]:
    """The same of one recorded run."""
    results = json.loads((RECORDS / name).read_text(encoding="utf-8"))["results"]
    return [(results["sts"]["avg"], results["retrieval"]["avg"])]


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


def main() -> None:
    """Read the records and write the picture."""
    figure, axes = plt.subplots(figsize=(9.5, 4.8), layout="constrained")
    colours = iter((*COLOURS, GREY, "#000000"))
    draw(read_study("wikipedia-search-bert-mini-59m", VIEWS), "o", colours, axes)
    longer = {
        "words+sentence, 656 steps": read_record("encoder-656-steps.json"),
        "words+sentence, 2,624 steps:\nassets/encoder-mini-en": read_record("encoder-mini-en.json"),
    }
    draw(longer, "o", colours, axes)
    draw(read_study("wikipedia-first-tests", SENTENCES), "s", colours, axes)
    axes.annotate(
        "untrained: 49.4 and 13.2",
        (0.01, 0.01),
        (0.5, 0.04),
        "axes fraction",
        arrowprops={"arrowstyle": "->"},
        color=GREY,
    )
    set_labels(
        axes,
        "seven STS sets, Spearman × 100",
        "search in five collections, nDCG@10 × 100",
        "Passages of Wikipedia (circles), and sentences after them (squares)",
    )
    axes.margins(x=0.1, y=0.1)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=9, labelspacing=1.1)
    figure.savefig(ROOT / "docs" / "results" / "wikipedia.png", dpi=130)


if __name__ == "__main__":
    main()
