"""The command `cmlmcse train RECIPE [--field value …]`, and the function `train`: from a recipe to an encoder."""

import json
import os
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cmlmcse.common.alone import alone_in
from cmlmcse.common.command import command
from cmlmcse.common.cpu import limit_kernel_caches
from cmlmcse.common.errors import InputError
from cmlmcse.common.locations import SAVE_MODEL, SAVE_TEXT, path_or_name
from cmlmcse.common.recipes import find_recipe, recipe_names
from cmlmcse.common.run_files import RESULTS
from cmlmcse.common.signals import interruptible

from .help import USAGE, help_text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Accelerate's launcher writes false into it where nobody has chosen. Then torch.compile would compile each batch anew,
# for it has another number of tokens. Without the variable the second batch makes the sizes dynamic.
LAUNCHED_DYNAMIC = "ACCELERATE_DYNAMO_USE_DYNAMIC"


class Trained(NamedTuple):
    """The result of :func:`train`.

    Attributes:
        folder: the run's folder; `export/` in it is the encoder.
        results: the content of results.json; empty on every process of a launch except the first.
    """

    folder: Path
    results: dict[str, Any]


def train(recipe: str | Path, **fields: Any) -> Trained:
    """Train a sentence encoder, as `cmlmcse train RECIPE --field value …` does.

    It sets two environment variables that keep oneDNN's caches small (:func:`limit_kernel_caches`).

    Args:
        recipe: the name of a recipe (`cmlmcse recipes` lists them), or a YAML file.
        fields: fields that override the recipe: `max_steps=100`, `output_dir="runs/mine"`, `stage="pretrain"`.
            `cmlmcse train --help` lists them. None keeps the recipe's value.

    Returns:
        The run's folder and its results.

    Raises:
        InputError: an unknown recipe or field, or a wrong value, text or model.
        Stopped: the process received SIGTERM; the newest checkpoint is kept.
    """
    limit_kernel_caches()
    for name, advice in (("train_file", SAVE_TEXT), ("model_name_or_path", SAVE_MODEL)):
        if fields.get(name) is not None:
            path_or_name(name, fields[name], advice)
    return run([str(recipe), *field_arguments(fields)])


def field_arguments(fields: Mapping[str, Any]) -> list[str]:
    """Fields as words of the command line. Fields that are None are left out; a list of names is one word with commas,
    except where the command takes several words."""
    from .parse import LISTS

    words: list[str] = []
    for name, value in fields.items():
        if value is None:
            continue
        if isinstance(value, (list, tuple)) and name in LISTS:
            none = ["none"] if name == "report_to" else []
            words += [f"--{name}", *(list(map(str, value)) or none)] if value or none else []
        elif isinstance(value, (list, tuple)):
            words.append(f"--{name}={','.join(map(str, value))}")
        else:  # with an equals sign, because a value may begin with a dash
            words.append(f"--{name}={json.dumps(value) if isinstance(value, dict) else value}")
    return words


@command
def main(argv: list[str] | None = None) -> None:
    """The command. The help and the error for an unknown recipe come without importing torch and transformers."""
    arguments = sys.argv[1:] if argv is None else argv
    if {"-h", "--help"} & set(arguments):
        print(help_text())
        return
    if not arguments:
        raise InputError(f"{USAGE}: expected RECIPE, one of {', '.join(recipe_names())}, found nothing")
    if arguments[0].startswith("-"):
        raise InputError(f"{USAGE}: expected RECIPE first, found {arguments[0]!r}; see cmlmcse train --help")
    find_recipe(arguments[0])
    run(arguments)


def run(arguments: list[str], start_values: "NDArray[np.float64] | None" = None) -> Trained:
    """Run the stage that the arguments RECIPE [--field value …] name.

    Args:
        arguments: the words of the command line.
        start_values: the values of the development set's items before training, where the caller knows them. Then
            neither the start nor the export is scored; the result is the best score that training met.

    Raises:
        InputError: as :func:`train`.
    """
    from modeling_cmlmcse.variable_length import padded_attention

    from .parse import parse_recipe

    if os.environ.get(LAUNCHED_DYNAMIC, "").lower() == "false":
        del os.environ[LAUNCHED_DYNAMIC]
    recipe = parse_recipe(arguments)
    folder = Path(recipe.run.output_dir or "")
    pads, first = not recipe.run.variable_length_attention, recipe.run.process_index == 0
    alone = alone_in(folder) if first and recipe.run.output_dir else nullcontext()
    with padded_attention(pads), alone, interruptible(lambda: kept_checkpoint(folder)):
        if recipe.run.stage == "pretrain":
            from .pretraining import pretrain

            pretrain(recipe)
        else:
            from .encoder_training import train_encoder

            train_encoder(recipe, start_values)
    results = folder / RESULTS
    return Trained(folder, json.loads(results.read_text(encoding="utf-8")) if first else {})


def kept_checkpoint(folder: Path) -> str:
    """Says which checkpoint an interrupted run has, and how to resume it."""
    from .resume import all_checkpoints, newest_checkpoint

    newest = newest_checkpoint(folder)
    if newest is None and all_checkpoints(folder):
        return "only weights were saved yet; --resume_from_checkpoint auto starts from the beginning"
    if newest is None:
        return "no checkpoint was written yet; the same command starts again"
    return f"{newest} is kept; go on with --resume_from_checkpoint auto"
