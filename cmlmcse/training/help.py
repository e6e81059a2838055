"""The text of `cmlmcse train --help`: each field with its default and its help, without importing torch."""

import json
import textwrap
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

FIELDS = Path(__file__).with_name("fields.json")  # written by field_table.py
OTHER_FIELDS = "Everything else of transformers' TrainingArguments"  # the last group of the table
USAGE = "cmlmcse train RECIPE [--field value ...]"
DESCRIPTION = (
    "Train a sentence encoder from a recipe: a YAML file, or a name that `cmlmcse recipes` lists. A field on the "
    "command line overrides the recipe's value. `--stage pretrain` pre-trains a backbone, with or without the "
    "auxiliary network. `python train.py` and `accelerate launch train.py` do the same."
)
WIDTH = 100


def help_text() -> str:
    """The whole text."""
    table = json.loads(FIELDS.read_text(encoding="utf-8"))
    parts = [f"usage: {USAGE}", textwrap.fill(DESCRIPTION, WIDTH)]
    for title, rows in table["groups"].items():
        lines = [f"{title}:"]
        for row in rows:
            lines.append(f"  --{row['name']} {row['kind'].upper()}  (default: {row['default']})")
            lines += textwrap.wrap(row["help"], WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)
        parts.append("\n".join(lines))
    tested = table["transformers"]
    try:
        found = version("transformers")
    except PackageNotFoundError:
        found = tested
    if found != tested:
        parts.append(f"TrainingArguments is that of transformers {tested}; transformers {found} is installed.")
    return "\n\n".join(parts)
