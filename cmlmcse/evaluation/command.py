"""The command `cmlmcse evaluate MODEL [MODEL …]`, and the function `evaluate`."""

import argparse
import json
import sys
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cmlmcse.common.errors import InputError, Parser, command, interruptible
from cmlmcse.common.files import replace_text
from cmlmcse.common.locations import SAVE_MODEL, path_or_name, resolve
from cmlmcse.common.options import add_encoder_options, positive, share

from .set_lengths import RETRIEVAL, SetLengths, read_lengths
from .tasks import TASKS, Task, choose_tasks

if TYPE_CHECKING:
    from .encoding import EncodeOnce

WRITTEN = ("output", "table", "plots", "published")  # options of the command that change no score
BESIDE = ("run.json", "request.json")  # beside the results.json of a training run, and of adapt
ALL_DIMENSIONS = 0  # the value of --whitening without a number


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = Parser(
        prog="cmlmcse evaluate",
        description="Score a sentence encoder, and print a table like those in the papers.",
        epilog="tasks: " + "; ".join(f"{name}: {task.summary}" for name, task in TASKS.items()),
        allow_abbrev=False,
    )
    parser.add_argument("models", metavar="MODEL", nargs="+", help="exported folder, checkpoint, run folder, Hub "
                        "name, package:NAME/path, plain backbone, or a file of word vectors (GloVe's format; .txt, "
                        ".vec, .gz, .zip). Several models are compared with the first one, with bootstrap "
                        "intervals of the differences.")  # fmt: skip
    parser.add_argument("--tasks", default="sts", help="comma-separated names of tasks, listed below (default: sts)")
    parser.add_argument("--data_dir", help="folder that holds sts/, transfer/, beir/, glue/ (default: from the Hub)")
    parser.add_argument("--output", type=Path, metavar="FILE.json", help="write the results to this file")
    parser.add_argument("--table", type=Path, metavar="FILE", help="write the table to this file: .md, .tex, or "
                        ".csv (every number)")  # fmt: skip
    parser.add_argument("--published", action="store_true", help="add rows from the papers, marked as published")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="write plots to this folder (PNG and SVG)")
    parser.add_argument("--cache", type=Path, metavar="FOLDER", help="keep embeddings in this folder, and reuse them")
    parser.add_argument("--prompt_template", metavar="TEXT", help="template of the pooling prompt, for a plain "
                        "backbone, with {sentence} and {mask} (default: PromptBERT's)")  # fmt: skip
    parser.add_argument("--whitening", nargs="?", type=positive, const=ALL_DIMENSIONS, metavar="K", help="whiten the "
                        "embeddings (Su et al. 2021), and keep the K dimensions of largest variance (default: all)"
                        )  # fmt: skip
    parser.add_argument("--whitening_file", metavar="TEXT", help="file of sentences to fit the whitening on "
                        "(default: all distinct sentences of the evaluated sets)")  # fmt: skip
    parser.add_argument("--rank_corpus", metavar="TEXT", help="file of sentences; STS then compares how two sentences "
                        "rank these too (RankEncoder)")  # fmt: skip
    parser.add_argument("--rank_sentences", type=positive, default=1000, metavar="C", help="how many of them, drawn at "
                        "random (default: 1000)")  # fmt: skip
    parser.add_argument("--rank_weight", type=share, default=0.1, metavar="W", help="share of the rankings in the "
                        "similarity (default: 0.1, RankEncoder's code)")  # fmt: skip
    parser.add_argument("--truncate_dim", metavar="K,…", help="score the embeddings cut to their first K dimensions "
                        "too, side by side")  # fmt: skip
    glue = "choose the GPUs of the task glue, which takes only cpu here, with CUDA_VISIBLE_DEVICES"
    lengths = "; 128,NAME=256 has another one for the retrieval set NAME, or for all of them, retrieval"
    add_encoder_options(parser, f"cuda if there is one; {glue}", read_lengths, lengths)
    for name, task in TASKS.items():
        for option, given in task.options.items():
            parser.add_argument(f"--{name}_{option}", default=given.default, type=given.type, metavar="VALUE",
                                help=f"{given.help} (default: {given.default!r})")  # fmt: skip
    args = parser.parse_args(argv)
    if args.whitening_file is not None and args.whitening is None:
        parser.error("--whitening_file expects --whitening, found none; add it")
    if args.truncate_dim and args.whitening is not None:
        parser.error("--truncate_dim expects no --whitening, found both; --whitening K keeps K dimensions")
    if args.truncate_dim and args.rank_corpus is not None:
        parser.error("--truncate_dim expects no --rank_corpus, found both; drop one of them")
    args.truncate_dim = numbers(parser, args.truncate_dim)
    args.max_seq_length = args.max_seq_length or SetLengths()
    return args


def numbers(parser: Parser, text: str | None) -> list[int]:
    """Different numbers of dimensions, from a text with commas."""
    found = [part.strip() for part in text.split(",")] if text is not None else []
    if len(set(found)) < len(found) or not all(part.isdecimal() and int(part) for part in found):
        parser.error(f"--truncate_dim expects different whole numbers of at least 1, as 256,64, found {text!r}")
    return [int(part) for part in found]


def check_outputs(args: argparse.Namespace, tasks: Iterable[str]) -> None:
    """Check before the evaluation of these tasks that all requested files can be written.

    Raises:
        InputError: no such folder, a file that must not be overwritten, an unknown table format, or plots of tasks that
            have none.
    """
    for option in ("output", "table"):
        path = getattr(args, option)
        if path is not None and not path.parent.is_dir():
            raise InputError(f"--{option} {path}: expected the folder {path.parent} to exist, found none; create it")
    if args.output is not None:
        check_overwritten(args.output)
    if args.table is not None:
        from .tables import WRITERS

        if args.table.suffix not in WRITERS:
            raise InputError(f"--table must end with one of {', '.join(WRITERS)}, found {args.table}; rename it")
    if args.plots is not None:
        from .plots import DRAWN, plots_folder

        if not DRAWN & set(tasks):
            raise InputError(
                f"--plots draws the tasks {', '.join(sorted(DRAWN))}, found none of them; add one to --tasks"
            )
        plots_folder(args.plots)


def check_overwritten(path: Path) -> None:
    """Check that --output overwrites nothing but results of this command.

    Raises:
        InputError: the file is the record of a training run or of adapt, or holds something other than results.
    """
    held: Any = {}
    if path.exists():
        try:
            held = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            held = None
        if not isinstance(held, dict) or "model" not in held:
            raise InputError(f"--output {path}: exists and does not hold results; choose another name")
    if "adapt" in held or (path.name == "results.json" and any((path.parent / name).exists() for name in BESIDE)):
        raise InputError(f"--output {path}: is the record of a run of train or adapt; choose another name")


def write_atomically(path: Path, text: str, option: str) -> None:
    """Write a file completely, or not at all.

    Raises:
        InputError: the folder cannot be written to.
    """
    try:
        replace_text(path, text)
    except OSError as error:
        raise InputError(f"{option} {path}: cannot be written: {error.strerror}") from error


def load_data(tasks: dict[str, Task], data_dir: str | None) -> tuple[dict[str, Any], list[str]]:
    """The data of every task that has some, and one line for each missing part.

    Raises:
        InputError: no task has data.
    """
    from .sts_data import MissingData

    data, missing = {}, []
    for name, task in tasks.items():
        try:
            data[name] = task.load(data_dir)
            missing += task.missing(data_dir, data[name])
        except MissingData as error:
            missing.append(str(error))
    if not data:
        raise InputError(f"no data for --tasks {','.join(tasks)}: {'; '.join(missing)}; check --data_dir")
    return data, list(dict.fromkeys(missing))


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
    chosen = tasks if tasks is None or isinstance(tasks, str) else ",".join(tasks)
    given = {"tasks": chosen, "data_dir": data_dir, "pooling": pooling, "max_seq_length": max_seq_length,
             "batch_size": batch_size, "device": device, **options}  # fmt: skip
    words = [f"--{name}={value}" for name, value in given.items() if value is not None]
    model = path_or_name("model", model, SAVE_MODEL)
    args = parse([model, *words])
    if len(args.truncate_dim) > 1:
        raise InputError(f"truncate_dim must be one number here, found {args.truncate_dim}; call evaluate for each")
    data, missing = load_data(choose_tasks(args.tasks), args.data_dir)
    for line in missing:
        warnings.warn(line, stacklevel=2)
    encode, settings = prepare_encoder(model, args, data)
    for size in args.truncate_dim:
        encode, settings = truncate(encode, settings, size)
    return score(model, encode, settings, args, data)[0]


def truncate(encode: "EncodeOnce", settings: dict[str, Any], size: int) -> tuple["EncodeOnce", dict[str, Any]]:
    """The encoder with its vectors cut to `size` dimensions, and the settings for the results."""
    from .truncation import truncated

    return truncated(encode, size), {**settings, "truncate_dim": size}


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
            for part, length in (args.max_seq_length.of_sets(data) if name == RETRIEVAL else {}).items():
                results[name][part]["max_seq_length"] = length
        else:
            results |= task.run(encode, content, **options)
    return results, queries


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
    """Score the models, print the tables, and write the requested files and plots."""
    from .compare import score_pairs

    results, scored, queries = {}, {}, {}
    several = len(names) > 1 or bool(args.truncate_dim)
    for model, title in zip(args.models, names, strict=True):
        whole = prepare_encoder(model, args, data)
        arms = {title: whole} | {f"{title}, {size} dimensions": truncate(*whole, size) for size in args.truncate_dim}
        for name, (encode, settings) in arms.items():
            results[name], queries[name] = score(model, encode, settings, args, data)
            if "sts" in data and (several or args.plots):
                scored[name] = score_pairs(encode, data["sts"][0])
            if args.plots:
                from .plots import plot_model

                plot_model(encode, data, args.plots, name, several=several)
    differences = differences_of(results, scored, queries)
    print_results(results, differences, args.published)
    write_results(results, differences, scored, args)


def differences_of(
    results: dict[str, dict[str, Any]], scored: dict[str, Any], queries: dict[str, Any]
) -> dict[str, Any]:
    """How much each model but the first differs from it, with intervals: STS set → difference, and the searches under
    `retrieval`. Empty for one model, and where no task gives them."""
    from .compare import bootstrap_differences, query_differences

    baseline, *others = results
    found: dict[str, Any] = {other: {} for other in others if scored or queries[baseline]}
    for other, differences in found.items():
        if scored:
            differences |= bootstrap_differences(scored[baseline], scored[other])
        if queries[baseline]:
            average = "avg" in results[baseline]["retrieval"]
            differences["retrieval"] = query_differences(queries[baseline], queries[other], average)
    return found


def check_models(models: list[str]) -> list[str]:
    """The models' names in tables and plots: the last part of each path if these differ, else the full paths.

    Raises:
        InputError: a model is given twice.
    """
    if len(set(models)) < len(models):
        twice = next(model for model in models if models.count(model) > 1)
        raise InputError(f"expected each MODEL once, found {twice} more than once; drop it")
    if len(models) == 1:
        return models
    short = [Path(model).resolve().name if Path(model).exists() else model for model in models]
    return short if len(set(short)) == len(short) else models


def prepare_encoder(model: str, args: argparse.Namespace, data: dict[str, Any]) -> tuple["EncodeOnce", dict[str, Any]]:
    """Load a model as an encoder with the options of the command line; also the settings for the results."""
    from cmlmcse.models.encoders import load_encoder, with_length
    from cmlmcse.models.folders import records_pooling, resolve_model

    from .encoding import EncodeOnce
    from .short_sight import short_sight

    lengths = args.max_seq_length.of_sets(data)
    # With several models, --pooling applies only to those that record none. With one model, a different --pooling is an
    # error of load_encoder.
    model = resolve(model)
    own = len(args.models) > 1 and records_pooling(model)
    pooling, template = (None, None) if own else (args.pooling, args.prompt_template)
    limits = (args.max_seq_length.default, args.batch_size, args.device)
    encoder: Any = load_encoder(model, pooling, *limits, sys.stderr.isatty(), template)
    others: dict[int, Any] = {length: with_length(encoder, length, model) for length in set(lengths.values())}
    settings = {**encoder.settings, "data": args.data_dir or "Hub"}
    width = getattr(getattr(getattr(encoder, "model", None), "config", None), "hidden_size", None)
    if width is not None and args.truncate_dim:
        from .truncation import check_size

        check_size(max(args.truncate_dim), width)
    for line in short_sight(model, encoder, data, lengths):
        print(f"warning: {line}", file=sys.stderr)
    if args.cache:
        from cmlmcse.models.fingerprint import fingerprint_model

        from .cache import CachedEncoder

        source = model if Path(model).is_file() else resolve_model(model)

        def cached(each: Any) -> CachedEncoder:
            return CachedEncoder(each, args.cache, fingerprint_model(source, each.settings))

        encoder, others = cached(encoder), {length: cached(each) for length, each in others.items()}
    encode = EncodeOnce(encoder)
    once = {length: EncodeOnce(each) for length, each in others.items()}
    encode.by_set = {name: once[length] for name, length in lengths.items()}
    if args.whitening is not None:
        from .whitening import whiten

        encode, found = whiten(encode, data, args.whitening or None, args.whitening_file)
        settings = settings | found
    if args.rank_corpus is not None:
        from .ranks import with_ranks

        encode, found = with_ranks(encode, data, args.rank_corpus, args.rank_sentences, args.rank_weight)
        settings = settings | found
    return encode, settings


def print_results(results: dict[str, dict[str, Any]], differences: dict[str, Any], published: bool) -> None:
    """Print the tables and the settings."""
    from .compare import format_differences, format_query_differences
    from .published import PUBLISHED
    from .tables import format_all_measures, format_measures, format_table

    titled = with_titles(results)
    several, baseline = len(results) > 1, next(iter(results))
    searches = {name: found["retrieval"] for name, found in differences.items() if "retrieval" in found}
    pairs = {name: {key: found[key] for key in found if key != "retrieval"} for name, found in differences.items()}
    blocks = [
        format_table(titled, PUBLISHED if published else ()) if any("sts" in one for one in results.values()) else "",
        format_differences(pairs, baseline) if any(pairs.values()) else "",
        format_query_differences(searches, baseline) if searches else "",
        format_all_measures(titled) if several else format_measures(*results.values()),
        *(
            f"Settings{f' of {name}' if several else ''}: "
            + ", ".join(f"{setting} {value}" for setting, value in result["settings"].items())
            for name, result in results.items()
        ),
    ]
    print("\n\n".join(block for block in blocks if block))


def with_titles(results: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The results of each model by its name, and what was done to its embeddings or similarities."""
    added = {"whitening": " + whitening", "rank_corpus": " + rankings"}
    return {
        name + "".join(text for key, text in added.items() if key in result["settings"]): result
        for name, result in results.items()
    }


def write_results(
    results: dict[str, dict[str, Any]], differences: dict[str, Any], scored: dict[str, Any], args: argparse.Namespace
) -> None:
    """Write the requested results, table and plots."""
    if args.output:
        (first, *others) = results.values()
        several = {"model": list(results), "results": list(results.values()), "differences": differences}
        content = several if others else first
        write_atomically(
            args.output, json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n", "--output"
        )
    if args.table:
        from .tables import write_table

        write_atomically(args.table, write_table(args.table.suffix, with_titles(results), args.published), "--table")
    if args.plots:
        from .plots import plot_results

        plot_results(results, scored, args.plots)
