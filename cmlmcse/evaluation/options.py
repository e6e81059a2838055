"""The options of `cmlmcse evaluate`, and what they ask for: the models' names, and files that can be written."""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cmlmcse.common.arguments import Parser
from cmlmcse.common.errors import InputError
from cmlmcse.common.files import check_writable
from cmlmcse.common.options import add_encoder_options, positive, share
from cmlmcse.common.run_files import REQUEST, RESULTS, RUN

from .set_lengths import SetLengths, read_lengths
from .tasks import TASKS

WRITTEN = ("output", "table", "plots", "published")  # options of the command that change no score
BESIDE = (RUN, REQUEST)  # beside the results.json of a training run, and of adapt
ALL_DIMENSIONS = 0  # the value of --whitening without a number


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Parse the command line.

    Raises:
        InputError: an argument is invalid, or two of them do not fit each other.
    """
    parser = evaluate_parser()
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


def evaluate_parser() -> Parser:
    """The parser of all options, those of the tasks too."""
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
    return parser


def numbers(parser: Parser, text: str | None) -> list[int]:
    """Different numbers of dimensions, from a text with commas."""
    found = [part.strip() for part in text.split(",")] if text is not None else []
    if len(set(found)) < len(found) or not all(part.isdecimal() and int(part) for part in found):
        parser.error(f"--truncate_dim expects different whole numbers of at least 1, as 256,64, found {text!r}")
    return [int(part) for part in found]


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


def check_outputs(args: argparse.Namespace, tasks: Iterable[str]) -> None:
    """Check before the evaluation of these tasks that all requested files can be written.

    Raises:
        InputError: no such folder or one that cannot be written to, a file that must not be overwritten, an unknown
            table format, or plots of tasks that have none.
    """
    for option in ("output", "table"):
        path = getattr(args, option)
        if path is not None and not path.parent.is_dir():
            raise InputError(f"--{option} {path}: expected the folder {path.parent} to exist, found none; create it")
    if args.output is not None:
        check_overwritten(args.output)
        check_writable(args.output, "--output")
    if args.table is not None:
        from .tables import WRITERS

        if args.table.suffix not in WRITERS:
            raise InputError(f"--table must end with one of {', '.join(WRITERS)}, found {args.table}; rename it")
        check_writable(args.table, "--table")
    if args.plots is not None:
        from .plots import DRAWN, plots_folder

        if not DRAWN & set(tasks):
            raise InputError(
                f"--plots draws the tasks {', '.join(sorted(DRAWN))}, found none of them; add one to --tasks"
            )
        check_writable(plots_folder(args.plots) / "plot", "--plots")


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
    if "adapt" in held or (path.name == RESULTS and any((path.parent / name).exists() for name in BESIDE)):
        raise InputError(f"--output {path}: is the record of a run of train or adapt; choose another name")
