"""RetroMAE's decoder (Xiao et al. 2022, §3.2): every word of a sentence predicted from the sentence vector and a few
of the other words."""

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from modeling_cmlmcse.backbone import Module, build_blocks, embed_tokens, run_blocks
from modeling_cmlmcse.packing import Packing, Selection

EVALUATION_SEED = 0  # without dropout the words that a position sees are the same at every evaluation


class EnhancedDecoder(nn.Module):
    """One transformer block with enhanced decoding.

    Position i asks with the sentence vector plus its position embedding. It sees the sentence vector and a sample of
    the sentence's unmasked word embeddings, drawn for each position anew, never its own word. So every word is
    predicted, and each from another context.

    The published code samples whole words and passes queries and words through the embeddings' norm; here single
    tokens are sampled, each by itself, and the norm is the same.

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
                f"auxiliary_decoder retromae expects word embeddings as wide as the blocks, {config.hidden_size}, "
                f"found {config.embedding_size}; choose another backbone, or auxiliary_decoder fusion"
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
        visible = drawn >= self.hidden_share
        own = torch.arange(layout.shape[1], device=device) + 1  # the first predicted word stands in column 1
        visible[:, torch.arange(layout.shape[1], device=device), own] = False
        visible[:, :, 0] = True
        return visible


def inner_tokens(packing: Packing) -> tuple[Tensor, Packing]:
    """All tokens but each row's first and last: their indices in the packed row (P,), and their layout."""
    columns, rows = packing.columns, packing.rows  # (S,)
    inner = (columns > 0) & (columns < packing.lengths[rows] - 1)
    places = inner.nonzero().flatten()  # (P,)
    lengths = (packing.lengths - 2).clamp(min=0)
    return places, Packing.from_lengths(lengths, len(places), max(packing.shape[1] - 2, 1))
