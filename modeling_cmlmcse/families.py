"""How each kind of backbone is built: one small class a family, found by model type in `FAMILIES`.

A family knows where the blocks are, how packed tokens are embedded, how a block runs on all tokens or computes a few of
them only, and the shape of the pretrained MLM head. A new kind of backbone is a class or a name here, and a
parity test.
"""

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AutoModel, PretrainedConfig, PreTrainedModel, __version__

from .attention import token_attention
from .linear import is_plain, linear
from .packing import Packing, Selection

TRANSFORMERS_5 = int(__version__.split(".")[0]) >= 5

Module = Any  # an nn.Module whose parts differ by family, which static types cannot express


class HeadShape(NamedTuple):
    """The sizes of a masked-language-model head: dense H → `width`, activation, LayerNorm, decoder `width` → V."""

    width: int
    activation: str
    norm_eps: float
    dense_bias: bool = True
    norm_bias: bool = True
    decoder_bias: bool = True


class Family:
    """Base class of all families.

    Attributes:
        layers: the path of the list of blocks.
        dropouts: the configuration's fields that hold a probability of dropout inside the encoder.
        options: arguments that make transformers build the encoder without a pooler.
    """

    layers = "encoder.layer"
    dropouts: tuple[str, ...] = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    options: dict[str, Any] = {}  # noqa: RUF012 (read only)

    def part(self, config: PretrainedConfig, first: int, count: int) -> PretrainedConfig:
        """The configuration of the `count` blocks from block `first` on."""
        config = copy.deepcopy(config)
        config.num_hidden_layers = count
        return config

    def build(self, config: PretrainedConfig, first: int) -> PreTrainedModel:
        """A freshly initialised encoder, whose blocks are those from block `first` on of a deeper one."""
        return AutoModel.from_config(config, **self.options)

    def blocks(self, encoder: Module) -> nn.ModuleList:
        """The transformer blocks."""
        return encoder.get_submodule(self.layers)

    def max_positions(self, encoder: Module) -> int:
        """How many tokens a sentence may have."""
        return encoder.config.max_position_embeddings

    def positions(self, encoder: Module, ids: Tensor) -> Tensor | None:
        """(N, T) token ids → (N, T) the positions that transformers counts from them; None where it counts columns."""
        return None

    def embed(
        self, encoder: Module, tokens: Tensor | None, packing: Packing, token_types: Tensor | None, words: Tensor | None
    ) -> Tensor:
        """(S,) token ids, or (S, E) word embeddings in their place → (S, H) what the first block gets."""
        raise NotImplementedError

    def shared(self, encoder: Module, hidden: Tensor, packing: Packing) -> Any:
        """What all blocks of a forward pass need besides hidden states and packing. Computed once a pass."""
        return None

    def runs_whole(self, encoder: Module) -> bool:
        """Whether a block can be called as a whole (:meth:`run`): in transformers 5 it passes the packing on to its
        attention. If not, :meth:`run_selected` runs it part by part."""
        return TRANSFORMERS_5

    def run(self, block: Module, hidden: Tensor, packing: Packing, shared: Any) -> Tensor:
        """(S, H) → (S, H) through one block. Without a batch dimension its linear layers need no reshaping."""
        return first_output(block(hidden, attention_mask=None, packing=packing))

    def run_selected(
        self, block: Module, hidden: Tensor, packing: Packing, selection: Selection, shared: Any
    ) -> Tensor:
        """(S, H) → (M, H): one block that computes queries, output projection and feed-forward for the selected tokens
        only."""
        raise NotImplementedError

    def final_norm(self, encoder: Module, hidden: Tensor) -> Tensor:
        """(…, H) → (…, H) what comes after the last block."""
        return hidden

    def without_final_norm(self, encoder: Module) -> None:
        """Make the encoder end with its last block's output, as the next block would get it."""

    def head(self, config: PretrainedConfig) -> HeadShape:
        """The head of the pretrained masked-language model."""
        raise NotImplementedError


class Bert(Family):
    """BERT, RoBERTa, XLM-RoBERTa, CamemBERT, and ELECTRA, whose embeddings may be narrower than its blocks."""

    def __init__(self, **options: Any) -> None:
        self.options = options

    def max_positions(self, encoder: Module) -> int:
        """The rows of the position table behind its padding row: RoBERTa's 514 rows hold 512 tokens."""
        table = encoder.embeddings.position_embeddings
        return table.num_embeddings - (0 if table.padding_idx is None else table.padding_idx + 1)

    def positions(self, encoder: Module, ids: Tensor) -> Tensor | None:
        padding = encoder.embeddings.position_embeddings.padding_idx
        if padding is None:
            return None
        real = (ids != padding).long()  # (N, T)
        return real.cumsum(1) * real + padding

    def embed(
        self, encoder: Module, tokens: Tensor | None, packing: Packing, token_types: Tensor | None, words: Tensor | None
    ) -> Tensor:
        kinds = torch.zeros_like(packing.slots) if token_types is None else token_types
        embedded = encoder.embeddings(
            input_ids=in_batch(tokens),
            inputs_embeds=in_batch(words),
            position_ids=position_ids(encoder.embeddings.position_embeddings.padding_idx, tokens, packing)[None],
            token_type_ids=kinds[None],
        ).squeeze(0)  # (S, E)
        return encoder.embeddings_project(embedded) if hasattr(encoder, "embeddings_project") else embedded

    def run_selected(
        self, block: Module, hidden: Tensor, packing: Packing, selection: Selection, shared: Any
    ) -> Tensor:
        attention, chosen = block.attention.self, selection.of(hidden)  # (M, H)
        projected = attention.query(chosen), attention.key(hidden), attention.value(hidden)
        context = attend(attention, *projected, attention.attention_head_size, attention.dropout.p, packing, selection)
        return block.feed_forward_chunk(block.attention.output(context, chosen))

    def head(self, config: PretrainedConfig) -> HeadShape:
        activation = config.hidden_act if config.model_type == "bert" else "gelu"  # the others' heads have no choice
        return HeadShape(getattr(config, "embedding_size", config.hidden_size), activation, config.layer_norm_eps)


class DistilBert(Family):
    """DistilBERT: BERT without token types, and with other names."""

    layers = "transformer.layer"
    dropouts = ("dropout", "attention_dropout")

    def embed(
        self, encoder: Module, tokens: Tensor | None, packing: Packing, token_types: Tensor | None, words: Tensor | None
    ) -> Tensor:
        parts = encoder.embeddings  # in transformers 4 the whole takes no positions
        words = parts.word_embeddings(tokens) if words is None else words  # (S, H)
        return parts.dropout(parts.LayerNorm(words + parts.position_embeddings(position_ids(None, tokens, packing))))

    def run_selected(
        self, block: Module, hidden: Tensor, packing: Packing, selection: Selection, shared: Any
    ) -> Tensor:
        attention, chosen = block.attention, selection.of(hidden)  # (M, H)
        projected = attention.q_lin(chosen), attention.k_lin(hidden), attention.v_lin(hidden)
        context = attend(attention, *projected, attention.attention_head_size, attention.dropout.p, packing, selection)
        attended = block.sa_layer_norm(attention.out_lin(context) + chosen)  # (M, H)
        return block.output_layer_norm(block.ffn.ff_chunk(attended) + attended)

    def head(self, config: PretrainedConfig) -> HeadShape:
        return HeadShape(config.hidden_size, config.activation, 1e-12)


class MPNet(Bert):
    """MPNet: BERT's blocks with other names, RoBERTa's positions, and a bias of each head for the distance between
    two columns, one table for all blocks. Its blocks take no attention function, so they all run part by part."""

    def shared(self, encoder: Module, hidden: Tensor, packing: Packing) -> Tensor:
        """(1, heads, T, T) what is added to the attention scores of the grid."""
        return encoder.encoder.compute_position_bias(hidden.new_empty(1, packing.shape[1]))

    def run(self, block: Module, hidden: Tensor, packing: Packing, shared: Any) -> Tensor:
        return self._run(gathered(block), hidden, hidden, packing, None, shared)

    def run_selected(
        self, block: Module, hidden: Tensor, packing: Packing, selection: Selection, shared: Any
    ) -> Tensor:
        return self._run(block, hidden, selection.of(hidden), packing, selection, shared)

    def _run(
        self,
        block: Module,
        hidden: Tensor,
        chosen: Tensor,
        packing: Packing,
        selection: Selection | None,
        bias: Tensor,
    ) -> Tensor:
        """(S, H) and the chosen of them (M, H) → (M, H)."""
        attention = block.attention.attn
        projected = attention.q(chosen), attention.k(hidden), attention.v(hidden)
        size, dropout = attention.attention_head_size, attention.dropout.p
        context = attend(attention, *projected, size, dropout, packing, selection, bias=bias)  # (M, H)
        attended = block.attention.LayerNorm(block.attention.dropout(attention.o(context)) + chosen)
        return block.output(block.intermediate(attended), attended)


class ModernBert(Family):
    """ModernBERT (Warner et al. 2024): a residual stream that each block reads through a norm of its own and a final
    norm ends; rotary positions, of another base in blocks whose attention reaches `local_attention` / 2 tokens only.

    As in transformers, the last block's output is what comes after the final norm; those of the others are the stream.
    All its dropouts are 0 by default, and then the two views of a sentence are the same: see `backbone_dropout`.
    """

    layers = "layers"
    dropouts = ("embedding_dropout", "mlp_dropout", "attention_dropout")

    def part(self, config: PretrainedConfig, first: int, count: int) -> PretrainedConfig:
        kinds = config.layer_types  # of each block: which attention, and with it which rotary base
        config = super().part(config, first, count)
        config.layer_types = [kinds[index % len(kinds)] for index in range(first, first + count)]
        return config

    def build(self, config: PretrainedConfig, first: int) -> PreTrainedModel:
        encoder: Module = super().build(config, first)
        if not hasattr(encoder, "rotary_emb"):
            name_as_newer(encoder)
        if first > 0 and len(encoder.layers):  # the very first block alone has no norm, for the embeddings have one
            block = encoder.layers[0]
            block.attn_norm = copy.deepcopy(block.mlp_norm)
        return encoder

    def runs_whole(self, encoder: Module) -> bool:
        return TRANSFORMERS_5 and not isinstance(encoder.rotary_emb, RotaryByKind)

    def embed(
        self, encoder: Module, tokens: Tensor | None, packing: Packing, token_types: Tensor | None, words: Tensor | None
    ) -> Tensor:
        return encoder.embeddings(input_ids=in_batch(tokens), inputs_embeds=in_batch(words)).squeeze(0)

    def shared(self, encoder: Module, hidden: Tensor, packing: Packing) -> dict[str, tuple[Tensor, Tensor]]:
        """The cosines and sines (1, S, D) of the tokens' columns, for each kind of attention."""
        kinds, positions = sorted(set(encoder.config.layer_types)), position_ids(None, None, packing)[None]  # (1, S)
        return {kind: encoder.rotary_emb(hidden[None], positions, kind) for kind in kinds}

    def run(self, block: Module, hidden: Tensor, packing: Packing, shared: Any) -> Tensor:
        rotary = shared[block.attention_type]
        output = block(hidden[None], attention_mask=None, position_embeddings=rotary, packing=packing)
        return first_output(output).squeeze(0)

    def run_selected(
        self, block: Module, hidden: Tensor, packing: Packing, selection: Selection, shared: Any
    ) -> Tensor:
        attention, chosen = block.attn, selection.of(hidden)  # (M, H)
        cosine, sine = (part[0] for part in shared[block.attention_type])  # (S, D)
        rows, fused, size = selection.index, attention.Wqkv, attention.head_dim
        normed = block.attn_norm(hidden)  # (S, H)
        asking = normed.index_select(0, rows) if selection.states is None else block.attn_norm(chosen)  # (M, H)
        query, key, value = project(fused, asking, normed)  # (M, H), (S, H), (S, H)
        query, key = rotate(query, cosine[rows], sine[rows]), rotate(key, cosine, sine)
        context = attend(
            attention, query, key, value, size, attention.attention_dropout, packing, selection,
            sliding_window=attention.sliding_window,
        )  # fmt: skip
        attended = chosen + attention.out_drop(attention.Wo(context))  # (M, H)
        return attended + block.mlp(block.mlp_norm(attended))

    def final_norm(self, encoder: Module, hidden: Tensor) -> Tensor:
        return encoder.final_norm(hidden)

    def without_final_norm(self, encoder: Module) -> None:
        encoder.final_norm = nn.Identity()

    def head(self, config: PretrainedConfig) -> HeadShape:
        biases = config.classifier_bias, config.norm_bias, config.decoder_bias
        return HeadShape(config.hidden_size, config.classifier_activation, config.norm_eps, *biases)


BERT = Bert(add_pooling_layer=False)
FAMILIES: dict[str, Family] = {
    "bert": BERT,
    "roberta": BERT,
    "xlm-roberta": BERT,
    "camembert": BERT,
    "electra": Bert(),
    "distilbert": DistilBert(),
    "mpnet": MPNet(add_pooling_layer=False),
    "modernbert": ModernBert(),
}


class RotaryByKind(nn.ModuleDict):
    """The rotary embeddings of each kind of attention, as newer releases of transformers have them."""

    def forward(self, hidden: Tensor, columns: Tensor, kind: str) -> tuple[Tensor, Tensor]:
        return self[kind](hidden, columns)


def name_as_newer(encoder: Module) -> None:
    """Give the ModernBERT of transformers 4 the parts that newer ones are read by."""
    rotary = {}
    for block, kind in zip(encoder.layers, encoder.config.layer_types, strict=True):
        window = None if kind == "full_attention" else encoder.config.local_attention // 2 + 1
        block.attention_type, block.attn.sliding_window = kind, window
        rotary[kind] = block.attn.rotary_emb
    encoder.rotary_emb = RotaryByKind(rotary)


def family_of(config: PretrainedConfig) -> Family:
    """The family of a backbone.

    Raises:
        ValueError: none is known for its model type.
    """
    family = FAMILIES.get(getattr(config, "model_type", ""))
    if family is None:
        raise ValueError(unsupported(getattr(config, "model_type", None)))
    return family


def unsupported(kind: str | None) -> str:
    """The message for a backbone of no known family."""
    kind = kind or "none"
    return f"the backbone must be one of {', '.join(FAMILIES)}, found model_type {kind!r}; choose another checkpoint"


def first_output(output: Any) -> Tensor:
    """A block's output, taken out of the tuple that some releases of transformers return."""
    return output[0] if isinstance(output, tuple) else output


def gathered(block: Module) -> Module:
    """The block with whole weights. FSDP gathers them when a block is called as a whole, not when its parts are."""
    if hasattr(block, "unshard"):
        block.unshard()
    return block


def in_batch(tensor: Tensor | None) -> Tensor | None:
    """(S, …) → (1, S, …)."""
    return None if tensor is None else tensor[None]


def position_ids(padding: int | None, tokens: Tensor | None, packing: Packing) -> Tensor:
    """(S,) the position of each token, as transformers counts it where the packing has every token but padding.

    BERT counts columns. A table with a `padding` row, such as RoBERTa's, counts from after that row and skips padding
    tokens; without token ids it cannot see these and counts columns too. A mask may hide tokens that are counted. So
    where the whole grid is known, :meth:`Family.positions` counts, and the packing has `given_positions`.
    """
    if packing.given_positions is not None:
        return packing.given_positions
    if padding is None:
        return packing.columns  # (S,)
    if tokens is None or packing.counts_columns:
        return packing.columns + padding + 1
    real = (tokens != padding).long()  # (S,)
    count = real.cumsum(0)  # (S,)
    before = (count - real)[packing.starts]  # (B,) real tokens before each row
    return (count - before[packing.rows]) * real + padding  # (S,)


def attend(
    attention: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    head_size: int,
    dropout: float,
    packing: Packing,
    selection: Selection | None,
    **options: Any,
) -> Tensor:
    """(M, H) queries of the selected tokens, (S, H) keys and values of all → (M, H) what the queries found."""
    query, key, value = (states.unflatten(1, (-1, head_size)) for states in (query, key, value))  # (M or S, heads, D)
    dropout, scaling = dropout if attention.training else 0.0, head_size**-0.5
    options |= {"packing": packing, "selection": selection, "dropout": dropout, "scaling": scaling}
    return token_attention(query, key, value, **options).flatten(1)


def project(fused: nn.Linear, asking: Tensor, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(M, H) and (S, H) through a layer that makes queries, keys and values → (M, H) queries of the first, (S, H) keys
    and (S, H) values of the second."""
    width = states.shape[1]
    if not is_plain(fused):
        key, value = fused(states)[:, width:].chunk(2, dim=-1)
        return fused(asking)[:, :width], key, value
    to_query, to_rest = fused.weight.tensor_split([width])
    bias = (None, None) if fused.bias is None else fused.bias.tensor_split([width])
    key, value = linear(states, to_rest, bias[1]).chunk(2, dim=-1)
    return linear(asking, to_query, bias[0]), key, value


def rotate(states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """(M, H) queries or keys, each head turned by its token's position, of which (M, D) are the cosines and sines."""
    heads = states.unflatten(1, (-1, cosine.shape[1])).float()  # (M, heads, D)
    first, second = heads.chunk(2, dim=-1)
    turned = heads * cosine[:, None] + torch.cat([-second, first], dim=-1) * sine[:, None]
    return turned.flatten(1).to(states.dtype)
