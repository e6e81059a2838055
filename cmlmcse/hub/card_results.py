"""The section "Results" of a card, from the record of a run and its results."""

from cmlmcse.evaluation.tables import format_all_measures, format_table, with_truncated

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
