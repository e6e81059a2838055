"""Evaluation of sentence encoders: tasks, found by name in `TASKS`, that see nothing but one `encode` callable.

A new task is a module with a loading and a scoring function, and a line in `TASKS`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from modeling_cmlmcse.errors import InputError

STS_COLUMNS = {  # result name → heading, in the papers' order
    **{f"STS{year}": f"STS{year}" for year in range(12, 17)},
    "STSBenchmark": "STS-B",
    "SICKRelatedness": "SICK-R",
}


@dataclass(frozen=True)
class Task:
    """A unit of evaluation: load its data, then score an encoder on them.

    `load(data_dir)` gives the data, `run(encode, data)` the entries of the results, `missing(data_dir, data)` a
    line for each part of the data that is not there. A `load` that finds nothing at all raises `MissingData`.
    """

    summary: str
    load: Callable[[str | None], Any]
    run: Callable[[Callable[..., Any], Any], dict[str, Any]]
    missing: Callable[[str | None, Any], list[str]] = lambda data_dir, data: []


def _later(target: str, entry: str | None = None) -> Callable[..., Any]:
    """A function of this package, `module:name`, imported when called; its result goes under `entry` if given."""
    module, name = target.split(":")

    def call(*args: Any) -> Any:
        result = getattr(import_module(f".{module}", __name__), name)(*args)
        return result if entry is None else {entry: result}

    return call


def _lee(encode: Callable[..., Any], data: None) -> dict[str, Any]:
    """The task `lee`, whose data come with the package it is in."""
    return {"lee": _later("lee:lee")(encode)}


TASKS: dict[str, Task] = {
    "sts": Task(
        "the seven STS sets, and the STS-B development set",
        _later("sts:load_sts_task"),
        _later("sts:run_sts_task"),
        _later("sts:missing_sts_task"),
    ),
    "stsb_dev": Task("STS-B dev", _later("sts_data:load_stsb_dev"), _later("sts:stsb_dev", "stsb_dev")),
    "geometry": Task(
        "alignment and uniformity", _later("sts_data:load_stsb_dev"), _later("geometry:geometry", "geometry")
    ),
    "lee": Task(
        "the 50 documents of Lee et al. 2005",
        lambda data_dir: None,
        _lee,
    ),
}


def choose_tasks(names: str | Sequence[str]) -> dict[str, Task]:
    """The tasks of a comma-separated list or a sequence of names, each once.

    Raises:
        InputError: a name is not known, or there is none.
    """
    names = [name.strip() for name in (names.split(",") if isinstance(names, str) else names) if name.strip()]
    unknown = [name for name in names if name not in TASKS]
    if unknown or not names:
        found = ", ".join(map(repr, unknown)) or "none"
        raise InputError(f"--tasks must name some of {', '.join(TASKS)}, separated by commas, found {found}")
    return {name: TASKS[name] for name in names}


def format_table(results: dict[str, dict[str, Any]]) -> str:
    """Model name → its results, as a Markdown table of STS figures ("all") like the papers'; – is not measured."""
    rows = [["Model", *STS_COLUMNS.values(), "Avg."], ["---", *["---:"] * (len(STS_COLUMNS) + 1)]]
    for model, result in results.items():
        scores = result.get("sts", {})
        values = [scores.get(name, {}).get("all") for name in STS_COLUMNS]
        rows.append([model.replace("|", r"\|"), *map(_cell, [*values, scores.get("avg")])])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def format_measures(results: dict[str, Any]) -> str:
    """The numbers of every other task of one model's results, one a row; empty if there are none."""
    rows = [
        f"| {task} {name} | {value if isinstance(value, int) else _cell(value)} |"
        for task, values in results.items()
        if task not in ("model", "settings", "sts") and isinstance(values, dict)
        for name, value in values.items()
        if value is None or isinstance(value, (int, float))
    ]
    return "\n".join(["| Measure | Value |", "| --- | ---: |", *rows]) if rows else ""


def _cell(value: float | None) -> str:
    """Two decimals, or a dash."""
    return "–" if value is None else f"{value:.2f}"
