"""SentEval's transfer tasks: the accuracy of a logistic regression on frozen sentence embeddings."""

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
from .encoding import Encode, EncodeOnce
from .scores import rounded
from .sts_data import SENTEVAL
from .transfer_data import TRANSFER_SETS, Examples

logger = logging.getLogger(__name__)

FOLDS = 10  # as in SentEval's full setting
SEED = 1111  # seed of the folds, as in SentEval
GRID = tuple(2.0**exponent for exponent in range(-2, 4))  # SentEval's values of C for nested folds, and for a dev split
TRAIN_GRID = tuple(2.0**exponent for exponent in range(-1, 6))  # SentEval's values of C for folds of the training part


class Part(NamedTuple):
    """Features (N, D) float64 with labels (N,)."""

    features: np.ndarray
    labels: np.ndarray

    def rows(self, chosen: np.ndarray) -> "Part":
        """The chosen rows, as another part."""
        return Part(self.features[chosen], self.labels[chosen])


def transfer(encode: Encode, data: dict[str, dict[str, Examples]]) -> dict[str, Any]:
    """Accuracy in per cent on the transfer tasks (SentEval, Conneau & Kiela 2018, §3; InfoCSE §6.1, Table 10).

    The method is SentEval's with its scikit-learn classifier: the same order of examples, stratified folds and grids
    of C. Accuracies are rounded to two decimals before the first best C is chosen. The classifier is then fitted with
    this C on the whole training part. The features of a pair are [|u − v|, u · v].

    Three things differ. Every fit runs until it converges; scikit-learn's default solver stops after 100 iterations.
    On normalised embeddings this changes some hundredths. TREC is one softmax, as in current scikit-learn; the version
    of SentEval's time fitted each class against the rest. Only averages are rounded.

    SimCSE's tables, and those of papers that use its script, come from SentEval's other classifier: the same model,
    trained in PyTorch with a few epochs of Adam. So small differences from these tables mean little.

    "avg" needs all seven tasks; "f1" holds MRPC's F1. A task is None if its embeddings are not finite.
    """
    encoder = EncodeOnce.of(encode).prepare(
        text for parts in data.values() for part in parts.values() for side in part.sides for text in side
    )
    results: dict[str, Any] = {}
    f1: dict[str, float | None] = {}
    for name, examples in data.items():
        parts = {part: Part(_features(encoder, labelled), labelled.labels) for part, labelled in examples.items()}
        if not all(np.isfinite(part.features).all() for part in parts.values()):
            logger.warning("%s: no accuracy, the embeddings are not finite", name)
            results[name] = None
        elif "all" in parts:
            results[name] = rounded(100 * nested_accuracy(parts["all"]))
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


def nested_accuracy(part: Part) -> float:
    """Mean accuracy over ten folds. Ten inner folds of the other nine choose C. The folds run in parallel."""

    def accuracy(rest: np.ndarray, held_out: np.ndarray) -> float:
        train = part.rows(rest)
        return score(fit(train, cross_validated(train, GRID)), part.rows(held_out))

    with threadpool_limits(1, user_api="blas"):
        each = Parallel(n_jobs=-1, prefer="threads")(delayed(accuracy)(*fold) for fold in _folds(part))
    return float(np.mean(each))


def classify(train: Part, test: Part, dev: Part | None) -> np.ndarray:
    """The labels (N,) predicted for a test part. The dev part chooses C; without it, ten folds of train do."""
    if dev is None:
        c = cross_validated(train, TRAIN_GRID)
    else:
        c = first_best(GRID, [score(classifier, dev) for classifier in regularisation_path(train, GRID)])
    return fit(train, c).predict(test.features)


def cross_validated(train: Part, grid: Sequence[float]) -> float:
    """The C with the best mean accuracy over ten folds of a training part."""
    scores = [
        [score(classifier, train.rows(held_out)) for classifier in regularisation_path(train.rows(rest), grid)]
        for rest, held_out in _folds(train)
    ]
    return first_best(grid, np.mean(scores, axis=0))


def first_best(grid: Sequence[float], accuracies: Sequence[float] | np.ndarray) -> float:
    """The first C with the best accuracy, compared in per cent with two decimals."""
    return grid[int(np.argmax(np.round(100 * np.asarray(accuracies), 2)))]


def regularisation_path(train: Part, grid: Sequence[float]) -> Iterator[LogisticRegression]:
    """The classifier fitted with each C in turn, starting from the previous solution.

    Two classes use Newton's method: it takes a few steps at any scale of the embeddings. L-BFGS takes hundreds if the
    embeddings are not normalised. But Newton's Hessian grows with the square of the number of classes, so more classes
    use L-BFGS.
    """
    solver = "newton-cholesky" if len(np.unique(train.labels)) == 2 else "lbfgs"
    classifier = LogisticRegression(solver=solver, warm_start=True, tol=1e-5, max_iter=10_000)
    for c in grid:
        yield classifier.set_params(C=c).fit(*train)


def fit(train: Part, c: float) -> LogisticRegression:
    """The classifier with this C."""
    return next(regularisation_path(train, [c]))


def score(classifier: LogisticRegression, part: Part) -> float:
    """The accuracy, from 0 to 1."""
    return float(np.mean(classifier.predict(part.features) == part.labels))


def _folds(part: Part) -> list[tuple[np.ndarray, np.ndarray]]:
    """Ten pairs: row numbers outside a fold, row numbers in it."""
    return list(StratifiedKFold(FOLDS, shuffle=True, random_state=SEED).split(*part))


def card_metrics(found: dict[str, Any]) -> Iterator[CardMetric]:
    """The tasks, for a model card."""
    metric = ("accuracy", "accuracy × 100 of a logistic regression")
    for name in TRANSFER_SETS:
        if name in found:
            yield CardMetric("text-classification", SENTEVAL, name, "test", metric, found[name], name)
