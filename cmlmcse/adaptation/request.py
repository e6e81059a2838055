"""What a call of adapt asks for, kept in its folder: a call that goes on must ask for the same. With another seed or
text it would take arms for its own that have trained on documents which it holds out."""

import argparse
import json
from pathlib import Path
from typing import Any

from cmlmcse.common.errors import InputError
from cmlmcse.common.files import replace_json
from cmlmcse.common.launch import launched_processes
from cmlmcse.training.started_with import before_and_now, model_content, text_content

from .files import REQUEST

SAME = ("text_column", "title_column", "max_documents", "max_seq_length", "pooling", "seed", "max_steps")


def check_request(folder: Path, args: argparse.Namespace) -> None:
    """Check that a later call asks for what the first one asked for. The time and the device may differ.
    The number of processes may not, because all arms must have one batch.

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
        raise InputError(
            f"{folder} expects the {name} that it was started with, {before_and_now(kept.get(name), asked.get(name))}; "
            "give the same command, or start again with another --output_dir"
        )


def keep_request(folder: Path, args: argparse.Namespace) -> None:
    """Write what a first call asks for, once its model and its text were found good."""
    if not (folder / REQUEST).exists():
        replace_json(folder / REQUEST, request_of(args))


def request_of(args: argparse.Namespace) -> dict[str, Any]:
    """What all calls for one folder have in common. Local files are known by their content, not by their path."""
    known = {"model": model_content(args.model), "text": text_content(str(args.text))}
    common = {name: getattr(args, name) for name in SAME}
    return {**known, **common, "processes": launched_processes(), **args.fields}  # the batch is that of all processes
