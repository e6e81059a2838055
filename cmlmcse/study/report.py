"""The report of a study: runs.csv, runs.parquet, summary.json, summary.md, curves.csv, and plots."""

import csv
import dataclasses
import io
from collections.abc import Sequence
from typing import Any

import pyarrow
import pyarrow.parquet

from cmlmcse.common.files import atomic_write, replace_json, replace_text
from cmlmcse.common.tables import DASH, markdown_table
from cmlmcse.hub.card_method import public_name

from .plan import Study
from .plot import plot_curves, plot_study
from .statistics import RUNS, Choice, Comparison, Estimate, Row, baseline_arm, choose, compare, curves, table
from .sweeps import plot_sweeps


def write_report(study: Study) -> str:
    """Write the report on all finished runs, and return the summary as Markdown."""
    rows = table(study)
    compared = compare(study, rows)
    summary = markdown(study, rows, compared)
    study.folder.mkdir(parents=True, exist_ok=True)
    if rows:
        replace_text(study.folder / RUNS, _csv(rows))
        with atomic_write(study.folder / "runs.parquet") as temporary:
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), temporary)
        plot_study(study, rows, compared)
        plot_sweeps(study, compared)
    if measured := curves(study):
        replace_text(study.folder / "curves.csv", _csv(measured))
        plot_curves(study, measured)
    replace_json(study.folder / "summary.json", as_json(study, rows, compared))
    replace_text(study.folder / "summary.md", summary)
    return summary


def _csv(rows: Sequence[Row]) -> str:
    """Rows as CSV. An empty cell means not measured."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_json(study: Study, rows: Sequence[Row], compared: dict[str, dict[str, Comparison]]) -> dict[str, object]:
    """The content of summary.json."""
    return {
        "study": study.name,
        "recipe": study.recipe,
        "baseline": study.baseline,
        "chosen": {method: dataclasses.asdict(choice) for method, choice in choose(study, rows).items()},
        "seeds": study.seeds,
        "common": study.common,
        "arms": study.arms,
        "runs_done": len(rows),
        "runs": len(study.runs),
        "metrics": {
            metric: {arm: dataclasses.asdict(comparison) for arm, comparison in by_arm.items()}
            for metric, by_arm in compared.items()
        },
        "published": dataclasses.asdict(study.published) if study.published else None,
    }


def markdown(study: Study, rows: Sequence[Row], compared: dict[str, dict[str, Comparison]]) -> str:
    """The content of summary.md: one table for each metric."""
    lines = [f"# {study.name}", "", f"{len(rows)} of {len(study.runs)} runs are done. Recipe `{study.recipe}`"]
    if study.common:
        lines[-1] += f", {', '.join(f'`{name}` {public(value)}' for name, value in study.common.items())}"
    lines[-1] += f"; seeds {', '.join(map(str, study.seeds))}."
    chosen, baseline = choose(study, rows), baseline_arm(study, rows)
    if study.methods:
        lines += ["", *methods_lines(study, rows, chosen)]
    for metric, by_arm in compared.items():
        published = study.published.values.get(metric, {}) if study.published else {}
        heads = ["Arm", "Seeds", "Mean", "SD", f"− {baseline or study.baseline}, paired", "95 % interval"]
        heads += ["Published"] if published else []
        cells = []
        best = {choice.arm for choice in chosen.values()}
        for arm, comparison in by_arm.items():
            cells.append(
                [
                    f"**{arm}**" if arm in best else arm,
                    *_score_cells(comparison.scores),
                    *_difference_cells(comparison.difference),
                ]
            )
            cells[-1] += [_number(published.get(arm))] if published else []
        lines += ["", f"## {metric}", "", markdown_table(heads, cells)]
        if absent := sum(row[metric] is None for row in rows):
            lines += ["", f"{absent} of {len(rows)} runs have no `{metric}` in results.json."]
    lines += [
        "",
        "SD is over seeds. The interval is Student's t over seed-by-seed differences (n − 1 degrees of freedom), for "
        "each arm by itself: of 20 arms without any effect one is expected to exclude 0.",
    ]
    if study.published:
        lines += ["", f"Published: {study.published.source}; other hardware and seeds, and not measured here."]
    lines += ["", commits_line(rows)] if rows else []
    return "\n".join(lines) + "\n"


def commits_line(rows: Sequence[Row]) -> str:
    """The commits of the runs, and whether their code may differ."""
    commits = sorted({str(row["git_commit"])[:10] for row in rows})
    changed = sum(bool(row.get("uncommitted_changes")) for row in rows)
    line = f"Commits: {', '.join(commits)}."
    if changed:
        line += f" {changed} of {len(rows)} runs had code with uncommitted changes."
    if changed or len(commits) > 1:
        line += " So the code of the runs may differ."
    return line


def methods_lines(study: Study, rows: Sequence[Row], chosen: dict[str, Choice]) -> list[str]:
    """The setting of each method, and whether the seeds can tell it from the next best."""
    tried = len(next(iter(study.methods.values())))
    lines = [f"## Methods at their best setting by `{study.dev_metric}`", ""]
    cells = []
    for method in study.methods:
        choice = chosen.get(method)
        told = "" if choice is None or choice.lead is None else "yes" if choice.clear else "no"
        cells.append([method, choice.arm if choice else DASH, (choice.second if choice else None) or DASH,
                      *_difference_cells(choice.lead if choice else None), told])  # fmt: skip
    lines.append(
        markdown_table(["Method", "Chosen", "Next best", "Lead", "95 % interval", "Told apart"], cells, texts=3)
    )
    complete = len(rows) == len(study.runs)
    seeds = "each with all seeds" if complete else "some of them not with all seeds yet"
    lines += ["", f"Settings of each method: {tried}, {seeds}. Chosen arms are bold below. All are "
              f"compared with that of {study.baseline}."]  # fmt: skip
    own = chosen.get(study.baseline)
    if own and own.second and not own.clear:
        lines[-1] += (
            f" The seeds cannot tell {own.arm} from {own.second}; the one that is stronger on dev is the baseline."
        )
    return lines


def _number(value: float | None, sign: str = "") -> str:
    """The value with two decimals; a dash for None."""
    return DASH if value is None else f"{value:{sign}.2f}"


def _score_cells(scores: Estimate | None) -> list[str]:
    """The cells for number of seeds, mean and standard deviation."""
    return ["0", DASH, DASH] if scores is None else [str(scores.n), _number(scores.mean), _number(scores.sd)]


def _difference_cells(difference: Estimate | None) -> list[str]:
    """The cells for mean difference and interval."""
    if difference is None:
        return [DASH, DASH]
    if difference.low is None:
        return [_number(difference.mean, "+"), DASH]
    return [_number(difference.mean, "+"), f"{_number(difference.low, '+')} to {_number(difference.high, '+')}"]


def public(value: Any) -> Any:
    """A field's value; of a path on somebody's machine only the last part."""
    return public_name(value) if isinstance(value, str) else value
