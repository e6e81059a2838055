"""Correlation between predicted and human similarity as a local `evaluate.Metric`."""

import math
import warnings
from typing import Any

import datasets
import evaluate
import numpy as np
from scipy import stats


class STSCorrelation(evaluate.Metric):
    """Spearman and Pearson correlation in per cent, average ranks for ties (SentEval, Conneau & Kiela 2018).

    Predictions (N,) and references (N,) → two numbers; both are NaN if one side is constant or not finite. It downloads
    and writes nothing. So it works offline, with a read-only home, in every rank of a distributed run, and in
    concurrent runs. One STS set takes some tens of milliseconds.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"keep_in_memory": True, **kwargs})

    def _info(self) -> evaluate.MetricInfo:
        number = datasets.Value("float64")
        return evaluate.MetricInfo(
            description="Spearman and Pearson correlation of predicted and human similarity, in per cent.",
            citation="",
            inputs_description="predictions: N predicted similarities; references: N human scores.",
            features=datasets.Features({"predictions": number, "references": number}),
        )

    def _build_data_dir(self) -> str:
        """No folder. The base class would create one in the user's cache, even with `keep_in_memory`."""
        return super()._build_data_dir() if not self.keep_in_memory else ""

    def _compute(self, predictions: list[float], references: list[float]) -> dict[str, float]:  # type: ignore[override]
        if len(predictions) < 2 or not np.isfinite([predictions, references]).all():
            return {"spearman": math.nan, "pearson": math.nan}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", stats.ConstantInputWarning)
            return {
                "spearman": 100 * float(stats.spearmanr(predictions, references).statistic),
                "pearson": 100 * float(stats.pearsonr(predictions, references).statistic),
            }
