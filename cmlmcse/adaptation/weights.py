"""Weights of several models: loaded, averaged, and the average that scores best."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from cmlmcse.evaluation.bootstrap import interval
from cmlmcse.evaluation.combined import CombinedCriterion
from cmlmcse.evaluation.encoding import EncodeOnce
from cmlmcse.models.encoders import Encoder, load_model_encoder
from modeling_cmlmcse.fast_cpu import use_fast_cpu_kernels

SHARES = (0.75, 0.5, 0.25)  # of the adapted weights in an average with the weights at the start

Weights = dict[str, torch.Tensor]


class Average(NamedTuple):
    """An average of weights: the encoder, the same one remembering its texts, the `share` of the adapted weights in it,
    and the score of each share."""

    encoder: Encoder
    once: EncodeOnce
    share: float
    scores: dict[float, float]


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


def best_average(
    load: Callable[[], Encoder], start: EncodeOnce, adapted: Weights, choosing: CombinedCriterion
) -> Average:
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


def load_start(model: str, pooling: str | None, device: str | None, bf16: bool = False) -> Encoder:
    """The model that is adapted, with the kernels that are fast on a CPU.

    Args:
        model: a folder, a Hub name, or `package:NAME/path`.
        pooling: for a model that records none.
        device: where to compute.
        bf16: whether it computes in bf16.

    Raises:
        InputError: as :func:`load_model_encoder`.
    """
    encoder = load_model_encoder(model, pooling, device=device, show_progress_bar=False)
    use_fast_cpu_kernels(encoder.model)
    encoder.bf16 = bf16
    return encoder


def mean_weights(runs: Sequence[Path], device: str | None) -> Weights:
    """The mean of the weights that some runs exported."""
    return mean_of([weights_of(load_start(str(run), None, device)) for run in runs])
