"""Development sets that choose the best checkpoint, found by name in `DEV_SETS`."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from datasets import Dataset
from numpy.typing import NDArray

from cmlmcse.common.errors import InputError
from cmlmcse.evaluation.bootstrap import OfSamples
from cmlmcse.evaluation.choose_criterion import choose_criterion
from cmlmcse.evaluation.combined import CombinedCriterion, asked_together
from cmlmcse.evaluation.criterion import Criterion
from cmlmcse.evaluation.encoding import Encode, EncodeOnce
from cmlmcse.evaluation.scores import correlation, cosine, spearman
from cmlmcse.evaluation.sts_data import Pairs, load_stsb_dev, read_own_pairs, sentences_of

from .fields import LABEL_FREE, UNSCORED


class DevScore(OfSamples, Protocol):
    """A development set: a value for each item, and one score for all of them, higher is better."""

    @property
    def title(self) -> str:
        """The set's name in tables and plots."""

    def values(self, encode: Encode) -> NDArray[np.float64]:
        """(N,) one value for each item."""

    def summary(self, values: NDArray[np.float64]) -> float:
        """The score, from the values."""

    def score(self, encode: Encode) -> float:
        """The score of an encoder."""


class DevSet(NamedTuple):
    """N sentence pairs with human scores."""

    title: str
    pairs: Pairs

    def values(self, encode: Encode) -> NDArray[np.float64]:
        """(N,) cosine similarities of the pairs; each unique sentence is encoded once."""
        once = EncodeOnce.of(encode).prepare(sentences_of([self.pairs]))
        return cosine(once(self.pairs.first), once(self.pairs.second))

    def summary(self, values: NDArray[np.float64]) -> float:
        """Spearman correlation × 100 of the cosines with the human scores; 0 if all cosines are equal."""
        return correlation(values, self.pairs.scores, self.title)["spearman"] or 0.0

    def resampled(self, values: NDArray[np.float64], rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """(R, N) samples of the pairs → (R,) Spearman correlation × 100 of each; 0 if all cosines are equal."""
        return np.nan_to_num(100 * spearman(values[rows], self.pairs.scores[rows]))

    def score(self, encode: Encode) -> float:
        """Spearman correlation × 100 of the cosines with the human scores."""
        return self.summary(self.values(encode))


def stsb(data_dir: str | None) -> DevSet:
    """STS-B dev, 1,500 pairs.

    Raises:
        InputError: it cannot be loaded.
    """
    try:
        return DevSet("STS-B dev", load_stsb_dev(data_dir))
    except InputError as error:
        if data_dir is not None:
            raise
        # who trains on text of their own, with no network, has no such folder
        raise InputError(f"{error}, or --dev_set none, or --dev_set with a .tsv of your own pairs") from error


def lee50(data_dir: str | None) -> DevSet:
    """Lee's 50 documents (all 1,225 pairs)."""
    from cmlmcse.evaluation.lee50 import load_lee50  # imported here because gensim is optional

    return DevSet("Lee", load_lee50())


DEV_SETS: dict[str, Callable[[str | None], DevSet]] = {"stsb": stsb, "lee50": lee50}


def label_free_set(name: str, held_out: Dataset, others: Dataset, seed: int) -> Criterion | CombinedCriterion | None:
    """The label-free criterion of a text, for `dev_set` auto and the like; None for `auto_unscored`.

    Args:
        name: a name in `LABEL_FREE`.
        held_out, others: documents that training does not see, and those that it does (:func:`choose_criterion`).
        seed: the seed of the criterion.

    Raises:
        InputError: the documents give too few queries.
    """
    if name in UNSCORED:
        return None
    together = asked_together(held_out, others, seed) if name == "auto_together_half" else None
    criterion = together or choose_criterion(held_out, others, seed)
    return criterion if name == "auto" else criterion.halves(seed)[0]


def load_dev_set(name: str, data_dir: str | None) -> DevSet | None:
    """The labelled development set of this name, or the pairs in this .tsv file; None for `none` and `auto`.

    Raises:
        InputError: an unknown name, no such file, or the set's data are missing.
    """
    if name in ("none", *LABEL_FREE):
        return None
    if name.endswith(".tsv"):
        return DevSet(Path(name).name, read_own_pairs(Path(name)))
    if name not in DEV_SETS:
        known = ", ".join(DEV_SETS)
        raise InputError(
            f"dev_set must be one of {known}, auto, none, or a .tsv file, found {name!r}; choose one of them"
        )
    return DEV_SETS[name](data_dir)
