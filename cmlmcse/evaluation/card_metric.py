"""A measured number with the names that a model card's metadata needs."""

from typing import NamedTuple


class CardMetric(NamedTuple):
    """A number measured on one split of a data set. Each task's `card_metrics` makes them from its results.

    `kind`: the task's name on the Hub. `data`: a Hub dataset or another source. `config`: the dataset's configuration.
    `name`: the data set's name for readers. `metric`: the metric's name for programs, and its name for readers.
    `benchmark`: the Hub dataset and the task of the leaderboard whose main score this number is, if there is one.
    """

    kind: str
    data: str
    name: str
    split: str
    metric: tuple[str, str]
    value: float | None
    config: str | None = None
    benchmark: tuple[str, str] | None = None


COSINE_SPEARMAN = ("cosine_spearman", "Spearman × 100 of cosine similarities")
