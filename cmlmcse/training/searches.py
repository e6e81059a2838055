"""The training text of the views `search`: queries made from documents, and passages that the teachers find."""

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import datasets
import numpy as np
from numpy.typing import NDArray

from cmlmcse.common.errors import InputError
from cmlmcse.data.collection import draw_documents
from cmlmcse.data.parts import write_npy
from cmlmcse.data.searches import SEARCHED, find_passages, make_queries, texts_with_titles
from cmlmcse.data.views import WINDOW

from .fields import ModelArguments, RunArguments
from .teachers import teacher_readers


def search_pairs(
    documents: datasets.Dataset, model: ModelArguments, run: RunArguments, seed: int
) -> tuple[datasets.Dataset, list[list[Path]]]:
    """Pairs of a query and a passage that the teachers find for it (searches.py), and their vectors by each teacher.

    Args:
        documents: columns "title" and "text"; at most 5,000 of them are searched, drawn by the seed.
        model, run: the fields.
        seed: of the draws.

    Returns:
        Rows with the columns "text" and "positive", and for each teacher the files of the vectors of both.

    Raises:
        InputError: a teacher cannot be loaded, or no document gives a query.
    """
    documents = draw_documents(documents, SEARCHED, seed)
    queries = make_queries(documents, seed)
    if not queries.texts or len(documents) < 2:
        raise InputError(
            f"views search expects at least two documents with words of three letters or more, found "
            f"{len(documents)} documents and {len(queries.texts)} queries; add text, or choose the views crops"
        )
    asked = datasets.Dataset.from_dict({"text": queries.texts})
    readers = teacher_readers(documents, WINDOW, model, run)
    files = [(read(asked), read(documents)) for read in readers]
    shares = [1.0] if len(files) == 1 else [model.teacher_share, 1 - model.teacher_share]
    by_query, by_passage = ([np.load(pair[side]) for pair in files] for side in (0, 1))
    found = find_passages(by_query, by_passage, shares, queries.owners, seed)
    texts = texts_with_titles(documents)
    pairs = datasets.Dataset.from_dict({"text": queries.texts, "positive": [texts[row] for row in found]})
    drawn = [kept_rows(path, vectors, found) for (_, path), vectors in zip(files, by_passage, strict=True)]
    return pairs, [[asked_by, path] for (asked_by, _), path in zip(files, drawn, strict=True)]


def kept_rows(path: Path, vectors: NDArray[np.float32], rows: NDArray[np.int64]) -> Path:
    """A file beside this one, named after the rows, with the vectors of the rows."""
    chosen = path.with_name(f"{path.stem}-{sha256(rows.tobytes()).hexdigest()[:16]}.npy")
    if not chosen.exists():
        blocks: Iterator[NDArray[np.float32]] = (vectors[rows[i : i + 1000]] for i in range(0, len(rows), 1000))
        write_npy(chosen, blocks, len(rows), vectors.shape[1])
    return chosen
