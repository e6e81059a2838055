"""Contrastive losses and measures of the embedding space: pure functions, in fp32 under any autocast.

With several processes they get the vectors of all of them (:func:`distributed.gather_rows`), gathered once a step.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .distributed import own_rows


def at_least_fp32(tensor: Tensor) -> Tensor:
    """Half precisions as fp32; fp32 and fp64 as they are."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def info_nce(views: Tensor, temp: float, hard_negative_weight: float = 0.0) -> Tensor:
    """InfoNCE over in-batch negatives, one direction (SimCSE; CMLM-CSE Eq. 4), averaged over the batch.

    More views hold hard negatives of each sentence (supervised SimCSE, §4, has one): those of all sentences are
    candidates too. With several processes the anchors are this process's own sentences, and the candidates those of
    all of them, gradients included.

    Args:
        views: (V, N, H) of all processes: the views b and c of the N sentences, and V − 2 hard negatives d of each;
            similarities are cosines.
        temp: temperature τ.
        hard_negative_weight: α, added to the logits of a sentence's own hard negatives (SimCSE's code: its log-weight).

    Returns:
        The scalar mean over i of −log( exp(cos(b_i, c_i)/τ) / Σ_j exp(cos(b_i, c_j)/τ) ), the sum with hard negatives
        Σ_j [ exp(cos(b_i, c_j)/τ) + exp(cos(b_i, d_j)/τ + α·1[i=j]) ].
    """
    with torch.autocast(views.device.type, enabled=False):
        views = nn.functional.normalize(at_least_fp32(views), dim=-1)  # (V, N, H)
        similarities = own_rows(views[0]) @ views[1:].flatten(0, 1).T / temp  # (n, (V−1)·N)
        positives, *hard = own_columns(views[1:])
        return nn.functional.cross_entropy(weigh(similarities, hard, hard_negative_weight), positives)


def nt_xent(views: Tensor, temp: float, hard_negative_weight: float = 0.0) -> Tensor:
    """NT-Xent over all 2N views, positives both ways (SimCLR; CLEAR §3.1, Eq. 1 and 2), averaged over the 2N.

    Every view is an anchor, the other view of its sentence is its positive, and all but itself are candidates. CLEAR
    writes a sum; the mean, as SimCLR has it, keeps its weight beside the MLM loss for any batch size. Hard negatives
    and `hard_negative_weight` are as in :func:`info_nce`, for both views of a sentence.

    Args:
        views: (V, N, H), V − 2 of them hard negatives; similarities are cosines.
        temp: temperature τ.
        hard_negative_weight: added to the logits of a sentence's own hard negatives.

    Returns:
        The scalar mean over the 2N views z_i, with z_j the other view, of
        −log( exp(cos(z_i, z_j)/τ) / Σ_{k≠i} exp(cos(z_i, z_k)/τ) ).
    """
    with torch.autocast(views.device.type, enabled=False):
        views = nn.functional.normalize(at_least_fp32(views), dim=-1)  # (V, N, H)
        anchors = own_rows(views[:2], dim=1).flatten(0, 1)  # (2n, H)
        similarities = anchors @ views.flatten(0, 1).T / temp  # (2n, V·N)
        first, second, *hard = own_columns(views)
        itself = torch.cat([first, second])  # (2n,)
        similarities = similarities.scatter(1, itself[:, None], -torch.inf)
        similarities = weigh(similarities, [own.repeat(2) for own in hard], hard_negative_weight)
        return nn.functional.cross_entropy(similarities, torch.cat([second, first]))


def extended_info_nce(views: Tensor, temp: float, hard_negative_weight: float = 0.0) -> Tensor:
    """InfoNCE whose hard negatives are negatives of the positive too (CoT-BERT, Zhang et al. 2024, Eq. 3), a mean over
    the batch. Without hard negatives it is :func:`info_nce`.

    With several processes the anchors are this process's own sentences, and the candidates those of all of them.

    Args:
        views: (V, N, H) of all processes: the views b and c of the N sentences, and V − 2 hard negatives d of each;
            similarities are cosines.
        temp: temperature τ.
        hard_negative_weight: added to the logits of a sentence's own hard negatives.

    Returns:
        The scalar mean over i of −log( exp(cos(b_i, c_i)/τ) / Σ_j [ exp(cos(b_i, c_j)/τ) + exp(cos(b_i, d_j)/τ) +
        exp(cos(c_i, d_j)/τ) ] ).
    """
    with torch.autocast(views.device.type, enabled=False):
        views = nn.functional.normalize(at_least_fp32(views), dim=-1)  # (V, N, H)
        anchors, positives = own_rows(views[:2], dim=1)  # (n, H) each
        groups = anchors @ views[1:].flatten(0, 1).T, positives @ views[2:].flatten(0, 1).T
        similarities = torch.cat(groups, dim=1) / temp  # (n, (2V−3)·N)
        labels, *hard = own_columns(views[1:])
        hard += [own + views[2:].shape[:2].numel() for own in hard]  # the same in the second group
        return nn.functional.cross_entropy(weigh(similarities, hard, hard_negative_weight), labels)


def off_dropout(views: Tensor, temp: float, positive_ratio: float = 1.0) -> Tensor:
    """InfoNCE whose negatives have no dropout (off-dropout of SimCSE++, Xu et al. 2023), averaged over the batch.

    Dropout makes the two views of a sentence differ, which the positive needs; between different sentences it is noise.
    Hard negatives, which the paper does not have, are candidates like the other sentences. With several processes the
    anchors are this process's own sentences, and the candidates those of all of them.

    Args:
        views: (V, N, H) of all processes: the views b and c of the N sentences, and without dropout z, the sentences,
            and V − 3 hard negatives d of each.
        temp: temperature τ.
        positive_ratio: r, the factor of the positive's cosine (pos_ratio in the authors' code).

    Returns:
        The scalar mean over i of −log( p_i / (p_i + Σ_{j≠i} exp(cos(z_i, z_j)/τ) + Σ_j exp(cos(z_i, d_j)/τ)) ),
        p_i = exp(r·cos(b_i, c_i)/τ).

    Raises:
        ValueError: fewer than three views.
    """
    if len(views) < 3:
        raise ValueError(
            f"contrastive_loss off_dropout expects two views and the sentences without dropout, found {len(views)}"
        )
    with torch.autocast(views.device.type, enabled=False):
        views = nn.functional.normalize(at_least_fp32(views), dim=-1)  # (V, N, H)
        first, second, plain = own_rows(views[:3], dim=1)  # (n, H) each
        similarities = plain @ views[2:].flatten(0, 1).T / temp  # (n, (V−2)·N)
        positives = positive_ratio * (first * second).sum(dim=-1, keepdim=True) / temp  # (n, 1)
        itself = own_columns(views[2:])[0]  # (n,)
        return nn.functional.cross_entropy(similarities.scatter(1, itself[:, None], positives), itself)


def cosent(views: Tensor, temp: float, scores: Tensor | None) -> Tensor:
    """CoSENT: pairs with a higher score should have a larger cosine (Su 2022, https://kexue.fm/archives/8847).

    Only the order of the scores counts, so any scale will do. It is sentence-transformers' `CoSENTLoss` with the scale
    1/τ. With several processes each compares the pairs of all of them.

    Args:
        views: (V, N, H) of all processes; the first two, b and c, are the two sentences of each pair.
        temp: temperature τ.
        scores: (N,) of all processes.

    Returns:
        The scalar log( 1 + Σ_{i,j: s_i < s_j} exp((cos(b_i, c_i) − cos(b_j, c_j))/τ) ); 0 if all scores are equal.

    Raises:
        ValueError: no scores.
    """
    if scores is None:
        raise ValueError("contrastive_loss cosent expects the pairs' scores in the batch, found none; set score_column")
    with torch.autocast(views.device.type, enabled=False):
        first, second = nn.functional.normalize(at_least_fp32(views[:2]), dim=-1)  # (N, H) each
        cosines = (first * second).sum(dim=-1) / temp  # (N,)
        gaps = cosines[:, None] - cosines  # (N, N)
        gaps = gaps.masked_fill(scores[:, None] >= scores, -torch.inf)
        return torch.cat([gaps.new_zeros(1), gaps.flatten()]).logsumexp(dim=0)


def own_columns(views: Tensor) -> Tensor:
    """(V, N, H) → (V, n) the indices of this process's sentences, counted through all views."""
    count, sentences = views.shape[:2]
    return own_rows(torch.arange(count * sentences, device=views.device).view(count, sentences), dim=1)


def weigh(similarities: Tensor, columns: Sequence[Tensor], weight: float) -> Tensor:
    """Add `weight` to each row of (R, C) at the column that each (R,) of `columns` names."""
    for column in columns:
        added = torch.full_like(similarities[:, :1], weight)  # (R, 1)
        similarities = similarities.scatter_add(1, column[:, None], added)
    return similarities


class ContrastiveLoss(NamedTuple):
    """A contrastive loss.

    Attributes:
        compute: views (V, N, H), temperature and the value of `option` → a scalar.
        method: the published method that it makes by itself.
        option: the configuration's field that it reads besides the temperature; None if it reads the pairs' scores
            instead, (N,) of all processes.
        plain_view: whether views from the third on have no dropout, the third of which is the first one's text, which
            costs one more encoding.
        about_hard_negatives: whether it is just another loss's formula without any.
    """

    compute: Callable[[Tensor, float, Any], Tensor]
    method: str
    option: str | None = "hard_negative_weight"
    plain_view: bool = False
    about_hard_negatives: bool = False

    @property
    def scored(self) -> bool:
        """Whether its rows are pairs with a score."""
        return self.option is None


CONTRASTIVE_LOSSES: dict[str, ContrastiveLoss] = {
    "info_nce": ContrastiveLoss(info_nce, "SimCSE"),
    "extended_info_nce": ContrastiveLoss(extended_info_nce, "CoT-BERT", about_hard_negatives=True),
    "nt_xent": ContrastiveLoss(nt_xent, "CLEAR"),
    "off_dropout": ContrastiveLoss(off_dropout, "SimCSE++", option="positive_ratio", plain_view=True),
    "cosent": ContrastiveLoss(cosent, "CoSENT", option=None),
}


@torch.no_grad()
def alignment(views: Tensor) -> Tensor:
    """Mean squared distance of positive pairs on the unit sphere (Wang & Isola 2020), (2, N, H) → scalar."""
    anchors, positives = nn.functional.normalize(at_least_fp32(views), dim=-1)  # 2 × (N, H)
    return (anchors - positives).square().sum(dim=-1).mean()


@torch.no_grad()
def uniformity(sentences: Tensor) -> Tensor:
    """log mean exp(−2‖x−y‖²) over all pairs on the unit sphere (Wang & Isola 2020, t = 2), (N, H) → scalar; 0 for one
    sentence, which has no pair."""
    count = len(sentences)
    with torch.autocast(sentences.device.type, enabled=False):
        unit = nn.functional.normalize(at_least_fp32(sentences), dim=-1)  # (N, H)
        cosines = unit @ unit.T  # (N, N)
    if count == 1:
        return cosines.new_zeros(())
    kernel = torch.exp(4 * cosines - 4).triu(diagonal=1)  # (N, N), ‖x−y‖² = 2 − 2cos
    return (kernel.sum() / (count * (count - 1) / 2)).log()


@torch.no_grad()
def anisotropy(sentences: Tensor) -> Tensor:
    """Mean cosine over all pairs (Ethayarajh 2019, §3.4), (N, H) → scalar; 0 for one sentence, which has no pair.

    ‖Σ x‖² = Σ ‖x‖² + the cosines of the ordered pairs.
    """
    unit = nn.functional.normalize(at_least_fp32(sentences), dim=-1)  # (N, H)
    return (unit.sum(dim=0).square().sum() - unit.square().sum()) / max(len(unit) * (len(unit) - 1), 1)
