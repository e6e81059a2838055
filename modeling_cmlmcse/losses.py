"""Contrastive losses and the two measures of a contrastive space: pure functions, in fp32 under any autocast."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from .distributed import gather_rows, rank


def at_least_fp32(tensor: Tensor) -> Tensor:
    """Half precisions as fp32; fp32 and fp64 as they are."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def info_nce(views: Tensor, temp: float) -> Tensor:
    """InfoNCE over in-batch negatives, one direction (SimCSE; CMLM-CSE Eq. 4), averaged over the batch.

    With several processes the candidates are the second views of all of them, gradients included.

    Args:
        views: (2, N, H), the two views of this process's N sentences; similarities are cosines.
        temp: temperature τ.

    Returns:
        The scalar mean over i of −log( exp(cos(a_i, b_i)/τ) / Σ_j exp(cos(a_i, b_j)/τ) ).
    """
    with torch.autocast(views.device.type, enabled=False):
        anchors, positives = nn.functional.normalize(at_least_fp32(views), dim=-1)  # 2 × (N, H)
        similarities = anchors @ gather_rows(positives).T / temp  # (N, W·N)
        own = torch.arange(len(anchors), device=views.device) + rank() * len(anchors)
        return nn.functional.cross_entropy(similarities, own)


CONTRASTIVE_LOSSES: dict[str, Callable[[Tensor, float], Tensor]] = {"info_nce": info_nce}


@torch.no_grad()
def alignment(views: Tensor) -> Tensor:
    """Mean squared distance of positive pairs on the unit sphere (Wang & Isola 2020), (2, N, H) → scalar."""
    anchors, positives = nn.functional.normalize(at_least_fp32(views), dim=-1)  # 2 × (N, H)
    return (anchors - positives).square().sum(dim=-1).mean()


@torch.no_grad()
def uniformity(sentences: Tensor) -> Tensor:
    """log mean exp(−2‖x−y‖²) over all pairs on the unit sphere (Wang & Isola 2020, t = 2), (N, H) → scalar."""
    sentences = nn.functional.normalize(at_least_fp32(sentences), dim=-1)
    cosines = sentences @ sentences.T  # (N, N)
    pairs = torch.triu(torch.ones_like(cosines), diagonal=1)  # (N, N)
    kernel = torch.exp(4 * cosines - 4)  # ‖x−y‖² = 2 − 2cos
    return ((kernel * pairs).sum() / pairs.sum()).log()
