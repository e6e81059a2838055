"""Teachers of a distillation: each encodes the training text once. They are models, or `lsa`, the text's own words."""

import sys
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import datasets

from cmlmcse.data.collection import draw_documents
from cmlmcse.data.latent import FITTED, LSA, LatentSpace
from cmlmcse.data.parts import write_npy

from .checks import teacher_names
from .fields import DataArguments, ModelArguments, RunArguments
from .text_vectors import fingerprint_rows, kept_vectors, load_reader, most_tokens, texts_of, vectors_folder

Reader = Callable[[datasets.Dataset], Path]
"""Rows with the column "text", and perhaps "title" → the file of their vectors (rows, H_t)."""


class LatentReader:
    """The teacher `lsa`: latent semantic analysis (:class:`LatentSpace`) of a text.

    Args:
        corpus: the rows that the space is fitted to, at most 20,000 of them, drawn.
    """

    def __init__(self, corpus: datasets.Dataset) -> None:
        self.corpus = draw_documents(corpus, FITTED, seed=0)

    @cached_property
    def space(self) -> LatentSpace:
        """Fitted only where vectors are not on disk."""
        print(f"teacher {LSA}: reads {len(self.corpus):,} rows", file=sys.stderr, flush=True)
        return LatentSpace(text for block in texts_of(self.corpus) for text in block)

    def __call__(self, rows: datasets.Dataset) -> Path:
        path = vectors_folder() / f"{LSA}-{fingerprint_rows(self.corpus)}-{fingerprint_rows(rows)}.npy"
        if not path.exists():
            write_npy(path, map(self.space, texts_of(rows)), len(rows), self.space.size)
        return path


def teacher_readers(corpus: datasets.Dataset, most: int, model: ModelArguments, run: RunArguments) -> list[Reader]:
    """The teachers that the fields name.

    Args:
        corpus: the text, for `lsa`.
        most: tokens of a text that a model reads.
        model, run: the fields.

    Raises:
        InputError: a teacher cannot be loaded.
    """

    def reader(name: str) -> Reader:
        if name == LSA:
            return LatentReader(corpus)
        encoder = load_reader(name, model.teacher_pooling, most, str(run.device))
        return lambda rows: kept_vectors(encoder, name, rows, "teacher")

    return [reader(name) for name in teacher_names(model)]


def teacher_vectors(
    rows: datasets.Dataset, model: ModelArguments, data: DataArguments, run: RunArguments
) -> list[list[Path]]:
    """The files of each teacher's vectors (:func:`kept_vectors`), one for each text of a row; none without teachers.

    Args:
        rows: sentences, column "text"; labelled pairs, with the column "positive"; or documents, with "title".
        model, data, run: the fields.

    Raises:
        InputError: a teacher cannot be loaded.
    """
    if model.distillation_weight == 0:
        return []
    texts = [rows]
    if "positive" in rows.column_names:
        texts = [rows.select_columns(name).rename_columns({name: "text"}) for name in ("text", "positive")]
    readers = teacher_readers(datasets.concatenate_datasets(texts), most_tokens(rows, data.max_seq_length), model, run)
    return [[read(each) for each in texts] for read in readers]
