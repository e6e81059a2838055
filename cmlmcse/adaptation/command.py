"""The command `cmlmcse adapt MODEL TEXT --output_dir DIR`, and the function `adapt`."""

import argparse
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cmlmcse.common.cpu import bf16_is_faster, limit_kernel_caches
from cmlmcse.common.errors import InputError, Parser, Stopped, command, interruptible, terminable
from cmlmcse.common.files import atomic_write
from cmlmcse.training.command import field_arguments

if TYPE_CHECKING:
    from cmlmcse.models.encoders import Encoder
    from cmlmcse.training.fields import RunArguments

    from .text import Text

MINUTES = 15.0
PLAIN_POOLING = "avg"  # of a model that records none: the best of the plain poolings on docs/results/backbone.md
# Scores of all questions that averages, confirmation, export and report take as long as. With 5 a run from a plain
# backbone ended after two of its three minutes.
SCORES_AT_THE_END = 3
SCORES_OF_A_SECOND_QUESTION = 2  # which a finished encoder answers too
OWN_RESULTS = ("export", "report.md", "report.html", "results.json")
FIXED = ("model_name_or_path", "train_file", "dev_set", "output_dir", "max_steps", "pooling", "prompt_template",
         "second_prompt_template", "query_prompt", "document_prompt", "normalize", "stage", "streaming", "data_seed",
         "max_train_samples", "eval_steps", "save_steps", "logging_steps", "disable_tqdm")  # fmt: skip


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
    minutes: float = MINUTES,
    max_steps: int | None = None,
    data_dir: str | Path | None = None,
    **fields: Any,
) -> Adapted:
    """Adapt a sentence encoder to unlabelled text, as `cmlmcse adapt MODEL TEXT --output_dir DIR` does.

    Args:
        model: an exported folder, a sentence-transformers folder, a Hub name, `package:NAME/path`, or a plain backbone.
        text: a .txt file, a folder of such files, a table (.csv, .jsonl, .parquet) or BEIR's corpus.jsonl.
        output_dir: where everything is written.
        minutes: the time that training and choosing may take, on this machine.
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
    return run(parse([str(model), str(text), *field_arguments(given)]))


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Parse the command line; unknown options become fields of the recipe.

    Raises:
        InputError: an argument is invalid.
    """
    from cmlmcse.evaluation.options import positive, positive_number

    parser = Parser(
        prog="cmlmcse adapt",
        description="Adapt a sentence encoder to unlabelled text, and report whether it is better for that text.",
        epilog="Any other --field VALUE of `cmlmcse train --help` holds in every arm.",
        allow_abbrev=False,
    )
    parser.add_argument("model", metavar="MODEL", help="exported or sentence-transformers folder, Hub name, "
                        "package:NAME/path, or plain backbone")  # fmt: skip
    parser.add_argument("text", metavar="TEXT", help=".txt (blank lines separate documents; without any, each line is "
                        "a document), a folder of .txt files, .csv, .tsv, .jsonl or .parquet with a text column and "
                        "perhaps a title column")  # fmt: skip
    parser.add_argument("--output_dir", type=Path, required=True, metavar="DIR", help="where everything is written")
    parser.add_argument("--minutes", type=positive_number, default=MINUTES, metavar="M", help="time to spend "
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
    parser.add_argument("--device", help="cpu, cuda, … for scoring (default: cuda if there is one)")
    parser.add_argument("--seed", type=int, default=42, help="seed of the split and of training (default: 42)")
    parser.add_argument("--resume_from_checkpoint", choices=["auto"], help="go on with an interrupted command")
    args, others = parser.parse_known_args(argv)
    args.fields = train_fields(others)
    return args


def train_fields(words: list[str]) -> dict[str, str]:
    """--name value … → {name: value}.

    Raises:
        InputError: a word that is no --name value, or a field that adapt sets itself.
    """
    fields: dict[str, str] = {}
    rest = [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]
    if len(rest) % 2 or any(not name.startswith("--") for name in rest[::2]):
        raise InputError(f"cmlmcse adapt expects MODEL TEXT and --field value, found {' '.join(words)!r}; see --help")
    for name, value in zip(rest[::2], rest[1::2], strict=True):
        fields[name.removeprefix("--").replace("-", "_")] = value
    for name in FIXED:
        if name in fields:
            raise InputError(f"cmlmcse adapt sets {name} itself, found --{name}; leave it out, or use cmlmcse train")
    return fields


@command
def main(argv: list[str] | None = None) -> None:
    """Adapt, and print what came of it."""
    run(parse(argv))


def run(args: argparse.Namespace) -> Adapted:
    """Adapt as the arguments say, and write export/, results.json, report.md and report.html.

    Raises:
        InputError: a wrong model, text or field.
    """
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise InputError(
            "adapt expects one process, found a launch of several; start it without accelerate launch, or train the "
            "recipe adapt on several processes: accelerate launch train.py adapt"
        )
    limit_kernel_caches()
    training = check_fields(args.fields)
    bf16 = training.bf16 if {"bf16", "fp16"} & set(args.fields) else has_fast_bf16(args.device)
    folder = claim_folder(args.output_dir, args.resume_from_checkpoint is not None)
    if (folder / "results.json").exists():
        print(f"{folder} is finished: report.html, export/", file=sys.stderr)
        return Adapted(folder, json.loads((folder / "results.json").read_text(encoding="utf-8")))
    kept = f"finished arms and checkpoints in {folder} are kept; go on with the same command and " \
           "--resume_from_checkpoint auto"  # fmt: skip
    try:
        with terminable(), interruptible(lambda: kept):
            return adapt_in(folder, args, bf16)
    except Stopped as stop:  # perhaps inside an arm, which speaks of its own folder
        causes = {128 + signal.SIGINT: "by Ctrl-C", 128 + signal.SIGTERM: "by SIGTERM"}
        if stop.status not in causes:
            raise
        raise Stopped(f"{causes[stop.status]}; {kept}", status=stop.status) from stop


def check_fields(fields: dict[str, str]) -> "RunArguments":
    """Check the fields of the recipe before any work starts.

    Returns:
        The arguments of training with these fields.

    Raises:
        InputError: an unknown field, or a wrong value.
    """
    from cmlmcse.training.parse import parse_recipe

    from .arms import RECIPE

    return parse_recipe([RECIPE, *field_arguments(fields)])[-1]


def has_fast_bf16(device: str | None) -> bool:
    """Whether this device, by default the one that training would choose, computes faster in bf16 than in fp32."""
    import torch

    if torch.cuda.is_available() and device != "cpu":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device in (None, "cpu") and bf16_is_faster()


def claim_folder(folder: Path, resume: bool) -> Path:
    """Create the output folder.

    Raises:
        InputError: it holds an earlier result and is not resumed, or it cannot be written.
    """
    held = [name for name in (*OWN_RESULTS, "arms") if (folder / name).exists()]
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


def adapt_in(folder: Path, args: argparse.Namespace, bf16: bool) -> Adapted:
    """Read the text, train the arms, choose, confirm, and write everything; in bf16 or in fp32."""
    import datasets
    from transformers.utils import logging as transformers_logging

    from cmlmcse.evaluation.sts import EncodeOnce
    from cmlmcse.models.folders import recorded_pooling

    from .arms import Common, default_arms, read_plan, run_arms
    from .choice import Verdict, arm_encoder, best_average, judge, load_start
    from .results import adapt_results, load_labelled
    from .text import read_text

    started = time.perf_counter()
    datasets.disable_progress_bars()
    transformers_logging.disable_progress_bar()
    recorded, _ = recorded_pooling(args.model)
    pooling = args.pooling or (PLAIN_POOLING if recorded is None else None)

    plan = read_plan(folder) or {}  # an interrupted call's, whatever is faster today and whichever device is there
    bf16 = plan.get("bf16", bf16)
    args.max_seq_length = args.max_seq_length or plan.get("max_seq_length")

    def load() -> "Encoder":
        return load_start(args.model, pooling, args.device, bf16=bf16)

    labelled = load_labelled(args.data_dir) if args.data_dir else {}
    start, say = load(), steps_of(started)
    text = read_text(args, start)
    say(text.summary())
    if text.note:
        say(text.note)
    if bf16:
        say("training and scoring compute in bf16; --bf16 false keeps fp32")
    choosing, confirming = text.criterion.halves(args.seed)
    scoring = time.perf_counter()
    at_start = EncodeOnce(start)
    to_beat, before = choosing.values(at_start), confirming.score(at_start)
    bm25 = float(confirming.bm25().mean())
    say(f"criterion {text.criterion.name}: the start scores {before:.2f}, BM25 {bm25:.2f}")

    finished = recorded is not None
    arms = default_arms(text.titles_ask, finished, args.fields)
    now = time.perf_counter()
    at_the_end = SCORES_AT_THE_END + (SCORES_OF_A_SECOND_QUESTION if finished else 0)
    left = 60 * args.minutes - (now - started) - at_the_end * (now - scoring)
    trials = run_arms(arms, Common(folder, shared_fields(args, start, text), to_beat), left, args.max_steps)
    winner = max(trials, key=lambda name: trials[name].score)
    adapted = arm_encoder(trials[winner].folder, args.device, start)
    # a plain backbone has no skill to lose, and its practised score went with labels (docs/results/adapting.md)
    unpractised = text.unpractised(trials[winner].record["fields"]["views"]) if finished else None
    choose_again, confirm_again = unpractised.halves(args.seed) if unpractised else (choosing, None)
    average = best_average(load, at_start, adapted, choose_again)
    verdict = Verdict(
        judge(confirming, at_start, average.once),
        judge(confirm_again, at_start, average.once) if confirm_again else None,
        finished=finished,
    )
    say(f"best arm: {winner}; best share of its weights: {average.share:g}")

    results = adapt_results(args.model, text, verdict, average, winner, arms, trials)
    results["adapt"] |= {"choose_before": round(choosing.summary(to_beat), 4), "bm25": round(bm25, 4)}
    precision = trials[winner].record["hardware"]["precision"]
    results |= {"precision": precision, "seconds": round(time.perf_counter() - started, 1)}
    examples = text.neighbours(confirming, at_start, average.once, args.seed)
    write_folder(folder, args, (start, average.encoder if verdict.better else start), results, examples, labelled)
    return Adapted(folder, results)


def write_folder(
    folder: Path,
    args: argparse.Namespace,
    sides: tuple["Encoder", "Encoder"],
    results: dict[str, Any],
    examples: list[dict[str, Any]],
    labelled: dict[str, Any],
) -> None:
    """Write export/, the reports and results.json, and print what there is.

    Args:
        folder: where.
        args: the command's.
        sides: the start, and what is handed back.
        results: what results.json holds; the labelled scores are added.
        examples: queries with their neighbours.
        labelled: the labelled data, or nothing.
    """
    from cmlmcse.data.collection import load_collection
    from cmlmcse.hub.adapted_card import adapted_card
    from cmlmcse.hub.card import copy_plots, encoder_record, plots_of
    from cmlmcse.hub.card_usage import Loading, similarity_example
    from cmlmcse.hub.eval_results import write_eval_results
    from cmlmcse.hub.export import export, write_json
    from cmlmcse.hub.run_records import card_metrics
    from cmlmcse.hub.start import start_record
    from cmlmcse.models.prompts import Prompts

    from .report import last_line, write_report
    from .results import labelled_results

    start, best = sides
    shutil.rmtree(folder / "export", ignore_errors=True)  # written by this command before it was interrupted
    best.tokenizer.model_max_length = int(start.settings["max_seq_length"])  # scored so; the tokenizer may allow more
    exported = export(best.model, best.tokenizer, folder / "export")
    if labelled:
        documents = load_collection(args.text, args.text_column, args.title_column)
        results["labelled"] = labelled_results(labelled, documents, start, best)
    results |= {"start": start_record(args.model), "encoder": encoder_record(best)}
    results["example"] = similarity_example(replace(best, bf16=False))
    write_report(folder, results, examples)
    use = Loading(more=Prompts.of_model(best.model).for_card, pooling=best.model.config.pooling)
    copy_plots(folder, exported)
    (exported / "README.md").write_text(adapted_card(results, use, plots_of(folder)), encoding="utf-8")
    write_eval_results(card_metrics(results), exported)
    with atomic_write(folder / "results.json") as temporary:
        write_json(temporary, results)
    print(f"Written to {folder}: export/ (load it with SentenceTransformer or AutoModel), report.html, results.json")
    print(last_line(results))


def shared_fields(args: argparse.Namespace, start: "Encoder", text: "Text") -> dict[str, Any]:
    """The fields of the recipe that every arm has."""
    return {
        "model_name_or_path": args.model,
        "train_file": args.text,
        "pooling": start.model.config.pooling,
        "prompt_template": start.model.config.prompt_template,
        "second_prompt_template": start.model.config.second_prompt_template,
        "normalize": start.model.config.normalize,
        "dev_set": "auto_half",
        "max_seq_length": text.length,
        "seed": args.seed,
        "text_column": args.text_column,
        "title_column": args.title_column,
        "use_cpu": True if start.model.device.type == "cpu" else None,
        "bf16": start.bf16,
    }


def steps_of(started: float) -> Callable[[str], None]:
    """A function that prints a line on stderr with the minutes since the start."""

    def say(line: str) -> None:
        print(f"[{(time.perf_counter() - started) / 60:4.1f} min] {line}", file=sys.stderr, flush=True)

    return say
