"""DenoSent's decoder (Wang et al. 2024): all words of a sentence predicted from the sentence vector and noisy words."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .backbone import Module, TiedMaskedLMHead, build_blocks, embed_tokens, run_blocks
from .configuration_cmlmcse import CMLMCSEConfig
from .dropout import Dropout
from .enhanced_decoding import WordsFromVector, inner_tokens
from .packing import Packing, Selection


class NoisyDecoder(nn.Module):
    """Transformer blocks, with fresh weights, on a sentence's word embeddings, most of whose numbers are dropped.

    So little is left of a word that its place, the words around it and above all the sentence vector have to tell it.
    The noise is the paper's continuous one (§3.2, dropout of 0.825 on the embeddings, which get no gradient). Its
    discrete one, a translation of the sentence there, is an augmentation of the views here.

    In the paper the vector enters by cross-attention, which sees nothing else. Here it stands at position 0, as in the
    other objectives, so that any kind of block reads it. The paper's blocks have one head; here they are as the
    backbone's.

    Args:
        config: the model's configuration.
    """

    def __init__(self, config: CMLMCSEConfig) -> None:
        super().__init__()
        self.noise = Dropout(config.denosent_noise)
        self.blocks: Module = build_blocks(config.backbone_config, config.denosent_layers, first=0)

    def forward(self, backbone: Module, sentences: Tensor, tokens: Tensor, packing: Packing) -> tuple[Tensor, Tensor]:
        """The states of the predicted words; see :class:`EnhancedDecoder`."""
        places, layout = inner_tokens(packing)
        with torch.no_grad():
            words = embed_tokens(backbone, tokens, packing)  # (S, H)
        noisy = self.noise(words).index_copy(0, packing.starts, sentences.to(words.dtype))
        return run_blocks(self.blocks, noisy, packing, Selection(places, layout))[-1], places


class DenoSent(WordsFromVector):
    """DenoSent's decoder beside the contrast: a sentence is restored from its vector and noise.

    The encoder's blocks get its gradient through the vector alone, and its word embeddings as the decoder's output.
    """

    title = "DenoSent's denoising"

    @classmethod
    def settings(cls, fields: Mapping[str, Any]) -> tuple[str, ...]:
        return ("denosent_layers", "denosent_noise")

    def __init__(self, config: CMLMCSEConfig) -> None:
        super().__init__(config)
        self.decoder = NoisyDecoder(config)
        self.head = TiedMaskedLMHead(config.backbone_config)
