"""Plots of a study: scores of every arm and seed, paired differences from the baseline, and training curves."""

import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes

from cmlmcse.common.figures import BLUE, COLOURS, GREY, ORANGE, plt, save, set_labels

from .plan import Study
from .statistics import CURVES, Comparison, Estimate, Row, baseline_arm, measure_title

MARKERS = "osD^v<>PX*"
LINES = ("-", "--", ":", "-.")


def plot_study(study: Study, rows: Sequence[Row], compared: dict[str, dict[str, Comparison]]) -> None:
    """Write plot.png and plot.svg: for each measured metric one row with scores and paired differences."""
    metrics = [metric for metric in study.metrics if any(row[metric] is not None for row in rows)]
    if not metrics:
        return
    height = 1.6 + 0.42 * len(study.arms)
    figure, panels = plt.subplots(len(metrics), 2, figsize=(11, height * len(metrics)), squeeze=False, sharey="row")
    for (left, right), metric in zip(panels, metrics, strict=True):
        plot_scores(left, study, metric, rows, compared[metric])
        plot_differences(right, study, metric, rows, compared[metric])
    shown: dict[str, Any] = {}
    for left in panels[:, 0]:
        handles, labels = left.get_legend_handles_labels()
        shown.update(zip(labels, handles, strict=True))
    figure.legend(shown.values(), shown.keys(), frameon=False, fontsize=8, loc="outside lower center", ncols=len(shown))
    save(figure, study.folder, "plot")


def plot_curves(study: Study, rows: Sequence[Row]) -> None:
    """Write curves.png and curves.svg: one panel for each quantity in :data:`CURVES`, one line for each arm.

    A line is the mean over the arm's seeds, at the steps that all of them reached.
    """
    shown = [name for name in CURVES if any(row[name] is not None for row in rows)]
    measured = list(dict.fromkeys(row["arm"] for row in rows))
    figure, panels = plt.subplots(1, len(shown), figsize=(5.5 * len(shown), 4), squeeze=False)
    for axes, name in zip(panels[0], shown, strict=True):
        for number, arm in enumerate(measured):
            points: dict[int, list[float]] = {}
            own = [row for row in rows if row["arm"] == arm and row[name] is not None]
            for row in own:
                points.setdefault(row["step"], []).append(row[name])
            seeds = len({row["seed"] for row in own})
            means = {step: sum(found) / seeds for step, found in sorted(points.items()) if len(found) == seeds}
            style = LINES[number // len(COLOURS) % len(LINES)]
            colour = COLOURS[number % len(COLOURS)]
            axes.plot(list(means), list(means.values()), style, color=colour, label=arm, linewidth=1.4)
        set_labels(axes, "optimizer step", CURVES[name], f"{study.name}: {CURVES[name].split(',')[0]}")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, fontsize=8, loc="outside lower center", ncols=4)
    save(figure, study.folder, "curves")


def seeds_of(metric: str, rows: Sequence[Row]) -> dict[int, dict[str, float]]:
    """Seed → arm → score, for seeds with at least one score."""
    scores: dict[int, dict[str, float]] = {}
    for row in rows:
        if row[metric] is not None:
            scores.setdefault(row["seed"], {})[row["arm"]] = row[metric]
    return scores


def plot_scores(axes: Axes, study: Study, metric: str, rows: Sequence[Row], compared: dict[str, Comparison]) -> None:
    """The scores of each seed, connected over the arms; the means with their intervals; published values."""
    places = {arm: place for place, arm in enumerate(study.arms)}
    for number, (seed, scores) in enumerate(seeds_of(metric, rows).items()):
        marker = MARKERS[number % len(MARKERS)]
        axes.plot(
            list(scores.values()), [places[arm] for arm in scores], color=GREY, alpha=0.55, linewidth=0.8,
            marker=marker, markersize=4, label=f"seed {seed}" if len(study.seeds) <= 5 else None,
        )  # fmt: skip
    for arm, comparison in compared.items():
        draw_estimate(axes, comparison.scores, places[arm])
    published = study.published.values.get(metric, {}) if study.published else {}
    for arm, value in published.items():
        axes.plot(value, places[arm], "D", markerfacecolor="none", color=ORANGE, markersize=8)
    axes.plot([], [], "o", color=BLUE, label="mean, 95 % interval")
    if published:
        axes.plot([], [], "D", markerfacecolor="none", color=ORANGE, label="published, not measured here")
    axes.set_yticks(list(places.values()), list(places))
    axes.set_ylim(len(places) - 0.5, -0.5)  # the first arm is on top
    set_labels(axes, measure_title(metric), "", f"{study.name}: scores")


def plot_differences(
    axes: Axes, study: Study, metric: str, rows: Sequence[Row], compared: dict[str, Comparison]
) -> None:
    """Each seed's difference from the baseline, and the mean difference with its interval."""
    axes.axvline(0, color=GREY, linewidth=1)
    baseline = baseline_arm(study, rows)
    for place, arm in enumerate(study.arms):
        if baseline is None or arm == baseline:
            continue
        pairs = [by_arm for by_arm in seeds_of(metric, rows).values() if {arm, baseline} <= by_arm.keys()]
        axes.plot(
            [by_arm[arm] - by_arm[baseline] for by_arm in pairs], [place] * len(pairs), "o",
            color=GREY, alpha=0.55, markersize=4,
        )  # fmt: skip
        draw_estimate(axes, compared[arm].difference, place)
    what = f"{measure_title(metric)}: difference from {baseline or study.baseline} at the same seed"
    set_labels(axes, textwrap.fill(what, 60, break_on_hyphens=False), "", "paired differences")


def draw_estimate(axes: Axes, estimate: Estimate | None, place: float) -> None:
    """A mean and its interval."""
    if estimate is None:
        return
    if estimate.low is not None and estimate.high is not None:
        axes.plot([estimate.low, estimate.high], [place, place], color=BLUE, linewidth=2.2, solid_capstyle="butt")
    axes.plot(estimate.mean, place, "o", color=BLUE, markersize=7)
