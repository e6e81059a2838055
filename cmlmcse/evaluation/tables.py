"""Results as tables in Markdown, LaTeX and CSV: STS scores as in the papers, and all other measures."""

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
TRUNCATED = "truncated"  # the results of vectors cut to fewer dimensions, by their number
NOT_MEASURES = ("model", "settings", "sts", TRUNCATED)

Results = dict[str, Any]


def format_table(results: dict[str, Results], published: tuple[Published, ...] = ()) -> str:
    """A Markdown table of STS scores (setting "all") as in the papers; – means not measured.

    `results` maps a model's name to its results. Published rows come last; their names hold "published" and the paper.
    """
    return markdown_table(HEADINGS, _sts_cells(results, published))


def sts_rows(
    results: dict[str, Results], published: tuple[Published, ...] = ()
) -> Iterator[tuple[str, list[float | None]]]:
    """The name and the eight scores of each row of the STS table."""
    for model, result in results.items():
        scores = result.get("sts", {})
        yield model, [*(scores.get(name, {}).get("all") for name in STS_COLUMNS), scores.get("avg")]
    for row in published:
        yield f"{row.name} (published, {row.source})", [*row.scores, row.average]


def _sts_cells(results: dict[str, Results], published: tuple[Published, ...] = ()) -> list[list[str]]:
    """The cells of the STS table as strings."""
    return [[name, *map(cell, values)] for name, values in sts_rows(results, published)]


def format_measures(results: Results) -> str:
    """A table of one model's numbers in all other tasks, one row each; empty if there are none."""
    return format_all_measures({"Value": results})


def format_all_measures(results: dict[str, Results]) -> str:
    """A table of the numbers in all other tasks, one row each, one column per model; empty if there are none."""
    each = [dict(measures(result)) for result in results.values()]
    names = list(dict.fromkeys(name for found in each for name in found))
    if not names:
        return ""
    return markdown_table(
        ["Measure", *results], ([name, *(cell(found.get(name), decimals(name)) for found in each)] for name in names)
    )


def decimals(measure: str) -> int:
    """The decimals of a measure in a table: three of geometry, whose numbers may be near 0, two of what is × 100."""
    return 3 if measure.startswith("geometry") else 2


def with_truncated(name: str, results: Results) -> dict[str, Results]:
    """A model's results by its name, and beside them those of its vectors cut to fewer dimensions."""
    cut = results.get(TRUNCATED, {})
    return {name: results} | {f"{size} dimensions": own for size, own in cut.items()}


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
    """The STS table in LaTeX (package booktabs), with the published rows below a rule."""
    return booktabs_table(HEADINGS, _sts_cells(results), _sts_cells({}, published)) + "\n"


def csv_table(results: dict[str, Results], published: tuple[Published, ...] = ()) -> str:
    """One row per number: model, measure, value, paper (empty if measured here)."""
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
    """The table in the format of a file suffix; `published` adds the papers' rows."""
    return WRITERS[suffix](results, PUBLISHED if published else ())


def cell(value: float | int | None, places: int = 2) -> str:
    """A count as it is, another number with so many decimals, or a dash for None."""
    return DASH if value is None else str(value) if isinstance(value, int) else f"{value:.{places}f}"
