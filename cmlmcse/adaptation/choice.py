"""Choose between the start, the adapted model and their averages, and say whether the choice is better than chance."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from cmlmcse.evaluation.label_free import Criterion
from cmlmcse.evaluation.sts import EncodeOnce
from cmlmcse.evaluation.together import Together
from cmlmcse.models.encoders import Encoder, load_model_encoder
from cmlmcse.training.dev_set import interval
from modeling_cmlmcse.fast_cpu import use_fast_cpu_kernels

from .arms import Trial

SHARES = (0.75, 0.5, 0.25)  # of the adapted weights in an average with the weights at the start


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
        """Whether the choice is better by more than chance."""
        return self.interval[0] > 0


class Verdict(NamedTuple):
    """Whether the choice is better than the start.

    Attributes:
        change: by the questions that confirm.
        asked: whether there were such questions. If a finished encoder's arm practised all that the text can ask, the
            change is by those that chose, and counts for nothing.
    """

    change: Change
    asked: bool = True

    @property
    def better(self) -> bool:
        """Whether the choice is handed back."""
        return self.asked and self.change.better


class Average(NamedTuple):
    """An average of weights: the encoder, the same one remembering its texts, the `share` of the adapted weights in it,
    and the score of each share."""

    encoder: Encoder
    once: EncodeOnce
    share: float
    scores: dict[float, float]


class Choice(NamedTuple):
    """What the arms came to.

    Attributes:
        winner: the name of the best arm.
        trial: its run.
        average: of its weights and the start's.
        verdict: whether that is better than the start.
        confirming: the questions that say so.
    """

    winner: str
    trial: Trial
    average: Average
    verdict: Verdict
    confirming: Criterion | Together


def mix(start: Encoder, adapted: dict[str, torch.Tensor], share: float) -> None:
    """Set the weights of `start` to (1 − share) · start + share · adapted (model soup, Wortsman et al. 2022)."""
    with torch.no_grad():
        for name, weight in start.model.backbone.state_dict().items():
            if weight.is_floating_point():
                weight.lerp_(adapted[name].to(weight), share)


def best_average(
    load: Callable[[], Encoder], start: EncodeOnce, adapted: Encoder, choosing: Criterion | Together
) -> Average:
    """The average of start and adapted weights with the best score on the choosing documents.

    Shares are tried from the adapted weights towards the start, as long as the score rises.

    Args:
        load: loads the start anew.
        start: the start, which is scored beside them as a share of 0.
        adapted: the adapted encoder.
        choosing: the criterion with the choosing documents.
    """
    weights = adapted.model.backbone.state_dict()
    best, once, chosen = adapted, EncodeOnce(adapted), 1.0
    scores = {0.0: choosing.score(start), chosen: choosing.score(once)}
    for share in SHARES:
        encoder = load()
        mix(encoder, weights, share)
        remembering = EncodeOnce(encoder)
        scores[share] = choosing.score(remembering)
        if scores[share] <= scores[chosen]:
            break
        best, once, chosen = encoder, remembering, share
    return Average(best, once, chosen, scores)


def judge(criterion: Criterion | Together, start: EncodeOnce, choice: EncodeOnce) -> Change:
    """Compare the start and the choice by the questions that confirm."""
    before, after = criterion.values(start), criterion.values(choice)
    scores = criterion.summary(before), criterion.summary(after)
    return Change(criterion.name, criterion.title, *scores, interval(criterion, before, after))


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
