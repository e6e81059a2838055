"""What a task measured, as the metadata of a model card name it."""

from typing import NamedTuple


class CardMetric(NamedTuple):
    """A number on a part of a data set; each task's `measured` makes them of its entry in a results file.

    `kind` is a task of the Hub's list, `data` a Hub dataset or another source, `config` a part of it, `name` what
    people call it, `metric` a name for programs and one to read.
    """

    kind: str
    data: str
    name: str
    split: str
    metric: tuple[str, str]
    value: float | None
    config: str | None = None


COSINE_SPEARMAN = ("cosine_spearman", "Spearman × 100 of cosine similarities")
