"""Stage 1: a masked-language model and an auxiliary network that reads its sentence vector, trained with one loss."""

from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoModelForMaskedLM, PretrainedConfig, PreTrainedModel

from modeling_cmlmcse.auxiliary import AuxiliaryLoss, head_loss, zero_with_graph
from modeling_cmlmcse.backbone import MaskedLMHead, Module, build_encoder, embed_tokens, run_blocks, with_dropout
from modeling_cmlmcse.condenser import encode_masked
from modeling_cmlmcse.distributed import mean_count
from modeling_cmlmcse.masked_batch import MaskedBatch
from modeling_cmlmcse.packing import Selection

from .pretraining_decoders import Decoder
from .training_losses import TrainingOutput


class AuxiliaryPretraining(PreTrainedModel):
    """Pre-training of a backbone (InfoCSE §3.1; Condenser; RetroMAE): L = L_mlm + λ L_aux on one masked input.

    The backbone is transformers' masked-language model. The auxiliary network predicts words from the vector of the
    masked sentence (in the papers the last layer's [CLS]); :class:`Decoder` has the kinds. Nothing is detached. The
    backbone's MLM head, tied to the embeddings, makes words of its states too. Without an auxiliary network it is plain
    masked-language modelling.

    Args:
        config: the backbone's configuration; its weights start fresh.
        build_decoder: makes the auxiliary network from the configuration of training (default: there is none).
        auxiliary_weight: λ (InfoCSE §4.2: 1).
        pooling: how the sentence vector is pooled, a name in `POOLINGS`. Use the pooling of the second stage, whose
            network reads that vector.
        dropout: probability of every dropout in this training (default: the configuration's). The exported
            configuration keeps its own.

    Raises:
        ValueError: an unsupported backbone, or one that does not fit the auxiliary network.
    """

    _supports_sdpa = True

    def __init__(
        self,
        config: PretrainedConfig,
        build_decoder: Callable[[PretrainedConfig], Decoder] | None = None,
        auxiliary_weight: float = 1.0,
        pooling: str = "cls_before_pooler",
        dropout: float | None = None,
    ) -> None:
        super().__init__(config)
        self.auxiliary_weight, self.pooling = auxiliary_weight, pooling
        self.masked_lm: Module = AutoModelForMaskedLM.from_config(config)
        self.supports_gradient_checkpointing = self.masked_lm.supports_gradient_checkpointing
        trained = config if dropout is None else with_dropout(config, dropout)
        setattr(self.masked_lm, self.masked_lm.base_model_prefix, build_encoder(trained))
        self.decoder = None if build_decoder is None else build_decoder(trained)
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
        """Copy a masked-language model's weights, and start the auxiliary network from them.

        Args:
            pretrained: the masked-language model.
            fusion_init: `last` or `next`; any other value leaves the auxiliary network as it is.
        """
        self.masked_lm.load_state_dict(pretrained.state_dict())
        if self.decoder is not None:
            self.decoder.start_from(self.backbone, fusion_init)

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
        """The number of predictions of each loss."""
        counts = {"mlm": len(masked["mlm_labels"])}
        return counts if self.decoder is None else counts | {"auxiliary": self.decoder.count(masked)}

    def weight(self, name: str) -> float:
        """The weight of a loss."""
        return self.auxiliary_weight if name == "auxiliary" else 1.0

    def losses(self, masked: dict[str, Any]) -> dict[str, AuxiliaryLoss]:
        """The losses `mlm` and, with an auxiliary network, `auxiliary`, as sums over their predictions."""
        labels = masked["mlm_labels"]  # (M,)
        if not any(self.terms(masked).values()):
            return {"mlm": zero_with_graph(self, labels)}
        batch, found = MaskedBatch.of(masked), {}
        if self.decoder is None:
            embedded = embed_tokens(self.backbone, batch.tokens, batch.packing)  # (S, H)
            selection = Selection(batch.positions, batch.chosen)
            hidden = run_blocks(self.backbone, embedded, batch.packing, selection)[-1]  # (M, H)
        else:
            encoded = encode_masked(self.backbone, self.pooling, batch)
            hidden, predicted = encoded.hidden, self.decoder(self.backbone, encoded, batch, masked)
            found["auxiliary"] = head_loss(self._head[0], predicted.states, predicted.words)
        mlm = head_loss(self._head[0], hidden, labels) if len(labels) else zero_with_graph(self, labels)
        return {"mlm": mlm, **found}
