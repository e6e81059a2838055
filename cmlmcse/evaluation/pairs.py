"""Pairs of your own with human scores: how well the cosine of two sentences follows the score."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from cmlmcse.common.errors import InputError

from .card_metric import COSINE_SPEARMAN, CardMetric
from .sts import Encode, EncodeOnce, correlation, cosine, rounded
from .sts_data import MissingData, Pairs, data_root, read_pairs, sentences_of

FOLDER = "pairs"


def load_pairs(data_dir: str | None) -> dict[str, Pairs]:
    """The files `pairs/NAME.tsv` of a data folder, by name. A line is score TAB sentence TAB sentence.

    Raises:
        InputError: a malformed line, or a file whose scores are all equal; `MissingData` if there is no file.
    """
    if data_dir is None:
        raise MissingData("pairs: they are your own, and have no Hub dataset; put them into DIR/pairs/NAME.tsv")
    folder = data_root(data_dir, FOLDER)
    found = {path.stem: read_pairs(path) for path in sorted(folder.glob("*.tsv"))}
    if not found:
        raise MissingData(f"pairs: no {folder / 'NAME.tsv'}")
    for name, pairs in found.items():
        if len(np.unique(pairs.scores)) < 2:
            path = folder / f"{name}.tsv"
            raise InputError(f"{path}: expected pairs with at least two different scores, found one; add other pairs")
    return found


def scored_pairs(encode: Encode, data: dict[str, Pairs]) -> dict[str, Any]:
    """Spearman and Pearson × 100 of cosine and score, for each file; None where all cosines are equal."""
    encoder = EncodeOnce.of(encode).prepare(sentences_of(data.values()))
    found = {}
    for name, pairs in data.items():
        values = correlation(cosine(encoder(pairs.first), encoder(pairs.second)), pairs.scores, name)
        found[name] = {**{key: rounded(value) for key, value in values.items()}, "pairs": len(pairs.scores)}
    return found


def card_metrics(found: dict[str, Any]) -> Iterator[CardMetric]:
    """Each file, for a model card."""
    for name, entry in found.items():
        yield CardMetric("sentence-similarity", name, name, "test", COSINE_SPEARMAN, entry["spearman"])
