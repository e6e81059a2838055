"""Stage 1: a masked-language model and the auxiliary network on its lower layers, trained with one loss."""

from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForMaskedLM, PretrainedConfig, PreTrainedModel

from modeling_cmlmcse.auxiliary import AuxiliaryLoss, head_loss, zero_with_graph
from modeling_cmlmcse.backbone import (
    MaskedLMHead,
    Module,
    blocks,
    build_blocks,
    build_encoder,
    copy_layers,
    embed_tokens,
    run_blocks,
    with_dropout,
)
from modeling_cmlmcse.condenser import encode_masked
from modeling_cmlmcse.distributed import mean_count
from modeling_cmlmcse.enhanced_decoding import EnhancedDecoder
from modeling_cmlmcse.masked_batch import MaskedBatch, fuse
from modeling_cmlmcse.packing import Packing, Selection

from .training_losses import TrainingOutput

DECODERS = ("fusion", "retromae")


class AuxiliaryPretraining(PreTrainedModel):
    """Pre-training of the auxiliary network (InfoCSE §3.1; Condenser): L = L_mlm + λ L_aux on one masked input.

    The backbone has L blocks and is transformers' masked-language model. The fusion blocks read `[h ; H_k[1:]]`. h is
    the vector of the masked sentence (in the papers the last layer's [CLS]); H_k[1:] are the other tokens at layer k.
    Nothing is detached. The backbone's MLM head, tied to the embeddings, also predicts the masked words from the fusion
    blocks. λ = 0 is plain masked-language modelling without fusion blocks.

    With the decoder `retromae` (Xiao et al. 2022) L_aux is that of :class:`EnhancedDecoder` in place of the fusion
    blocks: it predicts all words, and reads no layer of the backbone but its embeddings. Where the batch has the
    `whole` sequences, because words were deleted from what the backbone reads (TSDAE), it predicts the words of these.

    Args:
        config: the backbone's configuration; its weights start fresh.
        lexical_layers: k, from 1 to L − 1.
        fusion_layers: number of fusion blocks.
        auxiliary_weight: λ (InfoCSE §4.2: 1).
        pooling: how h is pooled, a name in `POOLINGS`. Use the pooling of the second stage, whose network reads that
            vector.
        dropout: probability of every dropout in this training (default: the configuration's). The exported
            configuration keeps its own.
        decoder: the decoder that L_aux is computed with, `fusion` or `retromae`.
        hidden_share: see :class:`EnhancedDecoder`.

    Raises:
        ValueError: a number of layers out of range, or an unsupported backbone.
    """

    _supports_sdpa = True

    def __init__(
        self,
        config: PretrainedConfig,
        lexical_layers: int,
        fusion_layers: int,
        auxiliary_weight: float = 1.0,
        pooling: str = "cls_before_pooler",
        dropout: float | None = None,
        decoder: str = "fusion",
        hidden_share: float = 0.5,
    ) -> None:
        super().__init__(config)
        depth, fuses = config.num_hidden_layers, auxiliary_weight > 0 and decoder == "fusion"
        if fuses and not 1 <= lexical_layers < depth:
            raise ValueError(
                f"lexical_layers must be from 1 to {depth - 1}, below the backbone's last layer, found "
                f"{lexical_layers}; set it, or auxiliary_weight 0 for plain masked-language modelling"
            )
        self.lexical_layers, self.auxiliary_weight = lexical_layers, auxiliary_weight
        self.pooling = pooling
        self.masked_lm: Module = AutoModelForMaskedLM.from_config(config)
        self.supports_gradient_checkpointing = self.masked_lm.supports_gradient_checkpointing
        trained = config if dropout is None else with_dropout(config, dropout)
        setattr(self.masked_lm, self.masked_lm.base_model_prefix, build_encoder(trained))
        self.fusion: Module = build_blocks(trained, fusion_layers) if fuses else None
        decodes = auxiliary_weight > 0 and decoder == "retromae"
        self.decoder: Module = EnhancedDecoder(trained, hidden_share) if decodes else None
        self._head = [MaskedLMHead.of(self.masked_lm)]  # in a list: `masked_lm` has registered its weights already
        self.post_init()
        self._keys_to_ignore_on_save = list(self.all_tied_weights_keys)  # Trainer ties them again

    def _init_weights(self, module: Any) -> None:
        self.masked_lm._init_weights(module)

    @property
    def backbone(self) -> Module:
        """The encoder."""
        return self.masked_lm.base_model

    def get_input_embeddings(self) -> Any:
        return self.masked_lm.get_input_embeddings()

    @torch.no_grad()
    def load_backbone_weights(self, pretrained: PreTrainedModel, fusion_init: str) -> None:
        """Copy a masked-language model's weights, and initialise the fusion blocks from them.

        Args:
            pretrained: the masked-language model.
            fusion_init: `last` or `next`; any other value leaves the fusion blocks as they are.
        """
        self.masked_lm.load_state_dict(pretrained.state_dict())
        if fusion_init in ("last", "next"):
            last = len(blocks(self.backbone)) - self.fusion_layers
            copy_layers(self.fusion, self.backbone, last if fusion_init == "last" else self.lexical_layers)

    @property
    def fusion_layers(self) -> int:
        """Number of fusion blocks."""
        return 0 if self.fusion is None else len(blocks(self.fusion))

    def forward(self, masked: dict[str, Any]) -> TrainingOutput:
        """The loss of a packed masked batch (`masked` as in :class:`AuxiliaryObjective`).

        Each loss is a mean over its predictions in the batch, on several processes over those of all processes.
        """
        counts = {name: mean_count(terms, self.device) for name, terms in self.terms(masked).items()}
        found = self.losses(masked)
        loss = torch.stack([self.weight(name) * each.total / counts[name] for name, each in found.items()]).sum()
        sums = {f"{name}_loss": (name, each.total.detach()) for name, each in found.items()}
        for name, each in found.items():
            sums |= {f"{name}_{measure}": (name, value) for measure, value in each.sums.items()}
        return TrainingOutput(loss=loss, logs={title: value / counts[name] for title, (name, value) in sums.items()})

    def terms(self, masked: dict[str, Any]) -> dict[str, int]:
        """The number of predictions of each loss: the masked tokens, or all tokens but two special ones in a row."""
        counts = {"mlm": len(masked["mlm_labels"])}
        if self.fusion is not None:
            counts["auxiliary"] = counts["mlm"]
        elif self.decoder is not None:
            restored = masked.get("whole", masked)
            counts["auxiliary"] = len(restored["input_ids"]) - 2 * len(restored["lengths"])
        return counts

    def weight(self, name: str) -> float:
        """The weight of a loss."""
        return self.auxiliary_weight if name == "auxiliary" else 1.0

    def losses(self, masked: dict[str, Any]) -> dict[str, AuxiliaryLoss]:
        """The losses `mlm` and, if λ > 0, `auxiliary`, as sums over their predictions."""
        labels = masked["mlm_labels"]  # (M,)
        if not any(self.terms(masked).values()):
            return {"mlm": zero_with_graph(self, labels)}
        hidden, decoded, words = self.states(masked)
        found = {"mlm": head_loss(self._head[0], hidden, labels) if len(labels) else zero_with_graph(self, labels)}
        if decoded is not None:
            found["auxiliary"] = head_loss(self._head[0], decoded, words)
        return found

    def states(self, masked: dict[str, Any]) -> tuple[Tensor, Tensor | None, Tensor]:
        """States (M, H) of the masked tokens after the last block; those of the P words that the auxiliary network
        predicts, (P, H), None without one; and these words (P,)."""
        batch, labels = MaskedBatch.of(masked), masked["mlm_labels"]  # (M,)
        if self.fusion is None and self.decoder is None:
            embedded = embed_tokens(self.backbone, batch.tokens, batch.packing)  # (S, H)
            selection = Selection(batch.positions, batch.chosen)
            return run_blocks(self.backbone, embedded, batch.packing, selection)[-1], None, labels
        found = encode_masked(self.backbone, self.pooling, batch)
        if self.decoder is not None:
            words, packing = batch.tokens.index_copy(0, batch.positions, labels), batch.packing  # (S,) unmasked
            if whole := masked.get("whole"):
                words = whole["input_ids"]  # (S′,)
                packing = Packing.from_lengths(whole["lengths"], len(words), whole["width"])
            decoded, predicted = self.decoder(self.backbone, found.sentences, words, packing)
            return found.hidden, decoded, words.index_select(0, predicted)
        return found.hidden, fuse(self.fusion, found.sentences, found.layers[self.lexical_layers - 1], batch), labels
