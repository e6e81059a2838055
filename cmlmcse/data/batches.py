"""From text lines to tokenised rows, and their order.

Each sentence is tokenised once, before training. The sampler puts the epoch into the key of a row: key = epoch · rows +
row. The collator (collator.py) makes packed batches of the rows.
"""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import numpy as np
from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info
from transformers import PreTrainedTokenizerBase

from .columns import BLOCK_ROWS, SCORE
from .negatives import MinedNegatives
from .shuffle import permuted

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
    """Add the row number to a sentence of a stream from one source, before any shuffling."""
    return {"row": row}


class StreamedSentences(IterableDataset[Example]):
    """Tokenised sentences from a stream, which is read again and again without end. Each pass is shuffled within a
    buffer, in an order that depends only on (seed, epoch).

    The sentences of one source have the numbers of their rows. Those of several sources, which are read in turn and
    shared among workers, are numbered as they come: each has a number of its own in every pass.

    The length of a stream is unknown, so Trainer counts all passes as one epoch. A resumed run skips as many batches
    from the start as were trained on. If the stream ended after a pass, that would not find the right position.
    """

    prepared = 0.0  # seconds that teachers and mining took: a stream has neither

    def __init__(self, tokenized: datasets.IterableDataset, seed: int, buffer_size: int = 10_000) -> None:
        # 10,000 sentences of 32 tokens take a few MB, and mix the sentences of about 150 batches.
        self.sentences, self.seed = tokenized, seed
        self.shuffling = {"buffer_size": buffer_size}
        if tokenized.num_shards == 1:
            self.sentences = tokenized.map(with_row, with_indices=True)
            # It needs no interleaving. The threads of `datasets` for it cost as much as tokenising.
            self.shuffling["max_buffer_input_shards"] = 1

    def __iter__(self) -> Iterator[Example]:
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        for epoch in itertools.count():
            example, order = None, np.random.default_rng([self.seed, epoch])
            for place, example in enumerate(self.sentences.shuffle(generator=order, **self.shuffling)):
                row, others = example.get("row", first + step * place), example.get("others", ())
                yield Example(example["input_ids"], epoch, row, others, score=example.get(SCORE))
            if example is None:
                return  # this worker has no share of the stream
