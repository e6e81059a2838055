"""Semantic textual similarity: scores on the seven STS sets and the STS-B development set."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from .card_metric import COSINE_SPEARMAN, CardMetric
from .encoding import Encode, EncodeOnce
from .pairs import one_set
from .scores import average, correlation, cosine, rounded
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

__all__ = ["load_sts", "load_stsb_dev", "sts", "stsb_dev"]


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


def stsb_dev(encode: Encode, pairs: Pairs) -> dict[str, Any]:
    """Spearman and Pearson × 100 of cosine similarity on the STS-B development set."""
    return one_set(encode, pairs, "STS-B dev")


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
