"""Write model cards: of an encoder, of a stage 1 export, and of a release.

The template is a Jinja file, by default `card_template.md`; it leaves out empty sections. Its fields: `card_data` (the
metadata at the head), `name`, `summary`, `use`, `results`, `plots` (each has a `title` and a `file`), `training`,
`limits`, `citation`.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from huggingface_hub import ModelCard, ModelCardData
from jinja2 import StrictUndefined, TemplateError
from jinja2.sandbox import SandboxedEnvironment

from cmlmcse.common.errors import InputError

TEMPLATE = Path(__file__).parent / "card_template.md"
FIELDS = ("name", "summary", "use", "results", "plots", "training", "limits", "citation")


class Identity(NamedTuple):
    """The licence of the weights and the language of the text, as the Hub writes them. No record holds them."""

    license: str | None = None
    language: str | None = None


def write_card(data: ModelCardData, values: dict[str, Any], template: Path = TEMPLATE) -> str:
    """A README.md, as from huggingface_hub's `ModelCard.from_template`, but rendered in a sandbox.

    The sandbox is needed because a template may come from somebody else: it can read nothing but its fields.

    Args:
        data: the metadata.
        values: the template's fields (see the head of this module); missing ones are empty.

    Raises:
        InputError: the template cannot be read, has a syntax error or an unknown field, or has a head that the Hub
            would refuse.
    """
    fields = {"card_data": data.to_yaml(), **dict.fromkeys(FIELDS, ""), **values}
    environment = SandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True, trim_blocks=True)
    try:
        card = environment.from_string(template.read_text(encoding="utf-8")).render(fields)
        ModelCard(card)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--card_template {template}: expected a text file, found {error}; check the path") from error
    except TemplateError as error:
        known = ", ".join(fields)
        raise InputError(f"--card_template {template}: expected a template of the fields {known}; {error}") from error
    except (ValueError, yaml.YAMLError) as error:
        found = " ".join(str(error).split())
        advice = "put {{ card_data }} between two lines of ---"
        raise InputError(f"--card_template {template}: expected metadata, found {found}; {advice}") from error
    return card


def metadata(pipeline_tag: str, identity: Identity | None = None, **more: Any) -> ModelCardData:
    """The metadata at a card's head, without values that are None."""
    chosen = {name: value for name, value in (identity or Identity())._asdict().items() if value}
    return ModelCardData(**{"library_name": "transformers", "pipeline_tag": pipeline_tag, **chosen, **more})


def bullets(facts: dict[str, Any]) -> str:
    """Named facts as a Markdown list, without values that are None."""
    return bullet_list([f"{name}: {value}" for name, value in facts.items() if value is not None])


def bullet_list(lines: Iterable[str]) -> str:
    """A Markdown list."""
    return "\n".join(f"- {line}" for line in lines)
