"""Stage `pretrain`: from the fields of a recipe to a pre-trained backbone and its auxiliary network (InfoCSE §3.1).

Stage `train` is in encoder_training.py.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from datasets import Dataset
from transformers import PreTrainedTokenizerBase, set_seed

from cmlmcse.common.errors import InputError
from cmlmcse.common.locations import check_weights, resolve
from cmlmcse.data.augmentation import build_augmentation
from cmlmcse.data.batches import TrainingSentences, tokenize_sentences
from cmlmcse.data.masking import Masking, continuing_tokens
from cmlmcse.data.pretraining_text import (
    DEV_MASK_RATE,
    MaskedCollator,
    load_documents,
    load_sequences,
    tokenize_documents,
)
from modeling_cmlmcse.backbone import max_positions

from .both_stages import Run, begin_run
from .build_pretraining import build_pretraining_model, choose_tokenizer
from .fields import Recipe
from .pretraining_export import finalize_pretraining
from .pretraining_trainer import PretrainingTrainer
from .run_checks import check_checkpointing

TOKENIZER = "tokenizer"  # folder of a run


def pretrain(recipe: Recipe) -> None:
    """Pre-train; write checkpoints, export/, results.json, run.json and plots/ to the run's folder.

    Raises:
        InputError: a wrong field, text or model.
    """
    run = begin_run(recipe)
    set_seed(recipe.run.seed)  # the seed determines the fresh weights
    if recipe.data.model_type is None:
        check_weights(resolve(recipe.model.model_name_or_path), recipe.model.model_sha256)
    with no_tokenizer_of_an_error(recipe, run):
        # The first process of all, not of each machine: the others read the tokenizer that it writes.
        with recipe.run.main_process_first(local=False, desc="reading the text"):
            tokenizer, train, dev = build_sequences(recipe, run)
        model = build_pretraining_model(recipe.model, recipe.data, tokenizer, run.checkpoint is not None)
        check_checkpointing(recipe.run, model)
    tokenizer.model_max_length = min(tokenizer.model_max_length, max_positions(model.backbone))
    collator, dev_collator = build_collators(recipe, tokenizer)
    trainer = PretrainingTrainer(
        model=model,
        args=recipe.run,
        train_dataset=train,
        eval_dataset=dev,
        data_collator=collator,
        dev_collator=dev_collator,
        processing_class=tokenizer,
    )
    measured = run.train(trainer)
    finalize_pretraining(run.folder, recipe, trainer, measured)


@contextmanager
def no_tokenizer_of_an_error(recipe: Recipe, run: Run) -> Iterator[None]:
    """Remove the tokenizer that the block saved if it ends with an :class:`InputError`: a wrong input changes nothing.
    Several processes leave it, because another one may be reading it."""
    saved = run.folder / TOKENIZER
    keep = saved.exists() or recipe.run.world_size > 1
    try:
        yield
    except InputError:
        if not keep:
            shutil.rmtree(saved, ignore_errors=True)
        raise


def build_sequences(
    recipe: Recipe, run: Run
) -> tuple[PreTrainedTokenizerBase, TrainingSentences, TrainingSentences | None]:
    """The tokenizer, which the first process saves to the run's folder, and the text in its tokens: the sequences to
    train on, and those to evaluate on, if the recipe holds some out.

    Raises:
        InputError: the text cannot be read, or there is no such tokenizer.
    """
    joined = recipe.data.sequences == "documents"
    sources = load_documents(
        recipe.data.train_file,
        recipe.data.text_column,
        recipe.data.train_data_files,
        joined,
        recipe.data.max_train_samples,
    )
    saved = run.folder / TOKENIZER
    own = run.checkpoint or (None if recipe.run.process_index == 0 else str(saved))
    tokenizer = choose_tokenizer(recipe.model, recipe.data, sources, own)
    if recipe.run.process_index == 0 and not run.checkpoint:
        tokenizer.save_pretrained(saved)

    def tokenize(rows: Dataset) -> Dataset:
        if joined:
            return tokenize_documents(
                rows, tokenizer, recipe.data.max_seq_length, recipe.data.preprocessing_num_workers
            )
        tokenized = tokenize_sentences(rows, tokenizer, recipe.data.max_seq_length)
        assert isinstance(tokenized, Dataset)
        return tokenized

    return tokenizer, *load_sequences(tokenize, sources, recipe.data.validation_split_percentage)


def build_collators(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> tuple[MaskedCollator, MaskedCollator]:
    """What masks the batches of training, and those of the development set, which are the same at every evaluation."""
    masking = Masking.of(tokenizer, recipe.data.mlm_probability)
    words = continuing_tokens(tokenizer) if recipe.data.whole_word_mask else None
    shorten = None
    if recipe.data.augmentation != "none":
        shorten = build_augmentation(recipe.data.augmentation, tokenizer, deletion_rate=recipe.data.deletion_rate)
    dev_masking = masking._replace(probability=DEV_MASK_RATE)
    return MaskedCollator(recipe.run.text_seed, masking, words, shorten), MaskedCollator(0, dev_masking)
