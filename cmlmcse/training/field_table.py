"""Writes fields.json, the table of all recipe fields: python -m cmlmcse.training.field_table

`cmlmcse train --help` prints the table, and docs/reference/make_fields.py makes a page of it. The dataclasses of the
fields import torch and transformers, which takes 6 seconds; a help text should take one. So the table is stored in the
repository. Run this file after each change of a field. tests/commands/test_cli.py compares
the table with the dataclasses.
"""

import dataclasses
import json
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_type_hints

import transformers
from transformers import TrainingArguments

from .fields import DataArguments, ModelArguments, PretrainingArguments, RunArguments
from .help import FIELDS, OTHER_FIELDS
from .stage_fields import NEVER_PRETRAIN, ONLY_STAGE


def default_text(value: Any) -> str | None:
    """A default value as text, or None where the field is not set."""
    return default_text(value.value) if isinstance(value, Enum) else value if value is None else str(value)


def type_name(hint: Any) -> str:
    """The type of a field's values in one word: `int`, `float`, `bool`, `str` or `json`."""
    types = [one for one in get_args(hint) or (hint,) if one is not type(None)]
    names = [one.__name__ for one in types if one in (bool, int, float, str)]
    return names[-1] if names else "json" if dict in types else "str"


def field_rows(arguments: type, names: set[str]) -> list[dict[str, Any]]:
    """One row for each named field of a dataclass, in the order of the dataclass."""
    hints, found = get_type_hints(arguments), []
    for field in dataclasses.fields(arguments):
        if field.name not in names or not field.init:
            continue
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        text = " ".join(str(field.metadata.get("help", "")).split())
        row = {"name": field.name, "kind": type_name(hints[field.name]), "default": default_text(default), "help": text}
        stage = {"only_stage": ONLY_STAGE[field.name]} if field.name in ONLY_STAGE else {}
        found.append(row | stage | ({"never_pretrain": True} if field.name in NEVER_PRETRAIN else {}))
    return found


def field_table() -> dict[str, Any]:
    """All fields of a recipe in groups, and the version of transformers that TrainingArguments' fields come from."""

    def names(arguments: type) -> set[str]:
        return {field.name for field in dataclasses.fields(arguments)}

    pretraining, trainer = names(PretrainingArguments), names(TrainingArguments)
    stated = set(RunArguments.__annotations__)  # fields that RunArguments adds, or gives another default
    return {
        "transformers": transformers.__version__,
        "groups": {
            "The model": field_rows(ModelArguments, names(ModelArguments)),
            "The text, the masking and the development set": field_rows(
                DataArguments, names(DataArguments) - pretraining
            ),
            "The run": field_rows(RunArguments, stated - trainer),
            "Pre-training (--stage pretrain)": field_rows(PretrainingArguments, pretraining),
            "Fields of TrainingArguments that this project sets": field_rows(RunArguments, stated & trainer),
            OTHER_FIELDS: field_rows(TrainingArguments, trainer - stated),
        },
    }


def write(path: Path = FIELDS) -> None:
    """Write the table."""
    path.write_text(json.dumps(field_table(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write()
