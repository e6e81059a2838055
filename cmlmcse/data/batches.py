"""From text lines to packed training batches.

Each sentence is tokenised once, before training. Its random masks and augmentations are a pure function of
(seed, epoch, row). So they do not change when a run is resumed or uses another number of workers or processes. The
sampler puts the epoch into the key of a row: key = epoch · rows + row.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler
from transformers import PreTrainedTokenizerBase

from cmlmcse.common.errors import InputError
from modeling_cmlmcse.packing import pack_sequences

from .augmentation import Augmented, Tokens
from .batch_transfer import Batch
from .columns import BLOCK_ROWS, SCORE
from .filler import fill_up
from .masking import MaskedTokens, Masking, mask_tokens
from .negatives import MinedNegatives
from .random_streams import SPANS, CounterGenerator
from .shuffle import permuted
from .templates import NEGATED, Templates
from .views import DocumentViews, Pieces

DOCUMENT_BLOCK = 1000  # documents tokenised at once, some MB


class Example(NamedTuple):
    """One tokenised sentence with its special tokens, and the epoch and row in which training sees it.

    In a labelled row `others` holds the positive and, if there is one, the hard negative (supervised SimCSE, §4); in a
    pair with a `score` the second sentence. In a row that is a document, `title` holds the tokens of its title (perhaps
    none) and `tokens` those of its body, both without special tokens; its views are made by :class:`DocumentViews`.
    `teachers` holds the vectors (S, H_t) of its S texts by each teacher of a distillation. `negatives` holds the rows
    that are mined hard negatives of this one.
    """

    tokens: list[int]
    epoch: int
    row: int
    others: Sequence[list[int]] = ()
    title: list[int] | None = None
    teachers: Sequence[np.ndarray] = ()
    negatives: Sequence["Example"] = ()
    score: float | None = None

    @property
    def labelled_views(self) -> int:
        """How many views have a text of this row: two, or three with a labelled hard negative."""
        return max(2, 1 + len(self.others))

    def text(self, view: int) -> list[int]:
        """The tokens from which a view is made. Only in a labelled row do they differ between views."""
        return self.others[view - 1] if self.others and view > 0 else self.tokens


def tokenize_sentences(
    sentences: datasets.Dataset | datasets.IterableDataset, tokenizer: PreTrainedTokenizerBase, max_seq_length: int
) -> datasets.Dataset | datasets.IterableDataset:
    """Column "text" → column "input_ids", cut to `max_seq_length` tokens; cached by `datasets`.

    In labelled rows the columns "positive" and "negative" become one column "others"; scores stay as they are.
    """
    columns = list(sentences.features or ["text"])
    texts = [name for name in columns if name != SCORE]

    def tokenize(batch: dict[str, list[str]]) -> dict[str, list[Any]]:
        tokens, *others = (
            tokenizer(batch[name], truncation=True, max_length=max_seq_length, return_attention_mask=False)["input_ids"]
            for name in texts
        )
        return {"input_ids": tokens} | ({"others": list(zip(*others, strict=True))} if others else {})

    if isinstance(sentences, datasets.IterableDataset):
        return sentences.map(tokenize, batched=True, remove_columns=texts)
    blocks = {"batch_size": BLOCK_ROWS, "writer_batch_size": BLOCK_ROWS}
    return sentences.map(tokenize, batched=True, remove_columns=texts, desc="Tokenising", **blocks)


def tokenize_pieces(documents: datasets.Dataset, tokenizer: PreTrainedTokenizerBase) -> datasets.Dataset:
    """Columns "title" and "text" → columns "title_ids" and "input_ids", without special tokens and uncut; cached by
    `datasets`."""

    def tokenize(batch: dict[str, list[str]]) -> dict[str, list[Any]]:
        found = [tokenizer(batch[name], add_special_tokens=False, verbose=False) for name in ("title", "text")]
        return {"title_ids": found[0]["input_ids"], "input_ids": found[1]["input_ids"]}

    blocks = {"batch_size": DOCUMENT_BLOCK, "writer_batch_size": DOCUMENT_BLOCK}
    return documents.map(tokenize, batched=True, remove_columns=documents.column_names, desc="Tokenising", **blocks)


class TrainingSentences(Dataset[Example]):
    """Memory-mapped tokenised sentences or documents, addressed by key = epoch · rows + row.

    Args:
        tokenized: the rows.
        teachers: for each teacher the files of its vectors, .npy (rows, H_t): one, or for pairs one a text.
        negatives: the rows' mined hard negatives; None without.
        prepared: seconds that teachers and mining took; a repeated run only reads their files.
    """

    def __init__(
        self,
        tokenized: datasets.Dataset,
        teachers: Sequence[Sequence[Path]] = (),
        negatives: MinedNegatives | None = None,
        prepared: float = 0.0,
    ) -> None:
        self.table, self.teachers, self.negatives = tokenized.with_format("arrow"), teachers, negatives
        self.prepared = prepared

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, key: int) -> Example:
        return self.__getitems__([key])[0]

    def __getitems__(self, keys: list[int]) -> list[Example]:
        """Read a whole batch at once. PyTorch's loader calls this method."""
        epochs_and_rows = [divmod(key, len(self)) for key in keys]
        examples = self._read(epochs_and_rows)
        if self.teachers:
            places = [row for _, row in epochs_and_rows]
            loaded = [[np.load(path, mmap_mode="r")[places] for path in paths] for paths in self.teachers]
            found = [np.stack(vectors, axis=1) for vectors in loaded]  # (B, S, H_t) each
            taught = zip(examples, zip(*found, strict=True), strict=True)
            examples = [example._replace(teachers=vectors) for example, vectors in taught]
        if self.negatives is not None:
            mined = self._read(self.negatives.of(epochs_and_rows))  # some of each example in turn
            starts = range(0, len(mined), self.negatives.count)
            examples = [
                example._replace(negatives=mined[start : start + self.negatives.count])
                for example, start in zip(examples, starts, strict=True)
            ]
        return examples

    def _read(self, epochs_and_rows: list[tuple[int, int]]) -> list[Example]:
        """The rows alone, in the order of their numbers here."""
        rows = self.table[[row for _, row in epochs_and_rows]]
        count = len(epochs_and_rows)
        tokens = rows["input_ids"].to_pylist()
        others = rows["others"].to_pylist() if "others" in rows.column_names else [()] * count
        titles = rows["title_ids"].to_pylist() if "title_ids" in rows.column_names else [None] * count
        scores = rows[SCORE].to_pylist() if SCORE in rows.column_names else [None] * count
        return [
            Example(tokens[i], *place, others[i], titles[i], score=scores[i]) for i, place in enumerate(epochs_and_rows)
        ]


class EpochSampler(Sampler[int]):
    """All rows as keys that contain the epoch, in an order that depends only on (seed, epoch)."""

    def __init__(self, rows: int, seed: int) -> None:
        self.rows, self.seed, self.epoch = rows, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.rows

    def __iter__(self) -> Iterator[int]:
        for rows in permuted(self.rows, self.seed, self.epoch):
            yield from (rows + self.epoch * self.rows).tolist()


def with_row(example: dict[str, Any], row: int) -> dict[str, Any]:
    """Add the row number to a streamed sentence, before any shuffling."""
    return {"row": row}


class StreamedSentences(IterableDataset[Example]):
    """Tokenised sentences from a stream, which is read again and again without end. Each pass is shuffled within a
    buffer, in an order that depends only on (seed, epoch).

    The length of a stream is unknown, so Trainer counts all passes as one epoch. A resumed run skips as many batches
    from the start as were trained on. If the stream ended after a pass, that would not find the right position.
    """

    def __init__(self, tokenized: datasets.IterableDataset, seed: int, buffer_size: int = 10_000) -> None:
        # 10,000 sentences of 32 tokens take a few MB, and mix the sentences of about 150 batches.
        self.numbered = tokenized.map(with_row, with_indices=True)
        # A single source needs no interleaving. The threads of `datasets` for it cost as much as tokenising.
        sources = {"max_buffer_input_shards": 1} if tokenized.num_shards == 1 else {}
        self.seed, self.shuffling = seed, {"buffer_size": buffer_size, **sources}

    def __iter__(self) -> Iterator[Example]:
        for epoch in itertools.count():
            example = None
            for example in self.numbered.shuffle(generator=np.random.default_rng([self.seed, epoch]), **self.shuffling):
                others, score = example.get("others", ()), example.get(SCORE)
                yield Example(example["input_ids"], epoch, example["row"], others, score=score)
            if example is None:
                return  # this worker has no share of the stream


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
        templates: those of the views; None without.
        plain_view: whether a batch also has the first view's text before augmentation, for a view without dropout;
            hard negatives are without it then too.
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
        shared, own = self._shared.at(*place, SPANS), self._random.at(*place, SPANS + 1 + view)
        before, after = self.around
        return [*before, *self.documents(pieces, view, shared, own), *after]

    def _view(self, example: Example, view: int) -> list[int]:
        """The tokens of one view of a sentence. Special tokens at its ends are never changed."""
        text, how = self._text(example, view), self.augmented
        if how is None or not how.changes(view):
            return text
        rng = self._rng(example, view, "augment")
        return augment_inside(text, self.special, lambda body: how.augment(body, rng))[: how.limit]


def augment_inside(tokens: list[int], special: frozenset[int], augment: Callable[[Tokens], Tokens]) -> list[int]:
    """Apply `augment` between the leading and trailing special tokens, if there are tokens between them."""
    start, end = 0, len(tokens)
    while start < end and tokens[start] in special:
        start += 1
    while end > start and tokens[end - 1] in special:
        end -= 1
    if start == end:
        return tokens
    body = augment(np.asarray(tokens[start:end], dtype=np.int32))
    return [*tokens[:start], *body.tolist(), *tokens[end:]]


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """The tokens that this tokenizer puts before and after a text, such as [CLS] and [SEP]."""
    word = tokenizer("a", add_special_tokens=False)["input_ids"]
    whole = tokenizer("a")["input_ids"]
    start = next(i for i in range(len(whole)) if whole[i : i + len(word)] == word)
    return whole[:start], whole[start + len(word) :]


def check_around(option: str, tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Check that a tokenizer puts a special token before and after each text: a decoder predicts what is between them.

    Args:
        option: what has this decoder, for the message.
        tokenizer: it.
        name: where it is from.

    Raises:
        InputError: there is none before, or none after.
    """
    before, after = map(len, special_tokens(tokenizer))
    if not (before and after):
        raise InputError(
            f"{option} expects a tokenizer that puts special tokens before and after a text, found {before} before and "
            f"{after} after in {name}; choose another backbone or another objective"
        )


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
