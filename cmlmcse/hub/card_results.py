"""The section "Results" of a card, from the record of a run and its results."""

from typing import Any

from cmlmcse.common.tables import markdown_table
from cmlmcse.evaluation.tables import TRUNCATED, cell, format_all_measures, format_table, with_truncated

from .run_records import Record


def results_text(name: str, run: Record, results: Record) -> str:
    """The measured scores, or a sentence that there are none."""
    parts = []
    if "sts" in results:
        parts.append(
            "STS: Spearman × 100 of cosine similarities. STS12 to STS16 are measured over all pairs of a year together "
            '(setting "all").'
        )
        parts.append(format_table(with_truncated(name, results)))
    others = {name: value for name, value in results.items() if name != "dev"}
    if "retrieval" in results and TRUNCATED not in results:
        parts.append(
            "Search, × 100: nDCG@10 and Recall@100 of the cosine; nDCG@10 of BM25, and of both together (`--bm25`)."
        )
        parts.append(search_table(others.pop("retrieval")))
    if measures := format_all_measures(with_truncated("Value", others)):
        parts.append(
            "Tasks of `cmlmcse evaluate`. Correlations, accuracies and measures of search are × 100; those of geometry "
            "are not."
        )
        parts.append(measures)
    if "dev" in results:
        parts.append(dev_text(results.part("dev"), chose=run.part("fields")["load_best_model_at_end"]))
    if not parts and "scored" in run:
        return f"These weights were not evaluated. The scores of the run are those of its `{run['scored']}`."
    return "\n\n".join(parts) or "This run was not evaluated."


def search_table(retrieval: dict[str, Any]) -> str:
    """A row for each collection, and the average if there is one."""
    sets = {name: found for name, found in retrieval.items() if isinstance(found, dict)}
    rows = [
        [
            name,
            cell(found.get("queries")),
            cell(found.get("passages")),
            *(cell(found.get(measure)) for measure in ("ndcg@10", "recall@100")),
            *(cell(found.get(other, {}).get("ndcg@10")) for other in ("bm25", "hybrid")),
        ]
        for name, found in sets.items()
    ]
    if retrieval.get("avg") is not None:
        rows.append(["average", "", "", cell(retrieval["avg"]), "", "", ""])
    return markdown_table(["Collection", "Queries", "Passages", "nDCG@10", "Recall@100", "BM25", "Both"], rows)


def dev_text(dev: Record, chose: bool) -> str:
    """The score of the development set, before training too, and whether the change may be chance."""
    role = "which chose the checkpoint" if chose else "which did not choose the checkpoint"
    if "spearman" in dev:
        found = f"{dev['pairs']} pairs, Spearman × 100 = {dev['spearman']:.2f}"
    else:
        found = f"{dev['documents']} documents without labels, nDCG × 100 = {dev['score']:.2f}"
    start = f" ({dev['before']:.2f} before training)" if "before" in dev else ""
    text = f"Development set, {role}: {dev['set']}, {found}{start}."
    if "interval" in dev:
        low, high = dev["interval"]
        text += f" 95 % interval of the change: {low:+.2f} to {high:+.2f}."
        text += " So it may be chance." if low <= 0 <= high else ""
    return text
