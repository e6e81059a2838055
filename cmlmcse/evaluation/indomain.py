"""In-domain retrieval: the paraphrase of a sentence among all sentences of the STS-B test set."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from .card_metric import CardMetric
from .retrieval import search, unit
from .sts import Encode, EncodeOnce, rounded
from .sts_data import STS_SETS, Pairs, sentences_of

POSITIVE_SCORE = 5.0  # the end of the scale: this alone gives the 97 pairs of the paper
DEPTHS = (1, 5, 10)  # InfoCSE, Table 11


def indomain(encode: Encode, pairs: Pairs) -> dict[str, Any]:
    """R@1, R@5 and R@10 in per cent (InfoCSE §6.2, Table 11, after DiffCSE).

    Each pair with the score 5 is a query, its first sentence, whose second sentence is looked for among the k nearest
    of the corpus without the query itself. A sentence that occurs several times is one of the corpus: of the 2,758
    sides of the STS-B test set 2,551 are distinct. Were every copy in it, then 31 of the 97 queries would find a copy
    of themselves first and R@1 could not exceed 68.04, but Table 11 has 74.23 and more. A query that has several
    paraphrases counts once for each, and each must be found; so R@1 can reach 88.66 at most. A pair of identical
    sentences (STS-B has none with this score) is no query. Equally similar sentences keep their order in the set.
    """
    once = EncodeOnce.of(encode)
    sentences = sentences_of([pairs])
    vectors = unit(once(sentences))  # (M, H)
    row = {text: index for index, text in enumerate(sentences)}
    chosen = [
        (row[first], row[second])
        for score, first, second in zip(*pairs, strict=True)
        if score >= POSITIVE_SCORE and first != second
    ]
    queries, answers = np.array(chosen, np.int64).reshape(-1, 2).T  # (Q,), (Q,)
    found, _ = search(vectors[queries], [vectors], queries, max(DEPTHS))  # (Q, K)
    hits = found == answers[:, None]  # (Q, K)
    recall = {f"r@{k}": rounded(100 * hits[:, :k].any(axis=1).mean()) if chosen else None for k in DEPTHS}
    return {**recall, "queries": len(chosen), "sentences": len(sentences)}


def card_metrics(found: dict[str, Any]) -> Iterator[CardMetric]:
    """The recalls, for a model card."""
    hub, name = STS_SETS["STSBenchmark"].hub, "paraphrases within STS-B test"
    for depth in DEPTHS:
        metric = (f"recall_at_{depth}", f"R@{depth} × 100")
        yield CardMetric("text-retrieval", hub, name, "test", metric, found.get(f"r@{depth}"))
