"""The auxiliary network of CMLM-CSE: predict masked words from the sentence vector and frozen lexical features."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from .auxiliary import AuxiliaryLoss, AuxiliaryObjective, head_loss, zero_with_graph
from .backbone import (
    MaskedLMHead,
    Module,
    blocks,
    build_blocks,
    build_encoder,
    copy_layers,
    embed_tokens,
    run_blocks,
)
from .configuration_cmlmcse import CMLMCSEConfig
from .packing import Packing, Selection
from .pretrained_auxiliary import PretrainedAuxiliary


class ConditionalMLM(AuxiliaryObjective):
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
        self.extractor.requires_grad_(not frozen)  # from_pretrained makes new parameters that require gradients
        self.extractor.train(mode and (self.config.lexical_dropout or not frozen))
        return self

    def forward(self, encoder: Module, sentences: Tensor, masked: dict[str, Any]) -> AuxiliaryLoss:
        """The summed cross-entropy of the masked tokens. Without any it is exactly zero, and still has a graph."""
        if len(masked["mlm_labels"]) == 0:
            return zero_with_graph(self, sentences)
        return head_loss(self.head, self.fused(sentences, masked), masked["mlm_labels"])

    def fused(self, sentences: Tensor, masked: dict[str, Any]) -> Tensor:
        """(B, H) sentence vectors and a packed masked batch → (M, H) states of the masked tokens alone."""
        tokens = masked["input_ids"]  # (S,)
        packing = Packing.from_lengths(masked["lengths"], len(tokens), masked["width"])
        positions = masked["mlm_positions"]  # (M,)
        chosen = Packing.from_lengths(masked["mlm_counts"], len(positions), masked["mlm_width"])
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.config.lexical_frozen):
            features = embed_tokens(self.extractor, tokens, packing)  # (S, H)
            features = run_blocks(self.extractor, features, packing)[-1]
        # position 0 := h
        conditioned = features.index_copy(0, packing.starts, sentences.to(features.dtype))
        return run_blocks(self.fusion, conditioned, packing, Selection(positions, chosen))[-1]  # (M, H)

    @torch.no_grad()
    def load_backbone_weights(self, model: PreTrainedModel, has_head: bool) -> None:
        """Take extractor, fusion layers (`fusion_init`: last | next; random keeps them) and head from `model`."""
        copy_layers(self.extractor, model.base_model)
        if self.config.fusion_init in ("last", "next"):
            copy_layers(self.fusion, model.base_model, self.config.fusion_start)
        self.head.copy_from(model, trained=has_head)

    def load_pretrained(self, network: PretrainedAuxiliary, head: PreTrainedModel | None) -> None:
        """Take the fusion layers of a pre-trained auxiliary network (InfoCSE §3.2).

        Args:
            network: the network.
            head: the masked-language model that it was trained with; None if that is the backbone itself.
        """
        network.load_into(self.fusion, self.config.pooling)
        if head is not None:
            self.head.copy_from(head, trained=True)

    def load_trainable(self, other: AuxiliaryObjective) -> None:
        """Take fusion layers and head of another auxiliary network.

        Raises:
            ValueError: it has another number of fusion layers, or layers of another kind.
        """
        assert isinstance(other, ConditionalMLM)
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
