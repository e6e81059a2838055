"""Retrieval sets that MTEB has on the Hub as well, found by name and size. Their main score is a leaderboard's."""

from typing import Any, NamedTuple


class Benchmark(NamedTuple):
    """A Hub dataset, MTEB's name of the task, and the sizes by which a local copy is known."""

    dataset: str
    task: str
    queries: int
    passages: int


# Folder of a set in BEIR's layout → its benchmark. tests/evaluation/test_mteb.py compares them with mteb.
BENCHMARKS = {
    "scifact": Benchmark("mteb/scifact", "SciFact", 300, 5_183),
    "nfcorpus": Benchmark("mteb/nfcorpus", "NFCorpus", 323, 3_633),
    "arguana": Benchmark("mteb/arguana", "ArguAna", 1_406, 8_674),
    "scidocs": Benchmark("mteb/scidocs", "SCIDOCS", 1_000, 25_657),
    "fiqa": Benchmark("mteb/fiqa", "FiQA2018", 648, 57_638),
    "trec-covid": Benchmark("mteb/trec-covid", "TRECCOVID", 50, 171_332),
}


def retrieval_benchmark(name: str, scores: dict[str, Any]) -> tuple[str, str] | None:
    """The dataset and the task of a set's benchmark; None for a set that only has its name, or an unknown one.

    Args:
        name: the set's folder.
        scores: its results, with the numbers of queries and passages.
    """
    board = BENCHMARKS.get(name)
    if board is None or (scores.get("queries"), scores.get("passages")) != (board.queries, board.passages):
        return None
    return board.dataset, board.task
