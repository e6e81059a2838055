"""The auxiliary networks of stage 1, by the name that a recipe has for them. Each predicts words from the vector of the
masked sentence. A new one is a class here and an entry in `DECODERS`."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PretrainedConfig

from modeling_cmlmcse.backbone import Module, blocks, build_blocks, copy_layers
from modeling_cmlmcse.condenser import Encoded
from modeling_cmlmcse.configuration_cmlmcse import CMLMCSEConfig
from modeling_cmlmcse.enhanced_decoding import EnhancedDecoder
from modeling_cmlmcse.masked_batch import MaskedBatch, fuse
from modeling_cmlmcse.packing import Packing
from modeling_cmlmcse.pretrained_auxiliary import AUXILIARY_NETWORK


class Predicted(NamedTuple):
    """What an auxiliary network predicts: its states (P, H), and the words (P,) that are there."""

    states: Tensor
    words: Tensor


class Decoder(nn.Module, ABC):
    """An auxiliary network. The head of the masked-language model makes words of its states.

    Attributes:
        title: what a card calls it.
        predicts_all: whether it predicts all words of a text and not the masked ones alone. Then tokens may be deleted
            from what the backbone reads (TSDAE), and a text needs special tokens around it, which are not predicted.
        exported: whether a second stage goes on with its weights.
    """

    title: ClassVar[str]
    predicts_all: ClassVar[bool]
    exported: ClassVar[bool]

    @classmethod
    @abstractmethod
    def build(cls, config: PretrainedConfig, sizes: CMLMCSEConfig) -> "Decoder":
        """With fresh weights.

        Args:
            config: the backbone's configuration, with the dropout of training.
            sizes: holds `lexical_layers`, `fusion_layers` and `decoder_hidden_share`.

        Raises:
            ValueError: a size that does not fit the backbone.
        """

    @abstractmethod
    def count(self, masked: dict[str, Any]) -> int:
        """How many words it predicts in a packed masked batch (`masked` as in :class:`AuxiliaryObjective`)."""

    @abstractmethod
    def forward(self, backbone: Module, encoded: Encoded, batch: MaskedBatch, masked: dict[str, Any]) -> Predicted:
        """Predict the words of a batch.

        Args:
            backbone: the backbone, whose embeddings a decoder may read.
            encoded: what the backbone makes of the masked sentences.
            batch, masked: the sentences.
        """

    def start_from(self, backbone: Module, fusion_init: str) -> None:
        """Take weights of the backbone, if `fusion_init` is `last` or `next` and the network has such layers."""

    def save(self, folder: Path, pooling: str) -> None:
        """Write what a second stage goes on with into the folder of the backbone."""


class FusionDecoder(Decoder):
    """The fusion blocks of InfoCSE (§3.1) and Condenser read `[h ; H_k[1:]]` and predict the masked words. h is the
    sentence vector, H_k[1:] are the other tokens at layer k of the backbone.

    Args:
        config: the backbone's configuration.
        lexical_layers: k, from 1 to L − 1 of L blocks.
        fusion_layers: the number of fusion blocks.

    Raises:
        ValueError: k is out of range.
    """

    title, predicts_all, exported = "fusion layers", False, True

    def __init__(self, config: PretrainedConfig, lexical_layers: int, fusion_layers: int) -> None:
        super().__init__()
        if not 1 <= lexical_layers < config.num_hidden_layers:
            raise ValueError(
                f"lexical_layers must be from 1 to {config.num_hidden_layers - 1}, below the backbone's last layer, "
                f"found {lexical_layers}; set it, or auxiliary_weight 0 for plain masked-language modelling"
            )
        self.lexical_layers, self.fusion_layers = lexical_layers, fusion_layers
        self.blocks: Module = build_blocks(config, fusion_layers)

    @classmethod
    def build(cls, config: PretrainedConfig, sizes: CMLMCSEConfig) -> "FusionDecoder":
        return cls(config, sizes.lexical_layers, sizes.fusion_layers)

    def count(self, masked: dict[str, Any]) -> int:
        return len(masked["mlm_labels"])

    def forward(self, backbone: Module, encoded: Encoded, batch: MaskedBatch, masked: dict[str, Any]) -> Predicted:
        layer = encoded.layers[self.lexical_layers - 1]
        return Predicted(fuse(self.blocks, encoded.sentences, layer, batch), masked["mlm_labels"])

    @torch.no_grad()
    def start_from(self, backbone: Module, fusion_init: str) -> None:
        if fusion_init in ("last", "next"):
            last = len(blocks(backbone)) - self.fusion_layers
            copy_layers(self.blocks, backbone, last if fusion_init == "last" else self.lexical_layers)

    def save(self, folder: Path, pooling: str) -> None:
        weights = {name: tensor.detach().cpu().contiguous() for name, tensor in self.blocks.state_dict().items()}
        depths = {"lexical_layers": str(self.lexical_layers), "fusion_layers": str(self.fusion_layers)}
        save_file(weights, folder / AUXILIARY_NETWORK, metadata={"format": "pt", **depths, "pooling": pooling})


class RetroMAEDecoder(Decoder):
    """RetroMAE's decoder predicts all words from the sentence vector and a few of the others; it reads no layer of the
    backbone but its embeddings. Where the batch has the `whole` sequences, because tokens were deleted from what the
    backbone reads, it predicts the words of these.

    Args:
        config: the backbone's configuration.
        hidden_share: see :class:`EnhancedDecoder`.
    """

    title, predicts_all, exported = "RetroMAE's decoder (Xiao et al. 2022)", True, False

    def __init__(self, config: PretrainedConfig, hidden_share: float) -> None:
        super().__init__()
        self.enhanced = EnhancedDecoder(config, hidden_share)

    @classmethod
    def build(cls, config: PretrainedConfig, sizes: CMLMCSEConfig) -> "RetroMAEDecoder":
        return cls(config, sizes.decoder_hidden_share)

    def count(self, masked: dict[str, Any]) -> int:
        restored = masked.get("whole", masked)
        return len(restored["input_ids"]) - 2 * len(restored["lengths"])  # all but two special ones in a row

    def forward(self, backbone: Module, encoded: Encoded, batch: MaskedBatch, masked: dict[str, Any]) -> Predicted:
        words, packing = (
            batch.tokens.index_copy(0, batch.positions, masked["mlm_labels"]),
            batch.packing,
        )  # (S,) unmasked
        if whole := masked.get("whole"):
            words = whole["input_ids"]  # (S′,)
            packing = Packing.from_lengths(whole["lengths"], len(words), whole["width"])
        states, places = self.enhanced(backbone, encoded.sentences, words, packing)
        return Predicted(states, words.index_select(0, places))


DECODERS: dict[str, type[Decoder]] = {"fusion": FusionDecoder, "retromae": RetroMAEDecoder}


def chosen_decoder(name: str, weight: float) -> type[Decoder] | None:
    """The auxiliary network of this name; None for plain masked-language modelling, where its loss has no weight."""
    return DECODERS[name] if weight > 0 else None
