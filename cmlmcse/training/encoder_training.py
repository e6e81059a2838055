"""Stage `train`: from the fields of a recipe to a trained sentence encoder. Stage `pretrain` is in pretraining.py."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import set_seed

from cmlmcse.common.launch import say_once
from cmlmcse.data.templates import with_template
from cmlmcse.models.folders import COSINE, recorded_similarity

from .both_stages import begin_run
from .build_collator import build_collator
from .build_model import build_model, build_templates, build_tokenizer
from .build_text import build_text, check_name
from .contrastive_trainer import ContrastiveTrainer
from .dev_set import load_dev_set
from .dev_start import bring_start_values
from .fields import Recipe
from .final_tasks import load_final_tasks
from .finalize import finalize_run
from .run_checks import check_checkpointing


def train_encoder(recipe: Recipe, start_values: NDArray[np.float64] | None = None) -> None:
    """Train a sentence encoder; write checkpoints, export/, results.json, run.json and plots/ to the run's folder.

    Args:
        recipe: the recipe.
        start_values: as in :func:`cmlmcse.training.command.run`.

    Raises:
        InputError: a wrong field, text or model.
    """
    check_name(recipe.data)
    run = begin_run(recipe)
    if run.checkpoint is not None:
        bring_start_values(Path(run.checkpoint).parent, run.folder)
    labelled = load_dev_set(recipe.data.dev_set, recipe.data.data_dir)
    final_tasks = load_final_tasks(recipe.data)

    set_seed(recipe.run.seed)  # the seed determines the fresh weights of the head and of a random fusion
    tokenizer = build_tokenizer(recipe.model, recipe.data.augmentation, recipe.data.max_seq_length)
    templates = build_templates(recipe.model, tokenizer)
    model = build_model(recipe.model, tokenizer)
    check_checkpointing(recipe.run, model)
    sentences: Any
    sentences, label_free = build_text(recipe, tokenizer)
    dev_set = labelled if label_free is None else label_free
    trainer = ContrastiveTrainer(
        model=model,
        args=recipe.run,
        train_dataset=sentences,
        data_collator=build_collator(
            model, tokenizer, recipe, templates, sentences if recipe.data.makes_views else None
        ),
        processing_class=with_template(tokenizer, templates.templates[0], templates.around) if templates else tokenizer,
        dev_set=dev_set,
        start_values=start_values,
    )
    if not recipe.model.from_scratch and recipe.run.process_index == 0:
        say_similarity(recipe.model.model_name_or_path)
    measured = run.train(trainer)
    if prepared := round(sentences.prepared, 1):
        measured["prepared_seconds"] = prepared
    finalize_run(run.folder, recipe, trainer, final_tasks, measured, start_values is None)


def say_similarity(start: str) -> None:
    """Say so if the start records that its embeddings are compared otherwise than the export's are."""
    if (recorded := recorded_similarity(start)) != COSINE:
        say_once(
            f"{start} records the similarity {recorded}; training compares cosines, so what it exports records the "
            "cosine"
        )
