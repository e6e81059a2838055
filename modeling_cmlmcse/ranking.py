"""Similarities of a sentence to the others of the batch, and their rankings (RankCSE, Liu et al. 2023): pure functions.

Two terms read them: both views of a sentence should give one ranking; and it, or the cosines themselves, should be a
teacher's.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from .distributed import own_rows
from .losses import at_least_fp32, own_columns


def ranking_consistency(views: Tensor, temp: float) -> Tensor:
    """The Jensen-Shannon divergence of the two views' similarities to the whole batch (RankCSE), a mean over it.

    With several processes the similarities are those of this process's own sentences to the sentences of all of them.

    Args:
        views: (V, N, H) of all processes; the first two, b and c, are used; similarities are cosines.
        temp: temperature τ, that of the contrastive loss.

    Returns:
        The scalar mean over i of [KL(P_i ‖ M_i) + KL(Q_i ‖ M_i)] / 2, with P_i = softmax_j cos(b_i, c_j)/τ,
        Q_i = softmax_j cos(c_i, b_j)/τ and M_i = (P_i + Q_i)/2; at most log 2.
    """
    with torch.autocast(views.device.type, enabled=False):
        views = nn.functional.normalize(at_least_fp32(views[:2]), dim=-1)  # (2, N, H)
        logs = (own_rows(views, dim=1) @ views.flip(0).mT / temp).log_softmax(dim=-1)  # (2, n, N)
        middle = logs.logsumexp(dim=0) - logs.new_full((), 2.0).log()  # (n, N)
        return (logs.exp() * (logs - middle)).sum(dim=-1).mean()


def list_net(student: Tensor, teacher: Tensor, temp: float, teacher_temp: float) -> Tensor:
    """ListNet (RankCSE): the cross-entropy of who comes first, a mean over the rows.

    Args:
        student, teacher: (N, C) cosines of N sentences with C others.
        temp, teacher_temp: temperatures τ₂ and τ₃ of the two.
    """
    target = (teacher / teacher_temp).softmax(dim=1)  # (N, C)
    return -(target * (student / temp).log_softmax(dim=1)).sum(dim=1).mean()


def list_mle(student: Tensor, teacher: Tensor, temp: float, teacher_temp: float) -> Tensor:
    """ListMLE (RankCSE): −log of the probability of the teacher's whole order by the student, a mean over the rows.

    The order is drawn without replacement, each time by softmax among those that are left (Plackett-Luce). It is a sum
    over the C places, as in the paper, so its value grows with the batch. Ties keep the batch's order.

    Args:
        student, teacher: (N, C) cosines of N sentences with C others.
        temp: temperature τ₂ of the student.
        teacher_temp: not used: only the teacher's order counts.
    """
    order = teacher.argsort(dim=1, descending=True, stable=True)  # (N, C)
    scores = (student / temp).gather(1, order)  # (N, C)
    left = scores.flip(1).logcumsumexp(dim=1).flip(1)  # (N, C)
    return (left - scores).sum(dim=1).mean()


def mean_squared(student: Tensor, teacher: Tensor, temp: float, teacher_temp: float) -> Tensor:
    """The mean squared difference of all cosines: regression on the teacher's. Tung & Mori 2019 (similarity-preserving
    distillation) compare the similarities of a batch so, theirs of row-scaled dot products.

    Args:
        student, teacher: (N, C) cosines of N sentences with C others; 0 if C is 0.
        temp, teacher_temp: not used: the cosines themselves count.
    """
    return (student - teacher).square().sum() / max(student.numel(), 1)


DISTILLATION_LOSSES: dict[str, Callable[[Tensor, Tensor, float, float], Tensor]] = {
    "list_mle": list_mle,
    "list_net": list_net,
    "mse": mean_squared,
}


def ranking_distillation(
    views: Tensor, teachers: Sequence[Tensor], loss: str, temp: float, teacher_temp: float, share: float
) -> Tensor:
    """How far the student's similarities to the other sentences, or their ranking (RankCSE), are from the teachers'.

    Where both views are of one text, the sentence's own positive is left out: every teacher has it first, so it says
    nothing of the teacher, and the contrastive loss pulls it already. The two texts of a labelled pair have a cosine of
    the teacher's, so there it counts. With several processes this process's own sentences rank those of all of them.

    Args:
        views: (V, N, H) of all processes; the student's cosines are between the first view and the second.
        teachers: (N, S, H_t) vectors by one teacher or by two, without gradient: of the one text (S = 1) or of the two
            texts (S = 2) of which the views are.
        loss: a name in `DISTILLATION_LOSSES`.
        temp, teacher_temp: temperatures τ₂ and τ₃ of student and teacher.
        share: α, the first of two teachers' share in the cosines.

    Raises:
        ValueError: no teacher's vectors, or those of more than two.
    """
    if len(teachers) not in (1, 2):
        raise ValueError(
            f"distillation_weight above 0 expects the vectors of one teacher or two in the batch, found {len(teachers)}"
        )
    with torch.autocast(views.device.type, enabled=False):
        first, second = nn.functional.normalize(at_least_fp32(views[:2]), dim=-1)  # (N, H) each
        student = own_rows(first) @ second.T  # (n, N)
        unit = [nn.functional.normalize(at_least_fp32(vectors), dim=-1) for vectors in teachers]  # (N, S, H_t) each
        cosines = [own_rows(vectors[:, 0]) @ vectors[:, -1].mT for vectors in unit]  # (n, N) each
        teacher = cosines[0] if len(cosines) == 1 else share * cosines[0] + (1 - share) * cosines[1]
        if unit[0].shape[1] == 1:
            (itself,) = own_columns(first[None])  # (n,)
            student, teacher = without_columns(student, itself), without_columns(teacher, itself)  # (n, N − 1) each
        return DISTILLATION_LOSSES[loss](student, teacher.to(student), temp, teacher_temp)


def without_columns(grid: Tensor, columns: Tensor) -> Tensor:
    """(N, C) without the column that each (N,) of `columns` names → (N, C − 1)."""
    kept = torch.arange(grid.shape[1] - 1, device=grid.device)  # (C − 1,)
    return grid.gather(1, kept + (kept >= columns[:, None]).long())
