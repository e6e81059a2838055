"""Replaced-token detection: find the replaced words of an edited sentence, given the original's vector."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .auxiliary import EVALUATION_SEED, AuxiliaryLoss, AuxiliaryObjective
from .backbone import MaskedLMHead, Module, build_encoder, embed_tokens, run_blocks
from .configuration_cmlmcse import CMLMCSEConfig
from .losses import at_least_fp32
from .packing import Packing, Selection

ROWS_AT_ONCE = 1024  # logits of a vocabulary of 30,000 then take 125 MB in fp32


class ReplacedTokenDetection(AuxiliaryObjective):
    """The auxiliary objective of DiffCSE (Chuang et al. 2022, §2).

    A frozen generator fills the masked words of a sentence, or every position; a trainable discriminator, a copy of the
    backbone whose position 0 after the embedding layer is the sentence vector of the *original* sentence, says of every
    token whether it was replaced. The gradient reaches the encoder through the sentence vector alone. The loss is a
    mean over real tokens; the authors' code averages over padding too.
    """

    title = "DiffCSE's replaced-token detection"

    @classmethod
    def method(cls, fields: Mapping[str, Any]) -> str:
        return "DiffCSE"

    @classmethod
    def settings(cls, fields: Mapping[str, Any]) -> tuple[str, ...]:
        return ("rtd_generator", "rtd_positions", "rtd_fill", "rtd_condition", "mlm_probability")

    def __init__(self, config: CMLMCSEConfig) -> None:
        super().__init__(config)
        self.condition = config.rtd_condition
        assert config.generator_config is not None
        # Its configuration has a precision of its own, which from_pretrained does not change as that of the backbone.
        self.generator: Module = build_encoder(config.generator_config)
        self.generator.to(dtype=torch.get_default_dtype())  # type: ignore[call-arg]
        self.generator_head = MaskedLMHead(config.generator_config)
        self.discriminator: Module = build_encoder(config.backbone_config)
        self.classifier = nn.Linear(config.hidden_size, 2)
        self.train()

    def train(self, mode: bool = True) -> "ReplacedTokenDetection":
        """Set the mode. The generator stays frozen and in eval mode."""
        super().train(mode)
        for frozen in (self.generator, self.generator_head):
            frozen.requires_grad_(False).eval()  # from_pretrained makes new parameters that require gradients
        return self

    def terms(self, masked: dict[str, Any]) -> int:
        """Every real token is a prediction."""
        return len(masked["input_ids"])

    def forward(self, encoder: Module, sentences: Tensor, masked: dict[str, Any]) -> AuxiliaryLoss:
        """The summed two-class cross-entropy of all tokens. `accuracy` counts the correct ones, `replaced` the tokens
        that differ from the original."""
        tokens = masked["input_ids"]  # (S,)
        packing = Packing.from_lengths(masked["lengths"], len(tokens), masked["width"])
        original = tokens.index_copy(0, masked["mlm_positions"], masked["mlm_labels"])  # (S,)
        edited = self.edit(masked, packing)  # (S,)
        replaced = (edited != original).long()  # (S,)
        embedded = embed_tokens(self.discriminator, edited, packing)  # (S, H)
        embedded = embedded.index_copy(0, packing.starts, sentences.to(embedded.dtype))  # position 0 := h
        logits = self.classifier(run_blocks(self.discriminator, embedded, packing)[-1])  # (S, 2)
        with torch.autocast(logits.device.type, enabled=False):
            total = nn.functional.cross_entropy(at_least_fp32(logits), replaced, reduction="sum")
        right = (logits.detach().argmax(dim=-1) == replaced).float().sum()
        return AuxiliaryLoss(total, {"accuracy": right, "replaced": replaced.float().sum()})

    @torch.no_grad()
    def edit(self, masked: dict[str, Any], packing: Packing) -> Tensor:
        """(S,) the edited sentences.

        `rtd_positions` all takes the generator's token at every position but the first of a sentence (DiffCSE's code);
        masked takes it at the masked positions alone (the paper's abstract). `rtd_fill` argmax takes the likeliest
        token (DiffCSE's code), sample draws one from the generator's distribution.
        """
        tokens, positions = masked["input_ids"], masked["mlm_positions"]  # (S,), (M,)
        hidden = embed_tokens(self.generator, tokens, packing)  # (S, G)
        if self.config.rtd_positions == "all":
            hidden = run_blocks(self.generator, hidden, packing)[-1]  # (S, G)
            words = torch.cat([self.choose(part) for part in hidden.split(ROWS_AT_ONCE)])
            return words.index_copy(0, packing.starts, tokens[packing.starts])
        if len(positions) == 0:
            return tokens
        chosen = Packing.from_lengths(masked["mlm_counts"], len(positions), masked["mlm_width"])
        hidden = run_blocks(self.generator, hidden, packing, Selection(positions, chosen))[-1]  # (M, G)
        return tokens.index_copy(0, positions, self.choose(hidden))

    def choose(self, hidden: Tensor) -> Tensor:
        """The generator's states (M, G) → its words (M,)."""
        logits = self.generator_head(hidden)  # (M, V)
        if self.config.rtd_fill == "sample":
            shares = at_least_fp32(logits).softmax(dim=-1)  # (M, V)
            # As `torch.multinomial` draws, without its checks of the shares, for which the host would wait.
            seed = None if self.training else torch.Generator(shares.device).manual_seed(EVALUATION_SEED)
            return (shares / torch.empty_like(shares).exponential_(generator=seed)).argmax(dim=-1)
        return logits.argmax(dim=-1)

    @torch.no_grad()
    def load_backbone_weights(self, model: PreTrainedModel, has_head: bool) -> None:
        """Start the discriminator as the backbone."""
        self.discriminator.load_state_dict(model.base_model.state_dict())

    def load_generator(self, model: PreTrainedModel) -> None:
        """Take the generator's weights from a pretrained masked-language model."""
        self.generator.load_state_dict(model.base_model.state_dict())
        self.generator_head.copy_from(model, trained=True)
