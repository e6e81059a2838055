"""Pictures of a run: loss curves, development score, cosine similarity by human score."""

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from numpy.typing import NDArray

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#666666"  # told apart by colour-blind readers


def save(figure: Any, folder: Path, name: str) -> None:
    """Save a figure as PNG and SVG."""
    figure.tight_layout()
    for kind in ("png", "svg"):
        figure.savefig(folder / f"{name}.{kind}", dpi=150)
    plt.close(figure)


def curve(history: list[dict[str, Any]], name: str) -> tuple[list[int], list[float]]:
    """Steps and values of one logged quantity."""
    rows = [(row["step"], row[name]) for row in history if name in row]
    return [step for step, _ in rows], [value for _, value in rows]


def plain(axes: Axes, xlabel: str, ylabel: str, title: str) -> None:
    """Labels, a light grid, no box."""
    axes.set(xlabel=xlabel, ylabel=ylabel, title=title)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def plot_losses(history: list[dict[str, Any]], folder: Path) -> None:
    """The contrastive loss and each auxiliary loss, a panel each, for their scales differ."""
    names = [
        n for n in dict.fromkeys(key for row in history for key in row) if n.endswith("_loss") and n != "train_loss"
    ]
    if not names:
        return
    figure, panels = plt.subplots(1, len(names), figsize=(5.5 * len(names), 4), squeeze=False)
    titles = {"contrastive_loss": "Contrastive loss", "cmlm_loss": "Conditional MLM loss (before λ)"}
    for axes, name, colour in zip(panels[0], names, (BLUE, ORANGE, GREY), strict=False):
        axes.plot(*curve(history, name), color=colour, marker=".")
        plain(axes, "optimizer step", "loss", titles.get(name, name.replace("_", " ")))
    save(figure, folder, "loss")


def plot_dev_score(history: list[dict[str, Any]], folder: Path, dev_set: str) -> None:
    """The development score by step, the best one marked."""
    steps, scores = curve(history, "eval_dev_score")
    if not steps:
        return
    figure, axes = plt.subplots(figsize=(6, 4))
    axes.plot(steps, scores, color=BLUE, marker="o", markersize=4)
    best = int(np.argmax(scores))
    axes.plot(steps[best], scores[best], "o", color=ORANGE, label=f"best: {scores[best]:.2f} at step {steps[best]}")
    axes.legend(frameon=False)
    plain(axes, "optimizer step", "Spearman × 100", f"Development score ({dev_set})")
    save(figure, folder, "dev_score")


def plot_cosine_by_gold(
    cosines: NDArray[np.float64], gold: NDArray[np.float64], folder: Path, dev_set: str, bins: int = 5
) -> None:
    """Distribution of the cosine similarity in each band of the human score."""
    edges = np.linspace(gold.min(), gold.max(), bins + 1)
    band = np.clip(np.digitize(gold, edges[1:-1]), 0, bins - 1)
    filled = [b for b in range(bins) if (band == b).sum() >= 2]
    figure, axes = plt.subplots(figsize=(7, 4))
    parts: Any = axes.violinplot([cosines[band == b] for b in filled], positions=filled, showmedians=True, widths=0.85)
    for body in parts["bodies"]:
        body.set(facecolor=BLUE, alpha=0.35)
    for name in ("cmedians", "cmins", "cmaxes", "cbars"):
        parts[name].set(color=BLUE, linewidth=1)
    axes.set_xticks(filled, [f"{edges[b]:.2g}–{edges[b + 1]:.2g}\nn = {(band == b).sum()}" for b in filled])
    plain(axes, "human score", "cosine similarity", f"Cosine similarity by human score ({dev_set})")
    save(figure, folder, "cosine_by_gold")
