"""Contrastive losses and measures of the embedding space: pure functions, in fp32 under any autocast."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .distributed import gather_rows, processes, rank


def at_least_fp32(tensor: Tensor) -> Tensor:
    """Half precisions as fp32; fp32 and fp64 as they are."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def info_nce(views: Tensor, temp: float, hard_negative_weight: float = 0.0) -> Tensor:
    """InfoNCE over in-batch negatives, one direction (SimCSE; CMLM-CSE Eq. 4), averaged over the batch.

    A third view holds a hard negative for each sentence (supervised SimCSE, §4): the hard negatives of all sentences
    are candidates too. With several processes the candidates are those of all of them, gradients included.

    Args:
        views: (2, N, H), the two views b and c of this process's N sentences, or (3, N, H) with the hard negatives d;
            similarities are cosines.
        temp: temperature τ.
        hard_negative_weight: α, added to the logit of a sentence's own hard negative (SimCSE's code: its log-weight).

    Returns:
        The scalar mean over i of −log( exp(cos(b_i, c_i)/τ) / Σ_j exp(cos(b_i, c_j)/τ) ), the sum with hard negatives
        Σ_j [ exp(cos(b_i, c_j)/τ) + exp(cos(b_i, d_j)/τ + α·1[i=j]) ].
    """
    with torch.autocast(views.device.type, enabled=False):
        views = nn.functional.normalize(at_least_fp32(views), dim=-1)  # (V, N, H)
        similarities = views[0] @ gather_views(views[1:]).flatten(0, 1).T / temp  # (N, (V−1)·W·N)
        positives, *hard = own_columns(views[1:])
        return nn.functional.cross_entropy(weigh(similarities, hard, hard_negative_weight), positives)


def nt_xent(views: Tensor, temp: float, hard_negative_weight: float = 0.0) -> Tensor:
    """NT-Xent over all 2N views, positives both ways (SimCLR; CLEAR §3.1, Eq. 1 and 2), averaged over the 2N.

    Every view is an anchor, the other view of its sentence is its positive, and all but itself are candidates. CLEAR
    writes a sum; the mean, as SimCLR has it, keeps its weight beside the MLM loss for any batch size. A third view and
    `hard_negative_weight` are as in :func:`info_nce`, for both views of a sentence.

    Args:
        views: (2, N, H), or (3, N, H) with hard negatives; similarities are cosines.
        temp: temperature τ.
        hard_negative_weight: added to the logit of a sentence's own hard negative.

    Returns:
        The scalar mean over the 2N views z_i, with z_j the other view, of
        −log( exp(cos(z_i, z_j)/τ) / Σ_{k≠i} exp(cos(z_i, z_k)/τ) ).
    """
    with torch.autocast(views.device.type, enabled=False):
        views = nn.functional.normalize(at_least_fp32(views), dim=-1)  # (V, N, H)
        similarities = views[:2].flatten(0, 1) @ gather_views(views).flatten(0, 1).T / temp  # (2N, V·W·N)
        first, second, *hard = own_columns(views)
        itself = torch.cat([first, second])  # (2N,)
        similarities = similarities.scatter(1, itself[:, None], -torch.inf)
        similarities = weigh(similarities, [own.repeat(2) for own in hard], hard_negative_weight)
        return nn.functional.cross_entropy(similarities, torch.cat([second, first]))


def off_dropout(views: Tensor, temp: float, positive_ratio: float = 1.0) -> Tensor:
    """InfoNCE whose negatives have no dropout (off-dropout of SimCSE++, Xu et al. 2023), averaged over the batch.

    Dropout makes the two views of a sentence differ, which the positive needs; between different sentences it is noise.
    With several processes the candidates are those of all of them, gradients included.

    Args:
        views: (3, N, H), the two views b and c of this process's N sentences, and the sentences without dropout, z.
        temp: temperature τ.
        positive_ratio: r, the factor of the positive's cosine (pos_ratio in the authors' code).

    Returns:
        The scalar mean over i of −log( p_i / (p_i + Σ_{j≠i} exp(cos(z_i, z_j)/τ)) ), p_i = exp(r·cos(b_i, c_i)/τ).

    Raises:
        ValueError: another number of views, as labelled text with hard negatives gives.
    """
    if len(views) != 3:
        raise ValueError(
            f"contrastive_loss off_dropout expects two views and the sentences without dropout, found {len(views)}; it "
            "is for text without hard negatives"
        )
    with torch.autocast(views.device.type, enabled=False):
        first, second, plain = nn.functional.normalize(at_least_fp32(views), dim=-1)  # (N, H) each
        similarities = plain @ gather_rows(plain).T / temp  # (N, W·N)
        positives = positive_ratio * (first * second).sum(dim=-1, keepdim=True) / temp  # (N, 1)
        (itself,) = own_columns(plain[None])  # (N,)
        return nn.functional.cross_entropy(similarities.scatter(1, itself[:, None], positives), itself)


def gather_views(views: Tensor) -> Tensor:
    """(V, N, H) → (V, W·N, H), the views of the sentences of all processes."""
    return gather_rows(views.transpose(0, 1)).transpose(0, 1)


def own_columns(views: Tensor) -> Tensor:
    """(V, N) the indices of this process's rows among those of :func:`gather_views`, counted through all views."""
    count, sentences = views.shape[:2]
    first = torch.arange(sentences, device=views.device) + rank() * sentences  # (N,)
    return first + torch.arange(count, device=views.device)[:, None] * sentences * processes()


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
        option: the configuration's field that it reads besides the temperature.
        plain_view: whether the last view is the first one's text without dropout, which costs one more encoding.
    """

    compute: Callable[[Tensor, float, float], Tensor]
    method: str
    option: str = "hard_negative_weight"
    plain_view: bool = False


CONTRASTIVE_LOSSES: dict[str, ContrastiveLoss] = {
    "info_nce": ContrastiveLoss(info_nce, "SimCSE"),
    "nt_xent": ContrastiveLoss(nt_xent, "CLEAR"),
    "off_dropout": ContrastiveLoss(off_dropout, "SimCSE++", option="positive_ratio", plain_view=True),
}


@torch.no_grad()
def alignment(views: Tensor) -> Tensor:
    """Mean squared distance of positive pairs on the unit sphere (Wang & Isola 2020), (2, N, H) → scalar."""
    anchors, positives = nn.functional.normalize(at_least_fp32(views), dim=-1)  # 2 × (N, H)
    return (anchors - positives).square().sum(dim=-1).mean()


@torch.no_grad()
def uniformity(sentences: Tensor) -> Tensor:
    """log mean exp(−2‖x−y‖²) over all pairs on the unit sphere (Wang & Isola 2020, t = 2), (N, H) → scalar.

    With several processes over the pairs of all of them; 0 for one sentence, which has no pair.
    """
    with torch.autocast(sentences.device.type, enabled=False):
        sentences = gather_rows(nn.functional.normalize(at_least_fp32(sentences), dim=-1))  # (W·N, H)
        cosines = sentences @ sentences.T  # (W·N, W·N)
    if len(cosines) == 1:
        return cosines.new_zeros(())
    pairs = torch.triu(torch.ones_like(cosines), diagonal=1)  # (W·N, W·N)
    kernel = torch.exp(4 * cosines - 4)  # ‖x−y‖² = 2 − 2cos
    return ((kernel * pairs).sum() / pairs.sum()).log()


@torch.no_grad()
def anisotropy(sentences: Tensor) -> Tensor:
    """Mean cosine over all pairs (Ethayarajh 2019, §3.4), (N, H) → scalar; 0 for one sentence, which has no pair.

    With several processes over the pairs of all of them. ‖Σ x‖² = Σ ‖x‖² + the cosines of the ordered pairs.
    """
    unit = gather_rows(nn.functional.normalize(at_least_fp32(sentences), dim=-1))  # (W·N, H)
    return (unit.sum(dim=0).square().sum() - unit.square().sum()) / max(len(unit) * (len(unit) - 1), 1)
