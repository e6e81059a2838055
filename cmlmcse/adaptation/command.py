"""The command `cmlmcse adapt MODEL TEXT --output_dir DIR`, and the function `adapt`."""

import argparse
import json
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cmlmcse.common.alone import alone_in
from cmlmcse.common.arguments import Parser
from cmlmcse.common.command import command
from cmlmcse.common.cpu import bf16_is_faster, limit_kernel_caches
from cmlmcse.common.errors import InputError, Stopped
from cmlmcse.common.locations import SAVE_MODEL, SAVE_TEXT, path_or_name, resolve
from cmlmcse.common.signals import interruptible, terminable
from cmlmcse.training.command import field_arguments
from cmlmcse.training.command_fields import TRUE, parse_with_fields

from .files import OWN, RESULTS
from .recipe_fields import PLAIN_POOLING, check_fields, check_free

if TYPE_CHECKING:
    from .processes import Train

MINUTES = 15.0
# Documents that are read of a text with more. The longest arm sees 480 batches of 64, a sixth of them. So neither time
# nor memory grows with the text after one pass over it.
MOST_DOCUMENTS = 200_000


class Adapted(NamedTuple):
    """The result of :func:`adapt`.

    Attributes:
        folder: holds `export/`, `report.md`, `report.html` and `results.json`.
        results: the content of results.json.
    """

    folder: Path
    results: dict[str, Any]


def adapt(
    model: str | Path,
    text: str | Path,
    output_dir: str | Path,
    minutes: float | None = None,
    max_steps: int | None = None,
    data_dir: str | Path | None = None,
    **fields: Any,
) -> Adapted:
    """Adapt a sentence encoder to unlabelled text, as `cmlmcse adapt MODEL TEXT --output_dir DIR` does.

    Args:
        model: an exported folder, a sentence-transformers folder, a Hub name, `package:NAME/path`, or a plain backbone.
        text: the path of a .txt file, a folder of .txt and .md files, a table (.csv, .jsonl, .parquet) or BEIR's
            corpus.jsonl.
        output_dir: where everything is written.
        minutes: the time that training and choosing may take, on this machine (default: 15).
        max_steps: steps of the arms that train longest, instead of a time.
        data_dir: labelled data to score start and result with; no choice reads them.
        fields: fields of the recipe `adapt` that hold in every arm: `per_device_train_batch_size=32`.

    Returns:
        The folder and the results.

    Raises:
        InputError: a wrong model, text or field.
        Stopped: the process was asked to stop; finished arms are kept.
    """
    given = {"output_dir": output_dir, "minutes": minutes, "max_steps": max_steps, "data_dir": data_dir, **fields}
    names = path_or_name("model", model, SAVE_MODEL), path_or_name("text", text, SAVE_TEXT)
    return run(parse([*names, *field_arguments(given)]))


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Parse the command line; unknown options become fields of the recipe.

    Raises:
        InputError: an argument is invalid.
    """
    from cmlmcse.common.options import positive, positive_number, seed

    parser = Parser(
        prog="cmlmcse adapt",
        description="Adapt a sentence encoder to unlabelled text, and report whether it is better for that text.",
        epilog="Any other --field VALUE of `cmlmcse train --help` holds in every arm.",
        allow_abbrev=False,
    )
    parser.add_argument("model", metavar="MODEL", help="exported or sentence-transformers folder, Hub name, "
                        "package:NAME/path, or plain backbone")  # fmt: skip
    parser.add_argument("text", metavar="TEXT", help=".txt (blank lines separate documents; without any, each line is "
                        "a document), a folder of .txt and .md files, .csv, .tsv, .jsonl or .parquet with a text "
                        "column and perhaps a title column")  # fmt: skip
    parser.add_argument("--output_dir", type=Path, required=True, metavar="DIR", help="where everything is written")
    parser.add_argument("--minutes", type=positive_number, metavar="M", help="time to spend "
                        f"(default: {MINUTES:g})")  # fmt: skip
    parser.add_argument("--max_steps", type=positive, metavar="N", help="steps of the arms that train longest, instead "
                        "of --minutes")  # fmt: skip
    parser.add_argument("--data_dir", metavar="DIR", help="labelled data, sts/ or beir/, to score start and result "
                        "with; no choice reads them")  # fmt: skip
    parser.add_argument("--pooling", help=f"pooling of a model that records none (default: {PLAIN_POOLING})")
    parser.add_argument("--text_column", help="column of the text (default: text, or the only column of strings)")
    parser.add_argument("--title_column", help="column of the titles (default: title, if there is one)")
    parser.add_argument("--max_seq_length", type=positive, help="tokens of a training text (default: the text's 95th "
                        "percentile, from 16 to 64; to 256 where it does not compute on a CPU)")  # fmt: skip
    parser.add_argument("--max_documents", type=positive, default=MOST_DOCUMENTS, metavar="N", help="read so many "
                        "documents of a text that has more, drawn by the seed (default: "
                        f"{MOST_DOCUMENTS:,})")  # fmt: skip
    parser.add_argument("--device", help="cpu, cuda, … for scoring (default: cuda if there is one)")
    parser.add_argument("--seed", type=seed, default=42, help="seed of the split and of training (default: 42)")
    parser.add_argument("--resume_from_checkpoint", choices=["auto"], help="go on with an interrupted command")
    args, fields = parse_with_fields(parser, argv, "MODEL TEXT and ")
    if args.minutes is not None and args.max_steps is not None:
        parser.error("--minutes expects no --max_steps, found both; drop one of them")
    args.minutes = MINUTES if args.minutes is None else args.minutes
    check_free(fields)
    args.fields = fields
    return args


@command
def main(argv: list[str] | None = None) -> None:
    """Adapt, and print what came of it."""
    run(parse(argv))


def run(args: argparse.Namespace) -> Adapted:
    """Adapt as the arguments say, and write export/, results.json, report.md and report.html.

    Under `accelerate launch` every process calls this. Only the first one has results.

    Raises:
        InputError: a wrong model, text or field.
    """
    from cmlmcse.data.collection import check_columns

    check_columns(resolve(args.text), args.text_column, args.title_column)  # before torch is imported
    from .processes import on_all_processes

    limit_kernel_caches()
    with on_all_processes(on_cpu(args)) as train:
        if train is None:  # the first process has done the work
            return Adapted(args.output_dir, {})
        return run_first(args, train)


def on_cpu(args: argparse.Namespace) -> bool:
    """Whether training computes on a CPU."""
    import torch

    return args.device == "cpu" or args.fields.get("use_cpu", "").lower() in TRUE or not torch.cuda.is_available()


def run_first(args: argparse.Namespace, train: "Train") -> Adapted:
    """Adapt in the first process, or in the only one, with the output folder locked.

    Args:
        args: the command's.
        train: what trains a run.

    Raises:
        InputError: as :func:`run`.
        Stopped: the process was asked to stop.
    """
    from cmlmcse.training.precision import precision_is_named

    from .request import check_request
    from .same_text import SameText

    length = {} if args.max_seq_length is None else {"max_seq_length": str(args.max_seq_length)}
    _, training = check_fields(args.model, {**args.fields, **length})
    if training.use_cpu and args.device is None:
        args.device = "cpu"
    bf16 = training.mixed_precision == "bf16" if precision_is_named(training) else has_fast_bf16(args.device)
    check_place(args.output_dir, args.model, args.text)
    with stopped_in(args.output_dir), alone_in(args.output_dir):
        folder = claim_folder(args.output_dir, args.resume_from_checkpoint is not None)
        text = SameText(args.text)  # before its content is compared with that of an earlier call
        check_request(folder, args)
        if (folder / RESULTS).exists():
            return finished(folder, args)
        from modeling_cmlmcse.variable_length import padded_attention

        from .pipeline import adapt_in

        with padded_attention(not training.variable_length_attention):
            return Adapted(folder, adapt_in(folder, args, bf16, train, text))


@contextmanager
def stopped_in(folder: Path) -> Iterator[None]:
    """Say what the output folder keeps where the block is stopped, by Ctrl-C or by SIGTERM.

    Raises:
        Stopped: it was stopped.
    """
    try:
        with terminable(lambda: kept_in(folder)), interruptible(lambda: kept_in(folder)):
            yield
    except Stopped as stop:  # perhaps inside an arm, which speaks of its own folder
        causes = {128 + signal.SIGINT: "by Ctrl-C", 128 + signal.SIGTERM: "by SIGTERM"}
        if stop.status not in causes:
            raise
        raise Stopped(f"{causes[stop.status]}; {kept_in(folder)}", status=stop.status) from stop


def kept_in(folder: Path) -> str:
    """Says what a stopped command has written, and how to go on."""
    if not any((folder / name).exists() for name in OWN):
        return "nothing was written yet; the same command starts again"
    return f"finished arms and checkpoints in {folder} are kept; go on with the same command and " \
           "--resume_from_checkpoint auto"  # fmt: skip


def finished(folder: Path, args: argparse.Namespace) -> Adapted:
    """What an earlier call has finished.

    Raises:
        InputError: this call has labelled data that were not scored.
    """
    from .results import labelled_tasks

    results = json.loads((folder / RESULTS).read_text(encoding="utf-8"))
    tasks = labelled_tasks(args.data_dir) if args.data_dir else []
    if not results.get("labelled", {}).keys() >= set(tasks):
        words = ["cmlmcse", "evaluate", args.model, str(folder), "--tasks", ",".join(tasks), "--data_dir",
                 args.data_dir]  # fmt: skip
        if not results["adapt"]["finished_encoder"]:
            words += ["--pooling", args.pooling or PLAIN_POOLING]
        raise InputError(
            f"--data_dir expects a command that is not finished, found a finished {folder} without all its scores; "
            f"score it with {shlex.join(words)}"
        )
    print(f"{folder} is finished: report.html, export/", file=sys.stderr)
    return Adapted(folder, results)


def has_fast_bf16(device: str | None) -> bool:
    """Whether this device, by default the one that training would choose, computes faster in bf16 than in fp32."""
    import torch

    if torch.cuda.is_available() and device != "cpu":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device in (None, "cpu") and bf16_is_faster()


def check_place(folder: Path, model: str, text: str) -> None:
    """Check that the output is not written among what is read.

    Raises:
        InputError: the output folder is the text's or the model's, or lies in it.
    """
    from cmlmcse.models.folders import resolve_model

    for what, name in (("text", text), ("model", resolve_model(model))):
        place = Path(name).resolve()
        if place.is_dir() and folder.resolve().is_relative_to(place):
            raise InputError(f"output_dir must lie outside the {what}, found {folder} in {name}; choose another place")


def claim_folder(folder: Path, resume: bool) -> Path:
    """Create the output folder.

    Raises:
        InputError: it holds an earlier result and is not resumed, or it cannot be written.
    """
    held = [name for name in OWN if (folder / name).exists()]
    if held and not resume:
        raise InputError(
            f"output_dir must be new or empty, found {held[0]} in {folder}; choose another --output_dir, or go on with "
            "--resume_from_checkpoint auto"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"output_dir must be a folder that can be written, found {folder} ({error.strerror})"
        ) from error
    return folder
