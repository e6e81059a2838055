"""Development sets that choose the best checkpoint, found by name in `DEV_SETS`."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cmlmcse.common.errors import InputError
from cmlmcse.evaluation.sts import Encode, EncodeOnce, correlation, cosine
from cmlmcse.evaluation.sts_data import load_stsb_dev, read_pairs


class DevSet(NamedTuple):
    """N sentence pairs with human scores: the sentences `first` and `second` of each pair, and `scores` (N,)."""

    title: str
    first: list[str]
    second: list[str]
    scores: NDArray[np.float64]

    def cosines(self, encode: Encode) -> NDArray[np.float64]:
        """(N,) cosine similarities of the pairs; each unique sentence is encoded once."""
        once = EncodeOnce.of(encode).prepare([*self.first, *self.second])
        return cosine(once(self.first), once(self.second))

    def score(self, encode: Encode) -> float:
        """Spearman correlation × 100 of the cosines with the human scores; 0 if all cosines are equal."""
        return correlation(self.cosines(encode), self.scores, self.title)["spearman"] or 0.0


def stsb(data_dir: str | None) -> DevSet:
    """STS-B dev, 1,500 pairs."""
    pairs = load_stsb_dev(data_dir)
    return DevSet("STS-B dev", list(pairs.first), list(pairs.second), np.asarray(pairs.scores))


def lee50(data_dir: str | None) -> DevSet:
    """Lee's 50 documents (all 1,225 pairs)."""
    from cmlmcse.evaluation.lee50 import load_lee50  # imported here because gensim is optional

    documents, scores = load_lee50()
    first, second = np.triu_indices(len(documents), k=1)
    return DevSet("Lee", [documents[i] for i in first], [documents[i] for i in second], scores[first, second])


DEV_SETS: dict[str, Callable[[str | None], DevSet]] = {"stsb": stsb, "lee50": lee50}


def own_pairs(path: Path) -> DevSet:
    """The user's own pairs. A line is score TAB sentence TAB sentence.

    Raises:
        InputError: a line of another form, or fewer than two different scores, which makes a correlation impossible.
    """
    pairs = read_pairs(path)
    if len(set(pairs.scores)) < 2:
        raise InputError(f"{path}: expected pairs with different scores, found {len(pairs.scores)} pairs; add some")
    return DevSet(path.name, pairs.first, pairs.second, pairs.scores)


def load_dev_set(name: str, data_dir: str | None) -> DevSet | None:
    """The development set of this name, or the pairs in this .tsv file; None for `none`.

    Raises:
        InputError: an unknown name, no such file, or the set's data are missing.
    """
    if name == "none":
        return None
    if name.endswith(".tsv"):
        return own_pairs(Path(name))
    if name not in DEV_SETS:
        known = ", ".join(DEV_SETS)
        raise InputError(f"dev_set must be one of {known}, none, or a .tsv file, found {name!r}; choose one of them")
    return DEV_SETS[name](data_dir)
