"""Finds and plots the sweeps of a study: arms that differ in one number only, such as λ or the mask rate."""

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes

from cmlmcse.common.figures import COLOURS, GREY, plt, save, set_labels
from cmlmcse.common.options import as_number

from .plan import Study
from .statistics import Comparison, measure_title

Line = dict[float, str]  # value of the swept field, ascending → arm
SYMBOLS = {"cmlm_weight": "λ (cmlm_weight)", "temp": "temperature τ (temp)"}
MIN_VALUES = 3  # fewer values are no sweep


def sweeps(study: Study) -> dict[str, list[Line]]:
    """Field → its lines. A line has at least three arms that differ only in the number of this field."""
    fields = {arm: study.fields(arm) for arm in study.arms}
    found: dict[str, list[Line]] = {}
    for name in varied(study):
        lines: dict[frozenset[tuple[str, str]], Line] = {}
        for arm, own in fields.items():
            value = number(own.get(name))
            if value is not None:
                lines.setdefault(frozenset(item for item in own.items() if item[0] != name), {})[value] = arm
        if long := [dict(sorted(line.items())) for line in lines.values() if len(line) >= MIN_VALUES]:
            found[name] = long
    return found


def varied(study: Study) -> list[str]:
    """The fields in which arms differ, in the order of the study's file."""
    fields = [study.fields(arm) for arm in study.arms]
    names = dict.fromkeys(name for own in fields for name in own)
    return [name for name in names if len({own.get(name) for own in fields}) > 1]


def number(text: str | None) -> float | None:
    """A field's text as a finite number; None if it is not one."""
    value = as_number(text or "")
    return value if math.isfinite(value) else None


def plot_sweeps(study: Study, compared: dict[str, dict[str, Comparison]]) -> None:
    """Write sweeps.png and sweeps.svg: one panel for each metric and swept field, at most two in a row.

    A panel shows the mean scores and their intervals against the value of the field. Without a measured sweep nothing
    is written.
    """
    metrics = [metric for metric, by_arm in compared.items() if any(each.scores for each in by_arm.values())]
    measured = {arm for metric in metrics for arm, each in compared[metric].items() if each.scores}
    shown = [(name, own) for name, lines in sweeps(study).items() if (own := with_scores(lines, measured))]
    if not shown:
        return
    columns = min(2, len(shown))  # three in a row cannot be read on a page
    rows = -(-len(shown) // columns)
    size = (5.5 * columns, 5 * rows * len(metrics))
    figure, grid = plt.subplots(rows * len(metrics), columns, figsize=size, squeeze=False)
    for metric, panels in zip(metrics, grid.reshape(len(metrics), -1), strict=True):
        published = study.published.values.get(metric, {}) if study.published else {}
        for axes in panels[len(shown) :]:
            axes.set_axis_off()
        for (name, lines), axes in zip(shown, panels, strict=False):
            for place, (line, label) in enumerate(zip(lines, labels(study, name, lines), strict=True)):
                draw_line(axes, line, compared[metric], COLOURS[place % len(COLOURS)], label)
                draw_published(axes, line, published)
            logarithmic = scale(axes, [value for line in lines for value in line])
            what = f"{SYMBOLS.get(name, name)}{', logarithmic' if logarithmic else ''}"
            set_labels(axes, what, measure_title(metric), f"{study.name}: {name}")
            if axes.get_legend_handles_labels()[1]:
                axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.18))
    save(figure, study.folder, "sweeps")


def with_scores(lines: list[Line], measured: set[str]) -> list[Line]:
    """The lines without arms that were not measured, if they still are sweeps."""
    own = [{value: arm for value, arm in line.items() if arm in measured} for line in lines]
    return [line for line in own if len(line) >= MIN_VALUES]


def labels(study: Study, name: str, lines: list[Line]) -> list[str]:
    """A label for each line of a panel: the fewest other fields that distinguish the lines, preferably short ones."""
    own = [study.fields(next(iter(line.values()))) for line in lines]
    others = [other for other in varied(study) if other != name and len({each.get(other) for each in own}) > 1]
    for other in sorted(others, key=lambda field: -max(len(each.get(field) or "") for each in own)):
        rest = [field for field in others if field != other]
        if len({tuple(each.get(field) for field in rest) for each in own}) == len(own):
            others = rest
    return [", ".join(f"{other} {each[other]}" for other in others if other in each) for each in own]


def draw_line(axes: Axes, line: Line, by_arm: dict[str, Comparison], colour: str, label: str) -> None:
    """Draw the means of one line with their intervals."""
    points = [(value, scores) for value, arm in line.items() if (scores := by_arm[arm].scores)]
    axes.plot([value for value, _ in points], [s.mean for _, s in points], "o-", color=colour, label=label or None)
    for value, scores in points:
        if scores.low is not None and scores.high is not None:
            axes.plot([value, value], [scores.low, scores.high], color=colour, linewidth=1)


def draw_published(axes: Axes, line: Line, published: dict[str, float]) -> None:
    """Draw a paper's results for these arms."""
    points = [(value, published[arm]) for value, arm in line.items() if arm in published]
    if points:
        label = "published, not measured here"
        shown = label in axes.get_legend_handles_labels()[1]
        style: dict[str, Any] = {"markerfacecolor": "none", "color": GREY, "linewidth": 0.8}
        axes.plot(*zip(*points, strict=True), "D:", label=None if shown else label, **style)


def scale(axes: Axes, values: Sequence[float]) -> bool:
    """Put a tick at each value. The axis is logarithmic if the values span a factor of 10; zero is at its left end.

    Returns:
        Whether it is logarithmic.
    """
    positive = [value for value in values if value > 0]
    logarithmic = min(values) >= 0 and bool(positive) and max(positive) >= 10 * min(positive)
    if logarithmic:
        axes.set_xscale("symlog", linthresh=min(positive), linscale=0.5)
    ticks = sorted(set(values))
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    return logarithmic
