"""The command `python -m modeling_cmlmcse.evaluation MODEL`."""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

from modeling_cmlmcse.errors import InputError, command

from . import TASKS, Task, choose_tasks, format_measures, format_table

FULL = 0  # --whitening without a number


class Parser(argparse.ArgumentParser):
    """An argument parser whose usage errors are one line."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see --help)")


def positive(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, found {text!r}")
    return int(text)


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = Parser(
        prog="python -m modeling_cmlmcse.evaluation",
        description="Score a sentence encoder and print a table like the papers'.",
        epilog="tasks: " + "; ".join(f"{name}: {task.summary}" for name, task in TASKS.items()),
        allow_abbrev=False,
    )
    parser.add_argument("model", metavar="MODEL", help="exported folder, checkpoint, run folder, plain backbone, "
                        "or a file of word vectors (GloVe's format; .txt, .vec, .gz, .zip)")  # fmt: skip
    parser.add_argument("--tasks", default="sts", help="comma-separated, of those below (default: sts)")
    parser.add_argument("--data_dir", help="folder that holds sts/ and so on (default: from the Hub)")
    parser.add_argument("--output", type=Path, metavar="FILE.json", help="write the results there")
    parser.add_argument("--pooling", help="for models that record none: cls_before_pooler, avg, avg_top2, …")
    parser.add_argument("--whitening", nargs="?", type=positive, const=FULL, metavar="K", help="whiten the embeddings "
                        "(Su et al. 2021), to the K dimensions of most variance (default: all)")  # fmt: skip
    parser.add_argument("--whitening_file", metavar="TEXT", help="sentences that the whitening is fitted on (default: "
                        "all distinct ones of the evaluated sets)")  # fmt: skip
    parser.add_argument("--batch_size", type=positive, default=64, help="sentences in a forward pass (default: 64)")
    parser.add_argument("--max_seq_length", type=positive, help="tokens a sentence is cut to (default: the model's)")
    parser.add_argument("--device", help="cpu, cuda, cuda:1, … (default: cuda if there is one)")
    args = parser.parse_args(argv)
    if args.whitening_file is not None and args.whitening is None:
        parser.error("--whitening_file expects --whitening, found none; add it")
    return args


def check_output(output: Path | None) -> None:
    """Make sure before the work that the results can be written.

    Raises:
        InputError: no such folder, or a file that does not hold results.
    """
    if output is None:
        return
    if not output.parent.is_dir():
        raise InputError(f"--output {output}: expected the folder {output.parent} to exist, found none; create it")
    if output.exists():
        try:
            held = json.loads(output.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            held = None
        if not isinstance(held, dict) or "model" not in held:
            raise InputError(f"--output {output}: exists and does not hold results; choose another name")


def write_results(results: dict[str, Any], output: Path) -> None:
    """Write the results whole or not at all.

    Raises:
        InputError: the folder cannot be written to.
    """
    aside = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        aside.write_text(json.dumps(results, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
        aside.replace(output)
    except OSError as error:
        raise InputError(f"--output {output}: cannot be written: {error.strerror}") from error
    finally:
        aside.unlink(missing_ok=True)


def load_data(tasks: dict[str, Task], data_dir: str | None) -> tuple[dict[str, Any], list[str]]:
    """The data of every task that has any, and a line for each part that is missing."""
    from .sts_data import MissingData

    data, missing = {}, []
    for name, task in tasks.items():
        try:
            data[name] = task.load(data_dir)
            missing += task.missing(data_dir, data[name])
        except MissingData as error:
            missing.append(str(error))
    return data, list(dict.fromkeys(missing))


@command
def main(argv: list[str] | None = None) -> None:
    """Evaluate one model; exit status 1 if a part of the data was missing."""
    args = parse(argv)
    tasks = choose_tasks(args.tasks)
    check_output(args.output)
    data, missing = load_data(tasks, args.data_dir)
    if not data:
        raise InputError(f"no data for --tasks {args.tasks}: {'; '.join(missing)}; check --data_dir")

    from .encoders import load_encoder
    from .sts import EncodeOnce

    limits = (args.max_seq_length, args.batch_size, args.device)
    encoder = load_encoder(args.model, args.pooling, *limits, show_progress_bar=sys.stderr.isatty())
    settings = {**encoder.settings, "data": args.data_dir or "Hub"}
    results: dict[str, Any] = {"model": args.model, "settings": settings}
    encode = EncodeOnce(encoder)
    if args.whitening is not None:
        from .whitening import whiten

        whitened, said = whiten(encode, data, args.whitening or None, args.whitening_file)
        encode, results["settings"] = EncodeOnce(whitened), settings | said
    for name in data:
        results |= tasks[name].run(encode, data[name])
    report(results)
    if args.output:
        write_results(results, args.output)
    for line in missing:
        print(f"missing: {line}", file=sys.stderr)
    if missing:
        sys.exit(1)


def report(results: dict[str, Any]) -> None:
    """Print the tables and the settings."""
    name = results["model"] + (" + whitening" if "whitening" in results["settings"] else "")
    table = format_table({name: results}) if "sts" in results else ""
    settings = "Settings: " + ", ".join(f"{name} {value}" for name, value in results["settings"].items())
    print("\n\n".join(block for block in (table, format_measures(results), settings) if block))


if __name__ == "__main__":
    main()
