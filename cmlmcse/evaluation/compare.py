"""Is one model better than another, or is it chance? Bootstrap intervals of differences in pairs and searches."""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cmlmcse.common.tables import DASH, markdown_table

from .bootstrap import RESAMPLES, ends, resampled
from .encoding import Encode, EncodeOnce
from .retrieval import NDCG
from .scores import cosine, rounded, spearman
from .sts_data import STS_SETS, Pairs
from .tables import STS_COLUMNS

SEED = 0  # of the resamples, the same for every model
FEWEST = 10  # queries, below which a set has no interval: samples of so few repeat each other. A choice by hand

ByQuery = dict[str, dict[str, NDArray[np.float64]]]  # set → measure → (Q,) values, from retrieval.Searched


class Scored(NamedTuple):
    """Human scores (N,) of a set, and a model's cosine similarities (N,) of the same pairs; subsets concatenated."""

    gold: NDArray[np.float64]
    cosines: NDArray[np.float64]


def score_pairs(encode: Encode, sets: dict[str, dict[str, Pairs]]) -> dict[str, Scored]:
    """The similarities of all pairs, for each STS set."""
    encoder = EncodeOnce.of(encode)
    return {
        name: Scored(
            np.concatenate([pairs.scores for pairs in subsets.values()]),
            np.concatenate([cosine(encoder(pairs.first), encoder(pairs.second)) for pairs in subsets.values()]),
        )
        for name, subsets in sets.items()
    }


def bootstrap_differences(
    first: dict[str, Scored], second: dict[str, Scored], resamples: int = RESAMPLES
) -> dict[str, Any]:
    """Spearman × 100 of `second` minus that of `first` on each set; also "avg" if all seven sets are there.

    Paired bootstrap (Efron & Tibshirani 1993, §16): in each set, a resample draws pairs with replacement, the same
    pairs for both models. The interval is the middle 95 % of the resampled differences. It shows how much the choice
    of test pairs matters. It says nothing about the seeds of training.

    Returns:
        set → `difference`, `low` and `high`.
    """
    rng = np.random.default_rng(SEED)
    points, samples = {}, {}
    for name in first:
        change = partial(_spearman_change, first[name], second[name])
        count = len(first[name].gold)
        points[name] = float(change(np.arange(count)[None])[0])
        samples[name] = resampled(rng, count, change, resamples)
    if set(STS_SETS) <= set(points):
        points["avg"] = float(np.mean([points[name] for name in STS_SETS]))
        samples["avg"] = np.mean([samples[name] for name in STS_SETS], axis=0)  # (resamples,)
    return {name: _interval(point, samples[name]) for name, point in points.items()}


def query_differences(first: ByQuery, second: ByQuery, average: bool, resamples: int = RESAMPLES) -> dict[str, Any]:
    """nDCG@10 × 100 of `second` minus that of `first` on each set, alone and with BM25.

    Paired bootstrap, as in :func:`bootstrap_differences`: a resample draws queries with replacement.

    Args:
        first, second: from `search_sets`, on the same data.
        average: whether "avg", the mean over the sets, is added.

    Returns:
        measure → set → `difference`, `low` and `high`; None for the ends with fewer than `FEWEST` queries.
    """
    found: dict[str, Any] = {}
    for measure in dict.fromkeys(measure for values in first.values() for measure in values):
        changes = {name: second[name][measure] - values[measure] for name, values in first.items() if measure in values}
        points = [float(change.mean()) for change in changes.values()]
        samples = [_resampled_means(change, place, resamples) for place, change in enumerate(changes.values())]
        found[measure] = dict(zip(changes, map(_interval, points, samples), strict=True))
        if average and len(changes) == len(first):
            found[measure]["avg"] = _interval(float(np.mean(points)), np.mean(samples, axis=0))
    return found


def _spearman_change(first: Scored, second: Scored, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """(B, N) rows of pairs → (B,) Spearman × 100 of `second` minus that of `first`."""
    gold = first.gold[rows]
    return 100 * (spearman(second.cosines[rows], gold) - spearman(first.cosines[rows], gold))


def _resampled_means(changes: NDArray[np.float64], place: int, resamples: int) -> NDArray[np.float64]:
    """(Q,) changes of the queries of the set at this place → (R,) their mean in each sample; NaN for too few."""
    if len(changes) < FEWEST:
        return np.full(resamples, np.nan)
    rng = np.random.default_rng([SEED, place])
    return resampled(rng, len(changes), lambda rows: changes[rows].mean(axis=1), resamples)


def _interval(point: float, samples: NDArray[np.float64]) -> dict[str, float | None]:
    """A difference and its interval; None if all similarities of a resample are equal."""
    low, high = ends(samples)
    return {"difference": rounded(point), "low": rounded(low), "high": rounded(high)}


def format_differences(differences: dict[str, dict[str, Any]], baseline: str) -> str:
    """The differences to a baseline as a Markdown table. Bold: the interval does not contain zero."""
    names = list(next(iter(differences.values())))
    headings = ["Avg." if name == "avg" else STS_COLUMNS.get(name, name) for name in names]
    rows = ([model, *(_cell(found[name]) for name in names)] for model, found in differences.items())
    return markdown_table([f"Difference to {baseline}", *headings], rows)


def format_query_differences(differences: dict[str, dict[str, Any]], baseline: str) -> str:
    """The differences of searches to a baseline as a Markdown table: a row for each model, and one for it with BM25."""
    sets = list(next(iter(differences.values()))[NDCG])
    rows = [
        [
            model if measure == NDCG else f"{model}, with BM25",
            *(_cell(found[name]) if name in found else DASH for name in sets),
        ]
        for model, measures in differences.items()
        for measure, found in measures.items()
    ]
    return markdown_table([f"Difference to {baseline}, nDCG@10 × 100", *sets], rows)


def _cell(found: dict[str, float | None]) -> str:
    """One cell: a difference with its interval."""
    if found["low"] is None or found["high"] is None:
        return DASH
    text = f"{found['difference']:+.2f} [{found['low']:+.2f}, {found['high']:+.2f}]"
    return f"**{text}**" if found["low"] > 0 or found["high"] < 0 else text
