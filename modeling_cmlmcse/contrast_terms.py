"""Terms beside the contrastive loss, on the same views, found by name in `CONTRAST_TERMS`: pure functions, in fp32.

A term's weight is the field `<name>_weight`. Unlike an auxiliary objective it has no weights of its own.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor, autocast

from .losses import at_least_fp32
from .ranking import ranking_consistency, ranking_distillation

if TYPE_CHECKING:
    from .configuration_cmlmcse import CMLMCSEConfig

VARIANCE_EPS = 1e-5  # BatchNorm's


def dimension_contrast(views: Tensor, temp: float) -> Tensor:
    """InfoNCE between the dimensions of the two views (SimCSE++, Xu et al. 2023, dimension-wise contrast).

    Each dimension is scaled to mean 0 and variance 1 over the sentences of all processes, per view, as BatchNorm does
    without affine weights. A dimension of one view should correlate with itself in the other, and with no other one.

    Args:
        views: (V, N, H) of the sentences of all processes; the first two are used.
        temp: temperature t of the correlations.

    Returns:
        The scalar mean over the H dimensions of −log( exp(C_dd/t) / Σ_e exp(C_de/t) ), C = BN(b)ᵀ BN(c) / N (H, H).
    """
    with autocast(views.device.type, enabled=False):
        both = at_least_fp32(views[:2])  # (2, N, H)
        centred = both - both.mean(dim=1, keepdim=True)
        first, second = centred / (centred.square().mean(dim=1, keepdim=True) + VARIANCE_EPS).sqrt()
        correlations = first.T @ second / len(first)  # (H, H)
        return -(correlations / temp).log_softmax(dim=1).diagonal().mean()


class ContrastTerm(NamedTuple):
    """A term beside the contrastive loss.

    Attributes:
        compute: views (V, N, H), the configuration, and the teachers' vectors, (N, S, H_t) each
            (:func:`ranking_distillation`), all of all processes → a scalar.
        title: the fields of a recipe → what it adds to another method, in the words of a model card.
        settings: the fields of a recipe → the names of those that it reads besides its weight, for a model card.
        takes_positives: whether it makes the two views of a row alike, as the contrastive loss does.
    """

    compute: Callable[[Tensor, "CMLMCSEConfig", Sequence[Tensor]], Tensor]
    title: Callable[[Mapping[str, Any]], str]
    settings: Callable[[Mapping[str, Any]], tuple[str, ...]]
    takes_positives: bool = True


def distillation_settings(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """The fields that the distillation reads: no temperature for cosines, one for whole orders, a share for two."""
    loss = fields.get("distillation_loss")
    temps = {"list_mle": ("distillation_temp",), "list_net": ("distillation_temp", "teacher_temp")}.get(loss or "", ())
    return ("distillation_loss", *temps, *(["teacher_share"] if "," in (fields.get("teacher") or "") else []))


CONTRAST_TERMS: dict[str, ContrastTerm] = {
    "dimension": ContrastTerm(
        lambda views, config, teachers: dimension_contrast(views, config.dimension_temp),
        lambda fields: "SimCSE++'s contrast of dimensions",
        lambda fields: ("dimension_temp",),
    ),
    "consistency": ContrastTerm(
        lambda views, config, teachers: ranking_consistency(views, config.temp),
        lambda fields: "RankCSE's ranking consistency",
        lambda fields: ("temp",),
    ),
    "distillation": ContrastTerm(
        lambda views, config, teachers: ranking_distillation(
            views,
            teachers,
            config.distillation_loss,
            config.distillation_temp,
            config.teacher_temp,
            config.teacher_share,
        ),
        lambda fields: (
            "regression on a teacher's cosines"
            if fields.get("distillation_loss") == "mse"
            else "RankCSE's ranking distillation"
        ),
        distillation_settings,
        takes_positives=False,
    ),
}


def contrasts(config: "CMLMCSEConfig") -> bool:
    """Whether training compares views: by the contrastive loss, or by a term beside it."""
    return any(getattr(config, f"{name}_weight") > 0 for name in ("contrastive", *CONTRAST_TERMS))
