"""Stage `train`: from the fields of a recipe to a trained sentence encoder. Stage `pretrain` is in pretraining.py."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import set_seed

from cmlmcse.data.templates import with_template

from .both_stages import begin_run
from .build_collator import build_collator
from .build_model import build_model, build_templates, build_tokenizer
from .build_text import build_text, check_name
from .contrastive_trainer import ContrastiveTrainer
from .dev_set import load_dev_set
from .dev_start import bring_start_values
from .fields import DataArguments, ModelArguments, RunArguments
from .final_tasks import load_final_tasks
from .finalize import finalize_run
from .run_checks import check_checkpointing


def train_encoder(
    recipe: str,
    model_args: ModelArguments,
    data_args: DataArguments,
    run_args: RunArguments,
    start_values: NDArray[np.float64] | None = None,
) -> None:
    """Train a sentence encoder; write checkpoints, export/, results.json, run.json and plots/ to the run's folder.

    Args:
        recipe: the recipe's name.
        model_args, data_args, run_args: its fields.
        start_values: as in :func:`cmlmcse.training.command.run`.

    Raises:
        InputError: a wrong field, text or model.
    """
    check_name(data_args)
    run = begin_run(model_args, data_args, run_args)
    if run.checkpoint is not None:
        bring_start_values(Path(run.checkpoint).parent, run.folder)
    labelled = load_dev_set(data_args.dev_set, data_args.data_dir)
    final_tasks = load_final_tasks(data_args)

    set_seed(run_args.seed)  # the seed determines the fresh weights of the head and of a random fusion
    tokenizer = build_tokenizer(model_args, data_args.augmentation, data_args.max_seq_length)
    templates = build_templates(model_args, tokenizer)
    model = build_model(model_args, tokenizer)
    check_checkpointing(run_args, model)
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
    measured = run.train(trainer)
    if prepared := round(getattr(sentences, "prepared", 0.0), 1):  # a stream has none
        measured["prepared_seconds"] = prepared
    fields = model_args, data_args, run_args
    finalize_run(run.folder, recipe, *fields, trainer, dev_set, final_tasks, measured, start_values is None)
