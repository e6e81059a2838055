"""Statistics of a study: means, and paired differences with confidence intervals."""

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from cmlmcse.common.run_files import RESULTS, RUN

from .plan import Run, Study
from .runner import is_done, read_json

CONFIDENCE = 0.95
RUNS = "runs.csv"
CURVES = {"dev_score": "development score", "vector_gain": "vector gain, nats a masked word"}  # measured at evaluations
TITLES = {
    "dev.spearman": "development set, Spearman × 100",
    "sts.avg": "seven STS sets, Spearman × 100",
    "indomain.r@1": "in-domain, recall@1 × 100",
}
Row = dict[str, Any]


@dataclass(frozen=True)
class Estimate:
    """A mean over n seeds with its standard deviation (n − 1) and its 95 % confidence interval (Student's t).

    Standard deviation and interval are None for n = 1.
    """

    n: int
    mean: float
    sd: float | None
    low: float | None
    high: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Estimate | None":
        """The estimate from n values; None for n = 0."""
        n = len(values)
        if n == 0:
            return None
        mean = float(np.mean(values))
        if n == 1:
            return cls(1, mean, None, None, None)
        sd = float(np.std(values, ddof=1))
        half = float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1)) * sd / math.sqrt(n)
        return cls(n, mean, sd, mean - half, mean + half)


@dataclass(frozen=True)
class Comparison:
    """One arm on one metric: its scores, and its paired difference from the baseline (None for the baseline)."""

    scores: Estimate | None
    difference: Estimate | None


@dataclass(frozen=True)
class Choice:
    """The setting of a method that its runs on the development set chose.

    Attributes:
        arm: the arm with the best mean, over the seeds that all settings of the method have.
        second: the next best arm; None if the method has one setting.
        lead: by how much `arm` is better than `second`, paired by seed.
    """

    arm: str
    second: str | None
    lead: Estimate | None

    @property
    def clear(self) -> bool:
        """Whether the seeds can tell the two apart."""
        return self.lead is not None and self.lead.low is not None and self.lead.low > 0


def measure_title(metric: str) -> str:
    """A metric's name for the axis of a plot, such as "seven STS sets, Spearman × 100" for `sts.avg`."""
    if metric in TITLES:
        return TITLES[metric]
    task, *names = metric.split(".")
    return f"{names[0]}, nDCG@10 × 100" if task == "retrieval" and names[1:] == ["ndcg@10"] else metric


def lookup(results: Any, path: str) -> float | None:
    """The number at a path such as `sts.avg`; None if there is no finite number."""
    for name in path.split("."):
        results = results.get(name) if isinstance(results, dict) else None
    number = isinstance(results, (int, float)) and not isinstance(results, bool)
    return float(results) if number and math.isfinite(results) else None


def table(study: Study) -> list[Row]:
    """One row for each finished run: arm, seed, metrics, cost, and a hash of its fields. A run without a folder has its
    row of the study's runs.csv, so that a clone can draw and compare what is recorded, and add to it."""
    recorded = {(row["arm"], row["seed"]): row for row in _recorded(study)}
    found = [_row(study, run) if is_done(run) else recorded.get((run.arm, run.seed)) for run in study.runs]
    rows = [row for row in found if row is not None]
    names = dict.fromkeys(name for row in rows for name in row)  # rows of older versions have fewer
    return [{name: row.get(name) for name in names} for row in rows]


def _row(study: Study, run: Run) -> Row:
    """The row of a finished run."""
    results, record, begun = (read_json(run.folder / name) or {} for name in (RESULTS, RUN, "fields.json"))
    return {
        "study": study.name,
        "arm": run.arm,
        "seed": run.seed,
        **{metric: lookup(results, metric) for metric in study.metrics},
        **{name: record.get(name) for name in ("train_seconds", "steps", "tokens", "git_commit")},
        "device": (record.get("hardware") or {}).get("device"),
        "fields": begun.get("asked"),
        **({"uncommitted_changes": True} if record.get("uncommitted_changes") else {}),
    }


def _recorded(study: Study) -> list[Row]:
    """The rows of runs.csv for arms and seeds that the study still has, if it still asks the same of the arm. Rows of
    older versions do not say what was asked, and stay."""
    path = study.folder / RUNS
    if not path.is_file():
        return []
    with open(path, newline="", encoding="utf-8") as file:
        rows: list[Row] = [dict(row) for row in csv.DictReader(file)]
    for row in rows:
        row |= {metric: float(row[metric]) if row.get(metric) else None for metric in study.metrics}
        row |= {name: int(row[name]) if row.get(name) else None for name in ("seed", "steps", "tokens")}
        row["train_seconds"] = float(row["train_seconds"]) if row.get("train_seconds") else None
        if "uncommitted_changes" in row:
            row["uncommitted_changes"] = True if row["uncommitted_changes"] else None
    asked = {arm: study.asked(arm) for arm in study.arms}
    kept = [row for row in rows if row["arm"] in asked and row["seed"] in study.seeds]
    return [row for row in kept if not row.get("fields") or row["fields"] == asked[row["arm"]]]


def curves(study: Study) -> list[Row]:
    """One row for each evaluation of each finished run: its step and the logged quantities of :data:`CURVES`."""
    rows = []
    for run in study.runs:
        if is_done(run):
            log = (read_json(run.folder / RUN) or {}).get("log") or []
            for entry in log:
                measured = {name: entry.get(f"eval_{name}") for name in CURVES}
                if any(value is not None for value in measured.values()):
                    rows.append({"arm": run.arm, "seed": run.seed, "step": entry["step"], **measured})
    return rows


def scores_of(study: Study, rows: Sequence[Row], metric: str) -> dict[str, dict[int, float]]:
    """Arm → seed → the metric, where it was measured."""
    scores: dict[str, dict[int, float]] = {arm: {} for arm in study.arms}
    for row in rows:
        if row[metric] is not None:
            scores[row["arm"]][row["seed"]] = row[metric]
    return scores


def choose(study: Study, rows: Sequence[Row]) -> dict[str, Choice]:
    """Method → its setting. A method without a seed that all of its settings have finished is left out."""
    chosen: dict[str, Choice] = {}
    for method, arms in study.methods.items():
        scores = scores_of(study, rows, study.dev_metric)
        seeds = sorted(set.intersection(*(set(scores[arm]) for arm in arms)))
        if not seeds:
            continue
        best, *others = sorted(arms, key=lambda arm: np.mean([scores[arm][seed] for seed in seeds]), reverse=True)
        second = others[0] if others else None
        lead = Estimate.of([scores[best][seed] - scores[second][seed] for seed in seeds]) if second else None
        chosen[method] = Choice(best, second, lead)
    return chosen


def baseline_arm(study: Study, rows: Sequence[Row]) -> str | None:
    """The arm that the others are compared with; None if the baseline is a method without a choice yet."""
    if not study.methods:
        return study.baseline
    choice = choose(study, rows).get(study.baseline)
    return choice.arm if choice else None


def compare(study: Study, rows: Sequence[Row]) -> dict[str, dict[str, Comparison]]:
    """Metric → arm → comparison with the baseline, over the seeds that both arms have."""
    compared: dict[str, dict[str, Comparison]] = {}
    baseline = baseline_arm(study, rows)
    for metric in study.metrics:
        scores = scores_of(study, rows, metric)
        base = scores[baseline] if baseline else {}
        compared[metric] = {
            arm: Comparison(
                Estimate.of(list(by_seed.values())),
                None
                if arm == baseline
                else Estimate.of([value - base[seed] for seed, value in by_seed.items() if seed in base]),
            )
            for arm, by_seed in scores.items()
        }
    return compared
