"""What is known of the model that training started from, for the card of the result."""

from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import metadata_load, try_to_load_from_cache

from cmlmcse.common.locations import PACKAGE
from cmlmcse.models.folders import resolve_model

from .card_method import is_local, public_name

NAMED = 5  # training sets of the start that a card names; the others are counted


def start_record(source: str) -> dict[str, Any]:
    """What a model says of itself: whether it is a finished sentence encoder, and the training sets and the licence on
    its own card, if it has one; and whether it is a folder. Only files that are on this machine are read.

    Args:
        source: a folder, a Hub name, or `package:NAME/path`.
    """
    card = local_file(source, "README.md")
    said = card_data(card)
    datasets = said.get("datasets") or []
    return {
        "finished": local_file(source, "modules.json") is not None,
        "datasets": [str(name) for name in (datasets if isinstance(datasets, list) else [datasets])],
        "license": said.get("license"),
        "card": card is not None,
        "local": Path(resolve_model(source)).is_dir(),
    }


def start_name(source: str, known: dict[str, Any] | None) -> str:
    """The public name of a start: a Hub name, `package:NAME/path`, or the last part of a path.

    Args:
        source: as the user gave it.
        known: from :func:`start_record`; None in records from before there was one.
    """
    if source.startswith(PACKAGE):
        return source
    return Path(source).name if (known or {}).get("local") else public_name(source)


def base_model(source: str, known: dict[str, Any] | None) -> str | None:
    """A start's name on the Hub; None if it has none, as a folder."""
    local = ":" in source or (known or {}).get("local") or is_local(source)
    return None if local else source


def local_file(source: str, name: str) -> Path | None:
    """A model's file, if it is in its folder or in the Hub's cache; nothing is downloaded."""
    folder = Path(resolve_model(source))
    if folder.is_dir():
        return folder / name if (folder / name).is_file() else None
    found = try_to_load_from_cache(source, name)
    return Path(found) if isinstance(found, str) else None


def card_data(card: Path | None) -> dict[str, Any]:
    """The metadata of a card; nothing without a card, or if it is none as the Hub has them."""
    try:
        return (metadata_load(card) if card else None) or {}
    except (OSError, ValueError, yaml.YAMLError):
        return {}


def start_text(source: str, known: dict[str, Any] | None, from_scratch: bool = False) -> str:
    """One line for a card: what the start is, and what it had seen.

    Args:
        source, known: as in :func:`start_name`.
        from_scratch: whether only its configuration and tokenizer were taken.
    """
    name = f"`{start_name(source, known)}`"
    if from_scratch:
        return f"random weights, with the configuration and the tokenizer of {name}"
    if known is None:
        return name
    kind = "a finished sentence encoder" if known["finished"] else "a pre-trained language model"
    kind += f" under the licence {known['license']}" if known["license"] else ""
    names = known["datasets"]
    if not known.get("card", True):
        return f"{name}, {kind}; no card of it was at hand, so it may have seen labels"
    if not names:
        return f"{name}, {kind}; its card names no training data, so it may have seen labels"
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{name}, {kind}; its card names as training data, which may hold labels: {', '.join(names[:NAMED])}{more}"
