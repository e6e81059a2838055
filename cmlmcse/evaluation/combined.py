"""Several label-free criteria as one score, which a finished encoder is judged by."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from datasets import Dataset
from numpy.typing import NDArray

from .choose_criterion import QUESTIONS, build_criterion, enough_ask
from .criterion import Criterion, MeanOfDocuments
from .encoding import Encode, EncodeOnce

# A passage, and a few words, find another passage of their document. Views on titles and on searches practise neither.
ASKED = ("halves", "words")


@dataclass(frozen=True)
class CombinedCriterion(MeanOfDocuments):
    """One or more criteria on the same held-out documents. The score is the mean of the criteria's scores.

    A bootstrap sample draws documents, each with its values in all criteria. So an interval is that of the mean.
    """

    criteria: tuple[Criterion, ...]

    @property
    def name(self) -> str:
        """The names of the criteria, with a plus between them."""
        return "+".join(criterion.name for criterion in self.criteria)

    @property
    def title(self) -> str:
        """What the criteria measure, in words."""
        return ", and ".join(criterion.title for criterion in self.criteria)

    @property
    def queries(self) -> list[str]:
        """All queries."""
        return [query for criterion in self.criteria for query in criterion.queries]

    @property
    def passages(self) -> int:
        """Among how many passages a query must find its answer, at most."""
        return max(len(criterion.candidates) for criterion in self.criteria)

    @property
    def documents(self) -> int:
        """D, the number of documents that ask in any of the criteria."""
        return len(self._rows)

    @property
    def _rows(self) -> NDArray[np.int64]:
        """(D,) the rows of these documents among the held-out ones."""
        return np.unique(np.concatenate([criterion.rows for criterion in self.criteria]))

    def mean(self, gains: Callable[[Criterion], NDArray[np.float64]]) -> NDArray[np.float64]:
        """The gains of the documents of each criterion → (D,) what each document adds to the score.

        A document that asks in some criteria alone counts there as one of those that ask, so that the mean over the
        documents is the mean of the scores.
        """
        rows = self._rows
        added = np.zeros(len(rows))
        for criterion in self.criteria:
            found = gains(criterion)
            added[np.searchsorted(rows, criterion.rows)] += found * (len(rows) / len(found) / len(self.criteria))
        return added

    def values(self, encode: Encode) -> NDArray[np.float64]:
        """(D,) what each document adds, with cosine as the score."""
        once = EncodeOnce.of(encode)
        return self.mean(lambda criterion: criterion.values(once))

    def score(self, encode: Encode) -> float:
        """The mean over the documents, 0 to 100."""
        return self.summary(self.values(encode))

    def bm25(self) -> NDArray[np.float64]:
        """(D,) what each document adds with BM25."""
        return self.mean(Criterion.bm25)

    def hybrid(self, encode: Encode) -> NDArray[np.float64]:
        """(D,) what each document adds with the cosine and BM25 together."""
        once = EncodeOnce.of(encode)
        return self.mean(lambda criterion: criterion.hybrid(once))

    def halves(self, seed: int) -> tuple["CombinedCriterion", "CombinedCriterion"]:
        """One half to choose by and one to confirm the choice, as in :meth:`Criterion.halves`."""
        parts = [criterion.halves(seed) for criterion in self.criteria]
        first, second = zip(*parts, strict=True)
        return CombinedCriterion(first), CombinedCriterion(second)


def asked_together(held_out: Dataset, others: Dataset, seed: int, most: int = QUESTIONS) -> CombinedCriterion | None:
    """The criteria of `ASKED` that enough documents of a text can ask; None if there are none.

    Args:
        held_out, others, seed, most: as in :func:`build_criterion`.
    """
    built = (build_criterion(name, held_out, others, seed, most) for name in ASKED)
    found = tuple(criterion for criterion in built if criterion and enough_ask(criterion, held_out))
    return CombinedCriterion(found) if found else None
