"""The columns of a .parquet with embeddings."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cmlmcse.common.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow

    from cmlmcse.data.tables import TextFile

TEXT, EMBEDDING = "text", "embedding"
METADATA = b"cmlmcse"  # key in a .parquet's metadata; the value is JSON that names the model


def columns_to_copy(args: argparse.Namespace, source: "TextFile") -> list[str]:
    """The columns of the input that are copied to a .parquet. An old `embedding` column is replaced by the new one.

    Raises:
        InputError: a copied column is called `text`, which is the name of the output's column of texts.
    """
    if args.output.suffix != ".parquet":
        return []
    copied = [name for name in source.schema.names if name not in (source.text_column, EMBEDDING)]
    if TEXT in copied and not args.no_text:
        raise InputError(
            f"{args.input}: expected no other column {TEXT}, as the texts of {source.text_column} are written under "
            "that name, found another one of that name; rename it, or leave the texts out with --no_text"
        )
    return copied


def output_schema(
    args: argparse.Namespace, source: "TextFile", copied: list[str], width: int, provenance: dict[str, Any]
) -> "pyarrow.Schema":
    """The columns of a .parquet: the texts, the embeddings of `width` floats, the copied columns of the input."""
    import pyarrow

    text = [] if args.no_text else [pyarrow.field(TEXT, pyarrow.string())]
    embedding = pyarrow.field(EMBEDDING, pyarrow.list_(pyarrow.float32(), width))
    fields = [*text, embedding, *(storable(source.path, source.schema.field(name)) for name in copied)]
    return pyarrow.schema(fields, metadata={METADATA: json.dumps(provenance)})


def storable(path: Path, field: "pyarrow.Field") -> "pyarrow.Field":
    """A column of the input as Parquet can hold it: one of empty objects alone, as BEIR's `metadata`, has no values.

    Raises:
        InputError: empty objects inside of others.
    """
    import pyarrow
    from pyarrow import types

    def has_empty(kind: pyarrow.DataType) -> bool:
        if types.is_struct(kind):
            return kind.num_fields == 0 or any(has_empty(kind.field(place).type) for place in range(kind.num_fields))
        return hasattr(kind, "value_type") and has_empty(kind.value_type)

    if types.is_struct(field.type) and field.type.num_fields == 0:
        return pyarrow.field(field.name, pyarrow.null())
    if has_empty(field.type):
        raise InputError(
            f"{path}: expected columns that Parquet can hold, found empty objects within the column {field.name}; "
            "leave them out, or write a .npy"
        )
    return field


def output_table(
    schema: "pyarrow.Schema", table: "pyarrow.Table", texts: list[str], vectors: "np.ndarray"
) -> "pyarrow.Table":
    """Rows of a .parquet with the columns of `schema`: texts, their vectors (B, H), columns of the input's `table`."""
    import numpy as np
    import pyarrow

    flat = pyarrow.array(np.ascontiguousarray(vectors, np.float32).reshape(-1))
    new = {TEXT: pyarrow.array(texts, pyarrow.string()),
           EMBEDDING: pyarrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1])}  # fmt: skip
    keeps_text = TEXT in schema.names and schema.names.index(TEXT) < schema.names.index(EMBEDDING)
    if not keeps_text:
        del new[TEXT]  # a column of that name is copied from the input
    for name in schema.names:
        if name not in new:
            new[name] = table[name] if schema.field(name).type != pyarrow.null() else pyarrow.nulls(len(table))
    return pyarrow.table([new[name] for name in schema.names], schema=schema)
