"""The gate of a backbone, drawn against the tokens that it has seen: SimCSE has to lift it above its best pooling.

    python -m modeling_cmlmcse.study.gate studies/gate-bert-mini-4x256/curve.json

The file holds "title" and "rows", one for each state of the pre-training: "tokens", "untrained" with the score of each
pooling before any contrastive training, and where SimCSE was trained on it "simcse" with the best score of each pooling
after. gate.png and gate.svg are written beside it.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

from ..errors import InputError, Parser, command
from ..figures import COLOURS, GREY, plain, plt, save

LIFT = 5.0  # points that make a backbone a test bench; by fewer, a method's gain drowns in the spread of seeds
MILLION = 1e6


def read_rows(path: Path) -> tuple[str, list[dict[str, Any]]]:
    """Title and rows of a curve, the rows by tokens.

    Raises:
        InputError: the file cannot be read or has another form.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        rows = sorted(content["rows"], key=lambda row: row["tokens"])
        scores = [score for row in rows for score in (*row["untrained"].values(), *row.get("simcse", {}).values())]
        if not rows or not all(row["untrained"] for row in rows) or not all(map(math.isfinite, scores)):
            raise ValueError
        return str(content["title"]), rows
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path}: expected JSON with a title and rows, each with tokens and untrained scores, found "
            f"{getattr(error, 'strerror', None) or 'something else'}; studies/gate-bert-mini-4x256/curve.json is one"
        ) from error


def lift(row: dict[str, Any]) -> float | None:
    """By how many points SimCSE's best score is above the best untrained one; None where SimCSE was not trained."""
    return max(row["simcse"].values()) - max(row["untrained"].values()) if row.get("simcse") else None


def plot_gate(path: Path) -> None:
    """Write gate.png and gate.svg beside the rows: each pooling's score before and after SimCSE, and the gate."""
    title, rows = read_rows(path)
    figure, axes = plt.subplots(figsize=(8, 4.5))
    poolings = dict.fromkeys(pooling for row in rows for pooling in row["untrained"])
    for pooling, colour in zip(poolings, COLOURS, strict=False):
        for state, style in (("untrained", "o-"), ("simcse", "^--")):
            points = [(row["tokens"] / MILLION, row[state][pooling]) for row in rows if pooling in row.get(state, {})]
            if points:
                label = f"{pooling}, {'untrained' if state == 'untrained' else 'after SimCSE'}"
                axes.plot(*zip(*points, strict=True), style, color=colour, label=label)
    tokens = [row["tokens"] / MILLION for row in rows]
    gate = [max(row["untrained"].values()) + LIFT for row in rows]
    axes.plot(tokens, gate, ":", color=GREY, label=f"the gate: best untrained + {LIFT:g}")
    plain(axes, "tokens of pre-training, millions", "STS-B dev, Spearman × 100", title)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    save(figure, path.parent, "gate")


@command
def main(argv: list[str] | None = None) -> None:
    """The command: print each row's lift and draw."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, metavar="FILE.json")
    path = parser.parse_args(argv).rows
    plot_gate(path)
    for row in read_rows(path)[1]:
        found = lift(row)
        print(f"{row['tokens'] / MILLION:6.1f} million tokens: " + ("–" if found is None else f"{found:+.2f}"))


if __name__ == "__main__":
    main()
