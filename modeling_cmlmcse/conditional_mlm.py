"""The auxiliary network of CMLM-CSE: predict masked words from the sentence vector and frozen lexical features."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .backbone import MaskedLMHead, Structure, blocks, build_blocks, build_encoder, embed_tokens, run_blocks
from .configuration_cmlmcse import CMLMCSEConfig
from .distributed import mean_over_processes
from .losses import at_least_fp32
from .packing import Packing, Selection


class ConditionalMLM(nn.Module):
    """Conditional masked-language model (CMLM-CSE §3.2): h'' = [h ; h'_{>0}] → fusion → masked words.

    The masked sentence goes through the frozen lexical feature extractor (the first `lexical_layers` blocks of the
    original backbone); the sentence vector replaces position 0 of its output; the trainable fusion blocks and an
    untied head predict the masked words. The gradient reaches the encoder through the sentence vector alone.
    """

    def __init__(self, config: CMLMCSEConfig) -> None:
        super().__init__()
        self.config = config
        self.extractor: Structure = build_encoder(config.backbone_config, config.lexical_layers)
        self.fusion = build_blocks(config.backbone_config, config.fusion_layers)
        self.head = MaskedLMHead(config.backbone_config)
        self.train()

    def train(self, mode: bool = True) -> "ConditionalMLM":
        """Set the mode; the extractor stays in eval mode unless `lexical_dropout` asks for its dropout."""
        super().train(mode)
        self.extractor.requires_grad_(False)  # from_pretrained replaces parameters and forgets it
        self.extractor.train(mode and self.config.lexical_dropout)
        return self

    def forward(self, sentences: Tensor, masked: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
        """The conditional MLM loss, and its accuracy for the log.

        Args:
            sentences: (B, H) sentence vectors, one for each masked row.
            masked: `input_ids` (S,), `lengths` (B,), `width` of the packed masked sentences; `mlm_positions` (M,)
                indices of the masked tokens in the packed row, ascending; `mlm_counts` (B,) masked tokens in each
                row, `mlm_width` their maximum; `mlm_labels` (M,) the true tokens.

        Returns:
            Scalar mean cross-entropy over the masked tokens of all processes, exactly zero (with a graph) if there
            is none; and `{"cmlm_accuracy": scalar}`.
        """
        labels = masked["mlm_labels"]
        if len(labels) == 0:
            nothing = sum(p.sum() for p in self.parameters() if p.requires_grad) + sentences.sum()
            return mean_over_processes(0.0 * nothing, 0), {}
        logits = self.masked_logits(sentences, masked)  # (M, V)
        with torch.autocast(logits.device.type, enabled=False):
            total = nn.functional.cross_entropy(at_least_fp32(logits), labels, reduction="sum")
        accuracy = (logits.detach().argmax(dim=-1) == labels).float().mean()
        return mean_over_processes(total, len(labels)), {"cmlm_accuracy": accuracy}

    def masked_logits(self, sentences: Tensor, masked: dict[str, Any]) -> Tensor:
        """(B, H) sentence vectors and a packed masked batch → (M, V) logits of the masked tokens alone."""
        tokens = masked["input_ids"]  # (S,)
        packing = Packing.from_lengths(masked["lengths"], len(tokens), masked["width"])
        positions = masked["mlm_positions"]  # (M,)
        chosen = Packing.from_lengths(masked["mlm_counts"], len(positions), masked["mlm_width"])
        with torch.no_grad():
            features = embed_tokens(self.extractor, tokens, packing, None)  # (S, H)
            features = run_blocks(blocks(self.extractor), features, packing)[-1]
        # position 0 := h
        conditioned = features.index_copy(0, packing.starts, sentences.to(features.dtype))
        fused = run_blocks(self.fusion, conditioned, packing, Selection(positions, chosen))[-1]  # (M, H)
        return self.head(fused)

    @torch.no_grad()
    def load_backbone_weights(self, model: PreTrainedModel, has_head: bool) -> None:
        """Take extractor, fusion layers (`fusion_init`: last | next; random keeps them) and head from `model`."""
        base: Structure = model.base_model
        lexical, count = self.config.lexical_layers, self.config.fusion_layers
        self.extractor.embeddings.load_state_dict(base.embeddings.state_dict())
        source = blocks(base)
        for target, block in zip(blocks(self.extractor), source, strict=False):
            target.load_state_dict(block.state_dict())
        first = {"last": len(source) - count, "next": lexical}.get(self.config.fusion_init)
        if first is not None:
            for target, block in zip(self.fusion, source[first : first + count], strict=True):
                target.load_state_dict(block.state_dict())
        self.head.copy_from(model, trained=has_head)

    def load_trainable(self, other: "ConditionalMLM") -> None:
        """Take fusion layers and head of another auxiliary network of the same shape."""
        self.fusion.load_state_dict(other.fusion.state_dict())
        self.head.load_state_dict(other.head.state_dict())
