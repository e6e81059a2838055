"""Retrieval: exact search by cosine similarity, in blocks of passages, scored with the metrics of BEIR and MTEB."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cmlmcse.common.errors import InputError
from cmlmcse.common.vectors import unit
from cmlmcse.data.lengths import SAMPLE
from modeling_cmlmcse.prompts import DOCUMENT, QUERY

from .beir_data import RetrievalSet
from .benchmarks import BENCHMARKS, retrieval_benchmark
from .bm25 import BM25, WEIGHT, BM25Shares
from .card_metric import CardMetric
from .encoding import Encode, EncodeOnce, prompt_of
from .scores import rounded

BLOCK = 4096  # passages in a block: enough to sort them by length before batching; 25 MB of vectors at H = 768
QUERY_ROWS = 512  # queries compared with a block at once: 512 × 4,096 similarities are 17 MB
DEPTH = 100  # passages found for each query, as many as recall@100 and MAP@100 need
TREC_MEASURES = {"ndcg_cut.10", "recall.10,100", "map_cut.100", "recip_rank"}

LEXICAL = 30_000  # passages that BM25 is computed for: its index takes some kilobytes a passage
LEXICAL_ROWS = 64  # queries scored by BM25 at once

GRID = 1 << 26  # coordinates are multiples of 1 / GRID; that is finer than float32's resolution of large coordinates
STEPS = 1_000_000  # steps in a similarity of 1: similarities have six decimals
POSITIONS = 1 << 32  # more passages than any corpus has; (1 + HEAVIEST) · STEPS · POSITIONS fits into int64
HEAVIEST = 10  # weight of BM25: trec_eval's numbers hold whole steps up to 2²⁴, which is 16.7 · STEPS
NO_PASSAGE = -2 * STEPS * POSITIONS  # the key of an empty place: below the key of every passage


NDCG = "ndcg@10"  # the papers' figure, and the one whose queries are kept


class Searched(NamedTuple):
    """The results of the searches in some sets.

    Attributes:
        results: set → measures, and "avg".
        queries: set → measure → (Q,) the nDCG@10 × 100 of each query; `ndcg@10`, and `hybrid ndcg@10` with BM25.
    """

    results: dict[str, Any]
    queries: dict[str, dict[str, NDArray[np.float64]]]


def retrieval(encode: Encode, data: dict[str, RetrievalSet | None], **options: Any) -> dict[str, Any]:
    """The results of :func:`search_sets`, which has the arguments."""
    return search_sets(encode, data, **options).results


def search_sets(
    encode: Encode,
    data: dict[str, RetrievalSet | None],
    query_prefix: str | None = None,
    query_suffix: str = "",
    passage_prefix: str | None = None,
    passage_suffix: str = "",
    bm25_weight: float = WEIGHT,
    block_size: int = BLOCK,
) -> Searched:
    """nDCG@10 and other measures of each set, in per cent (BEIR, Thakur et al. 2021; InfoCSE §4.3, Table 3).

    `ndcg@10` (the papers' figure), `recall@10`, `recall@100`, `map` (over the best 100: BEIR's MAP@100) and `mrr@10`
    are means over the queries that have a relevant passage, computed by trec_eval. "avg" is the mean nDCG@10; it needs
    at least two sets, all of them complete. A passage with the query's own id is skipped, as in BEIR.
    `bm25` holds the same measures for a search by words, `hybrid` for one by both: the cosine and `bm25_weight` times
    BM25, which is divided by the query's best. Both are there in sets of at most 30,000 passages, and read the texts
    without prompts.
    A prefix that is None is the model's own prompt of queries or documents, if it has one.

    Passages are read, encoded and searched one block at a time. Only the best 100 of each query are kept, so memory
    grows only with the ids of the corpus. Exact search in numpy is fast enough: comparing a passage with 300 queries
    takes far less time than encoding it.

    Raises:
        InputError: `bm25_weight` out of range.
    """
    if not 0 < bm25_weight <= HEAVIEST:
        raise InputError(f"--retrieval_bm25_weight must be above 0, at most {HEAVIEST}, found {bm25_weight}; lower it")
    query_prefix = prompt_of(encode, QUERY) if query_prefix is None else query_prefix
    passage_prefix = prompt_of(encode, DOCUMENT) if passage_prefix is None else passage_prefix
    encoder = EncodeOnce.of(encode)
    affixes = {
        "query_prefix": query_prefix,
        "query_suffix": query_suffix,
        "passage_prefix": passage_prefix,
        "passage_suffix": passage_suffix,
    }
    used: dict[str, Any] = {name: text for name, text in affixes.items() if text}
    used |= {"bm25_weight": bm25_weight} if bm25_weight != WEIGHT else {}
    complete = {name: dataset for name, dataset in data.items() if dataset is not None}
    around = (query_prefix, query_suffix), (passage_prefix, passage_suffix)
    found = {
        name: score_set(encoder.by_set.get(name, encoder).bare, dataset, *around, bm25_weight, block_size)
        for name, dataset in complete.items()
    }
    results: dict[str, Any] = {name: {**measured, **used} for name, (measured, _) in found.items()}
    if len(complete) == len(data) > 1:
        results["avg"] = rounded(float(np.mean([results[name][NDCG] for name in complete])))
    return Searched(results, {name: queries for name, (_, queries) in found.items()})


def some_passages(data: dict[str, RetrievalSet | None]) -> dict[str, list[str]]:
    """A sample of the passages of each set that is there, spread over it, by its name."""
    complete = {name: dataset for name, dataset in data.items() if dataset is not None}
    steps = {name: max(len(dataset.passages) // SAMPLE, 1) for name, dataset in complete.items()}
    return {name: list(islice(dataset.texts(), 0, None, steps[name])) for name, dataset in complete.items()}


def score_set(
    encoder: EncodeOnce,
    dataset: RetrievalSet,
    around_query: tuple[str, str],
    around_passage: tuple[str, str],
    bm25_weight: float,
    block_size: int,
) -> tuple[dict[str, Any], dict[str, NDArray[np.float64]]]:
    """The measures of one set, and the nDCG@10 × 100 of its queries (:class:`Searched`).

    Args:
        around_query, around_passage: (prefix, suffix) of each text.
        bm25_weight: of BM25 beside the cosine.
        block_size: passages encoded at once.
    """
    names, ids = list(dataset.qrels), list(dataset.passages)
    asked = [dataset.queries[name] for name in names]
    queries = exact_unit(encoder([add_affixes(around_query, text) for text in asked]))  # (Q, H)
    own = np.array([dataset.passages.get(name, -1) for name in names])  # (Q,)
    index = BM25(dataset.texts()) if len(ids) <= LEXICAL else None
    searches = [Nearest(queries, own)]
    if index:
        searches.append(Nearest(queries, own, shares=BM25Shares(index, asked, own), weight=bm25_weight))
    passages = (add_affixes(around_passage, text) for text in dataset.texts())
    for vectors in encode_blocks(encoder, passages, block_size):
        for each in searches:
            each.add(vectors)
    cosine, *hybrid = (by_query(dataset.qrels, as_run(each, names, ids)) for each in searches)
    found: dict[str, Any] = {**means(cosine), "queries": len(names), "passages": len(ids)}
    kept = {NDCG: cosine[NDCG]}
    if index is not None:
        words = by_query(dataset.qrels, search_words(index, asked, names, ids, own))
        found |= {"bm25": means(words), "hybrid": means(hybrid[0])}
        kept[f"hybrid {NDCG}"] = hybrid[0][NDCG]
    return found, kept


def as_run(nearest: "Nearest", names: list[str], ids: list[str]) -> dict[str, dict[str, float]]:
    """The passages that were found: query → passage → similarity.

    Args:
        nearest: the search, after it has seen all passages.
        names: the names of the queries.
        ids: the ids of the passages.
    """
    return {
        name: {ids[position]: float(step) for position, step in zip(*found, strict=True) if position >= 0}
        for name, *found in zip(names, *(values.tolist() for values in nearest.found()), strict=True)
    }


def search_words(
    index: BM25, asked: list[str], names: list[str], ids: list[str], own: NDArray[np.int64]
) -> dict[str, dict[str, float]]:
    """query → passage → score of BM25, for the best passages that share a word with the query.

    Args:
        index: the BM25 index of the passages.
        asked: the texts of the queries.
        names, ids: the names of the queries and the ids of the passages.
        own: (Q,) position of a passage that a query must not find; −1 for none.
    """
    run = {}
    for start in range(0, len(names), LEXICAL_ROWS):
        rows = slice(start, start + LEXICAL_ROWS)
        scores = index.scores(asked[rows])  # (q, C)
        for name, values, excluded in zip(names[rows], scores, own[rows], strict=True):
            if excluded >= 0:
                values[excluded] = 0
            best = np.argsort(-values, kind="stable")[:DEPTH]
            run[name] = {ids[place]: float(values[place]) for place in best if values[place] > 0}
    return run


def add_affixes(affixes: tuple[str, str], text: str) -> str:
    """A text with its prefix and suffix."""
    return f"{affixes[0]}{text}{affixes[1]}"


def encode_blocks(encoder: EncodeOnce, texts: Iterable[str], block_size: int) -> Iterator[NDArray[np.float64]]:
    """Texts, `block_size` at a time → (B, H) of length 1. No block is kept in memory.

    Raises:
        ValueError: the encoder did not return one row for each text.
    """
    remaining = iter(texts)
    while block := list(islice(remaining, block_size)):
        vectors = encoder.encode_uncached(block)  # (B, H)
        if vectors.ndim != 2 or len(vectors) != len(block):
            raise ValueError(f"encode must return ({len(block)}, H) for {len(block)} texts, found {vectors.shape}")
        yield exact_unit(vectors)


def exact_unit(vectors: np.ndarray) -> NDArray[np.float64]:
    """(N, H) → (N, H) of length 1; zero vectors stay zero.

    Coordinates are rounded to multiples of 2⁻²⁶. Their products and sums are then exact in float64. So a similarity has
    the same bits in every block size and order of computation.

    Raises:
        InputError: an embedding is not finite.
    """
    vectors = np.asarray(vectors, np.float64)
    if not np.isfinite(vectors).all():
        raise InputError("a search expects finite embeddings, found NaN or infinity; check the model")
    return np.rint(unit(vectors) * GRID) / GRID


def search(
    queries: NDArray[np.float64],
    blocks: Iterable[NDArray[np.float64]],
    excluded: NDArray[np.int64],
    depth: int = DEPTH,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The exact nearest neighbours in a stream of vectors (:class:`Nearest`).

    Args:
        queries: (Q, H), from :func:`exact_unit`.
        blocks: (B, H) each, from :func:`exact_unit`.
        excluded: (Q,) position that a query must not find, counted over all blocks; −1 for none.
        depth: K, the number of neighbours.

    Returns:
        (Q, K) positions, nearest first, −1 if there are fewer than K; (Q, K) similarities in units of 10⁻⁶.
    """
    nearest = Nearest(queries, excluded, depth)
    for vectors in blocks:
        nearest.add(vectors)
    return nearest.found()


class Nearest:
    """The exact nearest neighbours in a stream of vectors. The size of its blocks does not change the result.

    Similarities are rounded to six decimals; of equally similar vectors the earlier comes first. (trec_eval then orders
    equal ones by descending id, as in all BEIR figures.)

    Args:
        queries, excluded, depth: as in :func:`search`.
        shares: the BM25 shares of the passages; a similarity is then the cosine + `weight` · share.
    """

    def __init__(
        self,
        queries: NDArray[np.float64],
        excluded: NDArray[np.int64],
        depth: int = DEPTH,
        shares: BM25Shares | None = None,
        weight: float = WEIGHT,
    ) -> None:
        self._queries, self._excluded, self._depth = queries, excluded, depth
        self._shares, self._weight = shares, weight
        self._best = np.full((len(queries), depth), NO_PASSAGE)  # (Q, K)
        self._first = 0

    def add(self, vectors: NDArray[np.float64]) -> None:
        """Compare the next vectors of the stream (B, H) with every query."""
        first, last = self._first, self._first + len(vectors)
        for start in range(0, len(self._queries), QUERY_ROWS):
            rows = slice(start, start + QUERY_ROWS)
            similarities = self._queries[rows] @ vectors.T  # (q, B)
            if self._shares:
                similarities += self._weight * self._shares(slice(first, last), rows)
            found = ranking_keys(similarities, first)  # (q, B)
            own = self._excluded[rows] - first  # (q,)
            inside = np.flatnonzero((own >= 0) & (own < len(vectors)))
            found[inside, own[inside]] = NO_PASSAGE
            both = np.concatenate([self._best[rows], found], axis=1)
            self._best[rows] = np.partition(both, -self._depth, axis=1)[:, -self._depth :]
        self._first = last

    def found(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(Q, K) positions and similarities, as :func:`search` returns them."""
        best = np.sort(self._best, axis=1)[:, ::-1]
        positions = np.where(best == NO_PASSAGE, -1, -best % POSITIONS)
        return positions, (best + positions) // POSITIONS


def ranking_keys(similarities: NDArray[np.float64], first: int) -> NDArray[np.int64]:
    """(q, B) → (q, B) integers to sort by: similarity first, then position, counted from `first`, earlier first."""
    steps = np.rint(similarities * STEPS).astype(np.int64)  # (q, B)
    return steps * POSITIONS - np.arange(first, first + similarities.shape[1])


def by_query(qrels: dict[str, dict[str, int]], run: dict[str, dict[str, float]]) -> dict[str, NDArray[np.float64]]:
    """Metrics in per cent, (Q,) for the queries of `qrels` (trec_eval; nDCG with linear gains).

    Args:
        qrels: query → passage → relevance, positive for at least one passage.
        run: query → passage → score; a query that is missing scores 0.
    """
    import pytrec_eval

    found = pytrec_eval.RelevanceEvaluator(qrels, TREC_MEASURES).evaluate(run)
    each = [found.get(query, {}) for query in qrels]
    ranks = [values.get("recip_rank", 0.0) for values in each]
    columns = {
        NDCG: [values.get("ndcg_cut_10", 0.0) for values in each],
        "recall@10": [values.get("recall_10", 0.0) for values in each],
        "recall@100": [values.get("recall_100", 0.0) for values in each],
        "map": [values.get("map_cut_100", 0.0) for values in each],
        "mrr@10": [rank if rank > 1 / 10.5 else 0.0 for rank in ranks],  # 1/11 or less: not among the first ten
    }
    return {name: 100 * np.array(values) for name, values in columns.items()}


def means(values: dict[str, NDArray[np.float64]]) -> dict[str, float | None]:
    """The mean of each metric over the queries."""
    return {name: rounded(float(each.mean())) for name, each in values.items()}


def card_metrics(found: dict[str, Any]) -> Iterator[CardMetric]:
    """Each measure of each set, for a model card."""
    for name, scores in found.items():
        for metric, value in scores.items() if isinstance(scores, dict) else ():
            if "@" in metric:
                named = (metric.replace("@", "_at_"), f"{metric} × 100")
                board = retrieval_benchmark(name, scores) if metric == NDCG else None
                hub = f"BeIR/{name}" if name in BENCHMARKS else name  # a folder's name says nothing of a Hub dataset
                yield CardMetric("text-retrieval", hub, name, "test", named, value, benchmark=board)
