"""Average weights, and say whether what was chosen is better than the start by more than chance."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from cmlmcse.evaluation.encoding import EncodeOnce
from cmlmcse.evaluation.label_free import MeanOfDocuments
from cmlmcse.evaluation.together import Together
from cmlmcse.models.encoders import Encoder, load_model_encoder
from cmlmcse.training.dev_set import interval
from modeling_cmlmcse.fast_cpu import use_fast_cpu_kernels

SHARES = (0.75, 0.5, 0.25)  # of the adapted weights in an average with the weights at the start
# What a change must reach, as a part of the start's score. Thousands of questions tell even a small change from chance,
# but they are not the questions of users. Six changes from all-MiniLM-L6-v2 were smaller, 0.6 to 1.4 %, all on SciFact:
# by labels from -0.88 to +0.83 points, -0.05 on average. The larger ones were gains (docs/results/adapting.md).
LEAST_GAIN = 0.015

Weights = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Splits(MeanOfDocuments):
    """The questions that confirm a choice, of one split of the text or of two.

    Each part has an encoder of its own, which has not seen its documents, so the values come from :meth:`of_each`. The
    score is the mean over the documents of all parts.
    """

    parts: tuple[Together, ...]

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
    def candidates(self) -> int:
        """Among how many passages a query must find its answer, at most."""
        return max(len(criterion.candidates) for part in self.parts for criterion in part.criteria)

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


class Average(NamedTuple):
    """An average of weights: the encoder, the same one remembering its texts, the `share` of the adapted weights in it,
    and the score of each share."""

    encoder: Encoder
    once: EncodeOnce
    share: float
    scores: dict[float, float]


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


def weights_of(encoder: Encoder) -> Weights:
    """The weights of an encoder, by name."""
    return encoder.model.state_dict()


def mean_of(many: Sequence[Weights]) -> Weights:
    """The mean of several models' weights (model soup, Wortsman et al. 2022); whole numbers are the first one's."""
    return {name: torch.stack([each[name] for each in many]).mean(dim=0) if weight.is_floating_point() else weight
            for name, weight in many[0].items()}  # fmt: skip


def mix(start: Encoder, adapted: Weights, share: float) -> Encoder:
    """Set the weights of `start` to (1 − share) · start + share · adapted, and return it. A token that an augmentation
    added for training has rows behind those of the start, which are dropped."""
    with torch.no_grad():
        for name, weight in weights_of(start).items():
            if weight.is_floating_point():
                weight.lerp_(adapted[name].to(weight)[tuple(map(slice, weight.shape))], share)
    return start


def best_average(load: Callable[[], Encoder], start: EncodeOnce, adapted: Weights, choosing: Together) -> Average:
    """The average of start and adapted weights with the best score on the choosing documents.

    Shares are tried from the adapted weights towards the start, as long as the score rises by more than chance: all of
    the adapted weights is what was best where labels could tell (docs/results/adapting-history.md).

    Args:
        load: loads the start anew.
        start: the start, which is scored beside them as a share of 0.
        adapted: the adapted weights.
        choosing: the criterion with the choosing documents.
    """
    best = mix(load(), adapted, 1.0)
    once, chosen = EncodeOnce(best), 1.0
    values = choosing.values(once)
    scores = {0.0: choosing.score(start), chosen: choosing.summary(values)}
    for share in SHARES:
        encoder = mix(load(), adapted, share)
        remembering = EncodeOnce(encoder)
        found = choosing.values(remembering)
        scores[share] = choosing.summary(found)
        if interval(choosing, values, found)[0] <= 0:
            break
        best, once, chosen, values = encoder, remembering, share, found
    return Average(best, once, chosen, scores)


def judge(confirming: Splits, start: EncodeOnce, chosen: Sequence[EncodeOnce]) -> Change:
    """Compare the start and what was chosen by the questions that confirm."""
    before, after = confirming.of_each([start] * len(chosen)), confirming.of_each(chosen)
    scores = confirming.summary(before), confirming.summary(after)
    return Change(confirming.name, confirming.title, *scores, interval(confirming, before, after))


def load_start(
    model: str, pooling: str | None, device: str | None, limit: int | None = None, bf16: bool = False
) -> Encoder:
    """The model that is adapted, with the kernels that are fast on a CPU.

    Args:
        model: a folder, a Hub name, or `package:NAME/path`.
        pooling: for a model that records none.
        device: where to compute.
        limit: tokens that a text is cut to (default: what the model records).
        bf16: whether it computes in bf16.

    Raises:
        InputError: as :func:`load_model_encoder`.
    """
    encoder = load_model_encoder(model, pooling, limit, device=device, show_progress_bar=False)
    use_fast_cpu_kernels(encoder.model)
    encoder.bf16 = bf16
    return encoder


def arm_encoder(run: Path, device: str | None, like: Encoder) -> Encoder:
    """The encoder that an arm's run exported, with the start's limit of tokens and its precision."""
    return load_start(str(run), None, device, int(like.settings["max_seq_length"]), like.bf16)
