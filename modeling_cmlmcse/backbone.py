"""The backbone as this project uses it: encoders and parts of encoders on packed tokens, and the MLM head.

What differs between the kinds of backbone is in families.py.
"""

import copy
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForMaskedLM, PretrainedConfig, PreTrainedModel
from transformers.activations import ACT2FN
from transformers.utils import logging

from .attention import PACKED_ATTENTION
from .configuration_cmlmcse import EXPORT_KEY
from .families import FAMILIES, Module, family_of, gathered, unsupported
from .linear import is_plain
from .packing import Packing, Selection


def build_encoder(config: PretrainedConfig, num_hidden_layers: int | None = None) -> PreTrainedModel:
    """A freshly initialised encoder without pooler that attends through :func:`packed_attention`.

    Args:
        config: the backbone's configuration. The encoder has a copy of it.
        num_hidden_layers: build the first blocks alone. Their output is what the next block would get: it has not gone
            through a final norm.

    Raises:
        ValueError: no family is known for its model type.
    """
    if num_hidden_layers is None:
        return _build(config, 0, config.num_hidden_layers)
    encoder = _build(config, 0, max(num_hidden_layers, 1))  # transformers builds none without blocks
    del blocks(encoder)[num_hidden_layers:]
    family_of(config).without_final_norm(encoder)
    return encoder


def build_blocks(config: PretrainedConfig, count: int, first: int | None = None) -> PreTrainedModel:
    """A freshly initialised encoder without embeddings: `count` blocks, built like those of the backbone from block
    `first` on (default: its last ones), and what comes after them.

    Raises:
        ValueError: no family is known for its model type.
    """
    encoder = _build(config, max(config.num_hidden_layers - count, 0) if first is None else first, count)
    encoder.embeddings = NoEmbeddings()
    if hasattr(encoder, "embeddings_project"):
        del encoder.embeddings_project
    return encoder


class NoEmbeddings(nn.Module):
    """Stands for the embeddings that a part of an encoder lacks: transformers asks every model for its table."""

    word_embeddings = tok_embeddings = None


def _build(config: PretrainedConfig, first: int, count: int) -> PreTrainedModel:
    """A freshly initialised encoder of `count` blocks, built like those from block `first` on.

    Raises:
        ValueError: no family is known for its model type, or it is a decoder, whose tokens do not see what follows.
    """
    family = family_of(config)
    if getattr(config, "is_decoder", False):
        raise ValueError(
            f"the backbone must be an encoder, found a {config.model_type} with is_decoder true, whose words do not "
            "see those behind them; choose another checkpoint"
        )
    config = family.part(config, first, count)
    config.chunk_size_feed_forward = 0  # transformers would cut packed states along the wrong dimension
    config._attn_implementation = "eager"  # whatever was asked for; every kind has it
    encoder = family.build(config, first)
    encoder.config._attn_implementation = PACKED_ATTENTION
    return encoder


def blocks(encoder: Module) -> nn.ModuleList:
    """The transformer blocks of an encoder.

    Raises:
        ValueError: no family is known for its model type.
    """
    return family_of(encoder.config).blocks(encoder)


@torch.no_grad()
def copy_layers(target: Module, source: Module, first: int = 0) -> None:
    """Copy the weights of `source` into an encoder or a part of one. Its blocks get those from block `first` on; all
    else is copied by name."""
    prefix, weights = family_of(source.config).layers + ".", source.state_dict()

    def name_in_source(name: str) -> str:
        if not name.startswith(prefix):
            return name
        index, rest = name.removeprefix(prefix).split(".", 1)
        return f"{prefix}{int(index) + first}.{rest}"

    target.load_state_dict({name: weights[name_in_source(name)] for name in target.state_dict()})


def with_dropout(config: PretrainedConfig, probability: float) -> PretrainedConfig:
    """The backbone's configuration with this probability wherever its encoder has dropout."""
    config = copy.deepcopy(config)
    for name in family_of(config).dropouts:
        setattr(config, name, probability)
    return config


def dropouts(config: PretrainedConfig) -> dict[str, float]:
    """Every dropout probability of a backbone's encoder, by the name in its configuration."""
    return {name: getattr(config, name) for name in family_of(config).dropouts}


def has_dropout(config: PretrainedConfig) -> bool:
    """Whether a backbone's encoder drops anything out."""
    return any(probability > 0 for probability in dropouts(config).values())


def max_positions(encoder: Module) -> int:
    """How many tokens a sentence may have."""
    return family_of(encoder.config).max_positions(encoder)


def grid_positions(encoder: Module, ids: Tensor) -> Tensor | None:
    """(N, T) token ids → (N, T) the positions that transformers counts from them; None where it counts columns."""
    return family_of(encoder.config).positions(encoder, ids)


def embed_tokens(
    encoder: Module,
    tokens: Tensor | None,
    packing: Packing,
    token_types: Tensor | None = None,
    words: Tensor | None = None,
) -> Tensor:
    """(S,) token ids, or (S, E) word embeddings in their place → (S, H) what the first block gets."""
    return family_of(encoder.config).embed(encoder, tokens, packing, token_types, words)


def run_blocks(encoder: Module, hidden: Tensor, packing: Packing, selection: Selection | None = None) -> list[Tensor]:
    """The outputs of all blocks of an encoder or a part of one, each (S, H).

    The last one has gone through the final norm, if there is one. With a `selection` it is (M, H): the selected tokens.
    Without any block it is the embeddings alone.
    """
    family, layers, outputs = family_of(encoder.config), blocks(encoder), []
    if encoder.config._attn_implementation != PACKED_ATTENTION:  # somebody has set another one, which mixes sentences
        encoder.config._attn_implementation = PACKED_ATTENTION
    if not layers:
        return [family.final_norm(encoder, hidden)]
    shared = family.shared(encoder, hidden, packing)
    everything = None if family.runs_whole(encoder) else Selection.all_tokens(packing)
    for index, block in enumerate(layers):
        chosen = everything if selection is None or index < len(layers) - 1 else selection
        if chosen is None:
            hidden = family.run(block, hidden, packing, shared)
        else:
            hidden = family.run_selected(gathered(block), hidden, packing, chosen, shared)
        outputs.append(hidden)
    outputs[-1] = family.final_norm(encoder, hidden)
    return outputs


class MaskedLMHead(nn.Module):
    """Hidden states (M, H) → logits (M, V): dense, activation, LayerNorm, decoder, as every family has it.

    Never tied to the encoder's embeddings: tying would open a second gradient path into the encoder
    (InfoCSE, the authors' code; see also CMLM-CSE §3.2).
    """

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__()
        shape = family_of(config).head(config)
        self.dense = nn.Linear(config.hidden_size, shape.width, bias=shape.dense_bias)
        self.activation = ACT2FN[shape.activation]
        self.LayerNorm = nn.LayerNorm(shape.width, eps=shape.norm_eps, bias=shape.norm_bias)
        self.decoder = nn.Linear(shape.width, config.vocab_size, bias=shape.decoder_bias)

    def forward(self, hidden: Tensor, words: Tensor | None = None) -> Tensor:
        """(M, H) → (M, V). `words` is for :class:`TiedMaskedLMHead`."""
        return self.decoder(self.before_decoder(hidden))

    def before_decoder(self, hidden: Tensor) -> Tensor:
        """(M, H) → (M, W): all but the decoder."""
        return self.LayerNorm(self.activation(self.dense(hidden)))

    def scorer(self, words: Tensor | None = None) -> tuple[Tensor, Tensor | None] | None:
        """Weight (V, W) and bias (V,) of the decoder; None where it is more than these, as an adapter's is."""
        return (self.decoder.weight, self.decoder.bias) if is_plain(self.decoder) else None

    @torch.no_grad()
    def copy_from(self, model: PreTrainedModel, trained: bool) -> None:
        """Take the weights of a masked-language model's head; of an untrained one only the decoder, which is the
        word embeddings."""
        decoder = model.get_output_embeddings()
        self.decoder.load_state_dict(decoder.state_dict())
        if not trained:
            if self.decoder.bias is not None:
                self.decoder.bias.zero_()
            return
        for ours, theirs in zip((self.dense, self.LayerNorm), head_parts(model), strict=True):
            ours.load_state_dict(theirs.state_dict())

    def resize(self, count: int) -> None:
        """Keep the rows of the first `count` tokens and add fresh ones."""
        old, kept = self.decoder, min(count, self.decoder.out_features)
        decoder = nn.Linear(old.in_features, count, bias=old.bias is not None).to(old.weight)
        decoder.weight[:kept] = old.weight[:kept]
        if old.bias is not None:
            decoder.bias.zero_()[:kept] = old.bias[:kept]
        self.decoder = decoder

    @classmethod
    def of(cls, model: PreTrainedModel) -> "MaskedLMHead":
        """The head of a masked-language model, made of its own parts, tied as they are; nothing is copied."""
        head = cls(model.config)
        head.dense, head.LayerNorm = head_parts(model)
        head.decoder = model.get_output_embeddings()
        return head


class TiedMaskedLMHead(MaskedLMHead):
    """A head whose decoder is the word embeddings of the encoder that it is given, and a bias of its own."""

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__(config)
        self.bias = None if self.decoder.bias is None else nn.Parameter(torch.zeros(config.vocab_size))
        del self.decoder

    def forward(self, hidden: Tensor, words: Tensor | None = None) -> Tensor:
        """(M, H) states and (V, W) word embeddings → (M, V) logits."""
        assert words is not None
        return nn.functional.linear(self.before_decoder(hidden), words, self.bias)

    def scorer(self, words: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """The word embeddings and the bias."""
        assert words is not None
        return words, self.bias

    @torch.no_grad()
    def copy_from(self, model: PreTrainedModel, trained: bool) -> None:
        """Take the weights of a masked-language model's head; of an untrained one nothing."""
        if not trained:
            return
        if self.bias is not None:
            self.bias.copy_(model.get_output_embeddings().bias)
        for ours, theirs in zip((self.dense, self.LayerNorm), head_parts(model), strict=True):
            ours.load_state_dict(theirs.state_dict())

    def resize(self, count: int) -> None:
        """Keep the biases of the first `count` tokens; new ones have 0. The embeddings are the encoder's."""
        if self.bias is not None:
            bias = self.bias.new_zeros(count)
            kept = min(count, len(self.bias))
            bias[:kept] = self.bias[:kept].detach()
            self.bias = nn.Parameter(bias)


def head_parts(model: PreTrainedModel) -> tuple[nn.Linear, nn.LayerNorm]:
    """The dense layer and the norm between a masked-language model's encoder and its decoder."""
    outside = {*model.base_model.modules(), model.get_output_embeddings()}
    others = [module for module in model.modules() if module not in outside]
    (dense,) = [module for module in others if isinstance(module, nn.Linear)]
    (norm,) = [module for module in others if isinstance(module, nn.LayerNorm)]
    return dense, norm


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Silence transformers' warnings for as long as a model or tokenizer is loaded."""
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)


def load_backbone(
    name_or_path: str, fresh: bool = False, new_token_id: int | None = None
) -> tuple[PreTrainedModel, bool]:
    """A pretrained masked-language model in fp32, and whether its checkpoint holds the head's weights; a `fresh` one
    is built alike, with random weights. A new token that follows on its vocabulary gets a fresh embedding.

    Raises:
        ValueError: no such model, no masked-language model of this kind, or encoder weights are missing.
    """
    try:
        with quiet_loading():  # a missing head and an unused pooler are expected, and handled here
            if fresh:
                config = AutoConfig.from_pretrained(name_or_path, trust_remote_code=False)
                model, info = AutoModelForMaskedLM.from_config(config, dtype=torch.float32), None
            else:
                model, info = AutoModelForMaskedLM.from_pretrained(
                    name_or_path, output_loading_info=True, dtype=torch.float32, trust_remote_code=False
                )
    except Exception as error:
        if isinstance(error, ValueError):
            fields, _ = PretrainedConfig.get_config_dict(name_or_path)  # not a configuration, which may be code
            if fields.get("model_type") not in FAMILIES:
                raise ValueError(unsupported(fields.get("model_type"))) from error
        # safetensors, which this code does not import, has an error of its own for a damaged file.
        if not isinstance(error, (OSError, KeyError, ValueError)) and type(error).__name__ != "SafetensorError":
            raise
        raise ValueError(
            f"model_name_or_path must be a folder with config.json and weights or a Hub name, found {name_or_path!r}, "
            f"which cannot be loaded: {str(error).splitlines()[0]}"
        ) from error
    family_of(model.config)  # refuses a backbone of an unknown kind
    for of_export in (EXPORT_KEY, "auto_map"):  # they describe the model that an export is, and not its backbone
        if hasattr(model.config, of_export):
            delattr(model.config, of_export)
    prefix = model.base_model_prefix + "."
    keys = [] if info is None else info["missing_keys"]
    missing = [key for key in keys if key.startswith(prefix)]
    if missing:
        raise ValueError(
            f"the weights of {name_or_path} must hold the whole encoder, found {len(missing)} tensors missing "
            f"({missing[0]}, …); choose a complete checkpoint"
        )
    if os.path.isdir(name_or_path):
        model.config._name_or_path = ""  # a path of this machine tells nobody anything
    if new_token_id is not None and new_token_id == model.config.vocab_size:
        model.resize_token_embeddings(new_token_id + 1, mean_resizing=False)
    return model, not fresh and not keys
