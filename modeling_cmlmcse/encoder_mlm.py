"""Masked-language modelling on the sentence encoder itself, beside the contrastive loss."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from .auxiliary import AuxiliaryLoss, AuxiliaryObjective, head_loss, zero_with_graph
from .backbone import MaskedLMHead, Module, TiedMaskedLMHead, embed_tokens, run_blocks
from .configuration_cmlmcse import CMLMCSEConfig
from .masked_batch import MaskedBatch
from .packing import Selection


class EncoderMLM(AuxiliaryObjective):
    """The encoder predicts the masked words by itself (SimCSE §4, "w/ MLM", weight 0.1; CLEAR §3.1, weight 1).

    It does not use the sentence vector: the gradient reaches every layer of the encoder directly. SimCSE and InfoCSE
    (Table 1) report that this lowers STS and raises transfer. With `mlm_tied` the decoder is the encoder's word
    embeddings, as in RoBERTa's pre-training, which CLEAR follows.
    """

    title = "masked-language modelling on the encoder"

    @classmethod
    def settings(cls, fields: Mapping[str, Any]) -> tuple[str, ...]:
        return ("mlm_tied", "mlm_probability")

    def __init__(self, config: CMLMCSEConfig) -> None:
        super().__init__(config)
        self.head = (TiedMaskedLMHead if config.mlm_tied else MaskedLMHead)(config.backbone_config)

    def forward(self, encoder: Module, sentences: Tensor, masked: dict[str, Any]) -> AuxiliaryLoss:
        """The summed cross-entropy of the masked tokens. Without any it is exactly zero, and still has a graph."""
        if len(masked["mlm_labels"]) == 0:
            return zero_with_graph(self, sentences)
        batch = MaskedBatch.of(masked)
        hidden = embed_tokens(encoder, batch.tokens, batch.packing)  # (S, H)
        selection = Selection(batch.positions, batch.chosen)
        hidden = run_blocks(encoder, hidden, batch.packing, selection)[-1]  # (M, H)
        return head_loss(self.head, hidden, masked["mlm_labels"], encoder.get_input_embeddings().weight)

    def load_backbone_weights(self, model: PreTrainedModel, has_head: bool) -> None:
        """Take the head of the pretrained masked-language model."""
        self.head.copy_from(model, trained=has_head)
