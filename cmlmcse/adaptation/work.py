"""The work of `cmlmcse adapt`: read the text, train the arms, choose, confirm, and write everything."""

import argparse
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import numpy as np
from numpy.typing import NDArray
from transformers.utils import logging

from cmlmcse.common.files import atomic_write
from cmlmcse.data.collection import load_collection
from cmlmcse.evaluation.label_free import Criterion
from cmlmcse.evaluation.sts import EncodeOnce
from cmlmcse.evaluation.together import Together
from cmlmcse.hub.adapted_card import adapted_card
from cmlmcse.hub.card import copy_plots, plots_of
from cmlmcse.hub.card_training import encoder_record
from cmlmcse.hub.card_usage import Loading, similarity_example
from cmlmcse.hub.eval_results import write_eval_results
from cmlmcse.hub.export import export, write_json
from cmlmcse.hub.run_records import card_metrics
from cmlmcse.hub.start import start_record
from cmlmcse.models.encoders import Encoder
from cmlmcse.models.folders import recorded_pooling
from cmlmcse.models.prompts import Prompts

from .all_documents import train_again
from .arms import Common, Trial, default_arms, read_plan, run_arms
from .choice import Choice, Verdict, arm_encoder, best_average, judge, load_start, mix
from .command import PLAIN_POOLING
from .crew import Train
from .report import last_line, write_report
from .results import adapt_results, labelled_results, load_labelled
from .text import Text, read_text

# What averages, confirmation, export and report take, in times of scoring the start by all questions. With 3, CACM and
# MED ended after 13 to 14 of 15 minutes (benchmarks/adapting-together.json).
SCORES_AT_THE_END = 3
# Of all documents: below it the last run would add few of them for its time. The number is a guess, not a measurement.
HELD_OUT_SHARE = 0.1

Say = Callable[[str], None]


class Start(NamedTuple):
    """The model that is adapted, what it scores, and the text.

    Attributes:
        load: loads it anew.
        encoder: it.
        once: the same, which encodes each text once.
        text: the user's.
        choosing: the questions that choose.
        values: (N,) its values there.
        seconds: how long scoring it took, by these questions and by those that confirm.
    """

    load: Callable[[], Encoder]
    encoder: Encoder
    once: EncodeOnce
    text: Text
    choosing: Criterion | Together
    values: NDArray[np.float64]
    seconds: float


def adapt_in(folder: Path, args: argparse.Namespace, bf16: bool, train: Train) -> dict[str, Any]:
    """Read the text, train the arms, choose, confirm, train on all documents, and write everything.

    Args:
        folder: where.
        args: the command's.
        bf16: whether to compute in bf16.
        train: what trains a run.

    Returns:
        The content of results.json.
    """
    started = time.perf_counter()
    say = steps_of(started)
    datasets.disable_progress_bars()
    logging.disable_progress_bar()
    plan = read_plan(folder) or {}  # an interrupted call's, whatever is faster today and whichever device is there
    args.max_seq_length = args.max_seq_length or plan.get("max_seq_length")
    labelled = load_labelled(args.data_dir) if args.data_dir else {}
    start = begin(args, plan.get("bf16", bf16), say)
    text = start.text

    arms = default_arms(args.model, text.titles_ask, text.finished, args.fields)
    again = text.held_out >= HELD_OUT_SHARE * text.documents
    common = Common(folder, shared_fields(args, start), start.values, train, text.finished, again)
    left = 60 * args.minutes - (time.perf_counter() - started) - SCORES_AT_THE_END * start.seconds
    trials = run_arms(arms, common, left, args.max_steps)
    choice = choose(start, trials, args)
    say(f"best arm: {choice.winner}; best share of its weights: {choice.average.share:g}")

    results = adapt_results(args.model, text, choice, arms, trials)
    found = results["adapt"]
    found["documents"] = {"choose": start.choosing.documents, "confirm": choice.confirming.documents}
    best = start.encoder
    if choice.verdict.better:
        best, found["all_documents"] = finish(start, choice, arms[choice.winner], common, args.device)
    bm25 = choice.confirming.bm25()
    hybrid = choice.confirming.hybrid(choice.average.once if choice.verdict.better else start.once)
    found["choose_before"] = round(start.choosing.summary(start.values), 4)
    found |= {"bm25": round(float(bm25.mean()), 4), "hybrid": round(float(hybrid.mean()), 4)}
    precision = choice.trial.record["hardware"]["precision"]
    results |= {"seed": args.seed, "precision": precision, "seconds": round(time.perf_counter() - started, 1)}
    examples = text.neighbours(text.criterion.halves(args.seed)[1], start.once, choice.average.once, args.seed)
    write_folder(folder, args, (start.encoder, best), results, examples, labelled)
    return results


def begin(args: argparse.Namespace, bf16: bool, say: Say) -> Start:
    """Load the model, read the text, and score the model on it.

    Raises:
        InputError: the text or the model cannot be used.
    """
    recorded, _ = recorded_pooling(args.model)
    pooling = args.pooling or (PLAIN_POOLING if recorded is None else None)

    def load() -> Encoder:
        return load_start(args.model, pooling, args.device, bf16=bf16)

    encoder = load()
    text = read_text(args, encoder, finished=recorded is not None)
    say(text.summary())
    if text.note:
        say(text.note)
    if bf16:
        say("training and scoring compute in bf16; --bf16 false keeps fp32")
    scoring = time.perf_counter()
    once, choosing = EncodeOnce(encoder), text.judged_by.halves(args.seed)[0]
    values = choosing.values(once)
    confirming = text.confirming("", args.seed) or choosing
    before, bm25 = confirming.score(once), confirming.bm25().mean()
    say(f"criterion {confirming.name}: the start scores {before:.2f}, BM25 {bm25:.2f}")
    return Start(load, encoder, once, text, choosing, values, time.perf_counter() - scoring)


def choose(start: Start, trials: dict[str, Trial], args: argparse.Namespace) -> Choice:
    """The best arm, averaged with the start, and whether it is better on documents that chose nothing."""
    winner = max(trials, key=lambda name: trials[name].score)
    trial = trials[winner]
    adapted = arm_encoder(trial.folder, args.device, start.encoder)
    views = trial.record["fields"]["views"]
    average = best_average(
        start.load, start.once, adapted, start.text.unpractised(start.choosing, views) or start.choosing
    )
    confirming = start.text.confirming(views, args.seed)
    asked = confirming or start.text.judged_by.halves(args.seed)[1]
    verdict = Verdict(judge(asked, start.once, average.once), confirming is not None)
    return Choice(winner, trial, average, verdict, asked)


def finish(
    start: Start, choice: Choice, fields: dict[str, Any], common: Common, device: str | None
) -> tuple[Encoder, dict[str, Any] | None]:
    """Train the chosen arm once more, on all documents, and average it as the arm was averaged.

    Returns:
        The encoder, and what results.json says of it: the score has seen the questions. If it is lower than the start's
        all the same, or if few documents were held out, the encoder is the one that was confirmed.
    """
    if not common.again:
        return choice.average.encoder, None
    again = train_again(choice.trial, fields, common)
    encoder = arm_encoder(again.folder, device, start.encoder)
    if choice.average.share < 1:
        weights = encoder.model.backbone.state_dict()
        encoder = start.load()
        mix(encoder, weights, choice.average.share)
    score = choice.confirming.score(encoder)
    kept = score >= choice.verdict.change.before
    record = {"steps": again.record["steps"], "seconds": again.record["train_seconds"],
              "tokens": again.record["tokens"], "score": round(score, 4), "kept": kept}  # fmt: skip
    return encoder if kept else choice.average.encoder, record


def write_folder(
    folder: Path,
    args: argparse.Namespace,
    sides: tuple[Encoder, Encoder],
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


def shared_fields(args: argparse.Namespace, beginning: Start) -> dict[str, Any]:
    """The fields of the recipe that every arm has."""
    start, text = beginning.encoder, beginning.text
    return {
        "model_name_or_path": args.model,
        "train_file": args.text,
        "pooling": start.model.config.pooling,
        "prompt_template": start.model.config.prompt_template,
        "second_prompt_template": start.model.config.second_prompt_template,
        "normalize": start.model.config.normalize,
        "dev_set": "auto_together_half" if text.together else "auto_half",
        "max_seq_length": text.length,
        "max_documents": args.max_documents,
        "seed": args.seed,
        "text_column": args.text_column,
        "title_column": args.title_column,
        "use_cpu": True if start.model.device.type == "cpu" else None,
        "bf16": start.bf16,
    }


def steps_of(started: float) -> Say:
    """A function that prints a line on stderr with the minutes since the start."""

    def say(line: str) -> None:
        print(f"[{(time.perf_counter() - started) / 60:4.1f} min] {line}", file=sys.stderr, flush=True)

    return say
