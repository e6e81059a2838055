"""What is known of the model that training started from, for the card of the result."""

from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import metadata_load, try_to_load_from_cache

from cmlmcse.common.errors import InputError
from cmlmcse.common.locations import resolve
from cmlmcse.models.folders import recorded_pooling

NAMED = 5  # training sets of the start that a card names; the others are counted


def start_record(source: str) -> dict[str, Any]:
    """What a model says of itself: whether it is a finished sentence encoder, and the training sets and the licence on
    its own card. Nothing is asked from the Hub.

    Args:
        source: a folder, a Hub name, or `package:NAME/path`.
    """
    try:
        finished = recorded_pooling(source)[0] is not None
    except InputError:  # a configuration from the Hub that this machine no longer has
        finished = False
    said = card_data(source)
    datasets = said.get("datasets") or []
    return {
        "finished": finished,
        "datasets": [str(name) for name in (datasets if isinstance(datasets, list) else [datasets])],
        "license": said.get("license"),
    }


def card_data(source: str) -> dict[str, Any]:
    """The metadata of a model's card, where it lies on this machine; else nothing."""
    folder = Path(resolve(source))
    found = folder / "README.md" if folder.is_dir() else try_to_load_from_cache(source, "README.md")
    try:
        return (metadata_load(str(found)) or {}) if found and Path(str(found)).is_file() else {}
    except (OSError, ValueError, yaml.YAMLError):  # not a card as the Hub has them
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
    names = known["datasets"]
    if not names:
        return f"`{name}`, {kind}; its card names no training data, so it may have seen labels"
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"`{name}`, {kind}; its card names as training data, which may hold labels: {', '.join(names[:NAMED])}{more}"
