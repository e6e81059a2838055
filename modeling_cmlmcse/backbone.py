"""The backbone seen by structure, not by name: its embeddings, its blocks, its masked-language-model head.

Everything that must know how a BERT-like encoder is built stands in this file. A new kind of backbone is a change
here and a parity test.
"""

import copy
import os
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, PretrainedConfig, PreTrainedModel
from transformers.activations import ACT2FN
from transformers.utils import logging

from .packing import PACKED_ATTENTION, Packing, Selection, packed_attention

Structure = Any  # a module whose parts are known by structure, which static types cannot say


def build_encoder(config: PretrainedConfig, num_hidden_layers: int | None = None) -> PreTrainedModel:
    """A freshly initialised encoder without pooler, of `num_hidden_layers` blocks (default: all), that attends
    through :func:`packed_attention`.

    Raises:
        ValueError: the model type has no embeddings and list of blocks built like BERT's.
    """
    config = copy.deepcopy(config)
    config.num_hidden_layers = config.num_hidden_layers if num_hidden_layers is None else num_hidden_layers
    try:
        encoder = AutoModel.from_config(config, add_pooling_layer=False)
    except (TypeError, ValueError) as error:
        raise ValueError(unsupported(config)) from error
    if not all(hasattr(block, "feed_forward_chunk") for block in blocks(encoder)):
        raise ValueError(unsupported(config))
    encoder.config._attn_implementation = PACKED_ATTENTION
    return encoder


def unsupported(config: PretrainedConfig) -> str:
    """The message for a backbone that is neither kind."""
    kind = getattr(config, "model_type", "none") or "none"
    return (
        f"the backbone must be built like BERT or RoBERTa (embeddings and encoder.layer), found model_type {kind!r}: "
        "choose a BERT, RoBERTa or XLM-RoBERTa checkpoint"
    )


def blocks(encoder: Structure) -> nn.ModuleList:
    """The transformer blocks of an encoder.

    Raises:
        ValueError: the encoder is not built like BERT's.
    """
    layers = getattr(getattr(encoder, "encoder", None), "layer", None)
    if not isinstance(layers, nn.ModuleList) or not hasattr(encoder, "embeddings"):
        raise ValueError(unsupported(encoder.config))
    return layers


def build_blocks(config: PretrainedConfig, count: int) -> nn.ModuleList:
    """`count` freshly initialised blocks of the backbone's kind, that attend through packed attention."""
    return blocks(build_encoder(config, count))


def padding_index(encoder: Structure) -> int | None:
    """The padding row of the position table, which RoBERTa has and BERT has not."""
    return encoder.embeddings.position_embeddings.padding_idx


def position_ids(encoder: Structure, tokens: Tensor, packing: Packing) -> Tensor:
    """(S,) the position of each token as this backbone counts: BERT by column; RoBERTa from after its padding
    index, skipping padding tokens."""
    padding = padding_index(encoder)
    if padding is None:
        return packing.columns  # (S,)
    real = (tokens != padding).long()  # (S,)
    count = real.cumsum(0)  # (S,)
    before = (count - real)[packing.starts]  # (B,) real tokens before each row
    return (count - before[packing.rows]) * real + padding  # (S,)


def max_positions(encoder: Structure) -> int:
    """How many tokens a sentence may have: RoBERTa's table of 514 rows holds 512."""
    padding = padding_index(encoder)
    return encoder.embeddings.position_embeddings.num_embeddings - (0 if padding is None else padding + 1)


def embed_tokens(encoder: Structure, tokens: Tensor, packing: Packing, token_types: Tensor | None) -> Tensor:
    """(S,) token ids → (S, H) the embedding layer's output for packed tokens."""
    embedded = encoder.embeddings(
        input_ids=tokens[None],
        position_ids=position_ids(encoder, tokens, packing)[None],
        token_type_ids=torch.zeros_like(tokens)[None] if token_types is None else token_types[None],
    )
    return embedded[0]


def run_block(block: Structure, hidden: Tensor, packing: Packing) -> Tensor:
    """(S, H) → (S, H) through one block."""
    output = block(hidden[None], attention_mask=None, packing=packing)
    return (output[0] if isinstance(output, tuple) else output)[0]  # transformers 4 returns a tuple


def run_block_selected(block: Structure, hidden: Tensor, packing: Packing, selection: Selection) -> Tensor:
    """(S, H) → (M, H): one block whose queries, output projection and feed-forward see the selected tokens only."""
    attention = block.attention.self
    heads = (-1, attention.num_attention_heads, attention.attention_head_size)
    chosen = hidden.index_select(0, selection.index)  # (M, H)
    query, key, value = (
        linear(states).view(1, *heads).transpose(1, 2)
        for linear, states in ((attention.query, chosen), (attention.key, hidden), (attention.value, hidden))
    )  # (1, heads, M or S, D)
    context, _ = packed_attention(
        attention,
        query,
        key,
        value,
        None,
        packing=packing,
        queries=selection.packing,
        dropout=attention.dropout.p if attention.training else 0.0,
        scaling=attention.attention_head_size**-0.5,
    )  # (1, M, heads, D)
    attended = block.attention.output(context[0].flatten(1), chosen)  # (M, H)
    return block.feed_forward_chunk(attended)


def run_blocks(
    layers: nn.ModuleList, hidden: Tensor, packing: Packing, selection: Selection | None = None
) -> list[Tensor]:
    """The outputs of all blocks, each (S, H); with a `selection` the last one is (M, H), the selected tokens."""
    outputs = []
    for index, block in enumerate(layers):
        if selection is not None and index == len(layers) - 1:
            hidden = run_block_selected(block, hidden, packing, selection)
        else:
            hidden = run_block(block, hidden, packing)
        outputs.append(hidden)
    return outputs


class MaskedLMHead(nn.Module):
    """Hidden states (M, H) → logits (M, V): dense, activation, LayerNorm, decoder, as BERT and RoBERTa have it.

    Never tied to the encoder's embeddings: tying would open a second gradient path into the encoder
    (InfoCSE, the authors' code; see also CMLM-CSE §3.2).
    """

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACT2FN[getattr(config, "hidden_act", "gelu")]
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.decoder(self.LayerNorm(self.activation(self.dense(hidden))))  # (M, V)

    @torch.no_grad()
    def copy_from(self, model: PreTrainedModel, trained: bool) -> None:
        """Take the weights of a masked-language model's head; of an untrained one only the decoder, which is the
        word embeddings."""
        decoder = model.get_output_embeddings()
        self.decoder.weight.copy_(decoder.weight)
        self.decoder.bias.zero_()
        if not trained:
            return
        self.decoder.bias.copy_(decoder.bias)
        inside = set(model.base_model.modules())
        others = [m for m in model.modules() if m not in inside and m is not decoder]
        (dense,) = [m for m in others if isinstance(m, nn.Linear)]
        (norm,) = [m for m in others if isinstance(m, nn.LayerNorm)]
        self.dense.load_state_dict(dense.state_dict())
        self.LayerNorm.load_state_dict(norm.state_dict())


def load_backbone(name_or_path: str) -> tuple[PreTrainedModel, bool]:
    """A pretrained masked-language model in fp32, and whether its checkpoint holds the head's weights.

    Raises:
        ValueError: no such model, no masked-language model of this kind, or encoder weights are missing.
    """
    level = logging.get_verbosity()
    logging.set_verbosity_error()  # a missing head and an unused pooler are expected, and handled here
    try:
        model, info = AutoModelForMaskedLM.from_pretrained(name_or_path, output_loading_info=True, dtype=torch.float32)
    except (OSError, KeyError) as error:
        raise ValueError(
            f"model_name_or_path must be a folder with config.json and weights or a Hub name, found {name_or_path!r}, "
            f"which cannot be loaded: {str(error).splitlines()[0]}"
        ) from error
    except ValueError as error:
        config = AutoConfig.from_pretrained(name_or_path)
        raise ValueError(unsupported(config)) from error
    finally:
        logging.set_verbosity(level)
    blocks(model.base_model)  # refuses a backbone of another structure
    prefix = model.base_model_prefix + "."
    missing = [key for key in info["missing_keys"] if key.startswith(prefix)]
    if missing:
        raise ValueError(
            f"the weights of {name_or_path} must hold the whole encoder, found {len(missing)} tensors missing "
            f"({missing[0]}, …); choose a complete checkpoint"
        )
    if os.path.isdir(name_or_path):
        model.config._name_or_path = ""  # a path of this machine tells nobody anything
    return model, not info["missing_keys"]
