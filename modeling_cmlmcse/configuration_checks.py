"""Checks of fields that must fit each other, or the backbone. Those of single fields are in field_checks.py."""

from typing import Any

from transformers import PretrainedConfig

from .pooling import POOLINGS

Config = Any  # a CMLMCSEConfig, whose file imports this one


def check_generator(generator: PretrainedConfig, backbone: PretrainedConfig) -> PretrainedConfig:
    """The generator's configuration, if it has the backbone's vocabulary.

    Raises:
        ValueError: it has another one.
    """
    if generator.vocab_size != backbone.vocab_size:
        raise ValueError(
            f"rtd_generator must have the backbone's vocabulary of {backbone.vocab_size}, found "
            f"{generator.vocab_size}; choose a generator with the same tokenizer"
        )
    return generator


def check_layers(config: Config) -> None:
    """Check the depths of extractor and fusion, and where they are built (λ > 0) against the backbone's.

    Raises:
        ValueError: one is no whole number, or too small or too large.
    """
    depth = config.num_hidden_layers
    for name, least in (("lexical_layers", 0), ("fusion_layers", 1)):
        value = getattr(config, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name} must be a whole number of at least {least}, found {value!r}; fix the recipe")
    if config.condenser_weight > 0:
        check_condenser(config)
    if config.cmlm_weight == 0 and config.condenser_weight == 0:
        return
    for name in ("lexical_layers", "fusion_layers"):
        if getattr(config, name) > depth:
            raise ValueError(
                f"{name} must be at most {depth}, the backbone's depth, found {getattr(config, name)}; lower it in "
                "the recipe"
            )
    if config.fusion_init == "next" and config.lexical_layers + config.fusion_layers > depth:
        raise ValueError(
            f"fusion_init 'next' takes the fusion layers from the backbone's {depth}, found lexical_layers "
            f"{config.lexical_layers} and fusion_layers {config.fusion_layers}; lower them or choose fusion_init "
            "'random'"
        )


def check_condenser(config: Config) -> None:
    """Check that Condenser's network reads a layer below the last one, and a vector that a masked sentence has.

    Raises:
        ValueError: it does not.
    """
    depth = config.num_hidden_layers
    if not 1 <= config.lexical_layers < depth:
        raise ValueError(
            f"condenser_weight expects lexical_layers from 1 to {depth - 1}, below the last layer, found "
            f"{config.lexical_layers}; set lexical_layers"
        )
    if POOLINGS[config.pooling].reads_mask:
        raise ValueError(
            f"condenser_weight reads the vector of the masked sentence, which has no template, and so expects "
            f"another pooling, found {config.pooling}; choose one, or retromae_weight, which reads the view's vector"
        )


def check_pooling(config: Config) -> None:
    """Check that the backbone has the layers that the pooling reads, and that the head fits the pooling.

    Raises:
        ValueError: it has too few, or the head does not fit.
    """
    pooling, depth = POOLINGS[config.pooling], config.num_hidden_layers
    read = max(-layer if layer < 0 else layer + 1 for layer in pooling.layers)
    if read > depth:
        raise ValueError(
            f"pooling {config.pooling!r} reads {read} layers of the backbone, found {depth}; choose another pooling"
        )
    if pooling.keeps_head and config.projection != "mlp":
        raise ValueError(
            f"pooling {config.pooling!r} keeps the training head at inference and so expects projection 'mlp', found "
            f"{config.projection!r}; choose pooling 'cls_before_pooler'"
        )
    if config.matryoshka_dims and config.projection != "none" and not pooling.keeps_head:
        raise ValueError(
            f"matryoshka_dims expects a vector that users get, found projection {config.projection!r} after pooling "
            f"{config.pooling!r}, which training alone uses; set projection to none, or pooling to cls"
        )
