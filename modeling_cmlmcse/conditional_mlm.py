"""The auxiliary network of CMLM-CSE: predict masked words from the sentence vector and frozen lexical features."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from .auxiliary import AuxiliaryLoss, FusingObjective, head_loss, zero_with_graph
from .backbone import (
    MaskedLMHead,
    Module,
    build_blocks,
    build_encoder,
    copy_layers,
    embed_tokens,
    run_blocks,
)
from .configuration_cmlmcse import CMLMCSEConfig
from .masked_batch import MaskedBatch, fuse


class ConditionalMLM(FusingObjective):
    """Conditional masked-language model (CMLM-CSE §3.2): h'' = [h ; h'_{>0}] → fusion → masked words.

    The masked sentence goes through the frozen lexical feature extractor (the first `lexical_layers` blocks of the
    original backbone); the sentence vector replaces position 0 of its output; the trainable fusion blocks and an
    untied head predict the masked words. The gradient reaches the encoder through the sentence vector alone.

    A pre-norm backbone (ModernBERT) passes a residual stream from block to block. There the extractor's output is that
    of its last block, without a final norm. The fusion blocks end in a final norm of their own, because the head was
    trained behind one. The sentence vector has gone through the backbone's final norm and enters the stream as it is:
    blocks normalise their input, so its scale is irrelevant, and no word is predicted at its position.
    """

    title = "CMLM-CSE's conditional masked-language modelling"

    @classmethod
    def method(cls, fields: Mapping[str, Any]) -> str:
        return "InfoCSE" if fields.get("fusion_init") == "pretrained" else "CMLM-CSE"

    @classmethod
    def settings(cls, fields: Mapping[str, Any]) -> tuple[str, ...]:
        layers = ("lexical_layers", "fusion_layers", "fusion_init", "cmlm_condition", "lexical_frozen")
        return (*layers, *(["lexical_dropout"] if fields.get("lexical_frozen") else []), "mlm_probability")

    def __init__(self, config: CMLMCSEConfig) -> None:
        super().__init__(config)
        self.condition = config.cmlm_condition
        self.extractor: Module = build_encoder(config.backbone_config, config.lexical_layers)
        self.fusion = build_blocks(config.backbone_config, config.fusion_layers, config.fusion_start)
        self.head = MaskedLMHead(config.backbone_config)
        self.train()

    def train(self, mode: bool = True) -> "ConditionalMLM":
        """Set the mode. A frozen extractor stays in eval mode unless `lexical_dropout` asks for its dropout."""
        super().train(mode)
        frozen = self.config.lexical_frozen
        if frozen:
            self.extractor.requires_grad_(False)  # from_pretrained makes new parameters that require gradients
        self.extractor.train(mode and (self.config.lexical_dropout or not frozen))
        return self

    def forward(self, encoder: Module, sentences: Tensor, masked: dict[str, Any]) -> AuxiliaryLoss:
        """The summed cross-entropy of the masked tokens. Without any it is exactly zero, and still has a graph."""
        if len(masked["mlm_labels"]) == 0:
            return zero_with_graph(self, sentences)
        return head_loss(self.head, self.fused(sentences, masked), masked["mlm_labels"])

    def fused(self, sentences: Tensor, masked: dict[str, Any]) -> Tensor:
        """(B, H) sentence vectors and a packed masked batch → (M, H) states of the masked tokens alone."""
        batch = MaskedBatch.of(masked)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.config.lexical_frozen):
            features = embed_tokens(self.extractor, batch.tokens, batch.packing)  # (S, H)
            features = run_blocks(self.extractor, features, batch.packing)[-1]
        return fuse(self.fusion, sentences, features, batch)

    @torch.no_grad()
    def load_backbone_weights(self, model: PreTrainedModel, has_head: bool) -> None:
        """Take the extractor too."""
        super().load_backbone_weights(model, has_head)
        copy_layers(self.extractor, model.base_model)
