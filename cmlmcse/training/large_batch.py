"""Large batches in little memory: the gradient of a whole batch, with one part in memory at a time (GradCache).

The contrastive loss needs the vectors of all sentences at once, but not their activations (Gao et al. 2021, "Scaling
Deep Contrastive Learning Batch Size under Memory Limited Setup"). An auxiliary objective reads only a sentence's vector
from the encoder. So it runs part by part on the cached vectors. Its gradient is added to the contrastive gradient
before the encoder runs again.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from .training_losses import TrainingLosses, targets_of

Autocast = Callable[[], AbstractContextManager[Any]]


class RandomState:
    """The state of the random generators that dropout on `device` uses, so that dropout can be repeated."""

    def __init__(self, device: torch.device) -> None:
        self.accelerator = None if device.type == "cpu" else torch.get_device_module(device)
        self.states = [torch.get_rng_state()]
        if self.accelerator is not None:
            self.states.append(self.accelerator.get_rng_state())

    def restore(self) -> None:
        """Set the generators to this state."""
        torch.set_rng_state(self.states[0])
        if self.accelerator is not None:
            self.accelerator.set_rng_state(self.states[1])


def backward_in_parts(
    losses: TrainingLosses,
    parts: Sequence[dict[str, Any]],
    backward: Callable[[Tensor], None],
    autocast: Autocast,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Add to every weight's gradient exactly what one backward pass through the whole batch would add.

    Args:
        losses: the model and its losses, in training mode, on its device.
        parts: the batch of N sentences, split into parts of n sentences. Each part has `views` and `masked` as in
            :class:`TrainingLosses`.
        backward: runs the backward pass of a loss, scaled as the trainer scales it.
        autocast: makes the trainer's autocast context.

    Returns:
        The loss of the whole batch and the values for the log, detached.
    """
    states, found = [], []
    with torch.no_grad():
        for part in parts:
            states.append(RandomState(losses.device))
            with autocast():
                found.append(losses.sentence_vectors(part["views"]))  # (V, n, H)
    sizes = [vectors.shape[1] for vectors in found]
    vectors = torch.cat(found, dim=1).requires_grad_()  # (V, N, H)

    with autocast():
        loss, sentences, logs = losses.contrast(vectors, **targets_of([part["views"] for part in parts]))
    conditions = sentences.detach().requires_grad_()  # (2, V, N, H)
    total = loss.detach()
    if losses.model.objectives:
        counts = losses.auxiliary_terms([part.get("masked") for part in parts])
        for part, own in zip(parts, conditions.split(sizes, dim=2), strict=True):
            with autocast():
                auxiliary, measures = losses.auxiliary_loss(own, part["masked"], counts)
            backward(auxiliary)
            total = total + auxiliary.detach()
            logs |= {name: logs.get(name, 0.0) + value for name, value in measures.items()}
        if conditions.grad is not None:  # None with MLM on the encoder, which reads no sentence vector
            sentences.backward(conditions.grad, retain_graph=True)  # already scaled by `backward`
    backward(loss)

    after = RandomState(losses.device)
    assert vectors.grad is not None
    for state, part, gradient in zip(states, parts, vectors.grad.split(sizes, dim=1), strict=True):
        state.restore()  # repeats the dropout of the first pass
        with autocast():
            again = losses.sentence_vectors(part["views"])
        again.backward(gradient)
    after.restore()
    return total, logs
