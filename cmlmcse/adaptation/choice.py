"""Average what the arms came to, and say whether it is better than the start by more than chance."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cmlmcse.evaluation.bootstrap import interval
from cmlmcse.evaluation.combined import CombinedCriterion
from cmlmcse.evaluation.criterion import MeanOfDocuments
from cmlmcse.evaluation.encoding import EncodeOnce
from cmlmcse.models.encoders import Encoder

from .arms import Arms
from .runs import Common, Trial
from .second_split import train_again
from .start import Say, Start
from .weights import Average, best_average, mean_of, mean_weights, mix, weights_of

# What a change must reach, as a part of the start's score. Thousands of questions tell even a small change from chance,
# but they are not the questions of users. Six changes from all-MiniLM-L6-v2 were smaller, 0.6 to 1.4 %, all on SciFact:
# by labels from -0.88 to +0.83 points, -0.05 on average. The larger ones were gains (docs/results/adapting.md).
LEAST_GAIN = 0.015


@dataclass(frozen=True)
class Splits(MeanOfDocuments):
    """The questions that confirm a choice, of one split of the text or of two.

    Each part has an encoder of its own, which has not seen its documents, so the values come from :meth:`of_each`. The
    score is the mean over the documents of all parts.
    """

    parts: tuple[CombinedCriterion, ...]

    @property
    def name(self) -> str:
        """The name of the criterion."""
        return self.parts[0].name

    @property
    def title(self) -> str:
        """What it measures, in words."""
        return self.parts[0].title

    @property
    def documents(self) -> int:
        """D, the documents of all parts."""
        return sum(part.documents for part in self.parts)

    @property
    def passages(self) -> int:
        """Among how many passages a query must find its answer, at most."""
        return max(part.passages for part in self.parts)

    @property
    def queries(self) -> int:
        """The queries of all parts."""
        return sum(len(part.queries) for part in self.parts)

    def of_each(self, encoders: Sequence[EncodeOnce]) -> NDArray[np.float64]:
        """(D,) the values of the documents, each by the encoder of its part."""
        return np.concatenate([part.values(each) for part, each in zip(self.parts, encoders, strict=True)])

    def bm25(self) -> NDArray[np.float64]:
        """(D,) the values of BM25."""
        return np.concatenate([part.bm25() for part in self.parts])

    def hybrid(self, encoders: Sequence[EncodeOnce]) -> NDArray[np.float64]:
        """(D,) the values of the cosine and BM25 together."""
        return np.concatenate([part.hybrid(each) for part, each in zip(self.parts, encoders, strict=True)])


class Change(NamedTuple):
    """The scores of the start and of the choice on the confirming documents, with the change's interval, and the name
    and the title of the criterion."""

    name: str
    title: str
    before: float
    after: float
    interval: tuple[float, float]

    @property
    def better(self) -> bool:
        """Whether the choice is better by more than chance, and by enough."""
        return self.interval[0] > 0 and self.after - self.before >= LEAST_GAIN * self.before


class Second(NamedTuple):
    """What was trained on the second split: the encoder, averaged as the first one, the same one remembering its texts,
    and what results.json says of it."""

    encoder: Encoder
    once: EncodeOnce
    record: dict[str, Any]


class Choice(NamedTuple):
    """What the arms came to.

    Attributes:
        names: of the arms whose weights are averaged.
        average: of their weights and the start's.
        second: the same on another split of the text; None if that was not trained.
        change: of the score, by the questions that confirm.
        confirming: the questions that say so.
    """

    names: list[str]
    average: Average
    second: Second | None
    change: Change
    confirming: Splits

    @property
    def encoders(self) -> list[EncodeOnce]:
        """What answers the questions of each split."""
        return [self.average.once, *([self.second.once] if self.second else [])]


def judge(confirming: Splits, start: EncodeOnce, chosen: Sequence[EncodeOnce]) -> Change:
    """Compare the start and what was chosen by the questions that confirm."""
    before, after = confirming.of_each([start] * len(chosen)), confirming.of_each(chosen)
    scores = confirming.summary(before), confirming.summary(after)
    return Change(confirming.name, confirming.title, *scores, interval(confirming, before, after))


def choose(
    start: Start,
    chosen: dict[str, Trial],
    arms: Arms,
    common: Common,
    args: argparse.Namespace,
    say: Say,
) -> Choice:
    """The average of the chosen arms and the start, and whether it is better on documents that chose nothing.

    If a finished encoder is better on those of the first split, however little, it is trained again on another split,
    whose held-out documents then confirm it too.

    Args:
        start: the model that is adapted.
        chosen: the runs of the chosen arms.
        arms: the fields of all arms.
        common: what they share.
        args: the command's.
        say: prints a line.
    """
    text, views = start.text, "+".join(trial.record["fields"]["views"] for trial in chosen.values())
    adapted = mean_weights([trial.folder for trial in chosen.values()], args.device)
    asked = text.unpractised(start.choosing, views) or start.choosing
    average = best_average(start.load, start.once, adapted, asked)
    say(f"best of the arms: {' and '.join(chosen)}; with {average.share:.0%} of the change of the weights")

    first = text.confirming(views, args.seed)
    assert first is not None  # check_questions
    confirming = Splits((first,))
    change = judge(confirming, start.once, [average.once])
    more = text.confirming_again(views, args.seed) if change.after > change.before else None
    second = None
    if more is not None:
        second = train_second(start, chosen, arms, common, args, average.share)
        confirming = Splits((*confirming.parts, more))
        change = judge(confirming, start.once, [average.once, second.once])
    return Choice(list(chosen), average, second, change, confirming)


def train_second(
    start: Start, chosen: dict[str, Trial], arms: Arms, common: Common, args: argparse.Namespace, share: float
) -> Second:
    """Train the chosen arms once more, on another split of the text, and average them as on the first one."""
    found = [train_again(name, trial, arms[name], common) for name, trial in chosen.items()]
    adapted = mean_weights([run.folder for run in found], args.device)
    encoder = mix(start.load(), adapted, share)
    records = [run.record for run in found]
    seconds, tokens = (sum(record[name] for record in records) for name in ("train_seconds", "tokens"))
    steps = {name: record["steps"] for name, record in zip(chosen, records, strict=True)}
    return Second(encoder, EncodeOnce(encoder), {"steps": steps, "seconds": round(seconds, 1), "tokens": tokens})


def handed_back(start: Start, choice: Choice) -> Encoder:
    """The start, or the average of what was trained on both splits, or on the one."""
    if not choice.change.better:
        return start.encoder
    if choice.second is None:
        return choice.average.encoder
    both = [weights_of(encoder) for encoder in (choice.average.encoder, choice.second.encoder)]
    return mix(start.load(), mean_of(both), 1.0)
