"""Reads the training text: sentences, documents with their views, or pairs of a search; tokenised once."""

import time

import datasets
from transformers import PreTrainedTokenizerBase

from cmlmcse.common.errors import InputError
from cmlmcse.common.launch import say_once
from cmlmcse.common.locations import resolve
from cmlmcse.data.batches import StreamedSentences, TrainingSentences, tokenize_pieces, tokenize_sentences
from cmlmcse.data.collection import draw_documents, hold_out, load_collection
from cmlmcse.data.columns import check_scores
from cmlmcse.data.copies import share_of_copies
from cmlmcse.data.folder import has_passages
from cmlmcse.data.lengths import LARGE_CUT, Lengths, measure_lengths, sample_rows, token_counts
from cmlmcse.data.searches import SEARCH
from cmlmcse.data.special_tokens import special_tokens
from cmlmcse.data.text import load_sentences, source_kind
from cmlmcse.data.views import check_views

from .dev_set import DevScore, label_free_set
from .fields import DataArguments, Recipe, RunArguments
from .mining import mine_negatives
from .searches import search_pairs
from .teachers import teacher_vectors

MANY_COPIES = 0.01  # of the sentences, above which users are warned


def build_text(
    recipe: Recipe, tokenizer: PreTrainedTokenizerBase
) -> tuple[TrainingSentences | StreamedSentences, DevScore | None]:
    """The training text, and the label-free development set that is held out of it, if the recipe asks for one.

    Raises:
        InputError: as :func:`build_sentences`, :func:`build_documents` and :func:`build_pieces`; or too few documents
            to fill a batch.
    """
    if not recipe.data.reads_documents:
        return build_sentences(recipe, tokenizer), None
    documents, held_out = build_documents(recipe)
    if len(documents) < (needed := sentences_needed(recipe.run)):
        raise InputError(
            f"train_file must hold at least {needed} documents, because each needs others as negatives, found "
            f"{len(documents)} in {recipe.data.train_file}; add text or lower per_device_train_batch_size"
        )
    dev_set = (
        None if held_out is None else label_free_set(recipe.data.dev_set, held_out, documents, recipe.run.text_seed)
    )
    if recipe.data.views == SEARCH:
        return build_searches(documents, recipe, tokenizer), dev_set
    return build_pieces(documents, recipe, tokenizer), dev_set


def check_name(data_args: DataArguments) -> None:
    """Look for the text, so that a wrong name is found before a model is downloaded.

    Raises:
        InputError: there is no such file or dataset, or no reader for it.
    """
    path = resolve(data_args.train_file)
    if not (data_args.reads_documents and has_passages(path)):
        source_kind(path)


def build_sentences(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> TrainingSentences | StreamedSentences:
    """The training sentences, tokenised once, their vectors by the teachers of a distillation, and their mined
    hard negatives.

    Raises:
        InputError: the text cannot be read, or has too few sentences; another model cannot be loaded.
    """
    needed = sentences_needed(recipe.run)
    with recipe.run.main_process_first(desc="reading the text"):
        sentences = load_sentences(
            resolve(recipe.data.train_file),
            recipe.data.text_column,
            recipe.data.streaming,
            data_files=recipe.data.train_data_files,
            positive_column=recipe.data.positive_column,
            negative_column=recipe.data.negative_column,
            score_column=recipe.data.score_column,
        )
        if isinstance(sentences, datasets.Dataset):
            if recipe.data.max_train_samples is not None:
                sentences = sentences.select(range(min(recipe.data.max_train_samples, len(sentences))))
            check_count(len(sentences), needed, recipe.data)
            check_scores(sentences, recipe.data.train_file)
            say_lengths(measure_lengths(sample_rows(sentences, recipe.run.text_seed)["text"], tokenizer), recipe)
            say_copies(sentences, recipe)
        else:
            if recipe.data.max_train_samples is not None:
                sentences = sentences.take(recipe.data.max_train_samples)
            check_count(sum(1 for _ in sentences.take(needed)), needed, recipe.data)
        tokenized = tokenize_sentences(sentences, tokenizer, recipe.data.max_seq_length)
    if isinstance(tokenized, datasets.Dataset):
        assert isinstance(sentences, datasets.Dataset)
        return encoded_once(tokenized, sentences, recipe)
    if recipe.run.max_steps <= 0:
        raise InputError("streaming expects max_steps, for a stream has no known length, found none; set --max_steps")
    return StreamedSentences(tokenized, recipe.run.text_seed)


def build_documents(recipe: Recipe) -> tuple[datasets.Dataset, datasets.Dataset | None]:
    """The documents for training, and with `dev_set` auto those that are held out for measuring.

    Raises:
        InputError: the text cannot be read, or has too few documents for a label-free score.
    """
    with recipe.run.main_process_first(desc="reading the text"):
        documents = load_collection(recipe.data.train_file, recipe.data.text_column, recipe.data.title_column)
        if recipe.data.max_train_samples is not None:
            documents = documents.select(range(min(recipe.data.max_train_samples, len(documents))))
        documents = draw_documents(documents, recipe.data.max_documents, recipe.run.text_seed)
        return hold_out(documents, recipe.run.text_seed) if recipe.data.holds_out else (documents, None)


def build_pieces(documents: datasets.Dataset, recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> TrainingSentences:
    """The training documents, tokenised once, their vectors by the teachers of a distillation, and their mined hard
    negatives.

    Raises:
        InputError: no document can give the views, or none can be mined; another model cannot be loaded.
    """
    with recipe.run.main_process_first(desc="tokenising the text"):
        pieces = tokenize_pieces(documents, tokenizer)
    lengths = [token_counts(pieces, name) for name in ("title_ids", "input_ids")]
    if "dropout" in recipe.data.views:  # the other views choose a window of each document
        around = sum(map(len, special_tokens(tokenizer)))
        say_lengths(Lengths(lengths[0] + lengths[1] + around), recipe)
    check_views(recipe.data.views, len(pieces), int(((lengths[0] > 0) & (lengths[1] > 0)).sum()), int(lengths[1].max()))
    return encoded_once(pieces, documents, recipe)


def build_searches(
    documents: datasets.Dataset, recipe: Recipe, tokenizer: PreTrainedTokenizerBase
) -> TrainingSentences:
    """Pairs of a query and a passage, tokenised once, and their vectors by the teachers.

    Raises:
        InputError: no document gives a query, or a teacher cannot be loaded.
    """
    started = time.perf_counter()
    with recipe.run.main_process_first(desc="searching the text"):
        pairs, vectors = search_pairs(documents, recipe)
        prepared = time.perf_counter() - started
        tokenized = tokenize_sentences(pairs, tokenizer, recipe.data.max_seq_length)
    return TrainingSentences(tokenized, vectors, prepared=prepared)


def encoded_once(tokenized: datasets.Dataset, rows: datasets.Dataset, recipe: Recipe) -> TrainingSentences:
    """The tokenised rows, with what other models say of their texts."""
    started = time.perf_counter()
    with recipe.run.main_process_first(desc="encoding the text by another model"):
        negatives = mine_negatives(rows, recipe)
        teachers = teacher_vectors(rows, recipe)
    return TrainingSentences(tokenized, teachers, negatives, time.perf_counter() - started)


def sentences_needed(run_args: RunArguments) -> int:
    """How many sentences or documents the text must have. One process needs two. Several processes need enough to fill
    a batch: a batch that is filled up with repeated sentences has false negatives."""
    needed = run_args.world_size * run_args.per_device_train_batch_size
    return needed if run_args.world_size > 1 or run_args.dataloader_drop_last else 2


def check_count(found: int, needed: int, data_args: DataArguments) -> None:
    """Check that the text has enough sentences.

    Raises:
        InputError: it has not.
    """
    if found < needed:
        raise InputError(
            f"train_file must hold at least {needed} sentences, because each needs others as negatives, found {found} "
            f"in {data_args.train_file}; add text or lower per_device_train_batch_size"
        )


def say_lengths(lengths: Lengths, recipe: Recipe) -> None:
    """Print how long the texts are, and how much of them training does not see."""
    if recipe.run.process_index == 0:
        cut = lengths.cut(recipe.data.max_seq_length)
        print(
            f"text: 95 % have at most {lengths.percentile} tokens; --max_seq_length {recipe.data.max_seq_length} cuts "
            f"off {cut:.1%} of all tokens{'; a larger one reads more of them' if cut > LARGE_CUT else ''}"
        )


def say_copies(sentences: datasets.Dataset, recipe: Recipe) -> None:
    """Say on the first process if many sentences are copies of others, where those of a batch are negatives. The first
    texts of pairs may repeat: each has its own positive."""
    if recipe.run.process_index > 0 or recipe.model.contrastive_weight == 0 or recipe.data.positive_column is not None:
        return
    share, count = share_of_copies(sentences)
    if share > MANY_COPIES:
        of = f"{count:,} sentences" if count == len(sentences) else f"a sample of {count:,} sentences"
        say_once(
            f"{share:.1%} of {of} are copies of others: where a batch has several, they count as negatives of each "
            "other; give each sentence once"
        )
