"""Builds the collator, which turns rows of the text into packed batches, from the fields of a recipe."""

import numpy as np
from transformers import PreTrainedTokenizerBase

from cmlmcse.common.errors import InputError
from cmlmcse.common.launch import say_once
from cmlmcse.data.augmentation import Augmented, build_augmentation
from cmlmcse.data.batches import TrainingSentences
from cmlmcse.data.collator import ViewCollator
from cmlmcse.data.lengths import SAMPLE, token_counts
from cmlmcse.data.masking import Masking
from cmlmcse.data.special_tokens import special_tokens
from cmlmcse.data.telling_words import TellingWords
from cmlmcse.data.templates import Templates
from cmlmcse.data.views import MANY, MIN_PIECE, DocumentViews, Pieces, check_words, needs_words, view_names
from modeling_cmlmcse.contrast_terms import contrasts
from modeling_cmlmcse.losses import CONTRASTIVE_LOSSES
from modeling_cmlmcse.modeling_cmlmcse import CMLMCSEForSentenceEmbedding

from .fields import DataArguments, Recipe


def build_collator(
    model: CMLMCSEForSentenceEmbedding,
    tokenizer: PreTrainedTokenizerBase,
    recipe: Recipe,
    templates: Templates | None = None,
    documents: TrainingSentences | None = None,
) -> ViewCollator:
    """The collator that the model's objectives need; of `documents`, if rows are documents.

    Raises:
        InputError: `max_seq_length` is larger than the number of positions; the augmentation is unknown, or what it
            needs is missing.
    """
    limit = model.max_positions - (templates.longest() if templates else 0)
    check_length(recipe.data, limit)
    masking = Masking.of(tokenizer, recipe.data.mlm_probability)
    augmented = None
    if recipe.data.augmentation != "none":
        augment = build_augmentation(
            recipe.data.augmentation, tokenizer, recipe.data.synonyms, recipe.data.deletion_rate
        )
        augmented = Augmented(augment, recipe.data.augmented_views == "both", limit)
    return ViewCollator(
        tokenizer,
        recipe.run.text_seed,
        masking if model.auxiliary else None,
        masked_views=2 if model.config.masked_views == "both" else 1,
        augmented=augmented,
        mini_batch_size=recipe.run.mini_batch_size,
        documents=build_views(recipe, tokenizer, documents) if documents is not None else None,
        templates=templates,
        plain_view=CONTRASTIVE_LOSSES[model.config.contrastive_loss].plain_view,
        contrasts=contrasts(model.config),
        pad_to_multiple_of=recipe.data.pad_to_multiple_of,
    )


def check_length(data_args: DataArguments, positions: int) -> None:
    """Check that the longest sentence fits the backbone's positions.

    Raises:
        InputError: `max_seq_length` is larger than the number of positions.
    """
    if data_args.max_seq_length > positions:
        more = ", or raise max_position_embeddings in config_overrides" if data_args.model_type else ""
        raise InputError(
            f"max_seq_length must be at most {positions}, the backbone's positions, found {data_args.max_seq_length}; "
            f"lower it{more}"
        )


def build_views(recipe: Recipe, tokenizer: PreTrainedTokenizerBase, documents: TrainingSentences) -> DocumentViews:
    """The views of the documents, for some of which their words are counted.

    Raises:
        InputError: no document can give the view `words`.
    """
    words = None
    if needs_words(recipe.data.views):
        words = TellingWords.count(documents.table, tokenizer)
        rows = (documents[row] for row in range(len(documents)))  # mostly the first one can
        check_words(Pieces(row.title or [], row.tokens, words) for row in rows)
    limit = recipe.data.max_seq_length - sum(map(len, special_tokens(tokenizer)))
    meant = [name for name in view_names(recipe.data.views) if name != "dropout"]  # which gives one text on purpose
    if meant:
        say_repeated(DocumentViews("+".join(meant), limit, words), recipe, documents)
    return DocumentViews(recipe.data.views, limit, words)


def say_repeated(views: DocumentViews, recipe: Recipe, documents: TrainingSentences) -> None:
    """Say on the first process if many documents are so short that both of their views are the same text.

    Lengths are known of all documents; of the short ones the views of a sample are compared.
    """
    short = np.flatnonzero(token_counts(documents.table, "input_ids") < 2 * MIN_PIECE)
    if recipe.run.process_index > 0 or len(short) <= MANY * len(documents):
        return
    sample = TrainingSentences(documents.table.select(short[:: -(-len(short) // SAMPLE)]))  # spread over the text
    rows = (sample[row] for row in range(len(sample)))
    repeated = [views.repeats(Pieces(row.title or [], row.tokens), row.row) for row in rows]
    if (count := round(np.mean(repeated) * len(short))) > MANY * len(documents):
        say_once(
            f"{count:,} of {len(documents):,} documents are too short for views {recipe.data.views}: of fewer than "
            f"{2 * MIN_PIECE} tokens both views are the same text; join short texts into longer documents, or choose "
            "the views dropout"
        )
