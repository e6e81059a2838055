"""The auxiliary objectives as losses of sentence-transformers: beside a loss of that library, in its own Trainer.

from sentence_transformers import SentenceTransformer
from cmlmcse.sentence_transformers import ConditionalMLMLoss, ObjectiveTrainer

model = SentenceTransformer("bert-base-uncased")
trainer = ObjectiveTrainer(model=model, train_dataset=sentences, loss=ConditionalMLMLoss(model))
"""

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
from sentence_transformers.losses import (
    AnglELoss,
    ContrastiveLoss,
    CoSENTLoss,
    CosineSimilarityLoss,
    MultipleNegativesRankingLoss,
    OnlineContrastiveLoss,
    TripletLoss,
)
from torch import Tensor, nn

from cmlmcse.data.collator import pack_masked
from cmlmcse.data.masking import Masking, mask_tokens
from cmlmcse.data.special_tokens import check_around
from modeling_cmlmcse import CMLMCSEConfig, CMLMCSEForSentenceEmbedding
from modeling_cmlmcse.auxiliary import EVALUATION_SEED
from modeling_cmlmcse.configuration_cmlmcse import EXPORT_KEY
from modeling_cmlmcse.distributed import processes
from modeling_cmlmcse.enhanced_decoding import WordsFromVector
from modeling_cmlmcse.modeling_cmlmcse import AUXILIARY_OBJECTIVES

logger = logging.getLogger(__name__)

Features = dict[str, Any]
# They compute from embeddings and the labels as they come; another loss may first change the labels.
FROM_EMBEDDINGS = (
    AnglELoss,
    ContrastiveLoss,
    CoSENTLoss,
    CosineSimilarityLoss,
    MultipleNegativesRankingLoss,
    OnlineContrastiveLoss,
    TripletLoss,
)
VIEWS = 2  # the first two columns get a masked sentence each: anchor and positive, or the two views of a sentence
LOSS_WEIGHTS = "loss.pt"  # in a checkpoint: what the losses have of their own
LOADINGS = "_cmlmcse_loadings"  # in a model: how often it has loaded weights since the first loss was made for it
NOT_SAVED = (
    "%s has weights of its own, which only ObjectiveTrainer of cmlmcse.sentence_transformers saves in a checkpoint: "
    "use it in place of SentenceTransformerTrainer, or this training cannot be resumed"
)


class ObjectiveLoss(nn.Module):
    """A loss of sentence-transformers plus the weighted loss of one auxiliary objective.

    The objective reads the vector that the model's pooling gives, before a later module normalises or projects it. A
    data set with a single column of texts is trained as SimCSE: each text is its own positive, under another dropout.

    With `MultipleNegativesRankingLoss` or another of `FROM_EMBEDDINGS` a step encodes every text once. Other losses
    encode by themselves (`CachedMultipleNegativesRankingLoss`, `MatryoshkaLoss`), which costs one more encoding of two
    columns.

    The two weights with which a model of this project averages its layers (pooling `avg_top2` or `avg_first_last`) are
    frozen here.

    Args:
        model: the model that is trained: a transformer, then a pooling.
        loss: the loss beside it (default: `MultipleNegativesRankingLoss(model)`, InfoNCE at temperature 0.05).
        masked_lm: folder or Hub name of the masked-language model that the objective starts from (default: where the
            model's transformer was loaded from).
        mlm_probability: share of the tokens that are masked.
        fields: fields of `CMLMCSEConfig` for the objective.

    Raises:
        ValueError: a model without transformer and pooling, of an unknown kind, or whose origin is unknown; the weight
            0; more than one process.
    """

    objective_name = ""
    _checked = False  # whether an ObjectiveTrainer saves its weights, or a warning said that nobody does

    def __init__(
        self,
        model: SentenceTransformer,
        loss: nn.Module | None,
        masked_lm: str | None,
        mlm_probability: float,
        **fields: Any,
    ) -> None:
        super().__init__()
        if processes() > 1:
            raise ValueError(
                f"{type(self).__name__} expects one process, found {processes()}: its own weights would differ between "
                "them; train with cmlmcse train, which does the same on several"
            )
        if (weight := fields[f"{self.objective_name}_weight"]) == 0:
            raise ValueError(
                f"{type(self).__name__} expects a weight above 0, found {weight}; for training without the objective "
                "give the Trainer the other loss alone"
            )
        modules: list[Any] = list(model)
        if len(modules) < 2 or not hasattr(modules[0], "auto_model"):
            found = ", ".join(type(module).__name__ for module in modules)
            raise ValueError(f"model must be a Transformer followed by a Pooling, found {found or 'no module'}")
        origin = masked_lm or modules[0].auto_model.config._name_or_path
        if not origin:
            raise ValueError("the model does not say where it was loaded from; name its backbone with masked_lm")
        if model.tokenizer.mask_token_id is None:
            raise ValueError("model must have a tokenizer with a mask token, found none; choose another model")
        if issubclass(AUXILIARY_OBJECTIVES[self.objective_name], WordsFromVector):
            check_around(type(self).__name__, model.tokenizer, origin)
        self.model = model
        self.loss = MultipleNegativesRankingLoss(model) if loss is None else loss
        self.config = {"masked_lm": origin, "mlm_probability": mlm_probability, **fields}
        built = CMLMCSEForSentenceEmbedding.from_backbone(
            origin, **{"pooling": "avg", "projection": "none", "cmlm_weight": 0.0, **fields}
        )
        if len(model.tokenizer) > (known := len(built.get_input_embeddings().weight)):  # type: ignore[arg-type]
            raise ValueError(
                f"{origin} must know the tokens of the model's tokenizer, found {known} of {len(model.tokenizer)}; "
                "save a masked-language model with the added tokens, and name its folder with masked_lm"
            )
        self.objective = built.objectives[self.objective_name]
        self.weight = built.objective_weight(self.objective_name)
        self.masking = Masking.of(model.tokenizer, mlm_probability)
        self._modules_of_model = modules  # in a list, because `model` has registered their weights already
        self._loadings = getattr(model, LOADINGS, 0)
        model.register_load_state_dict_post_hook(count_loading)
        if is_ours(modules[0].auto_model.config):
            for module in modules:
                if hasattr(module, "layer_weights"):  # WeightedLayerPooling's: AutoModel and cmlmcse know only 0 and 1
                    module.requires_grad_(False)

    def forward(self, sentence_features: Iterable[Features], labels: Tensor) -> dict[str, Tensor]:
        """The parts of the loss, which the Trainer adds up and logs: that of the other loss, `contrast`, and the
        objective's, with its weight. It is in eval mode where the model is: then there is no chance in it.

        Args:
            sentence_features: the tokenised columns: `input_ids` and `attention_mask` (N, T) each.
            labels: passed to the other loss.
        """
        if self.training != self.model.training:  # the Trainer switches the model alone
            self.train(self.model.training)
        if self.training and not self._checked:
            self._check_resuming()
        columns = list(sentence_features)
        columns = columns * VIEWS if len(columns) == 1 else columns
        if type(self.loss) in FROM_EMBEDDINGS:
            encoded = [self.encode(column) for column in columns]
            from_embeddings: Any = self.loss.compute_loss_from_embeddings
            contrast = from_embeddings([embedding for embedding, _ in encoded], labels)
        else:
            contrast = self.loss([dict(column) for column in columns], labels)
            encoded = [self.encode(column) for column in columns[:VIEWS]]
        vectors = torch.cat([vector for _, vector in encoded[:VIEWS]])  # (2·N, H)
        masked = self.mask(columns[:VIEWS])
        found = self.objective(inner_encoder(self._modules_of_model[0].auto_model), vectors, masked)
        terms = max(self.objective.terms(masked), 1)
        parts = contrast if isinstance(contrast, dict) else {"contrast": contrast}
        return {**parts, self.objective_name: self.weight * found.total / terms}

    def _check_resuming(self) -> None:
        """Say once, before the first step, that no Trainer saves the objective's weights.

        Raises:
            ValueError: the model has loaded weights after the loss was made, as in a Trainer that resumes.
        """
        name = type(self).__name__
        if getattr(self.model, LOADINGS, 0) != self._loadings:
            raise ValueError(
                f"{name} expects the objective's weights beside those that the model has loaded, found fresh ones; "
                "train and resume with ObjectiveTrainer, or make the loss after the model is loaded"
            )
        logger.warning(NOT_SAVED, name)
        self._checked = True

    def encode(self, column: Features) -> tuple[Tensor, Tensor]:
        """A column → its embeddings, and the vectors that the pooling gave, (N, H) each."""
        if isinstance(self.model, nn.DataParallel):
            raise ValueError(
                f"{type(self).__name__} expects one device, found DataParallel, which splits the batch; set "
                "CUDA_VISIBLE_DEVICES to one GPU"
            )
        pooled: list[Tensor] = []

        def keep(module: nn.Module, given: Any, output: Features) -> None:
            if "sentence_embedding" in output:  # not yet after WeightedLayerPooling, which stands before the pooling
                pooled.append(output["sentence_embedding"])

        hooks = [module.register_forward_hook(keep) for module in self._modules_of_model[1:]]
        try:
            model: Any = self.model  # or what the Trainer has wrapped it in
            embedding = model(dict(column))["sentence_embedding"]
        finally:
            for hook in hooks:
                hook.remove()
        return embedding, pooled[0]

    def mask(self, columns: list[Features]) -> dict[str, Any]:
        """The packed masked sentences of some columns. Torch's seed determines the masks; in eval mode a constant."""
        rng = np.random.default_rng(int(torch.randint(2**62, ())) if self.training else EVALUATION_SEED)
        masked = []
        for column in columns:
            real = column["attention_mask"].cpu().numpy().astype(bool)
            rows = column["input_ids"].cpu().numpy()
            masked += [mask_tokens(row[here], self.masking, rng) for row, here in zip(rows, real, strict=True)]
        device = columns[0]["input_ids"].device
        packed = pack_masked(masked)
        return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in packed.items()}

    def get_config_dict(self) -> dict[str, Any]:
        """What a model card says of the loss."""
        return {"loss": type(self.loss).__name__, **self.config}


def count_loading(model: nn.Module, _: Any) -> None:
    """Note in a model that it has loaded weights. A hook of the model, which can be pickled and copied with it."""
    setattr(model, LOADINGS, getattr(model, LOADINGS, 0) + 1)


class ObjectiveTrainer(SentenceTransformerTrainer):
    """`SentenceTransformerTrainer` whose checkpoints also hold the weights that the losses have of their own.

    So a training that is resumed goes on as if it had not stopped. Everything else is that class's.
    """

    def prepare_loss(self, loss: Any, model: Any) -> nn.Module:
        prepared = super().prepare_loss(loss, model)
        for part in prepared.modules():
            if isinstance(part, ObjectiveLoss):
                part._checked = True
        return prepared

    def own_weights(self) -> dict[str, Tensor]:
        """The weights of the losses that are not the model's, frozen ones included, by name."""
        losses = self.loss if isinstance(self.loss, dict) else {"": self.loss}
        of_model = {id(weight) for weight in self.model.state_dict(keep_vars=True).values()}
        return {
            f"{place}/{name}": weight
            for place, loss in losses.items()
            for name, weight in loss.state_dict(keep_vars=True).items()
            if id(weight) not in of_model
        }

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        torch.save(
            {name: weight.detach() for name, weight in self.own_weights().items()}, Path(output_dir, LOSS_WEIGHTS)
        )

    @torch.no_grad()
    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Load the losses' weights too.

        Raises:
            ValueError: the checkpoint has none, or those of other losses.
        """
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        path, own = Path(checkpoint, LOSS_WEIGHTS), self.own_weights()
        saved = torch.load(path, map_location="cpu", weights_only=True) if path.is_file() else {}
        expected, found = ({name: weight.shape for name, weight in each.items()} for each in (own, saved))
        if found != expected:
            what = "others; make the losses as before" if saved else "none; train with ObjectiveTrainer from the start"
            raise ValueError(f"{path}: expected the weights of these losses, found {what}")
        for name, weight in own.items():
            weight.copy_(saved[name])

    def _checkpoint_push_skip_names(self, checkpoint_folder: str) -> set[str]:
        return {*super()._checkpoint_push_skip_names(checkpoint_folder), LOSS_WEIGHTS}


def inner_encoder(model: Any) -> Any:
    """The transformer that the objectives read: of our model class, its backbone. That class may be an export's own
    copy (`trust_remote_code=True`), so the model type tells it."""
    return model.backbone if model.config.model_type == CMLMCSEConfig.model_type else model


def is_ours(config: Any) -> bool:
    """Whether a model is of this project: a checkpoint or an export, loaded with or without its code."""
    return config.model_type == CMLMCSEConfig.model_type or hasattr(config, EXPORT_KEY)


def check_weight(fields: dict[str, Any], objective: str) -> None:
    """Check that no weight is given by its name in a recipe, where this loss has `weight`.

    Raises:
        TypeError: one is.
    """
    for name in fields:
        if name in (f"{known}_weight" for known in AUXILIARY_OBJECTIVES):
            own = name == f"{objective}_weight"
            advice = f"write weight={fields[name]}" if own else "use the loss of that objective"
            raise TypeError(f"this loss takes no {name}, found {fields[name]}; {advice}")


class ConditionalMLMLoss(ObjectiveLoss):
    """CMLM-CSE (Zhang & Chen 2023): the vector must help a frozen copy of the lower layers to predict masked words.

    Args:
        model, loss, masked_lm: see :class:`ObjectiveLoss`.
        weight: λ (CMLM-CSE Table 5: 0.005).
        lexical_layers: frozen layers (default: two thirds of the backbone's; CMLM-CSE Table 6).
        fusion_layers: trained layers (default: a quarter).
        mlm_probability: share of the tokens that are masked (CMLM-CSE §4.3.2: 0.15).
        fields: further fields of `CMLMCSEConfig`: `fusion_init`, `lexical_frozen`, …
    """

    objective_name = "cmlm"

    def __init__(
        self,
        model: SentenceTransformer,
        loss: nn.Module | None = None,
        weight: float = 0.005,
        lexical_layers: int | None = None,
        fusion_layers: int | None = None,
        mlm_probability: float = 0.15,
        masked_lm: str | None = None,
        **fields: Any,
    ) -> None:
        check_weight(fields, "cmlm")
        fields |= {"cmlm_weight": weight, "lexical_layers": lexical_layers, "fusion_layers": fusion_layers}
        super().__init__(model, loss, masked_lm, mlm_probability, **fields)


class ReplacedTokenLoss(ObjectiveLoss):
    """DiffCSE (Chuang et al. 2022): the vector must help a discriminator to find the words that a generator replaced.

    Args:
        model, loss, masked_lm: see :class:`ObjectiveLoss`.
        weight: its weight (DiffCSE: 0.005).
        generator: folder or Hub name of the generator, with the same tokenizer (default: `masked_lm`).
        mlm_probability: share of the tokens that are masked (DiffCSE: 0.30).
        fields: further fields of `CMLMCSEConfig`: `rtd_positions`, `rtd_fill`.
    """

    objective_name = "rtd"

    def __init__(
        self,
        model: SentenceTransformer,
        loss: nn.Module | None = None,
        weight: float = 0.005,
        generator: str | None = None,
        mlm_probability: float = 0.30,
        masked_lm: str | None = None,
        **fields: Any,
    ) -> None:
        check_weight(fields, "rtd")
        fields |= {"rtd_weight": weight, "rtd_generator": generator, "rtd_condition": "before_head"}
        super().__init__(model, loss, masked_lm, mlm_probability, **fields)


class BottleneckLoss(ObjectiveLoss):
    """RetroMAE's decoder (Xiao et al. 2022): one block predicts every word from the vector and a few other words.

    Unlike `DenoisingAutoEncoderLoss` it needs no cross-attention, so every backbone here but ELECTRA can have it.

    Args:
        model, loss, masked_lm: see :class:`ObjectiveLoss`.
        weight: its weight. No paper has it beside a contrast; 0.1 is what SimCSE gives its MLM.
        hidden_share: share of the other words that a position does not see (RetroMAE: 0.5).
        fields: further fields of `CMLMCSEConfig`.
    """

    objective_name = "retromae"

    def __init__(
        self,
        model: SentenceTransformer,
        loss: nn.Module | None = None,
        weight: float = 0.1,
        hidden_share: float = 0.5,
        masked_lm: str | None = None,
        **fields: Any,
    ) -> None:
        check_weight(fields, "retromae")
        fields |= {"retromae_weight": weight, "decoder_hidden_share": hidden_share}
        super().__init__(model, loss, masked_lm, 0.15, **fields)
