"""From text lines to packed training batches.

A sentence is tokenised once, ahead of training. Whatever is drawn at random for it, masks and augmentations, is a
pure function of (seed, epoch, row), so that a resumed run, any number of workers and any number of processes draw
the same. The sampler carries the epoch in the key it hands out: key = epoch · rows + row.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import datasets
import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler
from transformers import PreTrainedTokenizerBase

from ..errors import InputError
from ..packing import pack_sequences
from .augmentation import AUGMENTATIONS, Tokens
from .masking import MaskedTokens, Masking, mask_tokens


class Example(NamedTuple):
    """One tokenised sentence, special tokens included, and where in training it is seen."""

    tokens: list[int]
    epoch: int
    row: int


def tokenize_sentences(
    sentences: datasets.Dataset | datasets.IterableDataset, tokenizer: PreTrainedTokenizerBase, max_seq_length: int
) -> datasets.Dataset | datasets.IterableDataset:
    """Column "text" → column "input_ids", cut to `max_seq_length` tokens; cached by `datasets`."""

    def tokenize(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        tokens = tokenizer(batch["text"], truncation=True, max_length=max_seq_length, return_attention_mask=False)
        return {"input_ids": tokens["input_ids"]}

    columns = ["text"]
    if isinstance(sentences, datasets.IterableDataset):
        return sentences.map(tokenize, batched=True, remove_columns=columns)
    return sentences.map(tokenize, batched=True, remove_columns=columns, desc="Tokenising")


class TrainingSentences(Dataset[Example]):
    """Memory-mapped tokenised sentences, addressed by key = epoch · rows + row."""

    def __init__(self, tokenized: datasets.Dataset) -> None:
        self.table = tokenized.with_format("arrow")

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, key: int) -> Example:
        return self.__getitems__([key])[0]

    def __getitems__(self, keys: list[int]) -> list[Example]:
        """A whole batch in one read, as PyTorch's loader asks for it."""
        places = [divmod(key, len(self)) for key in keys]
        tokens = self.table[[row for _, row in places]]["input_ids"].to_pylist()
        return [Example(sentence, epoch, row) for sentence, (epoch, row) in zip(tokens, places, strict=True)]


class EpochSampler(Sampler[int]):
    """All rows in an order that depends on (seed, epoch) alone, as keys that carry the epoch."""

    def __init__(self, rows: int, seed: int) -> None:
        self.rows, self.seed, self.epoch = rows, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration draws."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.rows

    def __iter__(self) -> Iterator[int]:
        order = np.random.default_rng([self.seed, self.epoch]).permutation(self.rows)
        yield from (order + self.epoch * self.rows).tolist()


def with_row(example: dict[str, Any], row: int) -> dict[str, Any]:
    """Number a streamed sentence, before any shuffling."""
    return {"row": row}


class StreamedSentences(IterableDataset[Example]):
    """Tokenised sentences from a stream, shuffled within a buffer whose order depends on (seed, epoch) alone."""

    def __init__(self, tokenized: datasets.IterableDataset, seed: int, buffer_size: int = 10_000) -> None:
        # 10,000 sentences of 32 tokens are a few MB, and 150 batches of mixing.
        self.stream = tokenized.map(with_row, with_indices=True).shuffle(seed=seed, buffer_size=buffer_size)
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration draws."""
        self.epoch = epoch
        self.stream.set_epoch(epoch)

    def __iter__(self) -> Iterator[Example]:
        for example in self.stream:
            yield Example(example["input_ids"], self.epoch, example["row"])


class ViewCollator:
    """Sentences → the packed `views` and `masked` of a training batch (see `CMLMCSEForSentenceEmbedding.forward`).

    Args:
        tokenizer: for its special tokens.
        seed: of everything drawn at random here.
        masking: how the conditional MLM masks; None for no `masked` part (SimCSE).
        masked_views: how many views get their own masked sentence.
        augmentation: name in `AUGMENTATIONS`, applied to the second view, the first being the sentence itself.
        limit: the most tokens of an augmented sentence.

    Raises:
        InputError: an unknown augmentation.
    """

    num_views = 2

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        seed: int,
        masking: Masking | None = None,
        masked_views: int = 2,
        augmentation: str = "none",
        limit: int = 512,
    ) -> None:
        if augmentation not in AUGMENTATIONS:
            raise InputError(
                f"augmentation must be one of {', '.join(AUGMENTATIONS)}, found {augmentation!r}; choose one of them"
            )
        self.seed, self.masking, self.masked_views, self.limit = seed, masking, masked_views, limit
        self.augment = AUGMENTATIONS[augmentation]
        self.special = frozenset(tokenizer.all_special_ids)

    def __call__(self, examples: list[Example]) -> dict[str, Any]:
        views = [self._view(example, view) for view in range(self.num_views) for example in examples]
        batch: dict[str, Any] = {"views": {**pack_sequences(views), "num_views": self.num_views}}
        if self.masking is not None:
            batch["masked"] = pack_masked(
                [
                    mask_tokens(np.asarray(example.tokens), self.masking, self._rng(example, view, "mask"))
                    for view in range(self.masked_views)
                    for example in examples
                ]
            )
        return batch

    def _rng(self, example: Example, view: int, purpose: str) -> np.random.Generator:
        """A generator that depends on (seed, epoch, row), the view and the purpose alone."""
        counter = [0, example.epoch, example.row, 2 * view + (purpose == "mask")]  # [0] is what drawing advances
        return np.random.Generator(np.random.Philox(key=self.seed, counter=counter))

    def _view(self, example: Example, view: int) -> list[int]:
        """The tokens of one view of a sentence; special tokens at its ends are never touched."""
        if view == 0:
            return example.tokens
        return augment_inside(
            example.tokens, self.special, lambda body: self.augment(body, self._rng(example, view, "augment"))
        )[: self.limit]


def augment_inside(tokens: list[int], special: frozenset[int], augment: Callable[[Tokens], Tokens]) -> list[int]:
    """Apply `augment` between the leading and trailing special tokens; nothing between them stays nothing."""
    start, end = 0, len(tokens)
    while start < end and tokens[start] in special:
        start += 1
    while end > start and tokens[end - 1] in special:
        end -= 1
    if start == end:
        return tokens
    body = augment(np.asarray(tokens[start:end], dtype=np.int32))
    return [*tokens[:start], *body.tolist(), *tokens[end:]]


def pack_masked(sentences: list[MaskedTokens]) -> dict[str, Any]:
    """Masked sentences → one packed row with its labels, all indices known to the host."""
    packed = pack_sequences([sentence.tokens.tolist() for sentence in sentences])
    counts = [len(sentence.positions) for sentence in sentences]
    starts = np.cumsum([0] + [len(sentence.tokens) for sentence in sentences[:-1]])
    positions = [sentence.positions + start for sentence, start in zip(sentences, starts, strict=True)]
    return {
        **packed,
        "mlm_positions": torch.from_numpy(np.concatenate(positions)).long(),
        "mlm_labels": torch.from_numpy(np.concatenate([sentence.labels for sentence in sentences])).long(),
        "mlm_counts": torch.tensor(counts, dtype=torch.long),
        "mlm_width": max(counts),
    }
