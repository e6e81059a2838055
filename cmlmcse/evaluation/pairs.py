"""Pairs of your own with human scores: how well the cosine of two sentences follows the score."""

from collections.abc import Iterator
from typing import Any

from cmlmcse.data.lengths import SAMPLE

from .card_metric import COSINE_SPEARMAN, CardMetric
from .encoding import Encode, EncodeOnce
from .scores import correlation, cosine, rounded
from .sts_data import MissingData, Pairs, data_root, read_own_pairs, sentences_of

FOLDER = "pairs"


def load_pairs(data_dir: str | None) -> dict[str, Pairs]:
    """The files `pairs/NAME.tsv` of a data folder, by name. A line is score TAB sentence TAB sentence.

    Raises:
        InputError: as :func:`read_own_pairs`; `MissingData` if there is no file.
    """
    if data_dir is None:
        raise MissingData("pairs: they are your own, and have no Hub dataset; put them into DIR/pairs/NAME.tsv")
    folder = data_root(data_dir, FOLDER)
    found = {path.stem: read_own_pairs(path) for path in sorted(folder.glob("*.tsv"))}
    if not found:
        raise MissingData(f"pairs: no {folder / 'NAME.tsv'}")
    return found


def one_set(encode: Encode, pairs: Pairs, title: str) -> dict[str, Any]:
    """Spearman and Pearson × 100 of cosine and score, None where all cosines are equal; and the number of pairs."""
    encoder = EncodeOnce.of(encode)
    encoder.prepare(sentences_of([pairs]))
    values = correlation(cosine(encoder(pairs.first), encoder(pairs.second)), pairs.scores, title)
    return {**{name: rounded(value) for name, value in values.items()}, "pairs": len(pairs.scores)}


def scored_pairs(encode: Encode, data: dict[str, Pairs]) -> dict[str, Any]:
    """The results of each file (:func:`one_set`), by name."""
    encoder = EncodeOnce.of(encode).prepare(sentences_of(data.values()))
    return {name: one_set(encoder, pairs, name) for name, pairs in data.items()}


def sentences_of_files(data: dict[str, Pairs]) -> dict[str, list[str]]:
    """Some sentences of each file, by its name."""
    return {name: sentences_of([pairs])[:SAMPLE] for name, pairs in data.items()}


def card_metrics(found: dict[str, Any]) -> Iterator[CardMetric]:
    """Each file, for a model card."""
    for name, entry in found.items():
        yield CardMetric("sentence-similarity", name, name, "test", COSINE_SPEARMAN, entry["spearman"])
