"""Similarity of the 50 news texts of Lee, Pincombe & Welsh (2005). They come with gensim: nothing is downloaded."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from cmlmcse.common.errors import InputError

from .card_metric import COSINE_SPEARMAN, CardMetric
from .encoding import Encode
from .pairs import one_set
from .sts_data import Pairs, sentences_of

DOCUMENTS = 50
PAIRS = DOCUMENTS * (DOCUMENTS - 1) // 2  # 1225


def _gensim_data_folder() -> Path:
    """The folder of gensim's test data, found without importing gensim."""
    spec = find_spec("gensim")
    if spec is None or not spec.submodule_search_locations:
        raise InputError('the Lee similarities come with gensim, which was not found; pip install "cmlmcse[wiki]"')
    return Path(spec.submodule_search_locations[0]) / "test" / "test_data"


def load_lee50(folder: str | Path | None = None) -> Pairs:
    """The 1,225 pairs of different documents, with their mean human ratings from 0 to 1.

    Args:
        folder: where the two files are (default: gensim's test data).

    Raises:
        InputError: gensim or one of the two files is missing, or a file does not hold 50 documents or 1225 pairs.
    """
    data_folder = _gensim_data_folder() if folder is None else Path(folder)
    corpus, matrix = data_folder / "lee.cor", data_folder / "similarities0-1.txt"
    for file in (corpus, matrix):
        if not file.is_file():
            raise InputError(f"{file.name}: expected it in gensim's test data, found no such file; reinstall gensim")
    documents = [line.strip() for line in corpus.read_text("latin-1").split("\n") if line.strip()]
    if len(documents) != DOCUMENTS:
        raise InputError(f"{corpus.name}: expected {DOCUMENTS} documents, found {len(documents)}; reinstall gensim")
    try:
        scores = np.loadtxt(matrix, ndmin=2)  # (50, 50)
    except ValueError as error:
        raise InputError(f"{matrix.name}: expected a matrix, found {error}; reinstall gensim") from error
    if scores.shape != (DOCUMENTS, DOCUMENTS):
        pairs = f"{PAIRS} pairs ({DOCUMENTS} x {DOCUMENTS})"
        found = " x ".join(map(str, scores.shape))
        raise InputError(f"{matrix.name}: expected {pairs}, found {found}; reinstall gensim")
    first, second = np.triu_indices(DOCUMENTS, 1)  # (1225,), (1225,)
    upper = scores[first, second]  # (1225,)
    if not ((upper > 0) & (upper <= 1)).all():
        raise InputError(
            f"{matrix.name}: expected {PAIRS} pairs with scores from 0 to 1, found other values; reinstall gensim"
        )
    return Pairs(upper, [documents[i] for i in first], [documents[i] for i in second])


def load_lee50_task(data_dir: str | None) -> Pairs:
    """The data of the task `lee50`. They come with gensim, so a data folder is not read."""
    return load_lee50()


def lee50(encode: Encode, pairs: Pairs) -> dict[str, Any]:
    """The results of the documents (:func:`one_set`)."""
    return one_set(encode, pairs, "Lee")


def documents(pairs: Pairs) -> list[str]:
    """The documents, each once."""
    return sentences_of([pairs])


def card_metrics(found: dict[str, float]) -> Iterator[CardMetric]:
    """The documents, for a model card."""
    yield CardMetric("sentence-similarity", "gensim", "Lee et al. 2005", "test", COSINE_SPEARMAN, found["spearman"])
