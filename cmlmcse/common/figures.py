"""Helpers for the figures of runs, studies and evaluations."""

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from numpy.typing import NDArray

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#666666"  # colour-blind readers can distinguish them (Okabe & Ito)
BANDS = 5  # of human scores
COLOURS = (BLUE, ORANGE, "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def save(figure: Any, folder: Path, name: str) -> None:
    """Save a figure as PNG and SVG. The same figure always gives identical files."""
    figure.set_layout_engine("constrained")
    with plt.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        for kind, metadata in (("png", {}), ("svg", {"Date": None})):
            figure.savefig(folder / f"{name}.{kind}", dpi=150, metadata=metadata)
    plt.close(figure)


def set_labels(axes: Axes, xlabel: str, ylabel: str, title: str) -> None:
    """Set the labels, draw a light grid, and remove the box."""
    axes.set(xlabel=xlabel, ylabel=ylabel, title=title)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def plot_cosine_by_gold(
    cosines: NDArray[np.float64],
    gold: NDArray[np.float64],
    folder: Path,
    what: str,
    name: str = "cosine_by_gold",
) -> None:
    """Plot the distribution of the cosine similarity in each band of the human score.

    Bands with fewer than two pairs are left out. Without any other band, no file is written.
    """
    edges = np.linspace(gold.min(), gold.max(), BANDS + 1)
    band = np.clip(np.digitize(gold, edges[1:-1]), 0, BANDS - 1)
    filled = [b for b in range(BANDS) if (band == b).sum() >= 2]
    if not filled:
        return
    figure, axes = plt.subplots(figsize=(7, 4))
    parts: Any = axes.violinplot([cosines[band == b] for b in filled], positions=filled, showmedians=True, widths=0.85)
    for body in parts["bodies"]:
        body.set(facecolor=BLUE, alpha=0.35)
    for part in ("cmedians", "cmins", "cmaxes", "cbars"):
        parts[part].set(color=BLUE, linewidth=1)
    axes.set_xticks(filled, [f"{edges[b]:.2g}–{edges[b + 1]:.2g}\nn = {(band == b).sum()}" for b in filled])
    set_labels(axes, "human score", "cosine similarity", f"Cosine similarity by human score\n{what}")
    save(figure, folder, name)
