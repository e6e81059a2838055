"""Semantic textual similarity: scores on the seven STS sets and the STS-B development set."""

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from .card_metric import COSINE_SPEARMAN, CardMetric
from .metrics import STSCorrelation
from .prompts import bare
from .sts_data import (
    STS_SETS,
    STSB_DEV,
    UNSPLIT,
    MissingData,
    Pairs,
    load_sts,
    load_stsb_dev,
    missing_sts,
    missing_stsb_dev,
    sentences_of,
)
from .tables import STS_COLUMNS

__all__ = ["Encode", "EncodeOnce", "Pairs", "load_sts", "load_stsb_dev", "sts", "stsb_dev"]

logger = logging.getLogger(__name__)

Encode = Callable[[list[str]], np.ndarray]
"""A sentence encoder: N texts → (N, H) array, in input order."""


class EncodeOnce:
    """An encoder that encodes each distinct text once, over all tasks; texts (N,) → (N, H)."""

    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        self.prompts: dict[str, str] = getattr(encode, "prompts", {})
        self._rows: dict[str, int] = {}
        self._table = np.zeros((0, 0), np.float32)  # (distinct texts, H)

    @classmethod
    def of(cls, encode: Encode) -> "EncodeOnce":
        """The encoder itself if it is an EncodeOnce already, else wrapped in one."""
        return encode if isinstance(encode, cls) else cls(encode)

    @cached_property
    def bare(self) -> "EncodeOnce":
        """The encoder without its default prompt; itself if it has none."""
        inner = bare(self._encode)
        return self if inner is self._encode else EncodeOnce(inner)

    def prepare(self, sentences: Iterable[str]) -> "EncodeOnce":
        """Encode the new ones of these sentences in one call; returns self.

        Raises:
            ValueError: the wrapped encoder did not return one row for each sentence.
        """
        new = [text for text in dict.fromkeys(sentences) if text not in self._rows]
        if new:
            vectors = np.asarray(self._encode(new))  # (new, H)
            if vectors.ndim != 2 or len(vectors) != len(new):
                raise ValueError(f"encode must return ({len(new)}, H) for {len(new)} sentences, found {vectors.shape}")
            self._table = np.concatenate([self._table, vectors]) if self._rows else vectors
            self._rows.update(zip(new, range(len(self._rows), len(self._table)), strict=True))
        return self

    def encode_uncached(self, sentences: list[str]) -> np.ndarray:
        """Texts → (N, H), not kept: for more texts than memory can hold."""
        return np.asarray(self._encode(sentences))

    def __call__(self, sentences: list[str]) -> np.ndarray:
        """Texts → (N, H); known texts come from memory."""
        self.prepare(sentences)
        return self._table[[self._rows[text] for text in sentences]]  # (N, H)


def cosine(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """(N, H) and (N, H) → (N,) cosine similarities in float64, 0 for a zero vector."""
    first, second = first.astype(np.float64), second.astype(np.float64)
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)  # (N,)
    return (first * second).sum(axis=1) / np.where(norms == 0, 1, norms)  # (N,)


def correlation(predictions: np.ndarray, references: np.ndarray, what: str) -> dict[str, float | None]:
    """`spearman` and `pearson` in per cent; None, with a warning, if not defined.

    Args:
        predictions, references: (N,).
        what: the name of the data, for the warning.
    """
    values = STSCorrelation().compute(predictions=predictions, references=references)
    if not all(math.isfinite(value) for value in values.values()):
        logger.warning("%s: no correlation, the similarities are constant or not finite", what)
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def spearman(cosines: NDArray[np.float64], gold: NDArray[np.float64]) -> NDArray[np.float64]:
    """(B, N) and (B, N) → (B,) Spearman correlations, average ranks for ties; NaN where one side is constant."""
    first, second = (stats.rankdata(values, axis=1) for values in (cosines, gold))
    first, second = (ranks - ranks.mean(axis=1, keepdims=True) for ranks in (first, second))
    norms = np.sqrt(np.square(first).sum(axis=1) * np.square(second).sum(axis=1))
    return np.divide((first * second).sum(axis=1), norms, out=np.full(len(norms), np.nan), where=norms > 0)


def rounded(value: float | None) -> float | None:
    """Four decimals, as in results files; None for NaN and infinity, which JSON cannot hold."""
    return None if value is None or not math.isfinite(value) else round(float(value), 4)


def sts(encode: Encode, data: dict[str, dict[str, Pairs]]) -> dict[str, Any]:
    """Spearman × 100 of cosine similarity on STS sets (SentEval's settings "all", "mean" and "wmean").

    "all" is one correlation over the concatenated subsets; the papers report this one. "mean" is the mean of the
    subsets' correlations, "wmean" weights them by pairs. "avg" is the mean of "all"; it needs all seven sets.
    """
    encoder = EncodeOnce.of(encode)
    encoder.prepare(sentences_of(pairs for subsets in data.values() for pairs in subsets.values()))
    results: dict[str, Any] = {name: _score_set(encoder, name, subsets) for name, subsets in data.items()}
    if set(STS_SETS) <= set(results):
        whole = average([results[name]["all"] for name in STS_SETS])
        results |= {} if whole is None else {"avg": whole}
    return results


def _score_set(encode: Encode, name: str, subsets: dict[str, Pairs]) -> dict[str, Any]:
    """The results of one set."""
    predicted = {subset: cosine(encode(pairs.first), encode(pairs.second)) for subset, pairs in subsets.items()}
    scores = np.concatenate([pairs.scores for pairs in subsets.values()])  # (N,)
    overall = correlation(np.concatenate(list(predicted.values())), scores, name)["spearman"]
    if list(subsets) == [UNSPLIT]:
        return {"all": rounded(overall), "pairs": len(scores)}
    each = {
        subset: correlation(predicted[subset], pairs.scores, f"{name} {subset}")["spearman"]
        for subset, pairs in subsets.items()
    }
    return {
        "all": rounded(overall),
        "mean": average(list(each.values())),
        "wmean": average(list(each.values()), [len(pairs.scores) for pairs in subsets.values()]),
        "pairs": len(scores),
        "subsets": {subset: rounded(value) for subset, value in each.items()},
    }


def average(values: Sequence[float | None], weights: Sequence[int] | None = None) -> float | None:
    """The (weighted) mean; None if any value is None."""
    present = [value for value in values if value is not None]
    return rounded(np.average(present, weights=weights)) if len(present) == len(values) else None


def stsb_dev(encode: Encode, pairs: Pairs) -> dict[str, Any]:
    """Spearman and Pearson × 100 of cosine similarity on the STS-B development set."""
    return one_set(encode, pairs, "STS-B dev")


def one_set(encode: Encode, pairs: Pairs, title: str) -> dict[str, Any]:
    """Spearman and Pearson × 100 of cosine and score, None where all cosines are equal; and the number of pairs."""
    encoder = EncodeOnce.of(encode)
    encoder.prepare(sentences_of([pairs]))
    values = correlation(cosine(encoder(pairs.first), encoder(pairs.second)), pairs.scores, title)
    return {**{name: rounded(value) for name, value in values.items()}, "pairs": len(pairs.scores)}


def load_sts_task(data_dir: str | None) -> tuple[dict[str, dict[str, Pairs]], Pairs | None]:
    """The data of the task `sts`: the sets, and STS-B dev if it is there."""
    data = load_sts(data_dir)
    try:
        return data, load_stsb_dev(data_dir)
    except MissingData:
        return data, None


def run_sts_task(encode: Encode, data: tuple[dict[str, dict[str, Pairs]], Pairs | None]) -> dict[str, Any]:
    """The entries `sts` and `stsb_dev` of the results."""
    sets, dev = data
    encoder = EncodeOnce.of(encode)
    encoder.prepare(
        sentences_of([*(pairs for subsets in sets.values() for pairs in subsets.values()), *([dev] if dev else [])])
    )
    return {"sts": sts(encoder, sets), **({"stsb_dev": stsb_dev(encoder, dev)} if dev else {})}


def missing_sts_task(data_dir: str | None, data: tuple[dict[str, dict[str, Pairs]], Pairs | None]) -> list[str]:
    """One line for each set that is not in the data."""
    sets, dev = data
    return [*missing_sts(data_dir, sets), *([] if dev else missing_stsb_dev(data_dir))]


def sts_card_metrics(found: dict[str, Any]) -> Iterator[CardMetric]:
    """The seven sets (setting "all"), for a model card."""
    metric = (COSINE_SPEARMAN[0], f"{COSINE_SPEARMAN[1]}, setting all")
    for name, heading in STS_COLUMNS.items():
        if name in found:
            hub, score = STS_SETS[name].hub, found[name]["all"]
            board = (hub, name) if hub.startswith("mteb/") else None  # its SICK-R has other pairs
            yield CardMetric("sentence-similarity", hub, heading, "test", metric, score, benchmark=board)


def stsb_dev_card_metrics(found: dict[str, Any]) -> Iterator[CardMetric]:
    """The development set, for a model card."""
    yield CardMetric("sentence-similarity", STSB_DEV.hub, "STS-B dev", "validation", COSINE_SPEARMAN, found["spearman"])
