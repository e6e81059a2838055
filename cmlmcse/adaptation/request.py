"""What a call of adapt asks for, kept in its folder: a call that goes on must ask for the same. With another seed or
text it would take arms for its own that have trained on documents which it holds out."""

import argparse
import json
from pathlib import Path
from typing import Any

from cmlmcse.common.errors import InputError
from cmlmcse.common.files import atomic_write
from cmlmcse.common.locations import resolve
from cmlmcse.data.text import fingerprint_text
from cmlmcse.evaluation.cache import fingerprint_model
from cmlmcse.hub.export import write_json

REQUEST = "request.json"
SAME = ("text_column", "title_column", "max_documents", "max_seq_length", "pooling", "seed", "max_steps")


def check_request(folder: Path, args: argparse.Namespace) -> None:
    """Check that a later call asks for what the first one asked for. The time and the device may differ.

    Args:
        folder: the output folder.
        args: the command's.

    Raises:
        InputError: it asks for something else.
    """
    path = folder / REQUEST
    if not path.exists():
        return
    asked, kept = request_of(args), json.loads(path.read_text(encoding="utf-8"))
    if other := [name for name in {**kept, **asked} if asked.get(name) != kept.get(name)]:
        name = other[0]
        found = [shown(each) for each in (kept.get(name), asked.get(name))]
        if found[0] == found[1]:
            found[1] = "another content under that name"
        raise InputError(
            f"{folder} expects the {name} that it was started with, {found[0]}, found {found[1]}; give the same "
            "command, or start again with another --output_dir"
        )


def keep_request(folder: Path, args: argparse.Namespace) -> None:
    """Write what a first call asks for, once its model and its text were found good."""
    if not (folder / REQUEST).exists():
        with atomic_write(folder / REQUEST) as temporary:
            write_json(temporary, request_of(args))


def request_of(args: argparse.Namespace) -> dict[str, Any]:
    """What all calls for one folder have in common. Local files are known by their content, not by their path."""
    model = Path(resolve(args.model))
    known = {"name": model.name, "files": fingerprint_model(str(model), {})} if model.exists() else {"name": args.model}
    text = fingerprint_text(resolve(str(args.text)))
    return {"model": known, "text": text, **{name: getattr(args, name) for name in SAME}, **args.fields}


def shown(value: Any) -> str:
    """A value in a message: of a model or a text its name."""
    if isinstance(value, dict):
        names = [value[name] for name in ("name", "file", "folder", "dataset") if name in value]
        return str(names[0]) if names else repr(value)
    return "none" if value is None else str(value)
