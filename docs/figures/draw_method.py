"""Draw the figure of the method: this script writes method.svg and method.png beside itself."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

HERE = Path(__file__).resolve().parent
INK, GRADIENT = "#1f2933", "#c2410c"
TRAINED, FROZEN, TEXT, LOSS, VECTOR = "#dbeafe", "#e5e7eb", "#ffffff", "#fef3c7", "#bbf7d0"
UPPER, LOWER = 4.35, 1.45  # heights of the two rows


def box(
    ax: Axes, x: float, y: float, width: float, height: float, label: str, colour: str, dashed: bool = False
) -> None:
    """A rounded box with its centre at (x, y)."""
    corner = (x - width / 2, y - height / 2)
    style = "round,pad=0,rounding_size=0.1"
    ax.add_patch(
        FancyBboxPatch(corner, width, height, style, fc=colour, ec=INK, lw=1.2, ls="--" if dashed else "-", zorder=2)
    )
    ax.text(x, y, label, ha="center", va="center", fontsize=10.5, color=INK, linespacing=1.35, zorder=3)


def arrow(
    ax: Axes, start: tuple[float, float], end: tuple[float, float], gradient: bool = False, bend: float = 0.0
) -> None:
    """An arrow of the computation, or, dashed and coloured, of the gradient."""
    ax.add_patch(
        FancyArrowPatch(
            start,
            end,
            arrowstyle="-|>",
            mutation_scale=13,
            lw=1.7 if gradient else 1.3,
            ls=(0, (4, 2.5)) if gradient else "-",
            color=GRADIENT if gradient else INK,
            connectionstyle=f"arc3,rad={bend}",
            shrinkA=0,
            shrinkB=0,
            zorder=4,
        )
    )


def note(ax: Axes, x: float, y: float, text: str, colour: str = INK, **style: Any) -> None:
    """A small line of text."""
    ax.text(x, y, text, ha="center", va="center", fontsize=9, color=colour, linespacing=1.35, zorder=5, **style)


def draw_contrast(ax: Axes) -> None:
    """The upper row: the sentence, encoded twice, and the contrastive loss."""
    box(ax, 1.3, UPPER, 2.1, 0.8, "the cat sat\non the mat", TEXT)
    note(ax, 1.3, UPPER + 0.62, "sentence", weight="bold")
    box(ax, 4.4, UPPER, 2.2, 1.25, "encoder\n(BERT, 12 layers)", TRAINED)
    note(ax, 4.4, UPPER + 0.85, "runs twice, two dropout masks")
    for offset, label in ((0.38, "$h_1$"), (-0.38, "$h_2$")):
        arrow(ax, (2.35, UPPER + offset / 2), (3.3, UPPER + offset))
        arrow(ax, (5.5, UPPER + offset), (6.55, UPPER + offset))
        box(ax, 6.85, UPPER + offset, 0.6, 0.5, label, VECTOR)
        arrow(ax, (7.15, UPPER + offset), (8.25, UPPER + offset))
        arrow(ax, (9.45, UPPER + offset), (10.5, UPPER + offset * 0.5))
    note(ax, 6.85, UPPER + 0.85, "sentence vectors", weight="bold")
    box(ax, 8.85, UPPER, 1.2, 1.25, "training\nhead", TRAINED)
    box(ax, 11.45, UPPER, 1.9, 0.9, "InfoNCE\n$L_{contrast}$", LOSS)


def draw_words(ax: Axes) -> None:
    """The lower row: the masked sentence, the frozen layers, the vector at position 0, and the masked words."""
    box(ax, 1.3, LOWER, 2.1, 0.8, "the [MASK] sat\non the [MASK]", TEXT)
    note(ax, 1.3, LOWER + 0.62, "masked sentence", weight="bold")
    arrow(ax, (2.35, LOWER), (3.3, LOWER))
    box(ax, 4.4, LOWER, 2.2, 1.25, "first 8 layers\nof the pretrained\nbackbone, frozen", FROZEN, dashed=True)
    arrow(ax, (5.5, LOWER), (6.45, LOWER))
    box(ax, 6.85, LOWER + 0.66, 0.8, 0.4, "$h$", VECTOR)
    for place, label in ((1, "the"), (2, "[MASK]"), (3, "…")):
        box(ax, 6.85, LOWER + 0.66 - 0.44 * place, 0.8, 0.4, "", FROZEN, dashed=True)
        note(ax, 6.85, LOWER + 0.66 - 0.44 * place, label)
    note(ax, 6.85, LOWER - 1.2, "position 0 is replaced by the\nsentence vector (both views)")
    arrow(ax, (7.25, LOWER), (8.25, LOWER))
    box(ax, 8.85, LOWER, 1.2, 1.25, "3 fusion\nlayers and\nMLM head", TRAINED)
    arrow(ax, (9.45, LOWER), (10.5, LOWER))
    box(ax, 11.45, LOWER, 1.9, 0.9, "masked words\n$L_{MLM}$", LOSS)
    note(ax, 11.45, LOWER - 0.68, "“cat”, “mat”", style="italic")
    arrow(ax, (6.85, UPPER - 0.63), (6.85, LOWER + 0.86))


def draw_gradients(ax: Axes) -> None:
    """How the two losses reach the encoder."""
    arrow(ax, (11.2, UPPER - 0.45), (9.1, UPPER - 0.63), gradient=True, bend=-0.25)
    arrow(ax, (8.6, UPPER - 0.63), (7.1, UPPER - 0.6), gradient=True, bend=-0.25)
    arrow(ax, (11.2, LOWER + 0.45), (9.1, LOWER + 0.63), gradient=True, bend=0.25)
    arrow(ax, (8.6, LOWER + 0.63), (7.25, LOWER + 0.7), gradient=True, bend=0.2)
    arrow(ax, (7.0, LOWER + 0.86), (7.0, UPPER - 0.63), gradient=True)
    arrow(ax, (6.6, UPPER - 0.6), (5.2, UPPER - 0.63), gradient=True, bend=-0.3)
    note(ax, 9.2, (UPPER + LOWER) / 2, "The words reach the encoder\nthrough the sentence vector alone.", GRADIENT)
    note(ax, 4.4, LOWER - 0.85, "no gradient", GRADIENT)


def draw_legend(ax: Axes) -> None:
    """The two kinds of arrow, the two kinds of box, and the sum."""
    arrow(ax, (0.3, -0.45), (0.85, -0.45))
    ax.text(0.98, -0.45, "computed", va="center", fontsize=9, color=INK)
    arrow(ax, (2.75, -0.45), (2.2, -0.45), gradient=True)
    ax.text(2.88, -0.45, "gradient", va="center", fontsize=9, color=INK)
    for x, colour, label in ((4.2, TRAINED, "trained"), (5.6, FROZEN, "frozen")):
        box(ax, x, -0.45, 0.34, 0.26, "", colour, dashed=colour == FROZEN)
        ax.text(x + 0.26, -0.45, label, va="center", fontsize=9, color=INK)
    ax.text(12.4, -0.45, r"$L = L_{contrast} + \lambda\, L_{MLM}$", va="center", ha="right", fontsize=12, color=INK)


def main() -> None:
    """Draw it all, as an SVG without a date and as a PNG."""
    plt.rcParams.update({"svg.hashsalt": "method", "font.family": "DejaVu Sans", "mathtext.fontset": "dejavusans"})
    fig, ax = plt.subplots(figsize=(12.7, 6.4))
    ax.set(xlim=(0, 12.7), ylim=(-0.75, 5.65))
    ax.set_axis_off()
    draw_contrast(ax)
    draw_words(ax)
    draw_gradients(ax)
    draw_legend(ax)
    fig.subplots_adjust(0, 0, 1, 1)
    fig.savefig(HERE / "method.svg", metadata={"Date": None}, facecolor="white")
    fig.savefig(HERE / "method.png", dpi=110, facecolor="white")


if __name__ == "__main__":
    main()
