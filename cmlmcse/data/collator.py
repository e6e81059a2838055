"""From tokenised rows to packed training batches: views, augmentations and masks.

All of these are random and a pure function of (seed, epoch, row). So they do not change when a run is resumed or uses
another number of workers or processes.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from modeling_cmlmcse.packing import pack_sequences

from .augmentation import Augmented, Tokens
from .batch_transfer import Batch
from .batches import Example
from .filler import fill_up
from .masking import MaskedTokens, Masking, mask_tokens
from .random_streams import DOCUMENT_VIEWS, CounterGenerator
from .special_tokens import special_tokens
from .templates import NEGATED, Templates
from .views import DocumentViews, Pieces


class ViewCollator:
    """Sentences → the packed `views` and `masked` of a training batch (see :class:`TrainingLosses`).

    Args:
        tokenizer: gives the special tokens.
        seed: the seed of all random numbers here.
        masking: how the conditional MLM masks; None for a batch without `masked` (SimCSE).
        masked_views: how many views get their own masked sentence.
        augmented: how the views are augmented; None: each view is the sentence itself.
        mini_batch_size: the maximum number of sentences in memory at a time. A larger batch is divided into `parts`,
            each with its own `views` and `masked` (see large_batch.py). None: the batch is not divided.
        documents: makes the views of rows that are documents; None if rows are sentences.
        templates: the templates of the views; None if there are none.
        plain_view: whether a batch also has the first view's text before augmentation, for a view without dropout.
            Hard negatives then have no dropout either.
        contrasts: whether views are compared. If not, only those with a masked sentence are made.
        pad_to_multiple_of: round the tokens of the packed views up to a multiple (filler.py); None: do not.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        seed: int,
        masking: Masking | None = None,
        masked_views: int = 2,
        augmented: Augmented | None = None,
        mini_batch_size: int | None = None,
        documents: DocumentViews | None = None,
        plain_view: bool = False,
        templates: Templates | None = None,
        contrasts: bool = True,
        pad_to_multiple_of: int | None = None,
    ) -> None:
        self.seed, self.masking, self.masked_views, self.augmented = seed, masking, masked_views, augmented
        self.mini_batch_size, self.pad_to_multiple_of = mini_batch_size, pad_to_multiple_of
        self.filler = tokenizer.mask_token_id or 0
        self.special = frozenset(tokenizer.all_special_ids)
        self.documents = documents
        self.plain_view, self.templates, self.contrasts = plain_view and contrasts, templates, contrasts
        self.negates = templates is not None and templates.negates
        self.around = special_tokens(tokenizer) if documents else ([], [])
        self._random, self._shared = CounterGenerator(seed), CounterGenerator(seed)

    def __call__(self, examples: list[Example]) -> Batch:
        size = self.mini_batch_size or len(examples)
        if size >= len(examples):
            return Batch(self._batch(examples))
        parts = [self._batch(examples[start : start + size]) for start in range(0, len(examples), size)]
        return Batch(parts=parts)

    def _batch(self, examples: list[Example]) -> dict[str, Any]:
        """Build a batch, or one of the parts of a larger batch."""
        total = self.masked_views
        if self.contrasts:
            total = examples[0].labelled_views + len(examples[0].negatives) + self.negates
        num_views = 2 if self.plain_view else total  # with dropout
        packed = self._pack(examples, range(num_views), self._view)
        batch: dict[str, Any] = {"views": {**packed, "num_views": num_views}}
        if self.plain_view:
            batch["views"]["plain"] = self._pack(examples, (0, *range(2, total)), self._text)
        if examples[0].teachers:
            by_teacher = zip(*(example.teachers for example in examples), strict=True)
            batch["views"]["teachers"] = [torch.from_numpy(np.stack(vectors)) for vectors in by_teacher]
        if examples[0].score is not None:
            batch["views"]["scores"] = torch.tensor([example.score for example in examples], device="cpu")  # (N,)
        if self.masking is not None:
            batch["masked"] = pack_masked(
                [
                    mask_tokens(np.asarray(self._text(example, view)), self.masking, self._rng(example, view, "mask"))
                    for view in range(self.masked_views)
                    for example in examples
                ]
            )
        return batch

    def _pack(
        self, examples: list[Example], views: Sequence[int], make: Callable[[Example, int], list[int]]
    ) -> dict[str, Any]:
        """The packed rows of some views, one view after the other; if there are templates, each in that of its view."""
        rows = [(example, view) for view in views for example in examples]
        sentences = [make(*row) for row in rows]
        if self.templates is None:
            packed = pack_sequences(sentences)
        else:
            packed = self.templates.pack(sentences, [self._template(*row) for row in rows])
        return packed if self.pad_to_multiple_of is None else fill_up(packed, self.pad_to_multiple_of, self.filler)

    def _template(self, example: Example, view: int) -> int:
        """The template of a view: the first view's, the one that negates, or that of all others."""
        negated = self.negates and view == example.labelled_views + len(example.negatives)
        return NEGATED if negated else min(view, 1)

    def _rng(self, example: Example, view: int, purpose: str) -> np.random.Generator:
        """A generator that depends only on (seed, epoch, row), the view and the purpose, valid until the next call."""
        return self._random.at(example.epoch, example.row, 2 * view + (purpose == "mask"))

    def _text(self, example: Example, view: int) -> list[int]:
        """The tokens of one view before augmentation, with special tokens.

        Views behind those of the row itself are the mined negatives, each with the text that is its own second view in
        this epoch; the last one may be the first view's text again, for the template that negates it.
        """
        if (further := view - example.labelled_views) >= 0:
            mined = example.negatives
            return self._text(mined[further], 1) if further < len(mined) else self._text(example, 0)
        if self.documents is None:
            return example.text(view)
        pieces = Pieces(example.title or [], example.tokens)
        place = example.epoch, example.row
        shared, own = self._shared.at(*place, DOCUMENT_VIEWS), self._random.at(*place, DOCUMENT_VIEWS + 1 + view)
        before, after = self.around
        return [*before, *self.documents(pieces, view, shared, own), *after]

    def _view(self, example: Example, view: int) -> list[int]:
        """The tokens of one view of a sentence. Special tokens at its ends are never changed."""
        text, how = self._text(example, view), self.augmented
        if how is None or not how.changes(view):
            return text
        rng = self._rng(example, view, "augment")
        return augment_inside(text, self.special, lambda body: how.augment(body, rng), how.limit)


def augment_inside(
    tokens: list[int], special: frozenset[int], augment: Callable[[Tokens], Tokens], limit: int | None = None
) -> list[int]:
    """Apply `augment` between the leading and trailing special tokens, if there are tokens between them. With a `limit`
    the result has at most so many tokens; what is cut off is the end of the augmented part."""
    start, end = 0, len(tokens)
    while start < end and tokens[start] in special:
        start += 1
    while end > start and tokens[end - 1] in special:
        end -= 1
    if start == end:
        return tokens
    room = None if limit is None else limit - start - len(tokens[end:])
    body = augment(np.asarray(tokens[start:end], dtype=np.int32))[:room]
    return [*tokens[:start], *body.tolist(), *tokens[end:]]


def pack_masked(sentences: list[MaskedTokens]) -> dict[str, Any]:
    """Masked sentences → one packed row with its labels. All indices are computed on the host."""
    packed = pack_sequences([sentence.tokens.tolist() for sentence in sentences])
    counts = [len(sentence.positions) for sentence in sentences]
    starts = np.cumsum([0] + [len(sentence.tokens) for sentence in sentences[:-1]])
    positions = [sentence.positions + start for sentence, start in zip(sentences, starts, strict=True)]
    return {
        **packed,
        "mlm_positions": torch.from_numpy(np.concatenate(positions)).long(),
        "mlm_labels": torch.from_numpy(np.concatenate([sentence.labels for sentence in sentences])).long(),
        "mlm_counts": torch.tensor(counts, dtype=torch.long, device="cpu"),
        "mlm_width": max(counts),
    }
