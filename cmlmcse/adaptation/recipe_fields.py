"""The fields of the recipe: those that adapt sets itself, and the check of those that its caller gives.

The command reads this file for its help, so what takes seconds to import is imported where it is used.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cmlmcse.common.errors import InputError
from cmlmcse.training.command import field_arguments

if TYPE_CHECKING:
    from cmlmcse.training.fields import ModelArguments, RunArguments

RECIPE = "adapt"
PLAIN_POOLING = "avg"  # of a model that records none: the best of the plain poolings on docs/results/backbone.md
FIXED = ("model_name_or_path", "train_file", "dev_set", "output_dir", "max_steps", "pooling", "prompt_template",
         "second_prompt_template", "query_prompt", "document_prompt", "normalize", "stage", "streaming", "data_seed",
         "max_train_samples", "eval_strategy", "eval_steps", "save_strategy", "save_steps", "save_only_model",
         "load_best_model_at_end", "logging_steps", "disable_tqdm")  # fmt: skip


def check_free(fields: Mapping[str, str]) -> None:
    """Check that adapt leaves these fields of the recipe to its caller.

    Raises:
        InputError: it sets one itself.
    """
    for name in FIXED:
        if name in fields:
            raise InputError(f"cmlmcse adapt sets {name} itself, found --{name}; leave it out, or use cmlmcse train")


def check_fields(model: str, fields: dict[str, str]) -> tuple["ModelArguments", "RunArguments"]:
    """Check the fields of the recipe before any work starts.

    Returns:
        The arguments of the model and of training with these fields.

    Raises:
        InputError: an unknown field, one of stage pretrain, or a wrong value.
    """
    from cmlmcse.data.searches import SEARCH
    from cmlmcse.training.parse import parse_recipe
    from cmlmcse.training.stage_fields import ONLY_STAGE, PRETRAIN

    from .arms import searching_fields

    for name in fields:
        if ONLY_STAGE.get(name) == PRETRAIN:
            raise InputError(
                f"cmlmcse adapt expects fields that training reads, found --{name}, which is for stage pretrain alone; "
                "leave it out, or use cmlmcse train --stage pretrain"
            )

    searches = "views" not in fields and "max_queries" in fields  # for the arm that searches
    fields = {**fields, "views": SEARCH} if searches else fields
    added = searching_fields(model, finished=True) if fields.get("views") == SEARCH else {}
    recipe = parse_recipe([RECIPE, *field_arguments({"final_evaluation": "none"} | added | fields)])
    return recipe.model, recipe.run
