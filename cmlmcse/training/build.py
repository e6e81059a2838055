"""Builds tokenizer, model, sentences and collator from the fields of a recipe."""

import time
from pathlib import Path

import datasets
import numpy as np
from transformers import PreTrainedTokenizerBase

from cmlmcse.common.errors import InputError, as_input_error
from cmlmcse.common.locations import check_weights, resolve
from cmlmcse.data.augmentation import add_deletion_token, deletion_token
from cmlmcse.data.batches import (
    StreamedSentences,
    TrainingSentences,
    ViewCollator,
    special_tokens,
    tokenize_pieces,
    tokenize_sentences,
)
from cmlmcse.data.collection import draw_documents, hold_out, load_collection
from cmlmcse.data.columns import check_scores
from cmlmcse.data.lengths import Lengths, measure_lengths, sample_rows
from cmlmcse.data.masking import Masking
from cmlmcse.data.searches import SEARCH
from cmlmcse.data.telling_words import TellingWords
from cmlmcse.data.templates import Templates, read_template, template_texts, without_template
from cmlmcse.data.text import load_sentences
from cmlmcse.data.views import DocumentViews, Pieces, check_views, check_words, needs_words
from cmlmcse.models.encoders import load_tokenizer
from cmlmcse.models.folders import recorded_max_length, recorded_prompts, resolve_model
from modeling_cmlmcse.contrast_terms import contrasts
from modeling_cmlmcse.losses import CONTRASTIVE_LOSSES
from modeling_cmlmcse.modeling_cmlmcse import AUXILIARY_OBJECTIVES, CMLMCSEForSentenceEmbedding
from modeling_cmlmcse.pooling import POOLINGS

from .dev_set import DevScore, label_free_set
from .fields import DataArguments, ModelArguments, RunArguments
from .lora import add_lora
from .mining import mine_negatives
from .searches import search_pairs
from .teachers import teacher_vectors


def build_tokenizer(
    model: ModelArguments, augmentation: str = "none", max_seq_length: int = 0
) -> PreTrainedTokenizerBase:
    """The backbone's tokenizer, with the token that the augmentation adds.

    Its `model_max_length` is what the backbone records for sentence-transformers, so that the export cuts texts
    where the start does; or `max_seq_length`, the tokens of a training text, if that is more.

    Raises:
        InputError: there is no tokenizer, it lacks the mask token that an auxiliary objective needs, or the generator
            has another tokenizer.
    """
    path = resolve(model.model_name_or_path)
    if model.fusion_init == "pretrained" and path.count("/") > 1 and not Path(path).is_dir():
        raise InputError(
            "model_name_or_path with fusion_init pretrained must be what stage 1 exports, found no folder "
            f"{model.model_name_or_path}; run cmlmcse train RECIPE --stage pretrain first, or choose another folder"
        )
    path = resolve_model(path)
    tokenizer = load_tokenizer(path)
    weights = {f"{name}_weight": getattr(model, f"{name}_weight") for name in AUXILIARY_OBJECTIVES}
    used = [f"{name} {weight}" for name, weight in weights.items() if weight > 0]
    if used and tokenizer.mask_token_id is None:
        raise InputError(
            f"{', '.join(used)} expects a tokenizer with a mask token, found none in {model.model_name_or_path}; "
            f"choose another backbone or set {', '.join(weights)} to 0"
        )
    if model.rtd_weight > 0 and model.rtd_generator is not None:
        generator_vocab = load_tokenizer(resolve(model.rtd_generator)).get_vocab()
        if generator_vocab != tokenizer.get_vocab():
            raise InputError(
                f"rtd_generator must have the backbone's tokenizer of {len(tokenizer)} tokens, found another of "
                f"{len(generator_vocab)} in {model.rtd_generator}; choose a generator with the same vocabulary"
            )
    tokenizer = without_template(tokenizer)  # that of a model which was trained with one
    add_deletion_token(augmentation, tokenizer)
    recorded = recorded_max_length(path)
    if recorded is not None:
        tokenizer.model_max_length = min(tokenizer.model_max_length, max(recorded, max_seq_length))
    return tokenizer


def build_templates(model: ModelArguments, tokenizer: PreTrainedTokenizerBase) -> Templates | None:
    """The templates of the pooling `prompt`; None with another pooling.

    Raises:
        InputError: a template without its {sentence} or {mask}, or a tokenizer without the padding token to use.
    """
    if not POOLINGS[model.pooling].reads_mask:
        return None
    templates = [read_template(text, tokenizer) for text in template_texts(model)]
    if model.prompt_denoising == "pad" and tokenizer.pad_token_id is None:
        raise InputError(
            "prompt_denoising pad expects a tokenizer with a padding token, found none; use prompt_denoising position"
        )
    return Templates(templates, special_tokens(tokenizer), model.prompt_denoising, tokenizer.pad_token_id or 0)


def build_model(model_args: ModelArguments, tokenizer: PreTrainedTokenizerBase) -> CMLMCSEForSentenceEmbedding:
    """The model from its backbone.

    Raises:
        InputError: an unsupported backbone, a field beyond its depth, or a tokenizer larger than its vocabulary.
    """
    path = resolve_model(model_args.model_name_or_path)
    check_weights(path, model_args.model_sha256)
    fields = model_args.config_fields()
    if fields["rtd_generator"] is not None:
        fields["rtd_generator"] = resolve(fields["rtd_generator"])
    with as_input_error():
        model = CMLMCSEForSentenceEmbedding.from_backbone(path, new_token_id=deletion_token(tokenizer), **fields)
    rows = len(model.get_input_embeddings().weight)  # type: ignore[arg-type]
    if len(tokenizer) > rows:
        raise InputError(
            f"the tokenizer must fit the model's vocabulary of {rows}, found {len(tokenizer)} tokens; use the "
            "tokenizer that belongs to the model"
        )
    recorded_prompts(path).changed(model_args.query_prompt, model_args.document_prompt).give(model)
    if model_args.lora_r is not None:
        add_lora(model, model_args.lora_r)
    return model


def build_documents(data: DataArguments, run: RunArguments) -> tuple[datasets.Dataset, datasets.Dataset | None]:
    """The documents for training, and with `dev_set` auto those that are held out for measuring.

    Raises:
        InputError: the text cannot be read, or has too few documents for a label-free score.
    """
    with run.main_process_first(desc="reading the text"):
        documents = load_collection(data.train_file, data.text_column, data.title_column)
        if data.max_train_samples is not None:
            documents = documents.select(range(min(data.max_train_samples, len(documents))))
        documents = draw_documents(documents, data.max_documents, run.text_seed)
        return hold_out(documents, run.text_seed) if data.dev_set.startswith("auto") else (documents, None)


def build_pieces(
    documents: datasets.Dataset,
    model: ModelArguments,
    data: DataArguments,
    run: RunArguments,
    tokenizer: PreTrainedTokenizerBase,
) -> TrainingSentences:
    """The training documents, tokenised once, their vectors by the teachers of a distillation, and their mined hard
    negatives.

    Raises:
        InputError: no document can give the views, or none can be mined; another model cannot be loaded.
    """
    with run.main_process_first(desc="tokenising the text"):
        pieces = tokenize_pieces(documents, tokenizer)
    lengths = [
        np.asarray(pieces.with_format("arrow").data[name].combine_chunks().value_lengths())
        for name in ("title_ids", "input_ids")
    ]
    if "dropout" in data.views:  # the other views choose a window of each document
        around = sum(map(len, special_tokens(tokenizer)))
        say_lengths(Lengths(lengths[0] + lengths[1] + around), data, run)
    check_views(data.views, len(pieces), int(((lengths[0] > 0) & (lengths[1] > 0)).sum()), int(lengths[1].max()))
    return encoded_once(pieces, documents, model, data, run)


def encoded_once(
    tokenized: datasets.Dataset, rows: datasets.Dataset, model: ModelArguments, data: DataArguments, run: RunArguments
) -> TrainingSentences:
    """The tokenised rows, with what other models say of their texts."""
    started = time.perf_counter()
    with run.main_process_first(desc="encoding the text by another model"):
        negatives = mine_negatives(rows, run.text_seed, model, data, run)
        teachers = teacher_vectors(rows, model, data, run)
    return TrainingSentences(tokenized, teachers, negatives, time.perf_counter() - started)


def build_text(
    model: ModelArguments, data: DataArguments, run: RunArguments, tokenizer: PreTrainedTokenizerBase
) -> tuple[TrainingSentences | StreamedSentences, DevScore | None]:
    """The training text, and the label-free development set that is held out of it, if the recipe asks for one.

    Raises:
        InputError: as :func:`build_sentences`, :func:`build_documents` and :func:`build_pieces`; or too few documents
            to fill a batch.
    """
    if not data.reads_documents:
        return build_sentences(model, data, run, tokenizer), None
    documents, held_out = build_documents(data, run)
    if len(documents) < (needed := sentences_needed(run)):
        raise InputError(
            f"train_file must hold at least {needed} documents, because each needs others as negatives, found "
            f"{len(documents)} in {data.train_file}; add text or lower per_device_train_batch_size"
        )
    dev_set = None if held_out is None else label_free_set(data.dev_set, held_out, documents, run.text_seed)
    if data.views == SEARCH:
        return build_searches(documents, model, data, run, tokenizer), dev_set
    return build_pieces(documents, model, data, run, tokenizer), dev_set


def build_searches(
    documents: datasets.Dataset,
    model: ModelArguments,
    data: DataArguments,
    run: RunArguments,
    tokenizer: PreTrainedTokenizerBase,
) -> TrainingSentences:
    """Pairs of a query and a passage, tokenised once, and their vectors by the teachers.

    Raises:
        InputError: no document gives a query, or a teacher cannot be loaded.
    """
    started = time.perf_counter()
    with run.main_process_first(desc="searching the text"):
        pairs, vectors = search_pairs(documents, model, data, run, run.text_seed)
        prepared = time.perf_counter() - started
        tokenized = tokenize_sentences(pairs, tokenizer, data.max_seq_length)
    return TrainingSentences(tokenized, vectors, prepared=prepared)


def sentences_needed(run: RunArguments) -> int:
    """How many sentences or documents the text must have. One process needs two. Several processes need enough to fill
    a batch: a batch that is filled up with repeated sentences has false negatives."""
    needed = run.world_size * run.per_device_train_batch_size
    return needed if run.world_size > 1 or run.dataloader_drop_last else 2


def build_sentences(
    model: ModelArguments, data: DataArguments, run: RunArguments, tokenizer: PreTrainedTokenizerBase
) -> TrainingSentences | StreamedSentences:
    """The training sentences, tokenised once, their vectors by the teachers of a distillation, and their mined
    hard negatives.

    Raises:
        InputError: the text cannot be read, or has too few sentences; another model cannot be loaded.
    """
    needed = sentences_needed(run)
    with run.main_process_first(desc="reading the text"):
        sentences = load_sentences(
            resolve(data.train_file),
            data.text_column,
            data.streaming,
            data_files=data.train_data_files,
            positive_column=data.positive_column,
            negative_column=data.negative_column,
            score_column=data.score_column,
        )
        if isinstance(sentences, datasets.Dataset):
            if data.max_train_samples is not None:
                sentences = sentences.select(range(min(data.max_train_samples, len(sentences))))
            check_count(len(sentences), needed, data)
            check_scores(sentences, data.train_file)
            say_lengths(measure_lengths(sample_rows(sentences, run.text_seed)["text"], tokenizer), data, run)
        else:
            if data.max_train_samples is not None:
                sentences = sentences.take(data.max_train_samples)
            check_count(sum(1 for _ in sentences.take(needed)), needed, data)
        tokenized = tokenize_sentences(sentences, tokenizer, data.max_seq_length)
    if isinstance(tokenized, datasets.Dataset):
        assert isinstance(sentences, datasets.Dataset)
        return encoded_once(tokenized, sentences, model, data, run)
    if run.max_steps <= 0:
        raise InputError("streaming expects max_steps, for a stream has no known length, found none; set --max_steps")
    return StreamedSentences(tokenized, run.text_seed)


def check_count(found: int, needed: int, data: DataArguments) -> None:
    """Check that the text has enough sentences.

    Raises:
        InputError: it has not.
    """
    if found < needed:
        raise InputError(
            f"train_file must hold at least {needed} sentences, because each needs others as negatives, found {found} "
            f"in {data.train_file}; add text or lower per_device_train_batch_size"
        )


def say_lengths(lengths: Lengths, data: DataArguments, run: RunArguments) -> None:
    """Print how long the texts are, and how much of them training does not see."""
    if run.process_index == 0:
        print(
            f"text: 95 % have at most {lengths.percentile} tokens; max_seq_length {data.max_seq_length} cuts off "
            f"{lengths.cut(data.max_seq_length):.1%} of all tokens"
        )


def check_length(data: DataArguments, positions: int) -> None:
    """Check that the longest sentence fits the backbone's positions.

    Raises:
        InputError: `max_seq_length` is larger than the number of positions.
    """
    if data.max_seq_length > positions:
        more = ", or raise max_position_embeddings in config_overrides" if data.model_type else ""
        raise InputError(
            f"max_seq_length must be at most {positions}, the backbone's positions, found {data.max_seq_length}; lower "
            f"it{more}"
        )


def build_collator(
    model: CMLMCSEForSentenceEmbedding,
    tokenizer: PreTrainedTokenizerBase,
    data: DataArguments,
    run: RunArguments,
    templates: Templates | None = None,
    documents: TrainingSentences | None = None,
) -> ViewCollator:
    """The collator that the model's objectives need; of `documents`, if rows are documents.

    Raises:
        InputError: `max_seq_length` is larger than the number of positions.
    """
    limit = model.max_positions - (templates.longest() if templates else 0)
    check_length(data, limit)
    masking = Masking(
        data.mlm_probability, tokenizer.mask_token_id, len(tokenizer), frozenset(tokenizer.all_special_ids)
    )
    return ViewCollator(
        tokenizer,
        run.text_seed,
        masking if model.auxiliary else None,
        masked_views=2 if model.config.masked_views == "both" else 1,
        augmentation=data.augmentation,
        limit=limit,
        mini_batch_size=run.mini_batch_size,
        augment_both=data.augmented_views == "both",
        synonyms=data.synonyms,
        deletion_rate=data.deletion_rate,
        documents=build_views(data, tokenizer, documents) if documents is not None else None,
        templates=templates,
        plain_view=CONTRASTIVE_LOSSES[model.config.contrastive_loss].plain_view,
        contrasts=contrasts(model.config),
        pad_to_multiple_of=data.pad_to_multiple_of,
    )


def build_views(data: DataArguments, tokenizer: PreTrainedTokenizerBase, documents: TrainingSentences) -> DocumentViews:
    """The views of the documents, for some of which their words are counted.

    Raises:
        InputError: no document can give the view `words`.
    """
    words = None
    if needs_words(data.views):
        words = TellingWords.count(documents.table, tokenizer)
        rows = (documents[row] for row in range(len(documents)))  # mostly the first one can
        check_words(Pieces(row.title or [], row.tokens, words) for row in rows)
    around = sum(map(len, special_tokens(tokenizer)))
    return DocumentViews(data.views, data.max_seq_length - around, words)
