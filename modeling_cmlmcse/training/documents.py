"""The token sequences of pre-training: sentences of a document joined up to a length, or single sentences."""

import math

import datasets
import numpy as np
from datasets import Dataset
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from ..errors import InputError
from .arguments import DataArguments
from .build import resolve
from .data import Example, TrainingSentences, pack_masked, tokenize_sentences
from .handover import Batch
from .masking import Masking, mask_tokens, mask_words
from .text import load_sentences

DEV_SEQUENCES = 2000  # at most; of 128 tokens they hold 38,000 masked ones, and the loss a standard error under 0.02
DEV_MASK_RATE = 0.15  # whatever the run masks, so that runs can be compared


def load_documents(data: DataArguments) -> Dataset:
    """Column "text" with a document a row, its sentences on a line each, or with a sentence a row.

    A document of a .txt file ends at a blank line (a file without any is one document), of a Wikipedia dump with its
    article, of a table or a Hub dataset with its row.

    Raises:
        InputError: the text cannot be read.
    """
    parts = [
        load_sentences(
            resolve(source.strip()),
            data.text_column,
            data_files=data.train_data_files,
            documents=data.sequences == "documents",
        )
        for source in data.train_file.split(",")
    ]
    documents = datasets.concatenate_datasets(parts)
    if data.max_train_samples is not None:
        documents = documents.select(range(min(data.max_train_samples, len(documents))))
    return documents


def split_documents(documents: Dataset, percentage: float) -> tuple[Dataset, Dataset | None]:
    """All but the last `percentage` per cent of the documents, at least one, for training, and these for the
    development loss; None where it is 0.

    Raises:
        InputError: too few documents.
    """
    if percentage == 0:
        return documents, None
    count = math.ceil(len(documents) * percentage / 100)
    if count >= len(documents):
        raise InputError(
            f"validation_split_percentage {percentage:g} expects at least 2 documents or sentences, found "
            f"{len(documents)}; put blank lines between documents, set sequences sentences, or the percentage to 0"
        )
    start = len(documents) - count
    return documents.select(range(start)), documents.select(range(start, len(documents)))


def tokenize_documents(documents: Dataset, tokenizer: PreTrainedTokenizerBase, data: DataArguments) -> Dataset:
    """Column "text" → column "input_ids", at most `max_seq_length` tokens a row; cached by `datasets`."""
    if data.sequences == "sentences":
        tokenized = tokenize_sentences(documents, tokenizer, data.max_seq_length)
        assert isinstance(tokenized, Dataset)
        return tokenized
    before, after = special_tokens(tokenizer)
    limit = data.max_seq_length - len(before) - len(after)

    def tokenize(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        rows: list[list[int]] = []
        for text in batch["text"]:
            # Within a document a sentence follows a space, which byte-level tokenizers see.
            sentences = [" " * (i > 0) + line for i, line in enumerate(filter(str.strip, text.split("\n")))]
            rows += join_sentences(tokenizer(sentences, add_special_tokens=False)["input_ids"], limit)
        return {"input_ids": [before + row + after for row in rows]}

    return documents.map(
        tokenize,
        batched=True,
        batch_size=100,
        remove_columns=["text"],
        num_proc=data.preprocessing_num_workers,
        desc="Tokenising",
    )


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """The tokens that this tokenizer puts before and after a text, [CLS] and [SEP]."""
    word = tokenizer("a", add_special_tokens=False)["input_ids"]
    whole = tokenizer("a")["input_ids"]
    start = next(i for i in range(len(whole)) if whole[i : i + len(word)] == word)
    return whole[:start], whole[start + len(word) :]


def join_sentences(sentences: list[list[int]], limit: int) -> list[list[int]]:
    """Consecutive whole sentences of one document joined to rows of at most `limit` tokens.

    Nothing is put between them: RoBERTa's DOC-SENTENCES (Liu et al. 2019, Table 2), the best of its input formats. A
    sentence that does not fit begins the next row; one longer than a row is cut into several. No token is lost.
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
    """Sequences → the packed `masked` batch of :class:`AuxiliaryPretraining`, masked anew in every epoch as a pure
    function of (seed, epoch, row).

    Args:
        seed: of everything drawn here.
        masking: how to mask.
        continuing: (V,) which tokens continue a word, to mask whole words; None for single tokens.
    """

    def __init__(self, seed: int, masking: Masking, continuing: NDArray[np.bool_] | None = None) -> None:
        self.seed, self.masking, self.continuing = seed, masking, continuing

    def __call__(self, examples: list[Example]) -> Batch:
        masked = []
        for example in examples:
            tokens = np.asarray(example.tokens)
            # the first number of the counter is what drawing advances
            rng = np.random.Generator(np.random.Philox(key=self.seed, counter=[0, example.epoch, example.row, 1]))
            if self.continuing is None:
                masked.append(mask_tokens(tokens, self.masking, rng))
            else:
                masked.append(mask_words(tokens, self.masking, self.continuing, rng))
        return Batch(masked=pack_masked(masked))


def load_sequences(
    data: DataArguments, tokenizer: PreTrainedTokenizerBase, documents: Dataset
) -> tuple[TrainingSentences, TrainingSentences | None]:
    """The sequences to train on, and those of the development loss, at most `DEV_SEQUENCES`.

    Raises:
        InputError: too little text.
    """
    train, dev = split_documents(documents, data.validation_split_percentage)
    sequences = TrainingSentences(tokenize_documents(train, tokenizer, data))
    if dev is None:
        return sequences, None
    dev = tokenize_documents(dev, tokenizer, data)
    return sequences, TrainingSentences(dev.select(range(min(DEV_SEQUENCES, len(dev)))))
