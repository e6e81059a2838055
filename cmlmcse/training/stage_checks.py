"""Checks of the fields of `--stage pretrain`, and of those that a stage does not read."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from cmlmcse.common.errors import InputError, as_input_error
from modeling_cmlmcse.field_checks import in_range, one_of
from modeling_cmlmcse.pooling import POOLINGS

from .fields import DEFAULTS, DataArguments, Recipe
from .pretraining_decoders import DECODERS, chosen_decoder
from .stage_fields import NEVER_PRETRAIN, ONLY_STAGE, PRETRAIN, RUN_OF_TRAIN, TRAIN

# They change no model, and one command line may serve both stages.
SCORES = ("data_dir", "dev_set", "final_evaluation")
ADVICE = {
    PRETRAIN: "drop it here, and give it to the training that follows",
    TRAIN: "drop it here, or add --stage pretrain",
}
WHY_NEVER = {
    "auxiliary_learning_rate": ", where backbone and auxiliary network share one rate",
    "mini_batch_size": ", which has no contrast: gradient_accumulation_steps saves its memory",
    "streaming": ", which tokenises the text ahead of training",
}


def check_pretraining(recipe: Recipe) -> None:
    """Check the fields of `--stage pretrain`.

    Raises:
        InputError: a field out of range, or a field that this stage does not use.
    """
    if POOLINGS[recipe.model.pooling].reads_mask:
        raise InputError("pooling prompt is for stage train, found it with stage pretrain; choose another pooling")
    with as_input_error():
        one_of("sequences", recipe.data.sequences, ("documents", "sentences"))
        in_range("auxiliary_weight", recipe.data.auxiliary_weight, float, 0.0, 1e6)
        one_of("auxiliary_decoder", recipe.data.auxiliary_decoder, DECODERS)
        in_range("validation_split_percentage", recipe.data.validation_split_percentage, float, 0.0, 99.0)
    check_deletion(recipe.data)
    values = dataclasses.asdict(recipe.model) | dataclasses.asdict(recipe.data)
    values |= {name: getattr(recipe.run, name) for name in RUN_OF_TRAIN}
    for name in NEVER_PRETRAIN:
        default = DEFAULTS[name]
        if (value := values[name]) != default:
            raise InputError(
                f"{name} is for stage train, found {value} with stage pretrain{WHY_NEVER.get(name, '')}; leave it out, "
                f"or set --{name} {'null' if default is None else str(default).lower()}"
            )


def check_deletion(data_args: DataArguments) -> None:
    """Check that stage pretrain deletes tokens only where a decoder restores them.

    Raises:
        InputError: another augmentation, or no such decoder.
    """
    if data_args.augmentation == "none":
        if data_args.deletion_rate != DEFAULTS["deletion_rate"]:
            raise InputError(
                f"deletion_rate expects augmentation delete_tokens, found {data_args.deletion_rate} with none; set "
                "both, or leave it out"
            )
        return
    if data_args.augmentation != "delete_tokens":
        raise InputError(
            f"augmentation in stage pretrain must be none or delete_tokens, found {data_args.augmentation}; leave it "
            "out, or set --augmentation none"
        )
    decoder = chosen_decoder(data_args.auxiliary_decoder, data_args.auxiliary_weight)
    if decoder is None or not decoder.predicts_all:
        restores = next(name for name, each in DECODERS.items() if each.predicts_all)
        raise InputError(
            "augmentation delete_tokens in stage pretrain expects the decoder that restores them, found "
            f"auxiliary_decoder {data_args.auxiliary_decoder} with auxiliary_weight {data_args.auxiliary_weight:g}; "
            f"set --auxiliary_decoder {restores} --auxiliary_weight 1, or --augmentation none --deletion_rate "
            f"{DEFAULTS['deletion_rate']}"
        )


def check_given(recipe: Recipe, given: Iterable[str]) -> list[str]:
    """Check that the command line of a stage names no field that only the other stage reads. A recipe may name most of
    them, because it may serve both stages.

    Args:
        recipe: the recipe.
        given: the names of those on the command line.

    Returns:
        Those that it names for scores alone, which stage pretrain does not take.

    Raises:
        InputError: it names another one, and not to turn it off.
    """
    stage, values = recipe.run.stage, dataclasses.asdict(recipe.model) | dataclasses.asdict(recipe.data)
    names = {name.removeprefix("no_") for name in given} & set(values)
    others = [name for name in sorted(names) if ONLY_STAGE.get(name, stage) != stage]
    unread = [name for name in others if not asks_for_nothing(name, values[name])]
    for name in unread:
        if name not in SCORES:
            raise InputError(
                f"--{name} is for stage {ONLY_STAGE[name]}, found {values[name]} with stage {stage}, which does not "
                f"read it; {ADVICE[stage]}"
            )
    return unread


def asks_for_nothing(name: str, value: Any) -> bool:
    """Whether a value of a field that is not read leaves things as they are: its default, or none of what it names."""
    default = None if name in SCORES else DEFAULTS[name]
    return value in (default, None, "none", "") or (name.endswith("_weight") and value == 0)
