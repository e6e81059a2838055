"""The command `cmlmcse train RECIPE [--field value …]`, and the function `train`: from a recipe to an encoder."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cmlmcse.common.cpu import limit_kernel_caches
from cmlmcse.common.errors import InputError, command, interruptible
from cmlmcse.common.recipes import find_recipe, recipe_names

from .help import USAGE, help_text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .fields import DataArguments, ModelArguments, RunArguments


class Trained(NamedTuple):
    """The result of :func:`train`.

    Attributes:
        folder: the run's folder; `export/` in it is the encoder.
        results: the content of results.json; empty on every process of a launch except the first.
    """

    folder: Path
    results: dict[str, Any]


def train(recipe: str | Path, **fields: Any) -> Trained:
    """Train a sentence encoder, as `cmlmcse train RECIPE --field value …` does.

    It sets two environment variables that keep oneDNN's caches small (:func:`limit_kernel_caches`).

    Args:
        recipe: the name of a recipe (`cmlmcse recipes` lists them), or a YAML file.
        fields: fields that override the recipe: `max_steps=100`, `output_dir="runs/mine"`, `stage="pretrain"`.
            `cmlmcse train --help` lists them. None keeps the recipe's value.

    Returns:
        The run's folder and its results.

    Raises:
        InputError: an unknown recipe or field, or a wrong value, text or model.
        Stopped: the process received SIGTERM; the newest checkpoint is kept.
    """
    limit_kernel_caches()
    return run([str(recipe), *field_arguments(fields)])


def field_arguments(fields: Mapping[str, Any]) -> list[str]:
    """Fields as words of the command line. Fields that are None are left out."""
    words: list[str] = []
    for name, value in fields.items():
        if value is None:
            continue
        if isinstance(value, (list, tuple)):
            words += [f"--{name}", *map(str, value)]
        else:  # with an equals sign, because a value may begin with a dash
            words.append(f"--{name}={json.dumps(value) if isinstance(value, dict) else value}")
    return words


@command
def main(argv: list[str] | None = None) -> None:
    """The command. The help and the error for an unknown recipe come without importing torch and transformers."""
    arguments = sys.argv[1:] if argv is None else argv
    if {"-h", "--help"} & set(arguments):
        print(help_text())
        return
    if not arguments:
        raise InputError(f"{USAGE}: expected RECIPE, one of {', '.join(recipe_names())}, found nothing")
    if arguments[0].startswith("-"):
        raise InputError(f"{USAGE}: expected RECIPE first, found {arguments[0]!r}; see cmlmcse train --help")
    find_recipe(arguments[0])
    run(arguments)


def run(arguments: list[str], start_values: "NDArray[np.float64] | None" = None) -> Trained:
    """Run the stage that the arguments RECIPE [--field value …] name.

    Args:
        arguments: the words of the command line.
        start_values: the values of the development set's items before training, where the caller knows them. Then
            neither the start nor the export is scored; the result is the best score that training met.

    Raises:
        InputError: as :func:`train`.
    """
    from modeling_cmlmcse.variable_length import padded_attention

    from .parse import parse_recipe

    recipe, model_args, data_args, run_args = parse_recipe(arguments)
    folder = Path(run_args.output_dir or "")
    pads = not run_args.variable_length_attention
    with padded_attention(pads), interruptible(lambda: kept_checkpoint(folder)):
        if run_args.stage == "pretrain":
            from .pretraining import pretrain

            pretrain(recipe.stem, model_args, data_args, run_args)
        else:
            contrast(recipe.stem, model_args, data_args, run_args, start_values)
    results = folder / "results.json"
    first = run_args.process_index == 0
    return Trained(folder, json.loads(results.read_text(encoding="utf-8")) if first else {})


def contrast(
    recipe: str,
    model_args: "ModelArguments",
    data_args: "DataArguments",
    run_args: "RunArguments",
    start_values: "NDArray[np.float64] | None" = None,
) -> None:
    """Train a sentence encoder; write checkpoints, export/, results.json, run.json and plots/ to the run's folder.

    Args:
        recipe: the recipe's name.
        model_args, data_args, run_args: its fields.
        start_values: as in :func:`run`.

    Raises:
        InputError: a wrong field, text or model.
    """
    from transformers import set_seed

    from cmlmcse.data.templates import with_template

    from .build_collator import build_collator
    from .build_model import build_model, build_templates, build_tokenizer
    from .build_text import build_text
    from .contrastive_trainer import ContrastiveTrainer, bring_start_values
    from .dev_set import load_dev_set
    from .finalize import finalize_run, load_final_tasks
    from .precision import choose_precision
    from .records import claim_output_dir, git_commit
    from .resume import find_checkpoint
    from .started_with import check_started_with, started_with

    resume = run_args.resume_from_checkpoint
    folder = claim_output_dir(run_args.output_dir, resume)
    checkpoint = find_checkpoint(folder, resume)
    check_started_with(checkpoint, started := started_with(model_args, data_args, run_args))
    if checkpoint is not None:
        bring_start_values(Path(checkpoint).parent, folder)
    choose_precision(run_args, checkpoint)
    labelled = load_dev_set(data_args.dev_set, data_args.data_dir)
    final_tasks = load_final_tasks(data_args)

    set_seed(run_args.seed)  # the seed determines the fresh weights of the head and of a random fusion
    tokenizer = build_tokenizer(model_args, data_args.augmentation, data_args.max_seq_length)
    templates = build_templates(model_args, tokenizer)
    model = build_model(model_args, tokenizer)
    sentences: Any
    sentences, label_free = build_text(model_args, data_args, run_args, tokenizer)
    dev_set = labelled if label_free is None else label_free
    trainer = ContrastiveTrainer(
        model=model,
        args=run_args,
        train_dataset=sentences,
        data_collator=build_collator(
            model, tokenizer, data_args, run_args, templates, sentences if data_args.makes_views else None
        ),
        processing_class=with_template(tokenizer, templates.templates[0], templates.around) if templates else tokenizer,
        dev_set=dev_set,
        start_values=start_values,
    )
    trainer.run_fields = started
    commit = git_commit()
    trainer.train(resume_from_checkpoint=checkpoint)
    measured = {"git_commit": commit, "train_seconds": trainer.seconds_trained()}
    if prepared := round(getattr(sentences, "prepared", 0.0), 1):  # a stream has none
        measured["prepared_seconds"] = prepared
    fields = model_args, data_args, run_args
    finalize_run(folder, recipe, *fields, trainer, dev_set, final_tasks, measured, start_values is None)


def kept_checkpoint(folder: Path) -> str:
    """Says which checkpoint an interrupted run has, and how to resume it."""
    from .resume import all_checkpoints, newest_checkpoint

    newest = newest_checkpoint(folder)
    if newest is None and all_checkpoints(folder):
        return "only weights were saved yet; --resume_from_checkpoint auto starts from the beginning"
    if newest is None:
        return "no checkpoint was written yet; the same command starts again"
    return f"{newest} is kept; go on with --resume_from_checkpoint auto"
