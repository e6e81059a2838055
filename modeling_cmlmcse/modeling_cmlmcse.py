"""CMLM-CSE sentence encoder: any BERT or RoBERTa, a pooling, and in training a head and auxiliary objectives."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import ModelOutput, logging

from .backbone import Structure, blocks, build_encoder, embed_tokens, load_backbone, max_positions, run_blocks
from .conditional_mlm import ConditionalMLM
from .configuration_cmlmcse import CMLMCSEConfig
from .losses import CONTRASTIVE_LOSSES, alignment, uniformity
from .packing import Packing, Selection, pack_sequences
from .pooling import POOLINGS
from .projection import PROJECTIONS

logger = logging.get_logger(__name__)

# An auxiliary objective is built where its weight, the field `<name>_weight`, is above zero.
AUXILIARY_OBJECTIVES: dict[str, type[ConditionalMLM]] = {"cmlm": ConditionalMLM}


@dataclass
class SentenceEmbeddingOutput(ModelOutput):
    """Embeddings of N sentences: `pooler_output` (N, H) as evaluated, `last_hidden_state` (N, T, H) with zeros at
    padding, `hidden_states` one (N, T, H) a block if asked for."""

    last_hidden_state: Tensor | None = None
    pooler_output: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None


@dataclass
class ContrastiveTrainingOutput(ModelOutput):
    """Losses of one training batch: `loss` = contrastive + Σ weight · auxiliary, and its parts, detached.

    `logs` holds what only the log needs: the losses by name, alignment and uniformity of the batch.
    """

    loss: Tensor | None = None
    logs: dict[str, Tensor] | None = None


class CMLMCSEForSentenceEmbedding(PreTrainedModel):
    """Sentence encoder trained by contrast and conditional masked-language modelling (CMLM-CSE, Zhang & Chen 2023).

    Token ids (N, T) → sentence embeddings (N, H). With `cmlm_weight` 0 it is SimCSE (Gao et al. 2021).
    """

    config_class = CMLMCSEConfig
    base_model_prefix = "backbone"  # so that the keys of a plain backbone, as exported, load here too
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _no_split_modules = ["BertLayer", "RobertaLayer", "XLMRobertaLayer"]  # noqa: RUF012

    def __init__(self, config: CMLMCSEConfig) -> None:
        super().__init__(config)
        self.backbone: Structure = build_encoder(config.backbone_config)
        self.projection: Structure = PROJECTIONS[config.projection](config.hidden_size)
        self.auxiliary = nn.ModuleDict(
            {name: objective(config) for name, objective in AUXILIARY_OBJECTIVES.items() if self._weight(name) > 0}
        )
        self.post_init()

    def _weight(self, objective: str) -> float:
        """The weight of an auxiliary objective in the loss."""
        return getattr(self.config, f"{objective}_weight")

    def set_attn_implementation(self, attn_implementation: Any, *args: Any, **kwargs: Any) -> None:
        """Keep the packed attention, which alone knows where a sentence ends; ignore another, with a warning."""
        logger.warning(f"attn_implementation {attn_implementation!r} is ignored: this model always packs its tokens.")

    @property
    def objectives(self) -> dict[str, ConditionalMLM]:
        """The auxiliary objectives of this model by name; empty for SimCSE."""
        return cast(dict[str, ConditionalMLM], dict(self.auxiliary.items()))

    def _init_weights(self, module: nn.Module) -> None:
        """Initialise a module that no checkpoint fills, as the backbone would."""
        self.backbone._init_weights(module)

    def get_input_embeddings(self) -> nn.Module:
        return self.backbone.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.backbone.set_input_embeddings(value)

    @property
    def max_positions(self) -> int:
        """The most tokens a sentence may have."""
        return max_positions(self.backbone)

    @classmethod
    def from_backbone(cls, name_or_path: str | os.PathLike[str], **fields: Any) -> "CMLMCSEForSentenceEmbedding":
        """Start from a pretrained BERT or RoBERTa: encoder, frozen extractor, fusion layers and MLM head.

        Args:
            name_or_path: a local folder or a Hub name.
            fields: fields of :class:`CMLMCSEConfig`; `fusion_init` may also be a path or Hub name of a saved
                model of this class, whose auxiliary network is then taken over.

        Raises:
            ValueError: the backbone is built like neither, or a field is wrong.
        """
        name_or_path = os.fspath(name_or_path)
        donor = fields.get("fusion_init", "last")
        if donor not in ("last", "next", "random"):
            fields["fusion_init"] = "checkpoint"
        pretrained, has_head = load_backbone(name_or_path)
        config = CMLMCSEConfig(backbone_config=pretrained.config, **fields)
        model = cls(config)
        model.backbone.load_state_dict(pretrained.base_model.state_dict())
        if model.auxiliary and not has_head:
            logger.warning(
                f"{name_or_path} has no masked-language-model head: the auxiliary network's head starts from the "
                "word embeddings and fresh weights, and needs training before its gradient means much."
            )
        for objective in model.objectives.values():
            objective.load_backbone_weights(pretrained, has_head)
        if config.fusion_init == "checkpoint" and model.auxiliary:
            model._load_auxiliary(donor)
        return model

    def _load_auxiliary(self, donor: str) -> None:
        """Take fusion layers and head of every auxiliary objective from a saved model of this class.

        Raises:
            ValueError: the saved model has no auxiliary network, or one of another shape.
        """
        saved = type(self).from_pretrained(donor, dtype=torch.float32)
        for name, objective in self.objectives.items():
            if name not in saved.auxiliary or saved.config.fusion_layers != self.config.fusion_layers:
                raise ValueError(
                    f"fusion_init expects a checkpoint with {self.config.fusion_layers} fusion layers for {name!r}, "
                    f"found {saved.config.fusion_layers if name in saved.auxiliary else 'none'} in {donor}; "
                    "choose another checkpoint or set fusion_layers"
                )
            objective.load_trainable(saved.objectives[name])

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        views: dict[str, Any] | None = None,
        masked: dict[str, Any] | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> SentenceEmbeddingOutput | ContrastiveTrainingOutput | tuple[Any, ...]:
        """Embed sentences; or, given the packed `views` of a training batch, return its losses.

        Args:
            input_ids, attention_mask, token_type_ids: (N, T), as a tokenizer returns them.
            views: packed rows of all views, view after view (:func:`pack_sequences`), and `num_views`.
            masked: packed masked sentences and their labels (see :class:`ConditionalMLM`).
        """
        if views is not None:
            return self._training_losses(views, masked)
        if input_ids is None:
            raise ValueError("forward expects input_ids (N, T), found none: pass a tokenizer's output")
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        packing = Packing.from_mask(mask)
        token_types = None if token_type_ids is None else packing.pack(token_type_ids)
        outputs = self._hidden_states(packing.pack(input_ids), packing, token_types=token_types)
        output = SentenceEmbeddingOutput(
            last_hidden_state=packing.unpack(outputs[-1]),  # (N, T, H)
            pooler_output=self._inference_embedding(outputs, packing),  # (N, H)
            hidden_states=tuple(map(packing.unpack, outputs)) if output_hidden_states else None,
        )
        return output if return_dict in (None, True) else output.to_tuple()

    def _hidden_states(
        self, tokens: Tensor, packing: Packing, selection: Selection | None = None, token_types: Tensor | None = None
    ) -> list[Tensor]:
        """(S,) packed tokens → the outputs of all blocks, each (S, H), the last (M, H) with a selection."""
        embedded = embed_tokens(self.backbone, tokens, packing, token_types)  # (S, H)
        return run_blocks(blocks(self.backbone), embedded, packing, selection)

    def _pooled(self, tokens: Tensor, packing: Packing) -> Tensor:
        """(S,) packed tokens → (B, H) sentence vectors before any head, computing what the pooling reads only."""
        pooling = POOLINGS[self.config.pooling]
        selection = Selection.first_tokens(packing) if pooling.first_token else None
        return pooling.pool(self._hidden_states(tokens, packing, selection), packing)

    def _inference_embedding(self, outputs: Sequence[Tensor], packing: Packing) -> Tensor:
        """Block outputs → (B, H) the embedding that evaluation and export use; only `cls` keeps the head."""
        pooled = POOLINGS[self.config.pooling].pool(outputs, packing)
        return self.projection(pooled) if self.config.pooling == "cls" else pooled

    def _training_losses(self, views: dict[str, Any], masked: dict[str, Any] | None) -> ContrastiveTrainingOutput:
        """The contrastive loss of V·N packed rows plus the weighted auxiliary losses."""
        tokens = views["input_ids"]  # (S,)
        packing = Packing.from_lengths(views["lengths"], len(tokens), views["width"])
        pooled = self._pooled(tokens, packing)  # (V·N, H)
        projected = self.projection(pooled)  # (V·N, H)
        by_view = projected.unflatten(0, (views["num_views"], -1))  # (V, N, H)
        loss = CONTRASTIVE_LOSSES[self.config.contrastive_loss](by_view, self.config.temp)
        logs = {
            "contrastive_loss": loss.detach(),
            "alignment": alignment(by_view[:2].detach()),
            "uniformity": uniformity(by_view[0].detach()),
        }
        for name, objective in self.objectives.items():
            if masked is None:
                raise ValueError(f"the {name} objective expects masked sentences in the batch, found none")
            sentences = projected if self.config.cmlm_condition == "after_head" else pooled
            auxiliary_loss, measures = objective(sentences[: len(masked["lengths"])], masked)
            loss = loss + self._weight(name) * auxiliary_loss
            logs |= {f"{name}_loss": auxiliary_loss.detach(), **measures}
        return ContrastiveTrainingOutput(loss=loss, logs=logs)

    @torch.no_grad()
    def encode(
        self,
        sentences: str | Sequence[str],
        tokenizer: PreTrainedTokenizerBase,
        batch_size: int = 64,
        normalize: bool = False,
        max_length: int | None = None,
        show_progress_bar: bool = False,
    ) -> Any:
        """Embed sentences without padding, sorted by length, in input order.

        Args:
            sentences: N texts, or one.
            tokenizer: the model's tokenizer.
            batch_size: sentences in a forward pass.
            normalize: scale every embedding to length 1.
            max_length: tokens a sentence is cut to (default: the most the model and tokenizer take).
            show_progress_bar: whether to show one.

        Returns:
            (N, H) float32 numpy array; (H,) for one text.
        """
        if isinstance(sentences, str):
            return self.encode([sentences], tokenizer, batch_size, normalize, max_length)[0]
        limit = min(self.max_positions, tokenizer.model_max_length, max_length or self.max_positions)
        tokens = tokenizer(list(sentences), truncation=True, max_length=limit)["input_ids"] if sentences else []
        order = sorted(range(len(tokens)), key=lambda i: len(tokens[i]), reverse=True)
        embeddings = torch.zeros(len(tokens), self.config.hidden_size)
        mode = self.training
        self.eval()
        for start in logging.tqdm(
            range(0, len(order), batch_size), desc="Encoding", disable=not show_progress_bar, leave=False
        ):
            chosen = order[start : start + batch_size]
            embeddings[chosen] = self._encode_batch([tokens[i] for i in chosen]).float().cpu()
        self.train(mode)
        if normalize:
            embeddings = nn.functional.normalize(embeddings, dim=-1)
        return embeddings.numpy()

    def _encode_batch(self, sequences: list[list[int]]) -> Tensor:
        """Token lists of B sentences → (B, H) embeddings."""
        packed = pack_sequences(sequences)
        tokens, lengths = packed["input_ids"].to(self.device), packed["lengths"].to(self.device)
        pooled = self._pooled(tokens, Packing.from_lengths(lengths, len(tokens), packed["width"]))  # (B, H)
        return self.projection(pooled) if self.config.pooling == "cls" else pooled


CMLMCSEConfig.register_for_auto_class()
CMLMCSEForSentenceEmbedding.register_for_auto_class("AutoModel")
