"""Vectors of the training text by a model: each row is encoded once, and the vectors are kept on disk."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import datasets
import numpy as np
from numpy.typing import NDArray
from transformers.utils import cached_file

from cmlmcse.common.progress import progress
from cmlmcse.data.file_parts import write_npy
from cmlmcse.data.tables import with_titles
from cmlmcse.data.templates import without_template
from cmlmcse.data.views import WINDOW
from cmlmcse.models.encoders import Encoder, load_model_encoder
from cmlmcse.models.fingerprint import fingerprint_model
from cmlmcse.models.folders import recorded_pooling, resolve_model
from modeling_cmlmcse.fast_cpu import use_fast_cpu_kernels
from modeling_cmlmcse.pooling import POOLINGS

from .fields import RunArguments

FOLDER = "cmlmcse-vectors"  # in the cache of the library datasets
BLOCK_ROWS = 10_000  # rows that are tokenised at once, some MB


def kept_vectors(encoder: Encoder, name: str, rows: datasets.Dataset, role: str) -> Path:
    """The file of the rows' vectors, .npy (rows, H) in float32.

    It is named after the model's files, its settings and the texts. So another run on the same text reads it.

    Args:
        encoder: the model, loaded by :func:`load_reader`.
        name: the model's folder or Hub name.
        rows: the training text (:func:`texts_of`).
        role: what the model is used for, for the message on the screen.
    """
    folder = vectors_folder()
    settings = encoder.settings | {key: encoder.arguments[key] for key in encoder.arguments if key == "prompt"}
    path = folder / f"{fingerprint_model(model_folder(name), settings)}-{fingerprint_rows(rows)}.npy"
    if not path.exists():
        print(f"{role} {name}: encodes {len(rows):,} rows once, into {folder}", flush=True)
        write_npy(path, encoded_blocks(encoder, rows, role), len(rows), encoder.width)
    return path


def vectors_folder() -> Path:
    """The folder of kept vectors, made if it is missing."""
    folder = Path(datasets.config.HF_DATASETS_CACHE) / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def load_reader(
    name: str, pooling: str, most_tokens: int, run_args: RunArguments, prompt_template: str | None = None
) -> Encoder:
    """A model in evaluation mode that reads at most `most_tokens` of a text, a template not counted. It computes on the
    run's device, and in bf16 if the run does.

    Args:
        name: the model.
        pooling: for a model that records none.
        most_tokens: special tokens included.
        run_args: the fields of the run.
        prompt_template: that of the pooling `prompt`, for a model that records none.

    Raises:
        InputError: it cannot be loaded.
    """
    plain = recorded_pooling(name)[0] is None
    given = pooling if plain else None
    template = prompt_template if plain and POOLINGS[pooling].reads_mask else None
    encoder = load_model_encoder(
        name, given, device=str(run_args.device), show_progress_bar=False, prompt_template=template
    )
    use_fast_cpu_kernels(encoder.model)
    encoder.bf16 = bool(run_args.bf16)
    special = [each.num_special_tokens_to_add() for each in (encoder.tokenizer, without_template(encoder.tokenizer))]
    return encoder.cut_to(min(encoder.max_seq_length, most_tokens + special[0] - special[1]))


def most_tokens(rows: datasets.Dataset, max_seq_length: int) -> int:
    """How many tokens of a row another model reads: a window of a document, and of a sentence what training reads."""
    return WINDOW if "title" in rows.column_names else max_seq_length


def model_folder(name: str) -> str:
    """The folder of a model that was loaded; that of a Hub name is its snapshot in the Hub's cache."""
    source = resolve_model(name)
    return source if Path(source).exists() else str(Path(cached_file(source, "config.json") or "").parent)


def texts_of(rows: datasets.Dataset) -> Iterator[list[str]]:
    """The texts of sentences, or of documents with their titles, some thousands at a time."""
    for start in range(0, len(rows), BLOCK_ROWS):
        block = rows[start : start + BLOCK_ROWS]
        if "title" not in block:
            yield list(block["text"])
        else:
            yield with_titles(block["title"], block["text"])


def fingerprint_rows(rows: datasets.Dataset) -> str:
    """A hash of the texts and their order."""
    digest = hashlib.sha256()
    for block in texts_of(rows):
        for text in block:
            encoded = text.encode("utf-8", "surrogatepass")
            digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.hexdigest()[:32]


def encoded_blocks(encoder: Encoder, rows: datasets.Dataset, role: str) -> Iterator[NDArray[np.float32]]:
    """The vectors (B, H) of the rows, block by block."""
    with progress(len(rows), role, "rows") as shown:
        for texts in texts_of(rows):
            yield encoder(texts)
            shown.add(len(texts))
