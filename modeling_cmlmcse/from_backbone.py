"""Starting from a pretrained backbone: what :class:`CMLMCSEForSentenceEmbedding` takes from other models' weights."""

import inspect
import os
from collections.abc import Callable
from difflib import get_close_matches
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import nn
from transformers import AutoTokenizer, PretrainedConfig, PreTrainedModel
from transformers.utils import logging

from .auxiliary import AuxiliaryObjective, FusingObjective
from .backbone import dropouts, has_dropout, load_backbone, quiet_loading, with_dropout
from .configuration_cmlmcse import FUSION_INITS, OWN_FUSION_INITS, CMLMCSEConfig
from .families import Module
from .field_checks import in_range
from .pooling import POOLINGS
from .pretrained_auxiliary import PretrainedAuxiliary, find_file
from .replaced_token_detection import ReplacedTokenDetection

Function = TypeVar("Function", bound=Callable[..., Any])
Encoder = TypeVar("Encoder", bound="FromBackbone")

logger = logging.get_logger(__name__)

OWN_POOLING = (
    "{}: the folder records the pooling that this model was trained with, and from_backbone does not read it: set "
    "pooling, for instance to 'avg', to keep it."
)
NO_DROPOUT = (
    "{} has no dropout: in training without labels the two views of a sentence will be identical, unless an "
    "augmentation changes one. Set backbone_dropout, to 0.1 or the like."
)
NO_HEAD = (
    "{} has no masked-language-model head: the auxiliary network's head starts from the word embeddings and fresh "
    "weights, and needs training before its gradient means much."
)

if TYPE_CHECKING:
    Base = PreTrainedModel
else:
    Base = object  # a mixin, whose other base is a PreTrainedModel


def with_config_fields(function: Function) -> Function:
    """Name the fields of :class:`CMLMCSEConfig` in a function's signature, in place of its `**` parameter.

    So `help` and editors show every field with its default, and defaults stand in the configuration alone. A name that
    is none of them raises a TypeError, as in a function that lists them.
    """
    own = inspect.signature(function)
    fields = inspect.signature(CMLMCSEConfig.__init__).parameters.values()
    listed = [each for each in own.parameters.values() if each.kind is not each.VAR_KEYWORD]
    taken = {"self", "backbone_config", *own.parameters}
    listed += [
        each.replace(kind=each.KEYWORD_ONLY)
        for each in fields
        if each.name not in taken and each.kind is not each.VAR_KEYWORD
    ]
    signature = own.replace(parameters=listed)

    @wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if unknown := sorted(set(kwargs) - set(signature.parameters)):
            close = get_close_matches(unknown[0], signature.parameters, 1)
            hint = f"write {close[0]}" if close else "see help(CMLMCSEConfig)"
            raise TypeError(f"{function.__name__} expects fields of CMLMCSEConfig, found {unknown[0]!r}; {hint}")
        return function(*args, **kwargs)

    checked.__signature__ = signature  # type: ignore[attr-defined]
    return cast(Function, checked)


def check_fields(fields: dict[str, Any]) -> None:
    """Check the fields that do not depend on the backbone, before it is loaded.

    Raises:
        ValueError: a field is out of range or has the wrong type.
    """
    later = ("lexical_layers", "fusion_layers", "matryoshka_dims", "generator_config")
    CMLMCSEConfig(**{name: value for name, value in fields.items() if name not in later})


class FromBackbone(Base):
    """The methods that start a sentence encoder from the weights of other models."""

    if TYPE_CHECKING:
        backbone: Module
        auxiliary: nn.ModuleDict
        _tokenizer_place: tuple[str, dict[str, Any]]

        @property
        def objectives(self) -> dict[str, AuxiliaryObjective]: ...

        @property
        def fusing(self) -> dict[str, FusingObjective]: ...

    @classmethod
    @with_config_fields
    def from_backbone(
        cls: type[Encoder],
        name_or_path: str | os.PathLike[str],
        *,
        fusion_init: str | None = None,
        rtd_generator: str | None = None,
        backbone_dropout: float | None = None,
        from_scratch: bool = False,
        new_token_id: int | None = None,
        **config_fields: Any,
    ) -> Encoder:
        """Start from a pretrained backbone: encoder, frozen extractor, fusion layers and MLM head.

        Args:
            name_or_path: a local folder or a Hub name.
            fusion_init: as in :class:`CMLMCSEConfig`; or the path or Hub name of a saved model of this class, or of
                what stage 1 exports, whose auxiliary network is then taken over.
            rtd_generator: path or Hub name of the masked-language model that edits sentences (default: the backbone).
            backbone_dropout: probability of every dropout of the encoder (default: the backbone's own).
            from_scratch: take the backbone's configuration alone and start from random weights.
            new_token_id: id of a token added to the backbone's tokenizer. It gets a fresh embedding if the backbone
                has none of that id.
            config_fields: all other fields of :class:`CMLMCSEConfig`, with its defaults: `pooling`, `cmlm_weight`,
                `lexical_layers`, … The signature that `help` shows names each of them.

        Raises:
            TypeError: there is no such field.
            ValueError: the backbone is of an unknown kind, or a field is wrong.
        """
        check_fields(config_fields)
        name_or_path = os.fspath(name_or_path)
        donor = FUSION_INITS[0] if fusion_init is None else fusion_init
        fuses = config_fields.get("cmlm_weight") != 0 or config_fields.get("condenser_weight", 0) > 0
        network = PretrainedAuxiliary.choose(donor, name_or_path) if fuses else None
        if network is not None:
            config_fields |= network.check(config_fields)
        pretrained, has_head = load_backbone(name_or_path, from_scratch, new_token_id)
        config_fields |= pooling_fields(config_fields, name_or_path)
        generator = None
        if config_fields.get("rtd_weight", 0) > 0:
            found = load_backbone(rtd_generator, False, new_token_id) if rtd_generator else (pretrained, has_head)
            generator = with_head(*found, rtd_generator or name_or_path)
            config_fields["generator_config"] = generator.config
        config_fields |= backbone_fields(pretrained.config, backbone_dropout, name_or_path)
        init = donor if donor in OWN_FUSION_INITS else "checkpoint"
        model = cls(CMLMCSEConfig(fusion_init=init, **config_fields))
        model._tokenizer_place = absolute(name_or_path), {}
        if model.auxiliary and not has_head and not from_scratch:
            logger.warning(NO_HEAD.format(name_or_path))
        model._load_backbone_weights(pretrained, has_head, generator)
        if network is not None:
            model._load_network(network, donor, new_token_id)
        elif init == "checkpoint" and model.auxiliary:
            model._load_auxiliary(donor)
        return model

    def _load_backbone_weights(
        self, pretrained: PreTrainedModel, has_head: bool, generator: PreTrainedModel | None
    ) -> None:
        """Take the encoder, and what each auxiliary objective takes, from a pretrained model.

        Args:
            pretrained: the masked-language model.
            has_head: whether its head is trained.
            generator: the masked-language model that edits sentences, where there is replaced-token detection.
        """
        self.backbone.load_state_dict(pretrained.base_model.state_dict())
        for objective in self.objectives.values():
            objective.load_backbone_weights(pretrained, has_head)
            if isinstance(objective, ReplacedTokenDetection):
                objective.load_generator(cast(PreTrainedModel, generator))

    def _load_network(self, network: PretrainedAuxiliary, donor: str, new_token_id: int | None) -> None:
        """Take what stage 1 pre-trained, with the head of the backbone that it belongs to."""
        head = None if donor == "pretrained" else load_backbone(donor, new_token_id=new_token_id)[0]
        for objective in self.fusing.values():
            objective.load_pretrained(network, head)

    def _load_auxiliary(self, donor: str) -> None:
        """Take fusion layers and heads from a saved model of this class.

        Raises:
            ValueError: there is no saved model, or it has no auxiliary network, or one of another shape.
        """
        expected = "fusion_init must be last, next, random, pretrained, or a folder or Hub name of a checkpoint"
        try:
            kind = CMLMCSEConfig.get_config_dict(donor)[0].get("model_type")
            if kind != CMLMCSEConfig.model_type:
                raise ValueError(
                    f"{expected} of this class, found {donor!r} of the model_type {kind!r}; choose another"
                )
            saved = type(self).from_pretrained(donor, dtype=torch.float32)
        except OSError as error:
            raise ValueError(
                f"{expected}, found {donor!r}, which cannot be loaded: {str(error).splitlines()[0]}"
            ) from error
        if not self.fusing.keys() <= saved.fusing.keys():
            raise ValueError(f"fusion_init expects a checkpoint with an auxiliary network, found none in {donor}")
        size, found = (model.config.backbone_config.vocab_size for model in (self, saved))
        if size != found:
            raise ValueError(
                f"fusion_init expects a checkpoint with the vocabulary of {size} tokens, found {found} in {donor}; "
                "choose one trained with the same augmentation"
            )
        for name, objective in self.fusing.items():
            objective.load_trainable(saved.fusing[name])


def pooling_fields(given: dict[str, Any], name_or_path: str) -> dict[str, Any]:
    """What the pooling needs of the backbone's folder beside the fields that are given: the mask token of a template.
    Warns where the folder records a pooling and none is given.

    Raises:
        ValueError: the tokenizer has no mask token.
    """
    if "pooling" not in given and find_file(name_or_path, "modules.json"):
        logger.warning(OWN_POOLING.format(name_or_path))
    if POOLINGS[given.get("pooling", "cls")].reads_mask and given.get("mask_token_id") is None:
        return {"mask_token_id": mask_token_of(name_or_path)}
    return {}


def backbone_fields(config: PretrainedConfig, dropout: float | None, name_or_path: str) -> dict[str, Any]:
    """The backbone's configuration, with this probability of dropout, and those that an export has again. Warns where
    none is given and the backbone has none.

    Raises:
        ValueError: it is no probability.
    """
    if dropout is not None:
        in_range("backbone_dropout", dropout, float, 0.0, 1.0)
        return {"backbone_config": with_dropout(config, dropout), "exported_dropouts": dropouts(config)}
    if not has_dropout(config):
        logger.warning(NO_DROPOUT.format(name_or_path))
    return {"backbone_config": config}


def absolute(name_or_path: str) -> str:
    """A folder's absolute path, so that it is found after a change of the working directory; a Hub name as it is."""
    return os.path.abspath(name_or_path) if os.path.isdir(name_or_path) else name_or_path


def mask_token_of(name_or_path: str) -> int:
    """The id of the mask token of a model's tokenizer.

    Raises:
        ValueError: there is no such token.
    """
    with quiet_loading():
        mask = AutoTokenizer.from_pretrained(name_or_path, trust_remote_code=False).mask_token_id
    if mask is None:
        raise ValueError(f"pooling prompt expects a tokenizer with a mask token, found none in {name_or_path}")
    return int(mask)


def with_head(generator: PreTrainedModel, has_head: bool, name_or_path: str) -> PreTrainedModel:
    """The masked-language model that edits sentences in replaced-token detection.

    Raises:
        ValueError: it has no trained head, so it cannot fill masked words.
    """
    if not has_head:
        raise ValueError(
            f"rtd_generator expects a model with a trained masked-language-model head, found none in {name_or_path}; "
            "choose another generator"
        )
    return generator
