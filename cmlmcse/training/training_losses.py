"""The losses of one training batch: the contrastive loss of its views and the auxiliary losses."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils import ModelOutput

from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from modeling_cmlmcse.auxiliary import zero_with_graph
from modeling_cmlmcse.contrast_terms import CONTRAST_TERMS
from modeling_cmlmcse.distributed import gather_rows, mean_count
from modeling_cmlmcse.dropout import without_dropout
from modeling_cmlmcse.losses import CONTRASTIVE_LOSSES, ContrastiveLoss, alignment, anisotropy, uniformity
from modeling_cmlmcse.packing import Packing


@dataclass
class TrainingOutput(ModelOutput):
    """Losses of one training batch: `loss` is their weighted sum, and `logs` holds detached values by name: each loss,
    and measures such as alignment and uniformity, or in pre-training accuracies."""

    loss: Tensor | None = None
    logs: dict[str, Tensor] | None = None


class TrainingLosses(nn.Module):
    """Computes the losses of a packed batch (L = L_contrast + λ L_MLM, CMLM-CSE §3).

    DDP, FSDP and `torch.compile` wrap this module. An attribute that it lacks is looked up in the model, as in PEFT.

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
        """The loss of V·N packed rows: contrastive + Σ weight · term + Σ weight · auxiliary.

        Args:
            views: packed rows of all V views, one view after the other (:func:`pack_sequences`), and `num_views`;
                perhaps `plain`, the packed rows of views without dropout, `teachers`, (N, S, H_t) vectors each, and
                `scores`, (N,) of pairs.
            masked: packed masked sentences and their labels (see :class:`AuxiliaryObjective`).
        """
        loss, sentences, logs = self.contrast(self.sentence_vectors(views), **targets_of([views]))
        if self.model.objectives:
            counts = self.auxiliary_terms([masked])
            auxiliary, measures = self.auxiliary_loss(sentences, masked, counts)
            loss, logs = loss + auxiliary, logs | measures
        return TrainingOutput(loss=loss, logs=logs)

    @property
    def reads_head(self) -> bool:
        """Whether an auxiliary objective reads the vectors after the training head."""
        return any(objective.condition == "after_head" for objective in self.model.objectives.values())

    # The pieces of a step. large_batch.py runs them separately for each part of a batch.

    def sentence_vectors(self, views: dict[str, Any]) -> Tensor:
        """V·N packed rows → (V, N, H) sentence vectors before the training head; the views of the `plain` rows, which
        have no dropout, are the last ones. With template denoising (2V, N, H): the sentence vectors of all views, then
        the vectors of their templates, in the same order (:func:`contrasted` takes the two halves apart)."""
        pooled = [self._pooled(views)]
        if "plain" in views:
            with without_dropout(self.model.backbone):
                pooled.append(self._pooled(views["plain"]))
        vectors = [of_sentences for of_sentences, _ in pooled]
        empty = [of_templates for _, of_templates in pooled if of_templates is not None]
        rows = len(vectors[0]) // views["num_views"]
        parts = [part.unflatten(0, (-1, rows)) for part in vectors + empty]
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def _pooled(self, packed: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
        """B packed rows → (B, H) vectors before the training head, and None. With `template_of` E templates without
        sentences follow the B rows; then the second result is (B, H): the vector of each row's own template (template
        denoising, PromptBERT).
        """
        tokens, template_of = packed["input_ids"], packed.get("template_of")  # (S,)
        if template_of is None:
            packing = Packing.from_lengths(packed["lengths"], len(tokens), packed["width"])
        else:
            packing = Packing(packed["slots"], packed["lengths"], (len(packed["lengths"]), packed["width"]))
            packing.counts_columns = True  # RoBERTa would give no position to a padding token in a template or a text
        vectors = self.model.pooled(tokens, packing)
        if "filler_rows" in packed:  # which are the last ones
            vectors = vectors[: len(vectors) - packed["filler_rows"]]
        if template_of is None:
            return vectors, None
        vectors, empty = vectors.tensor_split([len(template_of)])  # (B, H), (E, H)
        return vectors, empty.index_select(0, template_of)

    def contrast(
        self,
        vectors: Tensor,
        teachers: Sequence[Tensor] = (),
        scores: Tensor | None = None,
        denoised: bool = False,
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """The contrastive loss of (V, N, H) sentence vectors, and the terms beside it. A single view has none, and goes
        through the training head only if an auxiliary objective reads what comes out.

        With `matryoshka_dims` the contrastive loss is the sum of those of cut vectors.

        Args:
            vectors: the vectors before the training head (:meth:`sentence_vectors`).
            teachers: (N, S, H_t) vectors of the sentences by each teacher (:func:`ranking_distillation`).
            scores: (N,) of pairs.
            denoised: whether the second half of `vectors` are those of the templates, which are subtracted from the
                first half before the head and the contrast.

        Returns:
            Their weighted sum, the vectors before and after the head (2, V, N, H) for the auxiliary objectives,
            and values for the log.

        Raises:
            ValueError: a single row for the head `batchnorm`.
        """
        config = self.model.config
        vectors, differences = contrasted(vectors, denoised)  # (V, N, H) both
        if len(vectors) == 1 and not self.reads_head:  # the head has a gradient all the same, for DDP
            return zero_with_graph(self.model.projection, vectors).total, torch.stack([vectors, vectors]), {}
        projected = self.model.projection(differences.flatten(0, 1)).view_as(vectors)  # (V, N, H)
        if len(vectors) == 1:
            return 0.0 * projected.sum(), torch.stack([vectors, projected]), {}
        everyone = gather_rows(projected, dim=1)  # (V, W·N, H), of all processes
        contrastive = CONTRASTIVE_LOSSES[config.contrastive_loss]
        given = self._given_to(contrastive, scores)
        parts = [everyone[..., :size] for size in config.matryoshka_dims or everyone.shape[-1:]]  # (V, W·N, K) each
        loss = torch.stack([contrastive.compute(part, config.temp, given) for part in parts]).sum()
        logs = {
            "contrastive_loss": loss.detach(),
            "alignment": alignment(everyone[:2].detach()),
            "uniformity": uniformity(everyone[0].detach()),
            "anisotropy": anisotropy(everyone[0].detach()),
        }
        total = config.contrastive_weight * loss
        for name, value in self._terms_beside(everyone, teachers).items():
            total = total + getattr(config, f"{name}_weight") * value
            logs[f"{name}_loss"] = value.detach()
        return total, torch.stack([vectors, projected]), logs

    def _given_to(self, contrastive: ContrastiveLoss, scores: Tensor | None) -> Any:
        """What a contrastive loss reads besides the vectors and the temperature: a field of the configuration, or the
        pairs' scores, (W·N,) of all processes."""
        if contrastive.option is not None:
            return getattr(self.model.config, contrastive.option)
        return None if scores is None else gather_rows(scores)

    def _terms_beside(self, everyone: Tensor, teachers: Sequence[Tensor]) -> dict[str, Tensor]:
        """The terms beside the contrastive loss that have a weight, by name, before it is applied.

        Args:
            everyone: (V, W·N, H) vectors of all processes, after the head.
            teachers: (N, S, H_t) vectors of this process's sentences by each teacher.
        """
        config, taught = self.model.config, [gather_rows(vectors) for vectors in teachers]  # (W·N, S, H_t) each
        return {
            name: term.compute(everyone, config, taught)
            for name, term in CONTRAST_TERMS.items()
            if getattr(config, f"{name}_weight") > 0
        }

    def auxiliary_terms(self, parts: Sequence[dict[str, Any] | None]) -> dict[str, Tensor | float]:
        """The number of predictions that each auxiliary objective makes in a batch; on several processes their mean.

        Args:
            parts: the masked sentences of every part of the batch.

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
        """The share of one part of a batch in the auxiliary loss, and its values for the log.

        The share is Σ weight · (sum over the part) / (number of predictions in the whole batch).

        Args:
            sentences: (2, V, N, H) vectors of the part's sentences, before and after the training head.
            masked: their masked sentences, for the first view or for both views.
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
        """How much the conditional MLM uses the sentence vectors, in nats per masked word, without dropout.

        The gain is the loss with another sentence's vector minus the loss with the sentence's own vector. Near 0, the
        objective ignores the vectors and so hardly trains the encoder. One cause is that all vectors are almost equal,
        as [CLS] is in a model whose pre-training never used it.
        """
        objective = self.model.objectives["cmlm"]
        with without_dropout(self):
            vectors, differences = contrasted(self.sentence_vectors(views), "template_of" in views)  # (V, N, H) both
            if objective.condition == "after_head":
                vectors = self.model.projection(differences.flatten(0, 1)).view_as(vectors)
            own = vectors.flatten(0, 1)[: len(masked["lengths"])]  # (B, H)
            losses = [objective(self.model.backbone, rows, masked).total for rows in (own, own.roll(1, dims=0))]
        return (losses[1] - losses[0]) / max(objective.terms(masked), 1)


def contrasted(vectors: Tensor, denoised: bool) -> tuple[Tensor, Tensor]:
    """The sentence vectors (V, N, H), which evaluation and the auxiliary objectives read, and the vectors (V, N, H)
    that the head and the contrast read. If `denoised`, the second half of `vectors` (2V, N, H) are the templates'
    vectors, and what the head reads is the difference of the halves. Else both are the same."""
    if not denoised:
        return vectors, vectors
    vectors, empty = vectors.chunk(2)
    return vectors, vectors - empty


def targets_of(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the contrast of a batch is told besides its vectors: `teachers`, `scores`, `denoised`, from the `views` of
    all its parts."""
    scores = [views["scores"] for views in parts if "scores" in views]
    # a teacher's vectors may be kept in fp16, which torch.cat refuses where a CPU computes in bf16
    teachers = ([vectors.float() for vectors in views.get("teachers", ())] for views in parts)
    return {
        "teachers": [torch.cat(part) for part in zip(*teachers, strict=True)],
        "scores": torch.cat(scores) if scores else None,
        "denoised": "template_of" in parts[0],
    }


def without_prefix(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a :class:`TrainingLosses`, renamed as in its model."""
    return {name.removeprefix("model."): tensor for name, tensor in weights.items()}
