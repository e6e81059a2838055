"""Write fields.md, the page of all fields, from the code: `PYTHONPATH=. python docs/reference/make_fields.py`.

tests/project/test_docs.py compares the committed page with :func:`page`.
"""

import dataclasses
from pathlib import Path
from typing import Any

from transformers import TrainingArguments

from cmlmcse.training.arguments import DataArguments, ModelArguments, PretrainingArguments, RunArguments

PAGE = Path(__file__).with_name("fields.md")
INTRODUCTION = """# Fields

<!-- Written by docs/reference/make_fields.py; do not edit. -->

A field can stand in a recipe (`cmlm_weight: 0.01`) or on the command line (`--cmlm_weight 0.01`). The command
line wins over the recipe, and the recipe wins over the default. A default of – means that the field is not set. The
text then says what happens. `cmlmcse train --help` lists the same fields.

Every field of Hugging Face's [`TrainingArguments`](https://huggingface.co/docs/transformers/main_classes/trainer)
works too. This page lists the fields that this project adds, and those that it sets in its own way.
"""
KINDS = {"str": "text", "int": "whole number", "float": "number", "bool": "true or false"}


def cell(value: Any) -> str:
    """A default as a recipe would write it."""
    if value is None:
        return "–"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def kind(field: dataclasses.Field[Any]) -> str:
    """What a value looks like, in words."""
    written = field.type if isinstance(field.type, str) else getattr(field.type, "__name__", str(field.type))
    names = [name.strip() for name in written.split("|")]
    return KINDS.get(names[0], names[0])


def row(field: dataclasses.Field[Any]) -> str:
    """A line of a table."""
    text = " ".join(field.metadata["help"].split()).replace("|", "\\|").replace("<", "&lt;")
    return f"| `{field.name}` | {kind(field)} | {cell(field.default)} | {text} |"


def table(fields: list[dataclasses.Field[Any]]) -> str:
    """Fields, each with its kind, default and text."""
    head = ["| field | value | default | what it is |", "| --- | --- | --- | --- |"]
    return "\n".join([*head, *map(row, fields)])


def own(arguments: type, *parents: type) -> list[dataclasses.Field[Any]]:
    """The fields of a class that its parents do not have."""
    inherited = {field.name for parent in parents for field in dataclasses.fields(parent)}
    return [field for field in dataclasses.fields(arguments) if field.name not in inherited]


def set_here() -> list[dataclasses.Field[Any]]:
    """The fields of TrainingArguments that RunArguments states anew, most with another default."""
    theirs = {field.name for field in dataclasses.fields(TrainingArguments)}
    stated = RunArguments.__annotations__
    return [field for field in dataclasses.fields(RunArguments) if field.name in theirs and field.name in stated]


def page() -> str:
    """The whole page."""
    parts = {
        "The model": own(ModelArguments),
        "The text, the masking and the development set": own(DataArguments, PretrainingArguments),
        "The run": own(RunArguments, TrainingArguments),
        "Pre-training (`--stage pretrain`)": own(PretrainingArguments),
        "Fields of TrainingArguments that this project sets": set_here(),
    }
    return "\n".join([INTRODUCTION, *(f"## {title}\n\n{table(fields)}\n" for title, fields in parts.items())])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
