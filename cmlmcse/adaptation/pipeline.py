"""What `cmlmcse adapt` does, in order: read the text, train the arms, choose, confirm, and write everything."""

import argparse
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from cmlmcse.common.errors import InputError
from cmlmcse.common.files import replace_json
from cmlmcse.common.progress import without_bars
from cmlmcse.data.collection import load_collection
from cmlmcse.hub.adapted_card import adapted_card
from cmlmcse.hub.card import copy_plots, plots_of
from cmlmcse.hub.card_training import encoder_record
from cmlmcse.hub.card_usage import Loading, similarity_example
from cmlmcse.hub.eval_results import write_eval_results
from cmlmcse.hub.export import export
from cmlmcse.hub.run_records import card_metrics
from cmlmcse.hub.start import start_record
from cmlmcse.models.encoders import Encoder
from cmlmcse.models.folders import COSINE, recorded_similarity
from cmlmcse.models.prompts import Prompts
from cmlmcse.training.checks import check_model

from .arms import SMALL, Arms, default_arms, last_arm
from .choice import choose, handed_back
from .clock import Clock
from .files import EXPORT, RESULTS
from .processes import Train
from .recipe_fields import check_fields
from .report import last_line, write_report
from .request import keep_request
from .results import adapt_results, labelled_results, load_labelled
from .rounds import read_plan, run_arms
from .runs import Common
from .same_text import SameText
from .start import Start, begin, timed_printer
from .text import Text


def adapt_in(folder: Path, args: argparse.Namespace, bf16: bool, train: Train, same_text: SameText) -> dict[str, Any]:
    """Read the text, train the arms, choose, train on another split, confirm, and write everything.

    Args:
        folder: adapt's output folder.
        args: the command's.
        bf16: whether to compute in bf16.
        train: what trains a run.
        same_text: the text, which must not change meanwhile.

    Returns:
        The content of results.json.

    Raises:
        InputError: the text or the model cannot be used, or the text changed.
    """
    with Clock(folder) as clock, without_bars():
        say = timed_printer(clock.started)
        plan = read_plan(folder)  # an interrupted call's, whatever is faster today and whichever device is there
        if plan is not None:
            bf16, args.max_seq_length = plan.bf16, args.max_seq_length or plan.max_seq_length
        labelled = load_labelled(args.data_dir) if args.data_dir else {}
        start = begin(args, bf16, say)
        text = start.text

        small = start.encoder.model.backbone.num_parameters(exclude_embeddings=True) < SMALL
        arms = default_arms(args.model, text.titles_ask, text.finished, args.fields, text.sentences, small)
        check_questions(text, arms)
        common = Common(folder, shared_fields(args, start), start.values, clock.around(train), text.finished, same_text)
        check_fit(args, start.encoder, common.fields["max_seq_length"])
        same_text.check()
        keep_request(folder, args)
        left = clock.started + 60 * args.minutes - time.perf_counter() - start.seconds_at_the_end()
        last = None if text.finished or text.asks_little else last_arm(args.fields, small)
        trials, names, arms = run_arms(arms, common, left, args.max_steps, args.minutes, last)
        same_text.check()
        choice = choose(start, {name: trials[name] for name in names}, arms, common, args, say)

        results = adapt_results(start, choice, arms, trials, args.model)
        best = handed_back(start, choice)
        precision = trials[names[0]].record["hardware"]["precision"]
        results |= {"seed": args.seed, "precision": precision, "seconds": clock.seconds()}
        examples = text.neighbours(choice.confirming.parts[0], start.once, choice.average.once, args.seed)
        write_folder(folder, args, (start.encoder, best), results, examples, labelled, same_text)
        return results


def check_questions(text: Text, arms: Arms) -> None:
    """Check, before any time is spent, that some arm of a finished encoder can be confirmed.

    Raises:
        InputError: all arms practise what a finished encoder is judged by.
    """
    if text.together is None:
        return
    if not any(text.unpractised(text.together, arm["views"]) for arm in arms.values()):
        views = ", ".join(dict.fromkeys(str(arm["views"]) for arm in arms.values()))
        raise InputError(
            "cmlmcse adapt judges a finished encoder by questions that it did not practise, found views "
            f"({views}) that practise all of them; leave out --views"
        )


def check_fit(args: argparse.Namespace, start: Encoder, length: int) -> None:
    """Check what depends on the model before the folder belongs to these fields.

    Args:
        args: the command's; its fields hold in every arm.
        start: the model.
        length: tokens of a training text.

    Raises:
        InputError: a field does not fit the model's depth, width or positions.
    """
    most = start.model.max_positions
    if length > most:
        raise InputError(f"max_seq_length must be at most {most}, the positions of the model, found {length}; lower it")
    model, _ = check_fields(args.model, args.fields)
    check_model(model, start.model.config.backbone_config)


def write_folder(
    folder: Path,
    args: argparse.Namespace,
    sides: tuple[Encoder, Encoder],
    results: dict[str, Any],
    examples: list[dict[str, Any]],
    labelled: dict[str, Any],
    same_text: SameText,
) -> None:
    """Write export/, the reports and results.json, and print what there is.

    Args:
        folder: adapt's output folder.
        args: the command's.
        sides: the start, and what is handed back.
        results: what results.json holds; the labelled scores, and what is read from start and result, are added.
        examples: queries with their neighbours.
        labelled: the labelled data, or nothing.
        same_text: the text.

    Raises:
        InputError: the text changed; nothing is written then.
    """
    start, best = sides
    shutil.rmtree(folder / EXPORT, ignore_errors=True)  # written by this command before it was interrupted
    best.tokenizer.model_max_length = start.max_seq_length  # scored so; the tokenizer may allow more
    if labelled:  # which reads the text for the last time
        documents = load_collection(args.text, args.text_column, args.title_column)
        results["labelled"] = labelled_results(labelled, documents, start, best)
    same_text.check()
    similarity = recorded_similarity(args.model) if best is start else COSINE
    exported = export(best.model, best.tokenizer, folder / EXPORT, similarity=similarity)
    example = similarity_example(replace(best, bf16=False)) if similarity == COSINE else None
    results |= {
        "start": start_record(args.model),
        "encoder": encoder_record(best) | {"similarity": similarity},
        "example": example,
    }
    write_report(folder, results, examples)
    use = Loading(more=Prompts.of_model(best.model).for_card, pooling=best.model.config.pooling)
    copy_plots(folder, exported)
    (exported / "README.md").write_text(adapted_card(results, use, plots_of(folder)), encoding="utf-8")
    write_eval_results(card_metrics(results), exported)
    replace_json(folder / RESULTS, results)
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
        "final_evaluation": "none",
        # Within a run of a finished encoder no score says which step is best (docs/results/adapting-score.md).
        "load_best_model_at_end": False if text.finished else None,
        "max_seq_length": text.length,
        "max_documents": args.max_documents,
        "seed": args.seed,
        "text_column": args.text_column,
        "title_column": args.title_column,
        "use_cpu": True if start.model.device.type == "cpu" else None,
        "bf16": start.bf16,
    }
