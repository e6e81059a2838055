"""CMLM-CSE sentence encoder: a backbone, a pooling, and in training a head and auxiliary objectives.

What the code of this folder does: it computes sentence embeddings without padding, and trains them further. Nobody
needs it for the embeddings alone: `SentenceTransformer(FOLDER)` gives the same ones without it, except with the pooling
`prompt`.

What it does not do: it imports nothing but PyTorch, transformers, safetensors and Python's standard library, starts no
other program, and reads and sets no environment variable. It downloads through transformers' `from_pretrained` alone,
and writes a file only in `save_pretrained`. tests/project/test_layout.py checks all of this in every file.

All files of this folder ship with a model. Transformers copies those that this one names, by an import below or here
(tests/model/test_compat.py compares them with the folder):

    import .attention
    import .configuration_checks
    import .contrast_terms
    import .distributed
    import .dropout
    import .fast_cpu
    import .field_checks
    import .linear
    import .losses
    import .mask_pooling
    import .masked_batch
    import .pretrained_auxiliary
    import .prompts
    import .ranking
    import .read_later
    import .variable_length
    import .vocabulary_loss
"""

import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils import ModelOutput, logging

from .auxiliary import AuxiliaryObjective, FusingObjective
from .backbone import TiedMaskedLMHead, build_encoder, embed_tokens, grid_positions, run_blocks
from .condenser import Condenser
from .conditional_mlm import ConditionalMLM
from .configuration_cmlmcse import CMLMCSEConfig
from .denoising import DenoSent
from .encoder_mlm import EncoderMLM
from .enhanced_decoding import EnhancedDecoding
from .families import TRANSFORMERS_5, Module
from .from_backbone import FromBackbone, absolute
from .packing import Packing, Selection
from .pooling import POOLINGS
from .projection import PROJECTIONS
from .replaced_token_detection import ReplacedTokenDetection
from .sentence_transformers_files import write_sentence_transformers
from .text_encoding import NO_TEMPLATE, TextEncoding

logger = logging.get_logger(__name__)

PLACE_ARGUMENTS = ("cache_dir", "local_files_only", "revision", "subfolder", "token")
PUSH_ARGUMENTS = ("repo_id", "commit_message", "commit_description", "private", "revision", "create_pr", "tags")

# An auxiliary objective is built where its weight, the field `<name>_weight`, is above zero.
AUXILIARY_OBJECTIVES: dict[str, type[AuxiliaryObjective]] = {
    "cmlm": ConditionalMLM,
    "rtd": ReplacedTokenDetection,
    "mlm": EncoderMLM,
    "condenser": Condenser,
    "retromae": EnhancedDecoding,
    "denosent": DenoSent,
}


@dataclass
class SentenceEmbeddingOutput(ModelOutput):
    """Embeddings of N sentences.

    Attributes:
        last_hidden_state: (N, T, H), zeros at padding.
        pooler_output: (N, H), the sentence embeddings as they are evaluated.
        hidden_states: what the first block gets, then the output of each block, (N, T, H) each, if asked for.
    """

    last_hidden_state: Tensor | None = None
    pooler_output: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None


class CMLMCSEForSentenceEmbedding(FromBackbone, TextEncoding, PreTrainedModel):
    """Sentence encoder trained by contrast and conditional masked-language modelling (CMLM-CSE, Zhang & Chen 2023).

    Token ids (N, T) → sentence embeddings (N, H). With `cmlm_weight` 0 it is SimCSE (Gao et al. 2021).
    """

    config_class = CMLMCSEConfig
    config: CMLMCSEConfig
    base_model_prefix = "backbone" if TRANSFORMERS_5 else ""  # so that a plain backbone's keys load here too
    main_input_name = "input_ids"
    _keys_to_ignore_on_load_unexpected = [r"^(backbone\.)?pooler\."]  # noqa: RUF012 (an export's, for plain BERT)
    supports_gradient_checkpointing = True  # unless the backbone does not
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _no_split_modules = [  # noqa: RUF012
        "BertLayer",
        "RobertaLayer",
        "XLMRobertaLayer",
        "CamembertLayer",
        "ElectraLayer",
        "TransformerBlock",  # DistilBERT's
        "MPNetLayer",
        "ModernBertEncoderLayer",
    ]

    def __init__(self, config: CMLMCSEConfig) -> None:
        super().__init__(config)
        self.backbone: Module = build_encoder(config.backbone_config)
        self.supports_gradient_checkpointing = self.backbone.supports_gradient_checkpointing  # MPNet's blocks do not
        head = PROJECTIONS[config.projection]
        self.projection: Module = self._build("projection", partial(head, config.hidden_size))
        self.auxiliary = nn.ModuleDict(
            {
                name: self._build(name, partial(objective, config))
                for name, objective in AUXILIARY_OBJECTIVES.items()
                if self.objective_weight(name) > 0
            }
        )
        self.post_init()

    def _build(self, name: str, build: Callable[[], nn.Module]) -> nn.Module:
        """Build a part whose fresh weights depend only on the seed and its name, not on what was drawn before. So all
        arms of a study start from the same weights at one seed."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed((torch.initial_seed() + zlib.crc32(name.encode())) % 2**63)
            part = build()
            if not any(weight.is_meta for weight in part.parameters()):
                part.apply(self._initialize_weights)
        return part

    def objective_weight(self, objective: str) -> float:
        """The weight of an auxiliary objective in the loss."""
        return getattr(self.config, f"{objective}_weight")

    def set_attn_implementation(self, attn_implementation: Any, *args: Any, **kwargs: Any) -> None:
        """Keep the packed attention and warn: no other attention knows where a packed sentence ends."""
        logger.warning(f"attn_implementation {attn_implementation!r} is ignored: this model always packs its tokens.")

    @property
    def objectives(self) -> dict[str, AuxiliaryObjective]:
        """The auxiliary objectives of this model by name; empty for SimCSE."""
        return cast(dict[str, AuxiliaryObjective], dict(self.auxiliary.items()))

    @property
    def fusing(self) -> dict[str, FusingObjective]:
        """The auxiliary objectives that have fusion blocks, by name; `fusion_init` gives these their first weights."""
        return {name: each for name, each in self.objectives.items() if isinstance(each, FusingObjective)}

    def _init_weights(self, module: nn.Module) -> None:
        """Initialise a module that no checkpoint fills, as the backbone would."""
        self.backbone._init_weights(module)
        if isinstance(module, TiedMaskedLMHead) and module.bias is not None:  # a weight of its own
            nn.init.zeros_(module.bias)

    def _get_key_renaming_mapping(self, checkpoint_keys: list[str], *_: Any) -> dict[str, str]:
        """Names in a file of weights → names here. A plain backbone's names, as in an export, belong to `backbone`.

        Transformers 4 calls this. Transformers 5 finds the names by `base_model_prefix`.
        """
        parts = tuple(f"{name}." for name, _ in self.named_children())
        return {name: name if name.startswith(parts) else f"backbone.{name}" for name in checkpoint_keys}

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any = None, *args: Any, **kwargs: Any) -> Any:
        """As in transformers. `encode` then reads the tokenizer of the same revision, cache and folder."""
        found = super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)
        place = {name: kwargs[name] for name in PLACE_ARGUMENTS if kwargs.get(name)}
        if commit := kwargs.get("_commit_hash"):  # which AutoModel has found, even if a branch moves on
            place["revision"] = commit
        model = found[0] if isinstance(found, tuple) else found
        if pretrained_model_name_or_path is not None:
            model._tokenizer_place = absolute(os.fspath(pretrained_model_name_or_path)), place
        return found

    def save_pretrained(
        self,
        save_directory: str | os.PathLike[str],
        is_main_process: bool = True,
        state_dict: dict[str, Tensor] | None = None,
        *args: Any,
        push_to_hub: bool = False,
        **kwargs: Any,
    ) -> None:
        """As in transformers, and the files by which sentence-transformers gives the same embeddings. An adapter alone
        (`add_adapter`) is saved without them: it is no whole model.

        Raises:
            ValueError: `push_to_hub` with `state_dict` or `variant`: the upload has the model's own weights.
        """
        if push_to_hub and (state_dict is not None or kwargs.get("variant")):
            found = "a variant" if state_dict is None else "a state_dict"
            raise ValueError(
                f"push_to_hub expects the model's own weights, found {found}; save without push_to_hub, then upload "
                "the folder with huggingface_hub's upload_folder"
            )
        of_hub = {name: kwargs.pop(name) for name in PUSH_ARGUMENTS if name in kwargs}
        if "max_shard_size" in kwargs:
            of_hub["max_shard_size"] = kwargs["max_shard_size"]
        taken = None if state_dict is None else dict(state_dict)  # transformers empties what it is given
        super().save_pretrained(save_directory, is_main_process, taken, *args, **kwargs)
        if not is_main_process:
            return
        if not getattr(self, "_hf_peft_config_loaded", False):
            weights = self.state_dict() if state_dict is None else state_dict
            loaded = {name: weight for name, weight in weights.items() if not weight.is_meta}
            weights = {**offloaded(self.projection, "projection"), **loaded}
            write_sentence_transformers(self.config, weights, Path(save_directory))
        if push_to_hub:  # transformers would upload the folder before these files are written
            name = of_hub.pop("repo_id", Path(save_directory).resolve().name)
            self.push_to_hub(name, token=kwargs.get("token"), **of_hub)

    def get_input_embeddings(self) -> nn.Module:
        return self.backbone.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.backbone.set_input_embeddings(value)

    def resize_token_embeddings(self, new_num_tokens: int | None = None, *args: Any, **kwargs: Any) -> nn.Embedding:
        """As in transformers, and the same for the encoders and heads of the auxiliary objectives."""
        table = super().resize_token_embeddings(new_num_tokens, *args, **kwargs)
        count = self.backbone.config.vocab_size = self.config.vocab_size
        for objective in self.objectives.values():
            objective.resize_token_embeddings(count)
        return table

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | Sequence[int] | None = None,
        return_dict: bool | None = None,
    ) -> SentenceEmbeddingOutput | tuple[Any, ...]:
        """Embed sentences.

        Args:
            input_ids, attention_mask: (N, T), as a tokenizer returns them.
            token_type_ids: (N, T) or (1, T).
            position_ids: (N, T) or (1, T) positions for the position embeddings (default: as the backbone counts).
            inputs_embeds: (N, T, E) word embeddings, in place of `input_ids`.
            output_attentions: refused if true: packed attention keeps no weights.
            output_hidden_states: whether to return all hidden states too (default: the configuration's); or the indices
                of some, the others are then None.
            return_dict: false for a tuple (default: the configuration's).

        Raises:
            ValueError: neither or both of `input_ids` and `inputs_embeds`; a mask of another shape; attention weights
                are asked for; a sentence without a token.
        """
        asks_weights = self.config.output_attentions if output_attentions is None else output_attentions
        given = self._checked(input_ids, inputs_embeds, attention_mask, asks_weights)
        packing = Packing.from_mask(given.new_ones(given.shape[:2]) if attention_mask is None else attention_mask)
        if position_ids is None and input_ids is not None:
            position_ids = grid_positions(self.backbone, input_ids)  # (N, T)
        if position_ids is not None:
            packing.given_positions = packing.pack(position_ids.expand(given.shape[:2]))
        if token_type_ids is not None:
            token_type_ids = token_type_ids.expand(given.shape[:2])
        tokens, token_types, words = (
            None if grid is None else packing.pack(grid) for grid in (input_ids, token_type_ids, inputs_embeds)
        )
        self._mark(tokens, packing)
        embedded = embed_tokens(self.backbone, tokens, packing, token_types, words)  # (S, H)
        outputs = run_blocks(self.backbone, embedded, packing)
        asked = bool(self.config.output_hidden_states) if output_hidden_states is None else output_hidden_states
        output = SentenceEmbeddingOutput(
            last_hidden_state=packing.unpack(outputs[-1]),  # (N, T, H)
            pooler_output=self.embedding_of(outputs, packing),  # (N, H)
            hidden_states=chosen_states((embedded, *outputs), asked, packing),
        )
        as_dict = self.config.return_dict if return_dict is None else return_dict
        return output if as_dict else output.to_tuple()

    def _checked(
        self, input_ids: Tensor | None, inputs_embeds: Tensor | None, mask: Tensor | None, asks_weights: bool
    ) -> Tensor:
        """Check the arguments of :meth:`forward`, and return `input_ids` or `inputs_embeds`, whichever was given.

        Raises:
            ValueError: as :meth:`forward`, but for a sentence without a token.
        """
        given = input_ids if inputs_embeds is None else inputs_embeds
        if given is None or (input_ids is not None and inputs_embeds is not None):
            found = "none" if given is None else "both"
            raise ValueError(
                f"forward expects input_ids (N, T) or inputs_embeds (N, T, E), found {found}: pass a tokenizer's output"
            )
        if asks_weights:
            raise ValueError(
                "output_attentions must be false, found true: packed attention keeps no weights; load the export with "
                "AutoModel without trust_remote_code to get them"
            )
        if input_ids is None and POOLINGS[self.config.pooling].reads_mask:
            raise ValueError("pooling prompt expects input_ids, found inputs_embeds: it looks for the mask token")
        if mask is not None and mask.shape != given.shape[:2]:
            raise ValueError(
                f"attention_mask must be of shape {tuple(given.shape[:2])}, as the tokens, found {tuple(mask.shape)}"
            )
        return given

    def pooled(self, tokens: Tensor, packing: Packing) -> Tensor:
        """(S,) packed tokens → (B, H) sentence vectors before any head. Only what the pooling reads is computed."""
        pooling = POOLINGS[self.config.pooling]
        self._mark(tokens, packing)
        selection = Selection.first_tokens(packing) if pooling.reads_first_token_only else None
        if packing.marks is not None:
            selection = Selection.one_of_each(packing, packing.marks)
        embedded = embed_tokens(self.backbone, tokens, packing)  # (S, H)
        return pooling.pool(run_blocks(self.backbone, embedded, packing, selection), packing)

    def _mark(self, tokens: Tensor | None, packing: Packing) -> None:
        """Note where the pooling `prompt` finds each row's mask token, in place.

        Raises:
            RuntimeError: a row has none. On a GPU it is a failed device assertion, so that no step waits for the check.
        """
        if POOLINGS[self.config.pooling].reads_mask and tokens is not None:
            mask = self.config.mask_token_id
            packing.marks = packing.last_of_rows(tokens.eq(-1 if mask is None else mask))  # (B,)
            torch._assert_async((packing.marks >= 0).all(), NO_TEMPLATE)

    def embedding_of(self, outputs: Sequence[Tensor], packing: Packing) -> Tensor:
        """Block outputs → (B, H) the embedding that evaluation and export use."""
        pooling = POOLINGS[self.config.pooling]
        pooled = pooling.pool(outputs, packing)
        embeddings = self.projection(pooled) if pooling.keeps_head else pooled
        return nn.functional.normalize(embeddings, dim=-1) if self.config.normalize else embeddings


def chosen_states(states: Sequence[Tensor], asked: bool | Sequence[int], packing: Packing) -> tuple[Any, ...] | None:
    """(S, H) states of the embeddings and of each block → (N, T, H) of those that were asked for, None for the others;
    None if no states were asked for.

    Raises:
        ValueError: an index that no state has.
    """
    if isinstance(asked, (bool, int)):
        if not asked:
            return None
        asked = range(len(states))
    count = len(states)
    if wrong := [index for index in asked if not -count <= index < count]:
        raise ValueError(f"output_hidden_states expects indices from {-count} to {count - 1}, found {wrong[0]}")
    kept = {index % count for index in asked}
    return tuple(packing.unpack(each) if index in kept else None for index, each in enumerate(states))


def offloaded(module: nn.Module, path: str) -> dict[str, Tensor]:
    """The weights of a module that Accelerate keeps on a disk or a CPU, loaded, by their names in a model that has the
    module at this path."""
    found: dict[str, Tensor] = {}
    for place, part in module.named_modules(prefix=path):
        kept = getattr(getattr(part, "_hf_hook", None), "weights_map", None) or {}
        names = [name for name, weight in part.named_parameters(recurse=False) if weight.is_meta]
        found |= {f"{place}.{name}": kept[name] for name in names if name in kept}
    return found


CMLMCSEConfig.register_for_auto_class()
CMLMCSEForSentenceEmbedding.register_for_auto_class("AutoModel")
