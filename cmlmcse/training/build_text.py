"""Reads the training text: sentences, documents with their views, or pairs of a search; tokenised once."""

import time

import datasets
from transformers import PreTrainedTokenizerBase

from cmlmcse.common.errors import InputError
from cmlmcse.common.locations import resolve
from cmlmcse.data.batches import StreamedSentences, TrainingSentences, tokenize_pieces, tokenize_sentences
from cmlmcse.data.collection import draw_documents, hold_out, load_collection
from cmlmcse.data.columns import check_scores
from cmlmcse.data.folder import has_passages
from cmlmcse.data.lengths import Lengths, measure_lengths, sample_rows, token_counts
from cmlmcse.data.searches import SEARCH
from cmlmcse.data.special_tokens import special_tokens
from cmlmcse.data.text import load_sentences, source_kind
from cmlmcse.data.views import check_views

from .dev_set import DevScore, label_free_set
from .fields import DataArguments, ModelArguments, RunArguments
from .mining import mine_negatives
from .searches import search_pairs
from .teachers import teacher_vectors


def build_text(
    model_args: ModelArguments, data_args: DataArguments, run_args: RunArguments, tokenizer: PreTrainedTokenizerBase
) -> tuple[TrainingSentences | StreamedSentences, DevScore | None]:
    """The training text, and the label-free development set that is held out of it, if the recipe asks for one.

    Raises:
        InputError: as :func:`build_sentences`, :func:`build_documents` and :func:`build_pieces`; or too few documents
            to fill a batch.
    """
    if not data_args.reads_documents:
        return build_sentences(model_args, data_args, run_args, tokenizer), None
    documents, held_out = build_documents(data_args, run_args)
    if len(documents) < (needed := sentences_needed(run_args)):
        raise InputError(
            f"train_file must hold at least {needed} documents, because each needs others as negatives, found "
            f"{len(documents)} in {data_args.train_file}; add text or lower per_device_train_batch_size"
        )
    dev_set = None if held_out is None else label_free_set(data_args.dev_set, held_out, documents, run_args.text_seed)
    if data_args.views == SEARCH:
        return build_searches(documents, model_args, data_args, run_args, tokenizer), dev_set
    return build_pieces(documents, model_args, data_args, run_args, tokenizer), dev_set


def check_name(data_args: DataArguments) -> None:
    """Look for the text, so that a wrong name is found before a model is downloaded.

    Raises:
        InputError: there is no such file or dataset, or no reader for it.
    """
    path = resolve(data_args.train_file)
    if not (data_args.reads_documents and has_passages(path)):
        source_kind(path)


def build_sentences(
    model_args: ModelArguments, data_args: DataArguments, run_args: RunArguments, tokenizer: PreTrainedTokenizerBase
) -> TrainingSentences | StreamedSentences:
    """The training sentences, tokenised once, their vectors by the teachers of a distillation, and their mined
    hard negatives.

    Raises:
        InputError: the text cannot be read, or has too few sentences; another model cannot be loaded.
    """
    needed = sentences_needed(run_args)
    with run_args.main_process_first(desc="reading the text"):
        sentences = load_sentences(
            resolve(data_args.train_file),
            data_args.text_column,
            data_args.streaming,
            data_files=data_args.train_data_files,
            positive_column=data_args.positive_column,
            negative_column=data_args.negative_column,
            score_column=data_args.score_column,
        )
        if isinstance(sentences, datasets.Dataset):
            if data_args.max_train_samples is not None:
                sentences = sentences.select(range(min(data_args.max_train_samples, len(sentences))))
            check_count(len(sentences), needed, data_args)
            check_scores(sentences, data_args.train_file)
            say_lengths(
                measure_lengths(sample_rows(sentences, run_args.text_seed)["text"], tokenizer), data_args, run_args
            )
        else:
            if data_args.max_train_samples is not None:
                sentences = sentences.take(data_args.max_train_samples)
            check_count(sum(1 for _ in sentences.take(needed)), needed, data_args)
        tokenized = tokenize_sentences(sentences, tokenizer, data_args.max_seq_length)
    if isinstance(tokenized, datasets.Dataset):
        assert isinstance(sentences, datasets.Dataset)
        return encoded_once(tokenized, sentences, model_args, data_args, run_args)
    if run_args.max_steps <= 0:
        raise InputError("streaming expects max_steps, for a stream has no known length, found none; set --max_steps")
    return StreamedSentences(tokenized, run_args.text_seed)


def build_documents(
    data_args: DataArguments, run_args: RunArguments
) -> tuple[datasets.Dataset, datasets.Dataset | None]:
    """The documents for training, and with `dev_set` auto those that are held out for measuring.

    Raises:
        InputError: the text cannot be read, or has too few documents for a label-free score.
    """
    with run_args.main_process_first(desc="reading the text"):
        documents = load_collection(data_args.train_file, data_args.text_column, data_args.title_column)
        if data_args.max_train_samples is not None:
            documents = documents.select(range(min(data_args.max_train_samples, len(documents))))
        documents = draw_documents(documents, data_args.max_documents, run_args.text_seed)
        return hold_out(documents, run_args.text_seed) if data_args.dev_set.startswith("auto") else (documents, None)


def build_pieces(
    documents: datasets.Dataset,
    model_args: ModelArguments,
    data_args: DataArguments,
    run_args: RunArguments,
    tokenizer: PreTrainedTokenizerBase,
) -> TrainingSentences:
    """The training documents, tokenised once, their vectors by the teachers of a distillation, and their mined hard
    negatives.

    Raises:
        InputError: no document can give the views, or none can be mined; another model cannot be loaded.
    """
    with run_args.main_process_first(desc="tokenising the text"):
        pieces = tokenize_pieces(documents, tokenizer)
    lengths = [token_counts(pieces, name) for name in ("title_ids", "input_ids")]
    if "dropout" in data_args.views:  # the other views choose a window of each document
        around = sum(map(len, special_tokens(tokenizer)))
        say_lengths(Lengths(lengths[0] + lengths[1] + around), data_args, run_args)
    check_views(data_args.views, len(pieces), int(((lengths[0] > 0) & (lengths[1] > 0)).sum()), int(lengths[1].max()))
    return encoded_once(pieces, documents, model_args, data_args, run_args)


def build_searches(
    documents: datasets.Dataset,
    model_args: ModelArguments,
    data_args: DataArguments,
    run_args: RunArguments,
    tokenizer: PreTrainedTokenizerBase,
) -> TrainingSentences:
    """Pairs of a query and a passage, tokenised once, and their vectors by the teachers.

    Raises:
        InputError: no document gives a query, or a teacher cannot be loaded.
    """
    started = time.perf_counter()
    with run_args.main_process_first(desc="searching the text"):
        pairs, vectors = search_pairs(documents, model_args, data_args, run_args, run_args.text_seed)
        prepared = time.perf_counter() - started
        tokenized = tokenize_sentences(pairs, tokenizer, data_args.max_seq_length)
    return TrainingSentences(tokenized, vectors, prepared=prepared)


def encoded_once(
    tokenized: datasets.Dataset,
    rows: datasets.Dataset,
    model_args: ModelArguments,
    data_args: DataArguments,
    run_args: RunArguments,
) -> TrainingSentences:
    """The tokenised rows, with what other models say of their texts."""
    started = time.perf_counter()
    with run_args.main_process_first(desc="encoding the text by another model"):
        negatives = mine_negatives(rows, run_args.text_seed, model_args, data_args, run_args)
        teachers = teacher_vectors(rows, model_args, data_args, run_args)
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


def say_lengths(lengths: Lengths, data_args: DataArguments, run_args: RunArguments) -> None:
    """Print how long the texts are, and how much of them training does not see."""
    if run_args.process_index == 0:
        print(
            f"text: 95 % have at most {lengths.percentile} tokens; max_seq_length {data_args.max_seq_length} cuts off "
            f"{lengths.cut(data_args.max_seq_length):.1%} of all tokens"
        )
