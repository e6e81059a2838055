"""Results as tables: STS figures like the papers', every other measure below, in Markdown, LaTeX and CSV."""

import csv
import io
from collections.abc import Iterator
from typing import Any

from cmlmcse.common.tables import DASH, booktabs_table, markdown_table

from .published import PUBLISHED, Published

STS_COLUMNS = {  # result name → heading, in the papers' order
    **{f"STS{year}": f"STS{year}" for year in range(12, 17)},
    "STSBenchmark": "STS-B",
    "SICKRelatedness": "SICK-R",
}
HEADINGS = ["Model", *STS_COLUMNS.values(), "Avg."]
NOT_MEASURES = ("model", "settings", "sts")

Results = dict[str, Any]


def format_table(results: dict[str, Results], published: tuple[Published, ...] = ()) -> str:
    """Model name → its results, as a Markdown table of STS figures ("all") like the papers'; – is not measured.

    Rows that a paper published come last, their names with the paper's and "published".
    """
    return markdown_table(HEADINGS, _sts_cells(results, published))


def sts_rows(
    results: dict[str, Results], published: tuple[Published, ...] = ()
) -> Iterator[tuple[str, list[float | None]]]:
    """The name and the eight figures of each row of the STS table."""
    for model, result in results.items():
        scores = result.get("sts", {})
        yield model, [*(scores.get(name, {}).get("all") for name in STS_COLUMNS), scores.get("avg")]
    for row in published:
        yield f"{row.name} (published, {row.source})", [*row.scores, row.average]


def _sts_cells(results: dict[str, Results], published: tuple[Published, ...] = ()) -> list[list[str]]:
    """The rows of the STS table as texts."""
    return [[name, *map(_cell, values)] for name, values in sts_rows(results, published)]


def format_measures(results: Results) -> str:
    """The numbers of every other task of one model's results, one a row; empty if there are none."""
    return format_all_measures({"Value": results})


def format_all_measures(results: dict[str, Results]) -> str:
    """The numbers of every other task, one a row, with a column for each model; empty if there are none."""
    each = [dict(measures(result)) for result in results.values()]
    names = list(dict.fromkeys(name for found in each for name in found))
    if not names:
        return ""
    return markdown_table(
        ["Measure", *results], ([name, *(_cell(found.get(name)) for found in each)] for name in names)
    )


def measures(results: Results) -> Iterator[tuple[str, float | int | None]]:
    """The single numbers of the tasks other than `sts`: "task measure", or "task set measure"."""
    for task, values in results.items():
        if task not in NOT_MEASURES and isinstance(values, dict):
            yield from _numbers(task, values)


def _numbers(prefix: str, values: dict[str, Any]) -> Iterator[tuple[str, float | int | None]]:
    """The numbers of a nested dict, each with the path to it."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _numbers(f"{prefix} {name}", value)
        elif value is None or isinstance(value, (int, float)):
            yield f"{prefix} {name}", value


def latex_table(results: dict[str, Results], published: tuple[Published, ...] = ()) -> str:
    """The STS table for a paper (package booktabs), the published rows below a rule."""
    return booktabs_table(HEADINGS, _sts_cells(results), _sts_cells({}, published)) + "\n"


def csv_table(results: dict[str, Results], published: tuple[Published, ...] = ()) -> str:
    """Every number as a row: model, measure, value, and the paper it was published in (empty: measured here)."""
    rows: list[tuple[str, str, float | int | None, str]] = []
    for name, result in results.items():
        (_, values), *_ = sts_rows({name: result})
        figures = zip([*(f"sts {column}" for column in STS_COLUMNS), "sts avg"], values, strict=True)
        rows += [(name, measure, value, "") for measure, value in [*figures, *measures(result)] if value is not None]
    for row in published:
        named = zip([*(f"sts {column}" for column in STS_COLUMNS), "sts avg"], [*row.scores, row.average], strict=True)
        rows += [(row.name, measure, value, row.source) for measure, value in named]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["model", "measure", "value", "published_in"])
    writer.writerows(rows)
    return text.getvalue()


WRITERS = {
    ".md": lambda results, published: (
        "\n\n".join(block for block in (format_table(results, published), format_all_measures(results)) if block) + "\n"
    ),
    ".tex": latex_table,
    ".csv": csv_table,
}


def write_table(suffix: str, results: dict[str, Results], published: bool) -> str:
    """The table in the format of a file's suffix, with the papers' rows if asked for."""
    return WRITERS[suffix](results, PUBLISHED if published else ())


def _cell(value: float | int | None) -> str:
    """A count as it is, two decimals of anything else, or a dash."""
    return DASH if value is None else str(value) if isinstance(value, int) else f"{value:.2f}"
