"""What a file of embeddings was made with: what the file says of it, and what all of its parts must have in common."""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cmlmcse.common.errors import as_input_error
from cmlmcse.common.locations import PACKAGE
from cmlmcse.common.run_files import EXPORT

if TYPE_CHECKING:
    from cmlmcse.data.tables import TextFile
    from cmlmcse.models.encoders import Encoder


def chosen_prompt(args: argparse.Namespace, encoder: "Encoder") -> str:
    """The text that is put before each text: the given one, or the model's of the given name, or that for documents.

    Raises:
        InputError: the model has no prompt of that name.
    """
    from modeling_cmlmcse.prompts import DOCUMENT, choose_prompt

    with as_input_error("--prompt_name: "):
        return choose_prompt(encoder.prompts, None, args.prompt_name or DOCUMENT, args.prompt)


def model_provenance(model: str, pooling: str) -> dict[str, Any]:
    """What identifies a model: its name, its pooling, and, if it is on this machine, the hash of its files."""
    from cmlmcse.models.fingerprint import fingerprint_model
    from cmlmcse.models.folders import resolve_model

    source = Path(resolve_model(model))
    local = source.exists()
    # The file must not hold a path of this machine. The exports of all runs are called export: a run has its own name.
    place = Path(os.path.abspath(source))
    name = (place.parent.name if place.name == EXPORT else "") or place.name
    return {
        "model": model if not local or model.startswith(PACKAGE) else name,
        "fingerprint": fingerprint_model(str(source), {"pooling": pooling}) if local else None,
        "pooling": pooling,
    }


def file_provenance(args: argparse.Namespace, source: "TextFile", encoder: "Encoder") -> dict[str, Any]:
    """What a .parquet says of how it was encoded: the model, the options, and the columns of titles and files."""
    provenance = model_provenance(args.model, encoder.settings["pooling"])
    provenance |= {name: encoder.arguments[name] for name in ("truncate_dim", "prompt")}
    columns = {"title_column": source.title_column, "file_column": source.file_column}
    return provenance | {name: column for name, column in columns.items() if column}


def job_settings(
    args: argparse.Namespace, source: "TextFile", encoding: dict[str, Any], provenance: dict[str, Any]
) -> dict[str, Any]:
    """What all parts of one file must have in common: the model, the input, and each option that changes the output."""
    options = ("normalize", "truncate_dim", "dtype", "text_column", "no_text", "rows_per_shard")
    return {
        "model": provenance["fingerprint"] or provenance["model"],
        "encoding": {name: encoding[name] for name in ("pooling", "max_seq_length")},
        "prompt": provenance["prompt"],
        **({"title_column": source.title_column} if source.title_column else {}),
        **({"passages": True} if source.cut else {}),
        "input": source.state(),
        **{name: getattr(args, name) for name in options},
    }
