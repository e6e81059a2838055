"""What every auxiliary objective is: a loss beside the contrastive one, conditioned on the sentence vector."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .backbone import MaskedLMHead, Module, blocks, copy_layers
from .configuration_cmlmcse import CMLMCSEConfig
from .pretrained_auxiliary import PretrainedAuxiliary
from .vocabulary_loss import all_at_once, vocabulary_loss

EVALUATION_SEED = 0  # in eval mode an objective draws the same each time, and leaves the global generators alone


class AuxiliaryLoss(NamedTuple):
    """An objective's result for a batch, as sums over its predictions, so that parts of a batch add up.

    Attributes:
        total: the sum of the losses.
        sums: detached sums for the log.
    """

    total: Tensor
    sums: dict[str, Tensor]


class AuxiliaryObjective(nn.Module):
    """An auxiliary objective, built where its weight, the field `<name>_weight`, is above zero.

    Attributes:
        condition: whether it reads the sentence vector `before_head` or `after_head`, the training head.
        title: what it adds to another method, in the words of a model card.
    """

    condition = "before_head"
    title = ""

    @classmethod
    def method(cls, fields: Mapping[str, Any]) -> str | None:
        """The published method that contrast and this objective make together, given a recipe's fields; None if it is
        an addition only."""
        return None

    @classmethod
    def settings(cls, fields: Mapping[str, Any]) -> tuple[str, ...]:
        """The fields of a recipe that it reads besides its weight, for a model card."""
        return ()

    def __init__(self, config: CMLMCSEConfig) -> None:
        super().__init__()
        self.config = config

    def terms(self, masked: dict[str, Any]) -> int:
        """The number of predictions in this masked batch, which the host knows without asking the device."""
        return len(masked["mlm_labels"])

    def forward(self, encoder: Module, sentences: Tensor, masked: dict[str, Any]) -> AuxiliaryLoss:
        """The objective's loss.

        Args:
            encoder: the sentence encoder that is trained.
            sentences: (B, H) sentence vectors, one for each masked row.
            masked: `input_ids` (S,), `lengths` (B,), `width` of the packed masked sentences; `mlm_positions` (M,)
                indices of the masked tokens in the packed row, ascending; `mlm_counts` (B,) masked tokens in each
                row, `mlm_width` their maximum; `mlm_labels` (M,) the true tokens.
        """
        raise NotImplementedError

    def load_backbone_weights(self, model: PreTrainedModel, has_head: bool) -> None:
        """Start from the weights of a pretrained masked-language model."""

    @torch.no_grad()
    def resize_token_embeddings(self, count: int) -> None:
        """Give every encoder and head of the objective a vocabulary of `count` tokens."""
        for part in self.children():
            if isinstance(part, MaskedLMHead):
                part.resize(count)
            elif isinstance(part, PreTrainedModel) and part.get_input_embeddings() is not None:
                part.resize_token_embeddings(count, mean_resizing=False)


class FusingObjective(AuxiliaryObjective):
    """An objective whose network can start from trained fusion blocks (`fusion_init`).

    Attributes:
        fusion: the blocks.
        head: scores the vocabulary.
    """

    fusion: Module
    head: MaskedLMHead

    @torch.no_grad()
    def load_backbone_weights(self, model: PreTrainedModel, has_head: bool) -> None:
        """Take fusion blocks (`fusion_init`: last | next; random keeps them) and head from `model`."""
        if self.config.fusion_init in ("last", "next"):
            copy_layers(self.fusion, model.base_model, self.config.fusion_start)
        self.head.copy_from(model, trained=has_head)

    def load_pretrained(self, network: PretrainedAuxiliary, head: PreTrainedModel | None) -> None:
        """Take the fusion blocks of a pre-trained auxiliary network (InfoCSE §3.2).

        Args:
            network: the network.
            head: the masked-language model that it was trained with; None if that is the backbone itself.
        """
        network.load_into(self.fusion, self.config.pooling)
        if head is not None:
            self.head.copy_from(head, trained=True)

    def load_trainable(self, other: "FusingObjective") -> None:
        """Take fusion blocks and head of the same objective in a saved model.

        Raises:
            ValueError: it has another number of fusion blocks, or blocks of another kind.
        """
        expected, found = len(blocks(self.fusion)), len(blocks(other.fusion))
        if found != expected:
            raise ValueError(
                f"fusion_init expects a checkpoint with {expected} fusion layers, found {found}; "
                "choose another checkpoint or set fusion_layers"
            )
        kinds = [getattr(fusion.config, "layer_types", None) for fusion in (self.fusion, other.fusion)]
        if kinds[0] != kinds[1]:
            raise ValueError(
                f"fusion_init expects a checkpoint whose fusion layers attend like {kinds[0]}, found {kinds[1]}; "
                "choose another checkpoint"
            )
        self.fusion.load_state_dict(other.fusion.state_dict())
        self.head.load_state_dict(other.head.state_dict())


def masked_token_loss(logits: Tensor, labels: Tensor) -> AuxiliaryLoss:
    """Summed cross-entropy of (M, V) logits with (M,) true tokens, in fp32 under any autocast. `accuracy` counts the
    correct predictions."""
    total, right = all_at_once(logits, labels)
    return AuxiliaryLoss(total, {"accuracy": right})


def head_loss(head: MaskedLMHead, hidden: Tensor, labels: Tensor, words: Tensor | None = None) -> AuxiliaryLoss:
    """:func:`masked_token_loss` of `head(hidden, words)`, without holding all logits (vocabulary_loss.py).

    Args:
        head: the head.
        hidden: (M, H) states.
        labels: (M,) true tokens.
        words: (V, W) word embeddings, for a :class:`TiedMaskedLMHead`.
    """
    scorer = head.scorer(words)
    if scorer is None:
        return masked_token_loss(head(hidden, words), labels)
    total, right = vocabulary_loss(head.before_decoder(hidden), *scorer, labels)
    return AuxiliaryLoss(total, {"accuracy": right})


def zero_with_graph(module: nn.Module, sentences: Tensor) -> AuxiliaryLoss:
    """A loss of zero that gives every trainable parameter of `module`, and `sentences`, a gradient of zero."""
    return AuxiliaryLoss(0.0 * (sum(p.sum() for p in module.parameters() if p.requires_grad) + sentences.sum()), {})
