"""Adapt's scores on labelled data, before and after, as rows of the tables in its report and on its card."""

from typing import Any, NamedTuple

from cmlmcse.common.tables import DASH

from .bm25 import WEIGHT
from .tables import cell

WITH_WORDS = f"after, with BM25 ({WEIGHT:g})"  # the head of Row.hybrid, with the weight of BM25


class Row(NamedTuple):
    """The cells of a labelled set: its name and main figure, that figure before and after, the change with its 95 %
    interval, and the figure of BM25 and of the model after together with BM25."""

    data: str
    before: str
    after: str
    change: str
    interval: str
    bm25: str
    hybrid: str


def labelled_rows(labelled: dict[str, Any]) -> list[Row]:
    """The main figure of each labelled set, nDCG@10 × 100 or Spearman × 100, by the sets' names.

    Args:
        labelled: task → "before" and "after", each the results of that task, and perhaps "differences".
    """
    rows = []
    for task, pair in labelled.items():
        before, after = (pair[side].get(task, {}) for side in ("before", "after"))
        differences = pair.get("differences", {})  # not in older records, nor where the start was kept
        if "spearman" in before:
            figures = before["spearman"], after["spearman"]
            rows.append(_row(f"{task}, Spearman × 100", *figures, differences.get(task)))
        for name, scores in before.items():
            if isinstance(scores, dict) and "ndcg@10" in scores:
                words, both = (after[name].get(key, {}).get("ndcg@10") for key in ("bm25", "hybrid"))
                figures, difference = (scores["ndcg@10"], after[name]["ndcg@10"]), differences.get("ndcg@10", {})
                rows.append(_row(f"{name}, nDCG@10 × 100", *figures, difference.get(name), words, both))
    return sorted(rows)


def _row(
    data: str,
    before: float | None,
    after: float | None,
    difference: dict[str, float | None] | None,
    bm25: float | None = None,
    hybrid: float | None = None,
) -> Row:
    """The cells of these figures; a dash for each that is not there."""
    change = DASH if before is None or after is None else f"{after - before:+.2f}"
    low, high = (difference or {}).get("low"), (difference or {}).get("high")
    interval = DASH if low is None or high is None else f"{low:+.2f} to {high:+.2f}"
    return Row(data, cell(before), cell(after), change, interval, cell(bm25), cell(hybrid))
