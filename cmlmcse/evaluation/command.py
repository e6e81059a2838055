"""The command `cmlmcse evaluate MODEL [MODEL …]`, and the function `evaluate`."""

import argparse
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cmlmcse.common.command import command
from cmlmcse.common.errors import InputError
from cmlmcse.common.locations import SAVE_MODEL, path_or_name
from cmlmcse.common.signals import interruptible

from .options import WRITTEN, check_models, check_outputs, parse
from .tasks import TASKS, Task, choose_tasks

if TYPE_CHECKING:
    from .encoding import EncodeOnce

OWN_DATA = (
    ", or score on data of your own: --data_dir DIR with --tasks pairs (scored pairs, DIR/pairs/NAME.tsv) or --tasks "
    "retrieval (queries with answers, DIR/beir/NAME/)"
)


@command
def main(argv: list[str] | None = None) -> None:
    """Evaluate one model, or compare several. Exit status 1 if a part of the data was missing."""
    args = parse(argv)
    names = check_models(args.models)
    tasks = choose_tasks(args.tasks)
    check_outputs(args, tasks)
    kept = f"no results were written{f'; the embeddings in {args.cache} are kept' if args.cache else ''}"
    with interruptible(lambda: kept):
        data, missing = load_data(tasks, args.data_dir)
        evaluate_models(args, names, data)
    for line in missing:
        print(f"missing: {line}", file=sys.stderr)
    if missing:
        sys.exit(1)


def evaluate_models(args: argparse.Namespace, names: list[str], data: dict[str, Any]) -> None:
    """Score the models, print the tables, and write the requested files; then draw the plots, which may fail.

    Raises:
        InputError: a model or an option is wrong. Of several models that shows before the first is scored.
    """
    from .compare import score_pairs
    from .output import print_results, write_plots, write_results
    from .prepare import check_encoders, prepare_encoder, truncate

    if len(names) > 1:
        check_encoders(args, data)
    results, scored, own, queries, maps = {}, {}, {}, {}, {}
    several = len(names) > 1 or bool(args.truncate_dim)
    for model, title in zip(args.models, names, strict=True):
        whole = prepare_encoder(model, args, data)
        arms = {title: whole} | {f"{title}, {size} dimensions": truncate(*whole, size) for size in args.truncate_dim}
        for name, (encode, settings) in arms.items():
            results[name], queries[name] = score(model, encode, settings, args, data)
            if "sts" in data and (several or args.plots):
                scored[name] = score_pairs(encode, data["sts"][0])
            if "pairs" in data and several:
                own[name] = score_pairs(encode, {file: {file: pairs} for file, pairs in data["pairs"].items()})
            if args.plots:
                from .plots import map_vectors

                maps[name] = map_vectors(encode, data)
    differences = differences_of(results, scored, own, queries)
    print_results(results, differences, args.published)
    write_results(results, differences, args)
    if args.plots:
        write_plots(results, scored, {name: each for name, each in maps.items() if each is not None}, args.plots)


def evaluate(
    model: str | Path,
    tasks: str | Sequence[str] = "sts",
    data_dir: str | Path | None = None,
    pooling: str | None = None,
    max_seq_length: int | str | None = None,
    batch_size: int | None = None,
    device: str | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Score a sentence encoder, as `cmlmcse evaluate MODEL` does.

    Args:
        model: an exported folder, a checkpoint, a run's folder, a Hub name, `package:NAME/path`, a plain backbone, or
            a file of word vectors.
        tasks: names of tasks, in a list or separated by commas: sts, transfer, retrieval, indomain, geometry, glue, ….
        data_dir: the folder that holds sts/, transfer/, beir/ (default: the same data from the Hub).
        pooling: how a model that records no pooling becomes a sentence encoder: avg, cls_before_pooler, ….
        max_seq_length: texts are cut to this many tokens (default: the model's limit); `"128,scifact=256"` has another
            number for a retrieval set.
        batch_size: sentences in a forward pass (default: 64 on a CPU, 16,384 tokens on a GPU).
        device: cpu, cuda, cuda:1, … (default: cuda if there is one).
        options: any other option of the command that has a value and names no output: `cache="folder"`,
            `whitening=256`, `glue_epochs=1`, ….

    Returns:
        The content of results.json: `{"model": …, "settings": …, "sts": {"STS12": …, "avg": …}, …}`. Correlations and
        accuracies are in per cent. A task that did not run has no entry; a warning names the missing data.

    Raises:
        InputError: a wrong model, task or option, or no data for any task.
    """
    if written := sorted(set(WRITTEN) & set(options)):
        raise InputError(
            f"evaluate expects options that change a score, found {written[0]}, which only the command has; "
            "leave it out, and write what evaluate returns"
        )
    size = options.get("truncate_dim")
    if size is not None and not (str(size).isdecimal() and int(size)):  # the command takes several, as 256,64
        raise InputError(
            f"truncate_dim must be one whole number of at least 1, found {size!r}; call evaluate for each of several"
        )
    chosen = tasks if tasks is None or isinstance(tasks, str) else ",".join(tasks)
    given = {"tasks": chosen, "data_dir": data_dir, "pooling": pooling, "max_seq_length": max_seq_length,
             "batch_size": batch_size, "device": device, **options}  # fmt: skip
    words = [f"--{name}={value}" for name, value in given.items() if value is not None]
    model = path_or_name("model", model, SAVE_MODEL)
    args = parse([model, *words])
    data, missing = load_data(choose_tasks(args.tasks), args.data_dir)
    for line in missing:
        warnings.warn(line, stacklevel=2)
    from .prepare import prepare_encoder, truncate

    encode, settings = prepare_encoder(model, args, data)
    for size in args.truncate_dim:
        encode, settings = truncate(encode, settings, size)
    return score(model, encode, settings, args, data)[0]


def load_data(tasks: dict[str, Task], data_dir: str | None) -> tuple[dict[str, Any], list[str]]:
    """The data of every task that has some, and one line for each missing part.

    Raises:
        InputError: no task has data, or the Hub cannot be reached.
    """
    from .sts_data import HubFailed, MissingData

    data, missing = {}, []
    for name, task in tasks.items():
        try:
            data[name] = task.load(data_dir)
            missing += task.missing(data_dir, data[name])
        except MissingData as error:
            missing.append(str(error))
        except HubFailed as error:  # who has no network may have data of their own
            raise InputError(f"{error}{OWN_DATA}") from error
    if not data:
        raise InputError(f"no data for --tasks {','.join(tasks)}: {'; '.join(missing)}; check --data_dir{OWN_DATA}")
    return data, list(dict.fromkeys(missing))


def score(
    model: str, encode: "EncodeOnce", settings: dict[str, Any], args: argparse.Namespace, data: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The results of one model, and the values of the queries that it searched with (retrieval.Searched). Tasks that
    fine-tune the model are left out where its vectors are cut."""
    results: dict[str, Any] = {"model": model, "settings": settings}
    queries: dict[str, Any] = {}
    # What fine-tunes comes first: it loads the model by itself, and may refuse it before any other work is done.
    for name, content in sorted(data.items(), key=lambda item: not TASKS[item[0]].fine_tunes):
        task = TASKS[name]
        options = {option: getattr(args, f"{name}_{option}") for option in task.options}
        if task.fine_tunes and "truncate_dim" in settings:
            continue
        if task.fine_tunes:
            results |= task.run(model, content, device=args.device, **options)
        elif task.by_query is not None:
            results[name], queries = task.by_query(encode, content, **options)
        else:
            results |= task.run(encode, content, **options)
    return results, queries


def differences_of(
    results: dict[str, dict[str, Any]], scored: dict[str, Any], own: dict[str, Any], queries: dict[str, Any]
) -> dict[str, Any]:
    """How much each model but the first differs from it, with intervals: STS set → difference, files of own pairs under
    `pairs`, and the searches under `retrieval`. Empty for one model, and where no task gives them."""
    from .compare import bootstrap_differences, query_differences

    baseline, *others = results
    found: dict[str, Any] = {other: {} for other in others if scored or own or queries[baseline]}
    for other, differences in found.items():
        if scored:
            differences |= bootstrap_differences(scored[baseline], scored[other])
        if own:
            differences["pairs"] = bootstrap_differences(own[baseline], own[other])
        if queries[baseline]:
            average = "avg" in results[baseline]["retrieval"]
            differences["retrieval"] = query_differences(queries[baseline], queries[other], average)
    return found
