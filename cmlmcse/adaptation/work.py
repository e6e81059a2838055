"""The work of `cmlmcse adapt`: read the text, train the arms, choose, confirm, and write everything."""

import argparse
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
from transformers.utils import logging

from cmlmcse.common.files import atomic_write
from cmlmcse.data.collection import load_collection
from cmlmcse.evaluation.sts import EncodeOnce
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

from .arms import Common, default_arms, read_plan, run_arms
from .choice import Verdict, arm_encoder, best_average, judge, load_start
from .command import PLAIN_POOLING
from .crew import Train
from .report import last_line, write_report
from .results import adapt_results, labelled_results, load_labelled
from .text import PRACTISES_NONE, Text, read_text

# Scores of all questions that averages, confirmation, export and report take as long as. With 5 a run from a plain
# backbone ended after two of its three minutes.
SCORES_AT_THE_END = 3
SCORES_OF_A_SECOND_QUESTION = 2  # which a finished encoder answers too


def adapt_in(folder: Path, args: argparse.Namespace, bf16: bool, train: Train) -> dict[str, Any]:
    """Read the text, train the arms, choose, confirm, and write everything.

    Args:
        folder: where.
        args: the command's.
        bf16: whether to compute in bf16.
        train: what trains a run.

    Returns:
        The content of results.json.
    """
    started = time.perf_counter()
    datasets.disable_progress_bars()
    logging.disable_progress_bar()
    recorded, _ = recorded_pooling(args.model)
    pooling = args.pooling or (PLAIN_POOLING if recorded is None else None)

    plan = read_plan(folder) or {}  # an interrupted call's, whatever is faster today and whichever device is there
    bf16 = plan.get("bf16", bf16)
    args.max_seq_length = args.max_seq_length or plan.get("max_seq_length")

    def load() -> Encoder:
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
    arms = default_arms(args.model, text.titles_ask, finished, args.fields)
    now = time.perf_counter()
    at_the_end = SCORES_AT_THE_END + (SCORES_OF_A_SECOND_QUESTION if finished else 0)
    left = 60 * args.minutes - (now - started) - at_the_end * (now - scoring)
    common = Common(folder, shared_fields(args, start, text), to_beat, train, finished)
    trials = run_arms(arms, common, left, args.max_steps)
    winner = max(trials, key=lambda name: trials[name].score)
    adapted = arm_encoder(trials[winner].folder, args.device, start)
    # a plain backbone has no skill to lose, and its practised score went with labels (docs/results/adapting.md)
    views = trials[winner].record["fields"]["views"]
    unpractised = text.unpractised(views) if finished else None
    choose_again, confirm_again = unpractised.halves(args.seed) if unpractised else (choosing, None)
    average = best_average(load, at_start, adapted, choose_again)
    verdict = Verdict(
        judge(confirming, at_start, average.once),
        judge(confirm_again, at_start, average.once) if confirm_again else None,
        finished=finished,
        practised=not set(views.split("+")) <= PRACTISES_NONE,
    )
    say(f"best arm: {winner}; best share of its weights: {average.share:g}")

    results = adapt_results(args.model, text, verdict, average, winner, arms, trials)
    hybrid = float(confirming.hybrid(average.once if verdict.better else at_start).mean())
    results["adapt"] |= {"choose_before": round(choosing.summary(to_beat), 4), "bm25": round(bm25, 4)}
    results["adapt"]["hybrid"] = round(hybrid, 4)
    precision = trials[winner].record["hardware"]["precision"]
    results |= {"seed": args.seed, "precision": precision, "seconds": round(time.perf_counter() - started, 1)}
    examples = text.neighbours(confirming, at_start, average.once, args.seed)
    write_folder(folder, args, (start, average.encoder if verdict.better else start), results, examples, labelled)
    return results


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


def shared_fields(args: argparse.Namespace, start: Encoder, text: Text) -> dict[str, Any]:
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
        "max_documents": args.max_documents,
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
