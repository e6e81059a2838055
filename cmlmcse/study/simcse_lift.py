"""Plots how far SimCSE lifts a backbone above its best untrained pooling, against its pre-training tokens.

    python -m cmlmcse.study.simcse_lift studies/gate-bert-mini-4x256/curve.json

The file holds "title" and "rows", one row for each stage of the pre-training. A row has "tokens" and "untrained": the
score of each pooling before contrastive training. If SimCSE was trained from this stage, the row also has "simcse": for
each training text, the best score of each pooling. gate.png and gate.svg are written beside the file. The gate is the
best untrained score plus 5 points: a backbone below it is no test bench for methods that improve SimCSE.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

from cmlmcse.common.arguments import Parser
from cmlmcse.common.command import command
from cmlmcse.common.errors import InputError
from cmlmcse.common.figures import COLOURS, GREY, plt, save, set_labels

LIFT = 5.0  # points of the gate; well above the 0.55 to 2.6 points that methods claim over SimCSE
MILLION = 1e6
STYLES = (("^", "--"), ("s", "-."), ("D", (0, (1, 1))))  # marker and line of each text


def read_rows(path: Path) -> tuple[str, list[dict[str, Any]]]:
    """The title and the rows of a curve, sorted by tokens.

    Raises:
        InputError: the file cannot be read, or has another form.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        rows = sorted(content["rows"], key=lambda row: row["tokens"])
        measured = [by_pooling for row in rows for by_pooling in (row["untrained"], *row.get("simcse", {}).values())]
        scores = [score for by_pooling in measured for score in by_pooling.values()]
        if not rows or not all(row["untrained"] for row in rows) or not all(map(math.isfinite, scores)):
            raise ValueError
        return str(content["title"]), rows
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path}: expected JSON with a title and rows, each with tokens and untrained scores, found "
            f"{getattr(error, 'strerror', None) or 'something else'}; studies/gate-bert-mini-4x256/curve.json is one"
        ) from error


def lifts(row: dict[str, Any]) -> dict[str, float]:
    """Text → points by which SimCSE's best score exceeds the best untrained score."""
    best = max(row["untrained"].values())
    return {text: max(by_pooling.values()) - best for text, by_pooling in row.get("simcse", {}).items()}


def plot_simcse_lift(title: str, rows: list[dict[str, Any]], folder: Path) -> None:
    """Write gate.png and gate.svg: the score of each pooling before and after SimCSE, and the gate."""
    figure, axes = plt.subplots(figsize=(8, 6))

    def draw(scores: list[float | None], label: str, **style: Any) -> None:
        points = [
            (row["tokens"] / MILLION, score) for row, score in zip(rows, scores, strict=True) if score is not None
        ]
        if points:
            axes.plot(*zip(*points, strict=True), label=label, **style)

    texts = dict.fromkeys(text for row in rows for text in row.get("simcse", {}))
    for pooling, colour in zip(dict.fromkeys(name for row in rows for name in row["untrained"]), COLOURS, strict=False):
        draw([row["untrained"].get(pooling) for row in rows], f"{pooling}, untrained", marker="o", color=colour)
        for text, (marker, line) in zip(texts, STYLES, strict=False):
            after = [row.get("simcse", {}).get(text, {}).get(pooling) for row in rows]
            draw(after, f"{pooling}, after SimCSE on {text}", marker=marker, linestyle=line, color=colour)
    gate = [max(row["untrained"].values()) + LIFT for row in rows]
    draw(gate, f"the gate: best untrained + {LIFT:g}", linestyle=":", color=GREY)
    set_labels(axes, "tokens of pre-training, millions", "STS-B dev, Spearman × 100", title)
    axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2)
    save(figure, folder, "gate")


@command
def main(argv: list[str] | None = None) -> None:
    """The command: draw the plot, and print the lifts of each row."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, metavar="FILE.json")
    path = parser.parse_args(argv).rows
    title, rows = read_rows(path)
    plot_simcse_lift(title, rows, path.parent)
    for row in rows:
        found = ", ".join(f"{lift:+.2f} on {text}" for text, lift in lifts(row).items())
        print(f"{row['tokens'] / MILLION:6.1f} million tokens: {found or '–'}")


if __name__ == "__main__":
    main()
