"""Which rise of adapt's score is worth something by labels? Nothing is trained: this reads the records of
benchmarks/adapting.py.

    python benchmarks/least_gain.py

It takes the runs from all-MiniLM-L6-v2 in which two splits of the text confirmed a change and the adapted model was
handed back, and puts them into two rows: the score rose by less than adapt's least gain, and by more.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from cmlmcse.adaptation.choice import LEAST_GAIN
from cmlmcse.common.tables import DASH, markdown_table

RECORDS = Path(__file__).parent / "records"
# Since there are two splits.
NAMES = ("splits-trials", "splits", "seed-44", "words", "unseen", "time", "time-44", "time-42")


def main() -> None:
    """Print the table."""
    runs = [run for name in NAMES for run in json.loads((RECORDS / f"adapting-{name}.json").read_text("utf-8"))]
    adapted = [run for run in runs if "minilm" in run["model"] and run["adapt"]["chosen"] != "start"]
    rows = []
    for title, least, most in (("less", 0.0, LEAST_GAIN), ("more", LEAST_GAIN, np.inf)):
        found = [run for run in adapted if least <= rise(run) < most]
        names = ", ".join(sorted({run["collection"] for run in found}))
        rises = [100 * rise(run) for run in found]
        rows.append([title, names, f"{min(rises):.1f} to {max(rises):.1f} %", *changes(found, "ndcg@10")])
        rows[-1] += changes(found, "with_bm25")
    measures = ["runs", "least", "most", "mean"]
    heads = ["the score rose", "collections", "rise", *measures, *(f"{name}, with BM25" for name in measures)]
    print(markdown_table(heads, rows, texts=3))


def rise(run: dict[str, Any]) -> float:
    """How much the score without labels rose, as a part of the start's."""
    return run["adapt"]["best_candidate"] / run["adapt"]["before"] - 1


def changes(runs: list[dict[str, Any]], key: str) -> list[str]:
    """How many runs have these labelled scores, and the least, largest and mean change of nDCG@10 × 100."""
    found = [run[key]["after"] - run[key]["before"] for run in runs if run.get(key)]
    if not found:
        return ["0", DASH, DASH, DASH]
    return [str(len(found)), f"{min(found):+.2f}", f"{max(found):+.2f}", f"{np.mean(found):+.2f}"]


if __name__ == "__main__":
    main()
