"""Retrieval: exact search by cosine similarity, block by block, with the measures of BEIR and MTEB."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cmlmcse.common.errors import InputError

from .beir_data import RetrievalSet
from .card_metric import CardMetric
from .sts import Encode, EncodeOnce, rounded

BLOCK = 4096  # passages: many enough to sort by length before batching, 25 MB of vectors at H = 768
QUERY_ROWS = 512  # queries compared with a block at once: 512 × 4,096 similarities are 17 MB
DEPTH = 100  # passages a query is answered with: what recall@100 needs, and as deep as "map" looks
TREC_MEASURES = {"ndcg_cut.10", "recall.10,100", "map_cut.100", "recip_rank"}

GRID = 1 << 26  # steps of a coordinate of length 1; finer than float32 tells its larger ones apart
STEPS = 1_000_000  # of similarity 1, which counts to six decimals
POSITIONS = 1 << 40  # more than any corpus has; STEPS · POSITIONS fits into int64
EMPTY = -2 * STEPS * POSITIONS  # the key of no passage: less similar than any


def retrieval(
    encode: Encode,
    data: dict[str, RetrievalSet | None],
    query_prefix: str = "",
    query_suffix: str = "",
    passage_prefix: str = "",
    passage_suffix: str = "",
    block_size: int = BLOCK,
) -> dict[str, Any]:
    """nDCG@10 and other measures of each set, in per cent (BEIR, Thakur et al. 2021; InfoCSE §4.3, Table 3).

    `ndcg@10` (the papers' figure), `recall@10`, `recall@100`, `map` (over the best 100: BEIR's MAP@100) and `mrr@10`
    are means over the queries that have a relevant passage, by trec_eval. "avg", the mean nDCG@10, needs several sets
    and all that are in the folder. A passage with the query's own id is left out, as BEIR does.

    Passages are read, encoded and searched a block at a time, and only the best 100 of each query are kept: memory
    does not grow with the corpus but for its ids. numpy's exact search is enough for this: a product of a passage with
    300 queries is a small part of the work of encoding it.
    """
    once = EncodeOnce.of(encode)
    affixes = {
        "query_prefix": query_prefix,
        "query_suffix": query_suffix,
        "passage_prefix": passage_prefix,
        "passage_suffix": passage_suffix,
    }
    used = {name: text for name, text in affixes.items() if text}
    whole = {name: one for name, one in data.items() if one is not None}
    results: dict[str, Any] = {
        name: {
            **score_set(once, one, (query_prefix, query_suffix), (passage_prefix, passage_suffix), block_size),
            **used,
        }
        for name, one in whole.items()
    }
    if len(whole) == len(data) > 1:
        results["avg"] = rounded(float(np.mean([results[name]["ndcg@10"] for name in whole])))
    return results


def score_set(
    once: EncodeOnce,
    one: RetrievalSet,
    around_query: tuple[str, str],
    around_passage: tuple[str, str],
    block_size: int,
) -> dict[str, Any]:
    """One set's entry of the results.

    Args:
        around_query, around_passage: what is put before and after each text.
        block_size: passages encoded at once.
    """
    names = list(one.qrels)
    queries = unit(once([between(around_query, one.queries[name]) for name in names]))  # (Q, H)
    own = np.array([one.passages.get(name, -1) for name in names])  # (Q,)
    passages = (between(around_passage, text) for text in one.texts())
    positions, steps = search(queries, encoded(once, passages, block_size), own)  # (Q, K), (Q, K)
    ids = list(one.passages)
    run = {
        name: {ids[position]: float(step) for position, step in zip(*found, strict=True) if position >= 0}
        for name, *found in zip(names, positions.tolist(), steps.tolist(), strict=True)
    }
    return {**measures(one.qrels, run), "queries": len(names), "passages": len(ids)}


def between(affixes: tuple[str, str], text: str) -> str:
    """A text with what is put before and after it."""
    return f"{affixes[0]}{text}{affixes[1]}"


def encoded(once: EncodeOnce, texts: Iterable[str], block_size: int) -> Iterator[NDArray[np.float64]]:
    """Texts, `block_size` at a time → (B, H) of length 1, none of them kept.

    Raises:
        ValueError: the encoder did not return one row a text.
    """
    remaining = iter(texts)
    while block := list(islice(remaining, block_size)):
        vectors = once.encode_uncached(block)  # (B, H)
        if vectors.ndim != 2 or len(vectors) != len(block):
            raise ValueError(f"encode must return ({len(block)}, H) for {len(block)} texts, found {vectors.shape}")
        yield unit(vectors)


def unit(vectors: np.ndarray) -> NDArray[np.float64]:
    """(N, H) → (N, H) of length 1, zeros as they are.

    Coordinates are rounded to multiples of 2⁻²⁶. Products and sums of them are then exact in float64, so that a
    similarity is the same to the last bit in whatever block, and in whatever order, it is computed.

    Raises:
        InputError: an embedding that is not finite, which has no neighbours.
    """
    vectors = np.asarray(vectors, np.float64)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)  # (N, 1)
    if not np.isfinite(norms).all():
        raise InputError("retrieval expects finite embeddings, found others; check the model")
    return np.rint(vectors / np.where(norms == 0, 1, norms) * GRID) / GRID


def search(
    queries: NDArray[np.float64],
    blocks: Iterable[NDArray[np.float64]],
    excluded: NDArray[np.int64],
    depth: int = DEPTH,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The nearest of a stream of vectors, exactly: the same whatever the blocks are.

    Similarities count to six decimals; of equally similar vectors the earlier comes first. (trec_eval then orders equal
    ones by id, the last first, as in all BEIR figures.)

    Args:
        queries: (Q, H), as :func:`unit` makes them.
        blocks: (B, H) each, as :func:`unit` makes them.
        excluded: (Q,) the position, counted through all blocks, that is not to be found, −1 for none.
        depth: K, how many are found.

    Returns:
        (Q, K) positions, the nearest first, −1 where there are fewer than K; (Q, K) similarities in steps of 10⁻⁶.
    """
    best = np.full((len(queries), depth), EMPTY)  # (Q, K)
    first = 0
    for vectors in blocks:  # (B, H)
        for start in range(0, len(queries), QUERY_ROWS):
            rows = slice(start, start + QUERY_ROWS)
            found = keys(queries[rows] @ vectors.T, first)  # (q, B)
            own = excluded[rows] - first  # (q,)
            inside = np.flatnonzero((own >= 0) & (own < len(vectors)))
            found[inside, own[inside]] = EMPTY
            best[rows] = np.partition(np.concatenate([best[rows], found], axis=1), -depth, axis=1)[:, -depth:]
        first += len(vectors)
    best = np.sort(best, axis=1)[:, ::-1]
    positions = np.where(best == EMPTY, -1, -best % POSITIONS)
    return positions, (best + positions) // POSITIONS


def keys(similarities: NDArray[np.float64], first: int) -> NDArray[np.int64]:
    """(q, B) → (q, B) one integer each that orders by similarity, then by position (from `first` on), earlier first."""
    steps = np.rint(similarities * STEPS).astype(np.int64)  # (q, B)
    return steps * POSITIONS - np.arange(first, first + similarities.shape[1])


def measures(qrels: dict[str, dict[str, int]], run: dict[str, dict[str, float]]) -> dict[str, float | None]:
    """Means in per cent over the queries of `qrels` (trec_eval; nDCG with linear gains).

    Args:
        qrels: query → passage → relevance, positive for at least one passage.
        run: query → passage → score; a query without an answer scores 0.
    """
    import pytrec_eval

    found = pytrec_eval.RelevanceEvaluator(qrels, TREC_MEASURES).evaluate(run)
    each = [found.get(query, {}) for query in qrels]
    ranks = [values.get("recip_rank", 0.0) for values in each]
    columns = {
        "ndcg@10": [values.get("ndcg_cut_10", 0.0) for values in each],
        "recall@10": [values.get("recall_10", 0.0) for values in each],
        "recall@100": [values.get("recall_100", 0.0) for values in each],
        "map": [values.get("map_cut_100", 0.0) for values in each],
        "mrr@10": [rank if rank > 1 / 10.5 else 0.0 for rank in ranks],  # 1/11 and less: not among the first ten
    }
    return {name: rounded(100 * float(np.mean(values))) for name, values in columns.items()}


def card_metrics(found: dict[str, Any]) -> Iterator[CardMetric]:
    """Each measure of each set, for a model card."""
    for name, scores in found.items():
        for metric, value in scores.items() if isinstance(scores, dict) else ():
            if "@" in metric:
                named = (metric.replace("@", "_at_"), f"{metric} × 100")
                yield CardMetric("text-retrieval", f"BeIR/{name}", name, "test", named, value)
