"""The parser that reads the fields of a recipe from its file and the command line."""

import argparse
import dataclasses
import difflib
import sys
from pathlib import Path
from typing import Any, NoReturn

from transformers import HfArgumentParser
from transformers.hf_argparser import string_to_bool

from cmlmcse.common.arguments import DashedPaths
from cmlmcse.common.errors import InputError
from cmlmcse.common.recipes import find_recipe, meant_by_no, read_recipe
from modeling_cmlmcse.distributed import rank

from .checks import check_values
from .fields import ARGUMENTS, DEFAULTS, UNSCORED, Recipe
from .fit_fields import fit_fields
from .run_checks import as_option_error
from .stage_checks import check_given

# What transformers takes as a list.
LISTS = ("report_to", "optim_target_modules", "label_names", "include_for_metrics", "fsdp", "debug")
# What a run without development scores has: it keeps its last step.
WITHOUT_DEV_SCORES = {"eval_strategy": "no", "load_best_model_at_end": False, "metric_for_best_model": None}
ELSEWHERE = {  # what other libraries call a field
    "batch_size": "per_device_train_batch_size",
    "epochs": "num_train_epochs",
    "lr": "learning_rate",
    "max_length": "max_seq_length",
    "model": "model_name_or_path",
    "temperature": "temp",
}


class RecipeParser(DashedPaths, HfArgumentParser):
    """Parser that raises one-line errors (:class:`InputError`) and suggests the nearest name for an unknown field."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for action in self._actions:
            if action.type is string_to_bool and action.nargs is None:  # its default is neither true nor false
                action.nargs, action.const = "?", True  # `--bf16` alone is true, as every other switch

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see cmlmcse train --help")

    @property
    def fields(self) -> list[str]:
        """The names of the fields: neither RECIPE nor --help is one."""
        return sorted({action.dest for action in self._actions if action.option_strings} - {"help"})

    def suggest(self, name: str, where: str) -> NoReturn:
        """Refuse an unknown field, with the nearest known name.

        Raises:
            InputError: always.
        """
        near = [ELSEWHERE[name]] if name in ELSEWHERE else difflib.get_close_matches(name, self.fields, n=1)
        hint = f"did you mean {near[0]}?" if near else "cmlmcse train --help lists the fields"
        raise InputError(f"{where} expects fields of a recipe, found the unknown field {name!r}; {hint}")


def recipe_parser() -> RecipeParser:
    """The parser of all fields."""
    return RecipeParser(ARGUMENTS, prog="cmlmcse train", allow_abbrev=False)  # type: ignore[list-item]


def stage_recipe(arguments: list[str]) -> tuple[Path, dict[str, Any]]:
    """RECIPE [--stage …] → the file and the fields of the recipe for this stage.

    A recipe may name another recipe in its field `pretrain`. That one is used for `--stage pretrain`.

    Raises:
        InputError: an unknown recipe, or one that cannot be read.
    """
    path = find_recipe(arguments[0])
    fields = read_recipe(path)
    pretraining_recipe = fields.pop("pretrain", None)
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--stage", default=fields.get("stage"))
    if pretraining_recipe is None or parser.parse_known_args(arguments)[0].stage != "pretrain":
        return path, fields
    path = find_recipe(str(pretraining_recipe))
    return path, read_recipe(path)


def parse_recipe(arguments: list[str]) -> Recipe:
    """RECIPE [--field value …] → the recipe with its fields. The command line overrides the recipe.

    Raises:
        InputError: an unknown recipe or field, a value of the wrong type or out of range.
    """
    parser = recipe_parser()
    parser.add_argument("recipe")
    path, fields = stage_recipe(arguments)
    for name, value in fields.items():
        if name not in parser.fields:
            parser.suggest(name, path.name)
        value = meant_by_no(name) if value is False else value
        plain = isinstance(value, (bool, int, float, str))
        check_kind(name, value, path.name)
        parser.set_defaults(**{name: str(value) if plain else value})
    options = [word for word in arguments if word.startswith("--")]  # a value may be called as a field is
    given = {word.split("=")[0].removeprefix("--").replace("-", "_") for word in options}
    arguments = unset_nulls(parser, arguments)
    if parser.get_default("output_dir") is None:  # transformers has a folder of its own for null
        parser.set_defaults(output_dir=f"runs/{path.stem}")
    with as_option_error("cmlmcse train expects fields that fit each other and this machine", TypeError):
        values, unknown = parser.parse_known_args(arguments)
        if unknown:
            parser.suggest(unknown[0].lstrip("-").split("=")[0], "the command line")
        if has_no_dev_scores(values):
            vars(values).update(WITHOUT_DEV_SCORES)
        else:
            check_save_steps(values)
        recipe = Recipe(path.stem, *(group(kind, values) for kind in ARGUMENTS))
    fit_fields(recipe, given, fields)
    check_values(recipe)
    if (unread := check_given(recipe, given)) and rank() == 0:
        print(f"stage pretrain scores with no labels: --{', --'.join(unread)} will not be read", file=sys.stderr)
    return recipe


def group(kind: Any, values: argparse.Namespace) -> Any:
    """The dataclass of one group of fields, with the parsed values."""
    return kind(**{each.name: getattr(values, each.name) for each in dataclasses.fields(kind) if each.init})


def check_kind(name: str, value: Any, recipe: str) -> None:
    """Check that a recipe gives null or a list only to a field that has such a value.

    Raises:
        InputError: it gives one to another field.
    """
    if value is None and DEFAULTS.get(name) is not None:
        raise InputError(f"{recipe}: {name} expects a value, found null; leave it out for the default")
    if isinstance(value, list) and name not in LISTS:
        raise InputError(f"{recipe}: {name} expects one value, found a list; give several names with commas")


def unset_nulls(parser: RecipeParser, arguments: list[str]) -> list[str]:
    """Set the fields that the command line gives as `null` to None in the parser, as a recipe's `null` does.

    Returns:
        The other arguments.

    Raises:
        InputError: a field that has no such value.
    """
    kept: list[str] = []
    for word in arguments:
        if word == "null" and kept and kept[-1].startswith("--"):
            name = kept.pop()
        elif word.startswith("--") and word.endswith("=null"):
            name = word.removesuffix("=null")
        else:
            kept.append(word)
            continue
        name = name.removeprefix("--").replace("-", "_")
        if name not in DEFAULTS:
            parser.suggest(name, "the command line")
        if DEFAULTS[name] is not None:
            raise InputError(f"{name} expects a value, found null; leave it out for the recipe's own")
        parser.set_defaults(**{name: None})
    return kept


def has_no_dev_scores(fields: argparse.Namespace) -> bool:
    """Whether a run with these fields has no development score, so that it keeps its last step instead of its best.

    Raises:
        InputError: training must stop early or save by these scores.
    """
    unscored = fields.validation_split_percentage == 0 if fields.stage == "pretrain" else fields.dev_set in UNSCORED
    if unscored and fields.early_stopping_patience is not None:
        raise InputError("early_stopping_patience expects development scores, found no dev_set; choose one")
    if fields.early_stopping_patience is not None and str(fields.eval_strategy) == "no":
        raise InputError("early_stopping_patience expects development scores, found eval_strategy no; choose steps")
    if unscored and fields.save_strategy == "best":
        raise InputError("save_strategy best expects development scores, found no dev_set; choose one, or steps")
    return unscored


def check_save_steps(fields: argparse.Namespace) -> None:
    """Check that each checkpoint has a score where the best one is kept. Shares of all steps are left to transformers.

    Raises:
        InputError: save_steps is no multiple of eval_steps.
    """
    strategies = {str(getattr(each, "value", each)) for each in (fields.eval_strategy, fields.save_strategy)}
    scored, saved = fields.eval_steps, fields.save_steps
    if strategies != {"steps"} or not fields.load_best_model_at_end or scored is None or min(scored, saved) < 1:
        return
    if saved % scored:
        raise InputError(
            f"save_steps must be a multiple of eval_steps, so that the best checkpoint is found, found {saved:g} and "
            f"{scored:g}; add --save_steps {scored:g}, or a multiple of it"
        )
