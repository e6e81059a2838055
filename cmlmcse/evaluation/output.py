"""What `cmlmcse evaluate` hands back: tables on the screen, and the files that the options name."""

import argparse
import json
from pathlib import Path
from typing import Any

from cmlmcse.common.errors import InputError
from cmlmcse.common.files import write_asked

from .compare import format_differences, format_query_differences
from .published import PUBLISHED
from .tables import format_all_measures, format_measures, format_table, write_table


def print_results(results: dict[str, dict[str, Any]], differences: dict[str, Any], published: bool) -> None:
    """Print the tables and the settings."""
    named = named_results(results)
    several, baseline = len(results) > 1, next(iter(results))
    searches = {name: found["retrieval"] for name, found in differences.items() if "retrieval" in found}
    own = {name: found["pairs"] for name, found in differences.items() if "pairs" in found}
    sts = {
        name: {key: found[key] for key in found if key not in ("retrieval", "pairs")}
        for name, found in differences.items()
    }
    blocks = [
        format_table(named, PUBLISHED if published else ()) if any("sts" in one for one in results.values()) else "",
        format_differences(sts, baseline) if any(sts.values()) else "",
        format_differences(own, f"{baseline}, own pairs") if own else "",
        format_query_differences(searches, baseline) if searches else "",
        format_all_measures(named) if several else format_measures(*results.values()),
        *(
            f"Settings{f' of {name}' if several else ''}: "
            + ", ".join(f"{setting} {value}" for setting, value in result["settings"].items())
            for name, result in results.items()
        ),
    ]
    print("\n\n".join(block for block in blocks if block))


def named_results(results: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The results of each model by its name, and what was done to its embeddings or similarities."""
    added = {"whitening": " + whitening", "rank_corpus": " + rankings"}
    return {
        name + "".join(text for key, text in added.items() if key in result["settings"]): result
        for name, result in results.items()
    }


def write_results(results: dict[str, dict[str, Any]], differences: dict[str, Any], args: argparse.Namespace) -> None:
    """Write the requested results and table.

    Raises:
        InputError: one cannot be written.
    """
    if args.output:
        (first, *others) = results.values()
        several = {"model": list(results), "results": list(results.values()), "differences": differences}
        content = several if others else first
        text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        write_asked(args.output, text, "--output")
    if args.table:
        write_asked(args.table, write_table(args.table.suffix, named_results(results), args.published), "--table")


def write_plots(results: dict[str, dict[str, Any]], scored: dict[str, Any], maps: dict[str, Any], folder: Path) -> None:
    """Draw the requested plots, from `scored` of compare.score_pairs and `maps` of plots.map_vectors.

    Raises:
        InputError: one cannot be written.
    """
    from .plots import plot_results

    try:
        plot_results(results, scored, maps, folder)
    except OSError as error:
        raise InputError(
            f"--plots {folder}: cannot be written: {error.strerror or error}; make room, or choose another; the scores "
            "were printed and written"
        ) from error
