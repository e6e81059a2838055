"""The cross-entropy of a layer that scores the whole vocabulary, without holding the scores of all predictions.

M predictions of V tokens are M · V logits, in BERT's pre-training the largest tensor of a step. Here a block of
predictions at a time is scored, and its part of the gradients is computed at once, so that only a block of logits
exists. torch.nn.LinearCrossEntropyLoss of PyTorch 2.13 does the same; this one runs from PyTorch 2.6 on and counts the
correct predictions.
"""

from typing import Any

import torch
from torch import Tensor, nn

from .losses import at_least_fp32

# Predictions of a block. Each block adds to the weights' gradient, which is worth it only for many (benchmarks/
# vocabulary.py). A GPU waits for the host with small blocks, and 250 MB of logits are little beside its memory.
CPU_ROWS = 512
GPU_ROWS = 2048


def vocabulary_loss(hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The summed cross-entropy of M predictions, and how many are right; in fp32 under any autocast.

    Args:
        hidden: (M, W) states.
        weight: (V, W) of the layer.
        bias: (V,) of the layer.
        labels: (M,) the true tokens.

    Returns:
        Two scalars, the second detached.
    """
    if not torch.is_grad_enabled():  # a Function's context asks for the gradients of parameters all the same
        hidden, weight, bias = hidden.detach(), weight.detach(), None if bias is None else bias.detach()
    if torch.compiler.is_compiling():
        return all_at_once(nn.functional.linear(hidden, weight, bias), labels)
    kind = hidden.device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):  # "meta" has none
        hidden = hidden.to(torch.get_autocast_dtype(kind))
    with torch.autocast(kind, enabled=False):
        return _InBlocks.apply(hidden, weight, bias, labels)


def all_at_once(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The results of :func:`vocabulary_loss`, computed from all (M, V) logits at once."""
    with torch.autocast(logits.device.type, enabled=False):
        total = nn.functional.cross_entropy(at_least_fp32(logits), labels, reduction="sum")
    return total, (logits.detach().argmax(dim=-1) == labels).float().sum()


class _InBlocks(torch.autograd.Function):
    """Σ over i of log Σ_v exp(z_iv) − z_i,label with z = hidden · weightᵀ + bias. Its gradient by z is softmax(z) minus
    one at the label."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor) -> tuple[Tensor, Tensor]:
        ctx.precisions = hidden.dtype, weight.dtype, None if bias is None else bias.dtype
        scorer, bias = weight.to(hidden.dtype), None if bias is None else at_least_fp32(bias)
        total = right = torch.zeros((), dtype=at_least_fp32(hidden[:0]).dtype, device=hidden.device)
        grads: list[Tensor | None] = [None, None, None]
        of_hidden = []
        rows = CPU_ROWS if hidden.device.type == "cpu" else GPU_ROWS
        for states, own in zip(hidden.split(rows), labels[:, None].split(rows), strict=True):
            scores = at_least_fp32(states @ scorer.T)  # (m, V)
            if bias is not None:
                scores += bias
            target, highest = scores.gather(1, own), scores.amax(dim=1, keepdim=True)  # (m, 1) each
            chances = scores.sub_(highest).exp_()  # of each token, times their sum
            sums = chances.sum(dim=1, keepdim=True)  # (m, 1)
            total, right = total + (sums.log() + highest - target).sum(), right + (target == highest).sum()
            if not any(ctx.needs_input_grad):
                continue
            by_scores = chances.div_(sums).scatter_add_(1, own, -torch.ones_like(sums))  # (m, V)
            if ctx.needs_input_grad[2]:
                grads[2] = _plus(grads[2], by_scores.sum(dim=0))
            by_scores = by_scores.to(hidden.dtype)
            if ctx.needs_input_grad[0]:
                of_hidden.append(by_scores @ scorer)
            if ctx.needs_input_grad[1]:
                grads[1] = _plus(grads[1], at_least_fp32(by_scores.T @ states))
        grads[0] = torch.cat(of_hidden) if of_hidden else None
        ctx.save_for_backward(*grads)
        ctx.mark_non_differentiable(right)
        return total, right

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        grads = zip(ctx.saved_tensors, ctx.precisions, strict=True)
        return *(None if each is None else (each * gradient).to(precision) for each, precision in grads), None


def _plus(total: Tensor | None, part: Tensor) -> Tensor:
    """`total` with `part` added in place; the first part is the total."""
    return part if total is None else total.add_(part)
