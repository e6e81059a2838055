"""Writes fields.json, the table that `cmlmcse train --help` prints: python -m cmlmcse.training.field_table

The dataclasses of the fields import torch and transformers, which takes 6 seconds. A help text should take one. So the
table is made here when a field changes, and kept in the repository. tests/commands/test_cli.py compares it with the
dataclasses.
"""

import dataclasses
import json
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_type_hints

import transformers
from transformers import TrainingArguments

from .arguments import DataArguments, ModelArguments, PretrainingArguments, RunArguments
from .help import FIELDS


def plain(value: Any) -> Any:
    """A default as JSON can hold it."""
    return plain(value.value) if isinstance(value, Enum) else value if value is None else str(value)


def kind(hint: Any) -> str:
    """The kind of a field's values in a word: `int`, `str`, …"""
    kinds = [one for one in get_args(hint) or (hint,) if one is not type(None)]
    names = [one.__name__ for one in kinds if one in (bool, int, float, str)]
    return names[-1] if names else "json" if dict in kinds else "str"


def rows(of: type, names: set[str]) -> list[dict[str, Any]]:
    """A row for each of these fields of a dataclass, in its order."""
    hints, found = get_type_hints(of), []
    for field in dataclasses.fields(of):
        if field.name not in names or not field.init:
            continue
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        text = " ".join(str(field.metadata.get("help", "")).split())
        found.append({"name": field.name, "kind": kind(hints[field.name]), "default": plain(default), "help": text})
    return found


def field_table() -> dict[str, Any]:
    """All fields of a recipe by what they are about, and the version of transformers that some are from."""

    def names(of: type) -> set[str]:
        return {field.name for field in dataclasses.fields(of)}

    pretraining, own = names(PretrainingArguments), set(RunArguments.__annotations__)
    return {
        "transformers": transformers.__version__,
        "groups": {
            "The model": rows(ModelArguments, names(ModelArguments)),
            "The text, the masking and the scores": rows(DataArguments, names(DataArguments) - pretraining),
            "Read by --stage pretrain alone": rows(PretrainingArguments, pretraining),
            "The run": rows(RunArguments, own),
            "Everything else of transformers' TrainingArguments": rows(TrainingArguments, names(RunArguments) - own),
        },
    }


def write(path: Path = FIELDS) -> None:
    """Write the table."""
    path.write_text(json.dumps(field_table(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write()
