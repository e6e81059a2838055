"""Condenser (Gao & Callan 2021): a short network predicts masked words from lower layers and the sentence vector."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .auxiliary import AuxiliaryLoss, FusingObjective, head_loss, zero_with_graph
from .backbone import Module, TiedMaskedLMHead, build_blocks, embed_tokens, run_blocks
from .configuration_cmlmcse import CMLMCSEConfig
from .masked_batch import MaskedBatch, fuse
from .packing import Packing, Selection
from .pooling import POOLINGS


class Encoded(NamedTuple):
    """What an encoder makes of masked sentences.

    Attributes:
        hidden: (M, H) states of the masked tokens after the last block.
        sentences: (B, H) vectors of the masked sentences.
        layers: the output of each block, (S, H) each; the last may hold fewer tokens.
    """

    hidden: Tensor
    sentences: Tensor
    layers: list[Tensor]


def encode_masked(encoder: Module, pooling: str, batch: MaskedBatch) -> Encoded:
    """Run the encoder on masked sentences.

    Args:
        encoder: the encoder.
        pooling: how a sentence becomes one vector, a name in `POOLINGS`.
        batch: the sentences.
    """
    pools = POOLINGS[pooling]
    embedded = embed_tokens(encoder, batch.tokens, batch.packing)  # (S, H)
    # If the pooling reads only the first token, the last block computes only that one and the masked tokens.
    few = pools.reads_first_token_only
    selection, places = with_first_tokens(batch) if few else (None, batch.positions)
    layers = run_blocks(encoder, embedded, batch.packing, selection)
    sentences = pools.pool(layers, batch.packing if selection is None else selection.packing)  # (B, H)
    return Encoded(layers[-1].index_select(0, places), sentences, layers)


def with_first_tokens(batch: MaskedBatch) -> tuple[Selection, Tensor]:
    """Select each row's first token and the M masked ones, among which no first token is (it is special).

    Returns:
        The selection, and the places of the masked tokens in it (M,).
    """
    packing, positions, chosen = batch.packing, batch.positions, batch.chosen
    size, count = packing.shape[0], len(positions)
    counts, width = chosen.lengths + 1, chosen.shape[1] + 1
    layout = Packing.from_lengths(counts, size + count, width)
    places = torch.arange(count, device=positions.device) + chosen.rows + 1  # (M,)
    index = positions.new_empty(size + count).index_copy(0, places, positions)
    return Selection(index.index_copy(0, layout.starts, packing.starts), layout), places


class Condenser(FusingObjective):
    """Condenser's pre-training loss beside the contrast (coCondenser, Gao & Callan 2022).

    The encoder reads the masked sentence. Its last layer predicts the masked words, and so do fusion blocks that read
    its layer k with the vector of the masked sentence at position 0. Both losses use one head, whose decoder is the
    word embeddings, and have the same weight. Nothing is frozen.

    In coCondenser the contrast compares the vectors of these masked spans. Here it compares those of the views, which
    are not masked, so that a step encodes every sentence once more. The auxiliary network of CMLM-CSE reads a frozen
    extractor instead of the encoder's own layer k, and the vector of the view.
    """

    title = "Condenser's pre-training loss"

    @classmethod
    def settings(cls, fields: Mapping[str, Any]) -> tuple[str, ...]:
        return ("lexical_layers", "fusion_layers", "fusion_init", "mlm_probability")

    def __init__(self, config: CMLMCSEConfig) -> None:
        super().__init__(config)
        self.fusion: Module = build_blocks(config.backbone_config, config.fusion_layers, config.fusion_start)
        self.head = TiedMaskedLMHead(config.backbone_config)

    def forward(self, encoder: Module, sentences: Tensor, masked: dict[str, Any]) -> AuxiliaryLoss:
        """The summed cross-entropies of the masked tokens, by the encoder and by the fusion blocks. Without any it is
        exactly zero, and still has a graph. `accuracy` counts what the fusion blocks predict correctly."""
        labels = masked["mlm_labels"]  # (M,)
        if len(labels) == 0:
            return zero_with_graph(self, sentences)
        batch = MaskedBatch.of(masked)
        found = encode_masked(encoder, self.config.pooling, batch)
        fused = fuse(self.fusion, found.sentences, found.layers[self.config.lexical_layers - 1], batch)  # (M, H)
        words = encoder.get_input_embeddings().weight
        direct, condensed = (head_loss(self.head, states, labels, words) for states in (found.hidden, fused))
        return AuxiliaryLoss(direct.total + condensed.total, condensed.sums)
