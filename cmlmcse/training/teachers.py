"""Teachers of ranking distillation: each encodes the training sentences once, and the vectors are kept on disk."""

import hashlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import datasets
import numpy as np
from numpy.typing import NDArray
from transformers.utils import cached_file, logging

from cmlmcse.data.parts import write_npy
from cmlmcse.evaluation.cache import fingerprint_model
from cmlmcse.models.encoders import Encoder, load_model_encoder
from cmlmcse.models.folders import recorded_pooling, resolve_model

from .checks import teacher_names
from .fields import DataArguments, ModelArguments, RunArguments

FOLDER = "cmlmcse-teachers"  # in the cache of the library datasets
BLOCK_ROWS = 10_000  # sentences that are tokenised at once, some MB


def teacher_vectors(
    sentences: datasets.Dataset, model: ModelArguments, data: DataArguments, run: RunArguments
) -> list[Path]:
    """The files of the teachers' vectors, .npy (rows, H_t) in float32 each; none without ranking distillation.

    A file is named after the teacher's files, its settings and the sentences. So another run on the same text reads it.

    Raises:
        InputError: a teacher cannot be loaded.
    """
    if model.distillation_weight == 0:
        return []
    folder = Path(datasets.config.HF_DATASETS_CACHE) / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    text = fingerprint_sentences(sentences)
    paths = []
    for name in teacher_names(model):
        encoder = load_teacher(name, model.teacher_pooling, data.max_seq_length, str(run.device))
        settings = {key: encoder.settings[key] for key in ("pooling", "max_seq_length")}
        path = folder / f"{fingerprint_model(model_folder(name), settings)}-{text}.npy"
        if not path.exists():
            print(f"teacher {name}: encodes {len(sentences):,} sentences once, into {folder}", flush=True)
            width = encoder.model.config.hidden_size
            write_npy(path, encoded_blocks(encoder, sentences), len(sentences), width)
        paths.append(path)
    return paths


def load_teacher(name: str, pooling: str, max_seq_length: int, device: str) -> Encoder:
    """A teacher in evaluation mode, which reads no more tokens of a sentence than the student.

    Raises:
        InputError: it cannot be loaded.
    """
    given = None if recorded_pooling(name)[0] else pooling
    encoder = load_model_encoder(name, given, device=device, show_progress_bar=False)
    limit = min(encoder.settings["max_seq_length"], max_seq_length)
    encoder.arguments["max_length"] = encoder.settings["max_seq_length"] = limit
    return encoder


def model_folder(name: str) -> str:
    """The folder of a model that was loaded; that of a Hub name is its snapshot in the Hub's cache."""
    source = resolve_model(name)
    return source if Path(source).exists() else str(Path(cached_file(source, "config.json") or "").parent)


def fingerprint_sentences(sentences: datasets.Dataset) -> str:
    """A hash of the sentences and their order."""
    digest = hashlib.sha256()
    for block in blocks(sentences):
        for text in block:
            encoded = text.encode("utf-8", "surrogatepass")
            digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.hexdigest()[:32]


def blocks(sentences: datasets.Dataset) -> Iterator[list[str]]:
    """The sentences, some thousands at a time."""
    for start in range(0, len(sentences), BLOCK_ROWS):
        yield sentences[start : start + BLOCK_ROWS]["text"]


def encoded_blocks(encoder: Encoder, sentences: datasets.Dataset) -> Iterator[NDArray[np.float32]]:
    """The vectors (B, H_t) of the sentences, block by block."""
    count: Sequence[int] = range(0, len(sentences), BLOCK_ROWS)
    shown = logging.tqdm(blocks(sentences), total=len(count), desc="Teacher", disable=not sys.stderr.isatty())
    for block in shown:
        yield encoder(list(block))
