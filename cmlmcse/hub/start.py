"""What is known of the model that training started from, for the card of the result."""

from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import metadata_load, try_to_load_from_cache

from cmlmcse.models.folders import resolve_model

NAMED = 5  # training sets of the start that a card names; the others are counted


def start_record(source: str) -> dict[str, Any]:
    """What a model says of itself: whether it is a finished sentence encoder, and the training sets and the licence on
    its own card. Only files that are on this machine are read.

    Args:
        source: a folder, a Hub name, or `package:NAME/path`.
    """
    said = card_data(local_file(source, "README.md"))
    datasets = said.get("datasets") or []
    return {
        "finished": local_file(source, "modules.json") is not None,
        "datasets": [str(name) for name in (datasets if isinstance(datasets, list) else [datasets])],
        "license": said.get("license"),
    }


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


def start_text(name: str, known: dict[str, Any] | None) -> str:
    """One line for a card: what the start is, and what it had seen.

    Args:
        name: its public name.
        known: from :func:`start_record`; None in records from before there was one.
    """
    if known is None:
        return f"`{name}`"
    kind = "a finished sentence encoder" if known["finished"] else "a pre-trained language model"
    kind += f" under the licence {known['license']}" if known["license"] else ""
    names = known["datasets"]
    if not names:
        return f"`{name}`, {kind}; its card names no training data, so it may have seen labels"
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"`{name}`, {kind}; its card names as training data, which may hold labels: {', '.join(names[:NAMED])}{more}"
