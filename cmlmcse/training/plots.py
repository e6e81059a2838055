"""Plots of a run: loss curves and development score."""

from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator

from cmlmcse.common.figures import BLUE, GREY, ORANGE, plt, save, set_labels


def curve(history: list[dict[str, Any]], name: str) -> tuple[list[int], list[float]]:
    """The steps and the values of one logged quantity."""
    rows = [(row["step"], row[name]) for row in history if name in row]
    return [step for step, _ in rows], [value for _, value in rows]


def plot_losses(history: list[dict[str, Any]], folder: Path) -> None:
    """The contrastive loss and each auxiliary loss, one panel each because their scales differ."""
    names = [
        n for n in dict.fromkeys(key for row in history for key in row) if n.endswith("_loss") and n != "train_loss"
    ]
    if not names:
        return
    figure, panels = plt.subplots(1, len(names), figsize=(5.5 * len(names), 4), squeeze=False)
    titles = {"contrastive_loss": "Contrastive loss", "cmlm_loss": "Conditional MLM loss (before λ)"}
    for axes, name, colour in zip(panels[0], names, cycle((BLUE, ORANGE, GREY)), strict=False):
        axes.plot(*curve(history, name), color=colour, marker=".")
        set_labels(axes, "optimizer step", "loss", titles.get(name, name.replace("_", " ")))
    save(figure, folder, "loss")


def plot_dev_score(history: list[dict[str, Any]], folder: Path, dev_set: str) -> None:
    """The development score at each step, with the best score marked."""
    steps, scores = curve(history, "eval_dev_score")
    if not steps:
        return
    figure, axes = plt.subplots(figsize=(6, 4))
    axes.plot(steps, scores, color=BLUE, marker="o", markersize=4)
    best = int(np.argmax(scores))
    axes.plot(steps[best], scores[best], "o", color=ORANGE, label=f"best: {scores[best]:.2f} at step {steps[best]}")
    axes.legend(frameon=False)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    set_labels(axes, "optimizer step", "score × 100", f"Development score ({dev_set})")
    save(figure, folder, "dev_score")
