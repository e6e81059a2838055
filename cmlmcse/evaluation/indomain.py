"""In-domain retrieval: find the paraphrase of a sentence among all sentences of the STS-B test set."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from .card_metric import CardMetric
from .encoding import Encode, EncodeOnce
from .retrieval import exact_unit, search
from .scores import rounded
from .sts_data import STS_SETS, Pairs, sentences_of

POSITIVE_SCORE = 5.0  # the highest score; only this threshold gives the paper's 97 pairs
DEPTHS = (1, 5, 10)  # InfoCSE, Table 11


def indomain(encode: Encode, pairs: Pairs) -> dict[str, Any]:
    """R@1, R@5 and R@10 in per cent (InfoCSE §6.2, Table 11, after DiffCSE).

    Each pair with the score 5 is a query: its first sentence is searched, its second sentence must be among the k
    nearest. The query itself is excluded. The corpus holds the distinct sentences: 2,551 of the 2,758 sides of the
    STS-B test set. With all copies, 31 of the 97 queries would find a copy of themselves first, and R@1 could not
    exceed 68.04; but Table 11 reports 74.23 and more. A sentence with several paraphrases is one query for each of
    them, so R@1 is at most 88.66. A pair of identical sentences is skipped (STS-B has none with this score). Equally
    similar sentences keep their order in the set.
    """
    encoder = EncodeOnce.of(encode)
    sentences = sentences_of([pairs])
    vectors = exact_unit(encoder(sentences))  # (M, H)
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
