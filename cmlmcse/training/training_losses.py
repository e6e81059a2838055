"""The losses of one training batch: the contrast of its views, and the auxiliary objectives beside it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils import ModelOutput

from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from modeling_cmlmcse.distributed import mean_count
from modeling_cmlmcse.losses import CONTRASTIVE_LOSSES, alignment, anisotropy, uniformity
from modeling_cmlmcse.packing import Packing


@dataclass
class TrainingOutput(ModelOutput):
    """Losses of one training batch: `loss` = contrastive + Σ weight · auxiliary.

    `logs` holds detached values by name: each loss, and alignment, uniformity and anisotropy of the batch.
    """

    loss: Tensor | None = None
    logs: dict[str, Tensor] | None = None


class TrainingLosses(nn.Module):
    """A model as a training step sees it: packed batch in, losses out (L = L_contrast + λ L_MLM, CMLM-CSE §3).

    This is the module that DDP, FSDP and `torch.compile` wrap. Attributes that it lacks are the model's, as in PEFT.

    Attributes:
        model: the sentence encoder with its training head and its auxiliary objectives.
    """

    def __init__(self, model: CMLMCSEForSentenceEmbedding) -> None:
        super().__init__()
        self.model = model

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "model":  # before __init__ has set it
                raise
            return getattr(self.model, name)

    def forward(self, views: dict[str, Any], masked: dict[str, Any] | None = None) -> TrainingOutput:
        """The contrastive loss of V·N packed rows plus the weighted auxiliary losses.

        Args:
            views: packed rows of all views, view after view (:func:`pack_sequences`), and `num_views`.
            masked: packed masked sentences and their labels (see :class:`AuxiliaryObjective`).
        """
        loss, sentences, logs = self.contrast(self.sentence_vectors(views))
        if self.model.objectives:
            counts = self.auxiliary_terms([masked])
            auxiliary, measures = self.auxiliary_loss(sentences, masked, counts)
            loss, logs = loss + auxiliary, logs | measures
        return TrainingOutput(loss=loss, logs=logs)

    # The parts of a step. large_batch.py runs them on one part of a batch after another.

    def sentence_vectors(self, views: dict[str, Any]) -> Tensor:
        """V·N packed rows → (V, N, H) sentence vectors before the training head."""
        tokens = views["input_ids"]  # (S,)
        packing = Packing.from_lengths(views["lengths"], len(tokens), views["width"])
        return self.model.pooled(tokens, packing).unflatten(0, (views["num_views"], -1))

    def contrast(self, vectors: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """(V, N, H) sentence vectors → the weighted contrastive loss, the vectors before and after the training head
        (2, V, N, H), which condition the auxiliary objectives, and values for the log."""
        config = self.model.config
        projected = self.model.projection(vectors.flatten(0, 1)).view_as(vectors)  # (V, N, H)
        loss = CONTRASTIVE_LOSSES[config.contrastive_loss].compute(projected, config.temp, config.hard_negative_weight)
        logs = {
            "contrastive_loss": loss.detach(),
            "alignment": alignment(projected[:2].detach()),
            "uniformity": uniformity(projected[0].detach()),
            "anisotropy": anisotropy(projected[0].detach()),
        }
        return config.contrastive_weight * loss, torch.stack([vectors, projected]), logs

    def auxiliary_terms(self, parts: Sequence[dict[str, Any] | None]) -> dict[str, Tensor | float]:
        """The number of predictions of every auxiliary objective in the masked parts of a batch; with several
        processes their mean.

        Raises:
            ValueError: a batch without masked sentences.
        """
        objectives = self.model.objectives
        if None in parts:
            raise ValueError(f"{', '.join(objectives)} expects masked sentences in the batch, found none")
        given = [part for part in parts if part is not None]
        return {
            name: mean_count(sum(objective.terms(part) for part in given), self.model.device)
            for name, objective in objectives.items()
        }

    def auxiliary_loss(
        self, sentences: Tensor, masked: dict[str, Any] | None, counts: dict[str, Tensor | float]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """What a part of a batch adds to the loss: Σ weight · (sum over the part / number of predictions of the whole
        batch), and the same for the log.

        Args:
            sentences: (2, V, N, H) vectors of the part's sentences, before and after the training head.
            masked: their masked sentences, of the first view or the first views.
            counts: :meth:`auxiliary_terms` of the whole batch.
        """
        assert masked is not None
        rows = sentences.flatten(1, 2)[:, : len(masked["lengths"])]  # (2, B, H)
        loss = rows.new_zeros(())
        logs: dict[str, Tensor] = {}
        for name, objective in self.model.objectives.items():
            found = objective(self.model.backbone, rows[1 if objective.condition == "after_head" else 0], masked)
            loss = loss + self.model.objective_weight(name) * found.total / counts[name]
            sums = {"loss": found.total.detach(), **found.sums}
            logs |= {f"{name}_{measure}": value / counts[name] for measure, value in sums.items()}
        return loss, logs

    @torch.no_grad()
    def vector_gain(self, views: dict[str, Any], masked: dict[str, Any]) -> Tensor:
        """What the conditional MLM gains from the sentence vectors of a batch, in nats a masked word: its loss with
        another sentence's vector minus its loss with the sentence's own, without dropout.

        Near 0 the objective does not read the vectors, and teaches the encoder next to nothing. One reason is vectors
        that are almost equal, such as [CLS] in a model that was never trained to put anything there.
        """
        objective, mode = self.model.objectives["cmlm"], self.training
        self.eval()
        vectors = self.sentence_vectors(views).flatten(0, 1)  # (V·N, H)
        if objective.condition == "after_head":
            vectors = self.model.projection(vectors)
        own = vectors[: len(masked["lengths"])]  # (B, H)
        losses = [objective(self.model.backbone, rows, masked).total for rows in (own, own.roll(1, dims=0))]
        self.train(mode)
        return (losses[1] - losses[0]) / max(objective.terms(masked), 1)


def without_prefix(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a :class:`TrainingLosses` under the names that they have in its model."""
    return {name.removeprefix("model."): tensor for name, tensor in weights.items()}
