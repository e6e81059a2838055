"""SentEval's transfer tasks: how well a logistic regression classifies by frozen sentence embeddings."""

import logging
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from joblib import Parallel, delayed
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import StratifiedKFold
from threadpoolctl import threadpool_limits

from .card_metric import CardMetric
from .sts import Encode, EncodeOnce, rounded
from .sts_data import SENTEVAL
from .transfer_data import TRANSFER_SETS, Examples

logger = logging.getLogger(__name__)

FOLDS = 10  # SentEval's full setting
SEED = 1111  # of the folds, SentEval's
GRID = tuple(2.0**exponent for exponent in range(-2, 4))  # SentEval's C where folds are nested, or dev chooses
TRAIN_GRID = tuple(2.0**exponent for exponent in range(-1, 6))  # SentEval's C where folds of the training part choose


class Part(NamedTuple):
    """Features (N, D) float64 with labels (N,)."""

    features: np.ndarray
    labels: np.ndarray

    def rows(self, chosen: np.ndarray) -> "Part":
        """Some of its rows."""
        return Part(self.features[chosen], self.labels[chosen])


def transfer(encode: Encode, data: dict[str, dict[str, Examples]]) -> dict[str, Any]:
    """Accuracy in per cent on the transfer tasks (SentEval, Conneau & Kiela 2018, §3; InfoCSE §6.1, Table 10).

    As SentEval with its scikit-learn classifier: its order of the examples, stratified folds and grids of C, accuracies
    rounded to two decimals before the first best C is taken, that C on the whole training part, features [|u − v|,
    u · v] for pairs. Three things differ. Every fit is carried on until it has converged, where scikit-learn's default
    solver stops after 100 iterations: on normalised embeddings a matter of hundredths. TREC is one
    softmax, as in today's scikit-learn, where that of SentEval's days fitted each class against the rest. And only
    averages are rounded. The tables of SimCSE, and of papers that took over its script, come from SentEval's other
    classifier, the same model trained in PyTorch by a few epochs of Adam: small differences from them mean little.

    "avg" needs all seven tasks; "f1" holds MRPC's F1. A task whose embeddings are not finite is None.
    """
    once = EncodeOnce.of(encode).prepare(
        text for parts in data.values() for part in parts.values() for side in part.sides for text in side
    )
    results: dict[str, Any] = {}
    f1: dict[str, float | None] = {}
    for name, examples in data.items():
        parts = {part: Part(_features(once, one), one.labels) for part, one in examples.items()}
        if not all(np.isfinite(part.features).all() for part in parts.values()):
            logger.warning("%s: no accuracy, the embeddings are not finite", name)
            results[name] = None
        elif "all" in parts:
            results[name] = rounded(100 * nested(parts["all"]))
        else:
            labels, predicted = parts["test"].labels, classify(parts["train"], parts["test"], parts.get("dev"))
            results[name] = rounded(100 * np.mean(predicted == labels))
            if len(examples["test"].sides) == 2:
                f1[name] = rounded(100 * f1_score(labels, predicted, zero_division=0))
    if set(TRANSFER_SETS) <= set(results) and None not in results.values():
        results["avg"] = rounded(float(np.mean([results[name] for name in TRANSFER_SETS])))
    return {**results, **({"f1": f1} if f1 else {})}


def _features(encode: Encode, examples: Examples) -> np.ndarray:
    """(N, H) for sentences, (N, 2H) for pairs."""
    first, *others = (encode(side).astype(np.float64) for side in examples.sides)  # (N, H) each
    return np.hstack([np.abs(first - others[0]), first * others[0]]) if others else first


def nested(part: Part) -> float:
    """The mean accuracy over ten folds, the C of each chosen by ten folds of the other nine; a fold on each core."""

    def accuracy(rest: np.ndarray, held: np.ndarray) -> float:
        train = part.rows(rest)
        return score(fit(train, cross_validated(train, GRID)), part.rows(held))

    with threadpool_limits(1, user_api="blas"):
        each = Parallel(n_jobs=-1, prefer="threads")(delayed(accuracy)(*fold) for fold in _folds(part))
    return float(np.mean(each))


def classify(train: Part, test: Part, dev: Part | None) -> np.ndarray:
    """The labels (N,) predicted for a test part, with the C that dev chooses, or without dev ten folds of train."""
    if dev is None:
        c = cross_validated(train, TRAIN_GRID)
    else:
        c = first_best(GRID, [score(classifier, dev) for classifier in path(train, GRID)])
    return fit(train, c).predict(test.features)


def cross_validated(train: Part, grid: Sequence[float]) -> float:
    """The C with the best mean accuracy over ten folds of a training part."""
    scores = [
        [score(classifier, train.rows(held)) for classifier in path(train.rows(rest), grid)]
        for rest, held in _folds(train)
    ]
    return first_best(grid, np.mean(scores, axis=0))


def first_best(grid: Sequence[float], accuracies: Sequence[float] | np.ndarray) -> float:
    """The first C of the best accuracy, in per cent to two decimals."""
    return grid[int(np.argmax(np.round(100 * np.asarray(accuracies), 2)))]


def path(train: Part, grid: Sequence[float]) -> Iterator[LogisticRegression]:
    """The classifier fitted with one C after the other, each from where the last one ended.

    For two classes Newton's method, which takes a few steps however the embeddings are scaled; L-BFGS takes hundreds
    where they are not normalised, but Newton's Hessian for more classes is larger by the square of their number.
    """
    solver = "newton-cholesky" if len(np.unique(train.labels)) == 2 else "lbfgs"
    classifier = LogisticRegression(solver=solver, warm_start=True, tol=1e-5, max_iter=10_000)
    for c in grid:
        yield classifier.set_params(C=c).fit(*train)


def fit(train: Part, c: float) -> LogisticRegression:
    """The classifier with this C."""
    return next(path(train, [c]))


def score(classifier: LogisticRegression, part: Part) -> float:
    """The accuracy, from 0 to 1."""
    return float(np.mean(classifier.predict(part.features) == part.labels))


def _folds(part: Part) -> list[tuple[np.ndarray, np.ndarray]]:
    """Ten pairs of the row numbers outside a fold and in it."""
    return list(StratifiedKFold(FOLDS, shuffle=True, random_state=SEED).split(*part))


def card_metrics(found: dict[str, Any]) -> Iterator[CardMetric]:
    """The tasks, for a model card."""
    metric = ("accuracy", "accuracy × 100 of a logistic regression")
    for name in TRANSFER_SETS:
        if name in found:
            yield CardMetric("text-classification", SENTEVAL, name, "test", metric, found[name], name)
