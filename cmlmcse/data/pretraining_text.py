"""The token sequences of pre-training: sentences of a document joined up to a maximum length, or single sentences."""

import math
from collections.abc import Callable

import datasets
import numpy as np
from datasets import Dataset
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from cmlmcse.common.errors import InputError
from cmlmcse.common.locations import resolve
from cmlmcse.common.names import split_names
from modeling_cmlmcse.packing import pack_sequences

from .augmentation import Augmentation
from .batch_transfer import Batch
from .batches import Example, TrainingSentences
from .collator import augment_inside, pack_masked
from .masking import Masking, mask_tokens, mask_words
from .random_streams import MASKS, CounterGenerator
from .special_tokens import special_tokens
from .text import load_sentences

DEV_SEQUENCES = 2000  # at most; at 128 tokens 38,000 are masked, and the loss has a standard error under 0.02
DEV_MASK_RATE = 0.15  # the same for every run, so that runs can be compared


def load_documents(
    train_files: str,
    text_column: str | None = None,
    data_files: str | None = None,
    documents: bool = False,
    max_rows: int | None = None,
) -> list[Dataset]:
    """The column "text" of each source. Each row is a document with one sentence per line, or each row is a sentence.

    In a .txt file a blank line ends a document (a file without blank lines is one document). In a Wikipedia dump an
    article is a document, in a table or a Hub dataset a row is one.

    Args:
        train_files: one source, or several separated by commas; one with a comma stands in double quotes.
        text_column: column of the text, for tables and Hub datasets.
        data_files: a file inside a Hub dataset.
        documents: True for a document per row, False for a sentence per row.
        max_rows: keep the first rows of all only.

    Raises:
        InputError: the text cannot be read.
    """
    parts = [
        load_sentences(
            resolve(source),
            text_column,
            data_files=data_files,
            documents=documents,
        )
        for source in split_names(train_files)
    ]
    return parts if max_rows is None else split_at(parts, max_rows)[0]


def split_documents(sources: list[Dataset], percentage: float) -> tuple[list[Dataset], list[Dataset]]:
    """Split off the last `percentage` per cent of the documents, at least one, for the development loss.

    Returns:
        The documents for training, and those for the development loss: none if `percentage` is 0. Sources that have
        none are left out.

    Raises:
        InputError: there are too few documents.
    """
    total = sum(map(len, sources))
    count = math.ceil(total * percentage / 100)
    if count > 0 and count >= total:
        raise InputError(
            f"validation_split_percentage {percentage:g} expects at least 2 documents or sentences, found "
            f"{total}; put blank lines between documents, set sequences sentences, or the percentage to 0"
        )
    return split_at(sources, total - count)


def split_at(sources: list[Dataset], row: int) -> tuple[list[Dataset], list[Dataset]]:
    """The rows of all sources before a row, and those from it on. Sources that have none are left out."""
    before, after = [], []
    for source in sources:
        here = min(max(row, 0), len(source))
        if here > 0:
            before.append(source.select(range(here)))
        if here < len(source):
            after.append(source.select(range(here, len(source))))
        row -= len(source)
    return before, after


def tokenize_documents(
    documents: Dataset, tokenizer: PreTrainedTokenizerBase, max_seq_length: int, num_proc: int | None = None
) -> Dataset:
    """Column "text", one document per row → column "input_ids", joined sentences of at most `max_seq_length` tokens
    per row; cached by `datasets`.

    Each process gets as many documents in a row. So give text of long and of short documents here one after the other.
    """
    before, after = special_tokens(tokenizer)
    limit = max_seq_length - len(before) - len(after)

    def tokenize(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        rows: list[list[int]] = []
        for text in batch["text"]:
            # All sentences but the first start with a space, because byte-level tokenizers encode it.
            sentences = [" " * (i > 0) + line for i, line in enumerate(filter(str.strip, text.split("\n")))]
            rows += join_sentences(tokenizer(sentences, add_special_tokens=False)["input_ids"], limit)
        return {"input_ids": [before + row + after for row in rows]}

    return documents.map(
        tokenize,
        batched=True,
        batch_size=100,
        remove_columns=["text"],
        num_proc=num_proc,
        desc="Tokenising",
    )


def join_sentences(sentences: list[list[int]], limit: int) -> list[list[int]]:
    """Join consecutive whole sentences of one document to rows of at most `limit` tokens.

    There is no separator between sentences: RoBERTa's DOC-SENTENCES (Liu et al. 2019, Table 2), its best input format.
    A sentence that does not fit starts the next row. A sentence that is longer than a row is cut. No token is lost.
    """
    rows: list[list[int]] = []
    row: list[int] = []
    for sentence in sentences:
        for start in range(0, len(sentence), limit):
            piece = sentence[start : start + limit]
            if row and len(row) + len(piece) > limit:
                rows.append(row)
                row = []
            row = row + piece
    return [*rows, row] if row else rows


class MaskedCollator:
    """Sequences → the packed `masked` batch of :class:`AuxiliaryPretraining`, masked anew in every epoch. The mask
    is a pure function of (seed, epoch, row).

    Args:
        seed: the seed of all masks.
        masking: how to mask.
        continuing: (V,) which tokens continue the preceding word, to mask whole words; None to mask single tokens.
        shorten: deletes tokens before the others are masked; the batch then has the packed whole sequences, `whole`,
            for a decoder that restores them. None: sequences stay whole.
    """

    def __init__(
        self,
        seed: int,
        masking: Masking,
        continuing: NDArray[np.bool_] | None = None,
        shorten: Augmentation | None = None,
    ) -> None:
        self._random = CounterGenerator(seed)
        self.masking, self.continuing, self.shorten = masking, continuing, shorten

    def __call__(self, examples: list[Example]) -> Batch:
        masked = []
        for example in examples:
            rng = self._random.at(example.epoch, example.row, MASKS)
            tokens = np.asarray(self._shortened(example.tokens, rng))
            if self.continuing is None:
                masked.append(mask_tokens(tokens, self.masking, rng))
            else:
                masked.append(mask_words(tokens, self.masking, self.continuing, rng))
        packed = pack_masked(masked)
        if self.shorten is not None:
            packed["whole"] = pack_sequences([example.tokens for example in examples])
        return Batch(masked=packed)

    def _shortened(self, tokens: list[int], rng: np.random.Generator) -> list[int]:
        """A sequence after words were deleted; the special tokens at its ends are never deleted."""
        if self.shorten is None:
            return tokens
        shorten = self.shorten
        return augment_inside(tokens, self.masking.special_token_ids, lambda body: shorten(body, rng))


def load_sequences(
    tokenize: Callable[[Dataset], Dataset], sources: list[Dataset], dev_percentage: float
) -> tuple[TrainingSentences, TrainingSentences | None]:
    """The training sequences, and at most `DEV_SEQUENCES` for the development loss: None if no text is held out.

    Args:
        tokenize: column "text" → column "input_ids".
        sources: the text, each source tokenised by itself. The last `dev_percentage` per cent of all are held out.

    Raises:
        InputError: there is too little text.
    """
    train, held_out = split_documents(sources, dev_percentage)
    sequences = TrainingSentences(datasets.concatenate_datasets(list(map(tokenize, train))))
    if not held_out:
        return sequences, None
    dev = datasets.concatenate_datasets(list(map(tokenize, held_out)))
    return sequences, TrainingSentences(dev.select(range(min(DEV_SEQUENCES, len(dev)))))
