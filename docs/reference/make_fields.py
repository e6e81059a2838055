"""Write fields.md, the page of all fields, from fields.json: `PYTHONPATH=. python docs/reference/make_fields.py`.

`python -m cmlmcse.training.field_table` writes fields.json (in cmlmcse/training/) from the code. `cmlmcse train --help`
prints it. tests/project/test_doc_pages.py compares the committed page with :func:`page`.
"""

import json
from pathlib import Path

from cmlmcse.training.help import FIELDS, OTHER_FIELDS

PAGE = Path(__file__).with_name("fields.md")
INTRODUCTION = """# Fields

<!-- Written by docs/reference/make_fields.py; do not edit. -->

A field can stand in a recipe (`cmlm_weight: 0.01`) or on the command line (`--cmlm_weight 0.01`). The command
line wins over the recipe, and the recipe wins over the default. A default of – means that the field is not set. The
text then says what happens. `cmlmcse train --help` lists the same fields.

Every field of Hugging Face's [`TrainingArguments`](https://huggingface.co/docs/transformers/main_classes/trainer)
works too, but for a few that would do nothing here, or not what they promise. They are refused: `push_to_hub` and
`hub_…` (train first, then `cmlmcse push`), `auto_find_batch_size` (set `mini_batch_size`),
`dataloader_persistent_workers`, `label_smoothing_factor`, `neftune_noise_alpha`, `train_sampling_strategy` and
`use_liger_kernel`. This page lists the fields that this project adds, and those that it sets in its own way.

A field of "stage train only" is not read by `--stage pretrain`; those of the last table are read by it alone. On the
command line of the other stage such a field is refused, unless its value is the default or turns it off. A recipe may
have it, because a recipe may serve both stages; where stage pretrain refuses such a recipe too, its row says so. With
stage pretrain `--data_dir`, `--dev_set` and `--final_evaluation` are not refused: a line says that they are not read.
"""
KINDS = {"str": "text", "int": "whole number", "float": "number", "bool": "true or false"}


def cell(default: str | None, kind: str) -> str:
    """A default as a recipe would write it."""
    if default is None:
        return "–"
    return f"`{default.lower() if kind == 'bool' else default}`"


def row(field: dict[str, str]) -> str:
    """One line of a table: a field's name, kind, default and help."""
    text = (field["help"] + stage(field)).replace("|", "\\|").replace("<", "&lt;")
    return f"| `{field['name']}` | {KINDS[field['kind']]} | {cell(field['default'], field['kind'])} | {text} |"


def stage(field: dict[str, str]) -> str:
    """Says that stage train alone reads a field. What stage pretrain alone reads has a table of its own."""
    if field.get("only_stage") != "train":
        return ""
    return f" *Stage train only{'; stage pretrain refuses it in a recipe too' * ('never_pretrain' in field)}.*"


def table(fields: list[dict[str, str]]) -> str:
    """The table of one group of fields."""
    head = ["| field | value | default | what it is |", "| --- | --- | --- | --- |"]
    return "\n".join([*head, *map(row, fields)])


def page() -> str:
    """The whole page."""
    groups = json.loads(FIELDS.read_text(encoding="utf-8"))["groups"]
    parts = [f"## {title}\n\n{table(fields)}\n" for title, fields in groups.items() if title != OTHER_FIELDS]
    return "\n".join([INTRODUCTION, *parts])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
