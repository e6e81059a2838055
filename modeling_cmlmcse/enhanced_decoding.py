"""RetroMAE's decoder (Xiao et al. 2022): every word of a sentence predicted from the sentence vector and a few
of the other words."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from .auxiliary import EVALUATION_SEED, AuxiliaryLoss, AuxiliaryObjective, head_loss, zero_with_graph
from .backbone import Module, TiedMaskedLMHead, build_blocks, embed_tokens, run_blocks
from .configuration_cmlmcse import CMLMCSEConfig
from .packing import Packing, Selection


class EnhancedDecoder(nn.Module):
    """One transformer block with enhanced decoding.

    Position i asks with the sentence vector plus its position embedding. It sees the sentence vector and a sample of
    the sentence's unmasked word embeddings, drawn for each position anew, never its own word. So every word is
    predicted, and each from another context.

    The published code samples whole words, here single tokens are sampled, each by itself. Its queries are the bare sum
    of vector and position; here they pass through the embeddings' norm, like the words, so that any backbone can ask.

    Args:
        config: the backbone's configuration.
        hidden_share: the share of the other words that a position does not see (the paper's decoder masks 0.5).

    Raises:
        ValueError: a backbone whose word embeddings are narrower than its blocks.
    """

    def __init__(self, config: PretrainedConfig, hidden_share: float) -> None:
        super().__init__()
        if getattr(config, "embedding_size", config.hidden_size) != config.hidden_size:
            raise ValueError(
                f"RetroMAE's decoder expects word embeddings as wide as the blocks, {config.hidden_size}, found "
                f"{config.embedding_size}; choose another backbone or another objective"
            )
        self.hidden_share = hidden_share
        self.block: Module = build_blocks(config, 1, first=0)  # the first, because it reads embeddings

    def forward(self, backbone: Module, sentences: Tensor, tokens: Tensor, packing: Packing) -> tuple[Tensor, Tensor]:
        """The states of the predicted words.

        Args:
            backbone: the encoder, whose embeddings the decoder shares.
            sentences: (B, H) sentence vectors.
            tokens: (S,) the packed sentences, unmasked.
            packing: their layout.

        Returns:
            (P, H) states of the words and (P,) their indices in the packed row: all tokens but each row's first and
            last, which are special.
        """
        places, layout = inner_tokens(packing)
        words = embed_tokens(backbone, tokens, packing)  # (S, H)
        context = words.index_copy(0, packing.starts, sentences.to(words.dtype))
        asking = embed_tokens(backbone, None, packing, words=sentences[packing.rows])  # (S, H)
        visible = self.visible(packing, layout)
        selection = Selection(places, layout, asking.index_select(0, places), visible)
        return run_blocks(self.block, context, packing, selection)[-1], places

    def visible(self, packing: Packing, layout: Packing) -> Tensor:
        """(B, P′, T) which columns the predicted words see: the first always, their own never, others by chance."""
        device = packing.slots.device
        seed = None if self.training else torch.Generator(device).manual_seed(EVALUATION_SEED)
        drawn = torch.rand(*layout.shape, packing.shape[1], device=device, generator=seed)
        columns = torch.arange(packing.shape[1], device=device)  # (T,)
        own = torch.arange(layout.shape[1], device=device)[:, None] + 1  # the first predicted word stands in column 1
        return (drawn >= self.hidden_share) & (columns != own) | (columns == 0)  # (B, P′, T)


class WordsFromVector(AuxiliaryObjective):
    """Every word of a sentence is predicted from the sentence vector and what a decoder sees besides.

    The words are those before masking.

    Attributes:
        decoder: encoder, sentence vectors, tokens and their packing → states of the words and their places.
        head: states and the encoder's word embeddings → logits.
    """

    decoder: nn.Module
    head: TiedMaskedLMHead

    def terms(self, masked: dict[str, Any]) -> int:
        """Every token but the first and last of a sentence is a prediction."""
        return len(masked["input_ids"]) - 2 * len(masked["lengths"])

    def forward(self, encoder: Module, sentences: Tensor, masked: dict[str, Any]) -> AuxiliaryLoss:
        """The summed cross-entropy of all words. Without any it is exactly zero, and still has a graph."""
        if self.terms(masked) <= 0:
            return zero_with_graph(self, sentences)
        tokens = masked["input_ids"].index_copy(0, masked["mlm_positions"], masked["mlm_labels"])  # (S,)
        packing = Packing.from_lengths(masked["lengths"], len(tokens), masked["width"])
        decoded, places = self.decoder(encoder, sentences, tokens, packing)  # (P, H), (P,)
        return head_loss(self.head, decoded, tokens.index_select(0, places), encoder.get_input_embeddings().weight)

    def load_backbone_weights(self, model: PreTrainedModel, has_head: bool) -> None:
        """Take the head of the pretrained masked-language model."""
        self.head.copy_from(model, trained=has_head)


class EnhancedDecoding(WordsFromVector):
    """RetroMAE's decoder beside the contrast: every word of the sentence is predicted from the sentence vector.

    Decoder input and output share the encoder's word embeddings, as in the published code, so these get a gradient of
    their own; the encoder's blocks get it through the vector alone.
    """

    title = "RetroMAE's enhanced decoding"

    @classmethod
    def settings(cls, fields: Mapping[str, Any]) -> tuple[str, ...]:
        return ("decoder_hidden_share",)

    def __init__(self, config: CMLMCSEConfig) -> None:
        super().__init__(config)
        self.decoder = EnhancedDecoder(config.backbone_config, config.decoder_hidden_share)
        self.head = TiedMaskedLMHead(config.backbone_config)


def inner_tokens(packing: Packing) -> tuple[Tensor, Packing]:
    """All tokens but each row's first and last: their indices in the packed row (P,), and their layout. Every row must
    have these two, so that the host knows P without asking the device."""
    size, width = packing.shape
    total = len(packing.slots) - 2 * size
    layout = Packing.from_lengths(packing.lengths - 2, total, max(width - 2, 1))
    places = torch.arange(total, device=packing.slots.device) + 2 * layout.rows + 1  # (P,)
    return places, layout
