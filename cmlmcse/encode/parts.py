"""The loop over the parts of a file of embeddings."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from cmlmcse.common.errors import InputError

from .columns import output_table

if TYPE_CHECKING:
    import numpy as np

    from cmlmcse.data.file_parts import Job
    from cmlmcse.data.tables import TextFile


def encode_parts(
    job: "Job", source: "TextFile", encode: Callable[[list[str]], "np.ndarray"], process_index: int, num_processes: int
) -> None:
    """Encode the parts that belong to this process and are not written yet.

    Raises:
        InputError: a text cannot be encoded, or a part cannot be written.
    """
    from transformers.utils import logging

    from cmlmcse.data.tables import read_ranges

    todo = [(path, rows) for number, path, rows in job.todo() if number % num_processes == process_index]
    tables = read_ranges(source.tables(), [rows for _, rows in todo])
    shown = process_index == 0 and sys.stderr.isatty()
    for path, rows in logging.tqdm(todo, desc="Encoding", disable=not shown):
        table = next(tables)
        try:
            vectors = encode(source.titled_texts(table))  # (rows, H)
        except InputError as error:
            raise InputError(f"{source.path}, in the part from row {rows.start} on: {error}") from error
        check_finite(vectors)
        try:
            new = vectors if path.suffix == ".npy" else output_table(job.schema, table, source.texts(table), vectors)
            job.write_part(path, new)
        except OSError as error:
            raise InputError(f"{path}: cannot be written: {error.strerror}; the parts before it are kept") from error


def check_finite(vectors: "np.ndarray") -> None:
    """Check that a model's embeddings are numbers.

    Raises:
        InputError: one is not, because the model's weights are damaged or overflow.
    """
    import numpy as np

    if not np.isfinite(vectors).all():
        raise InputError(
            "MODEL: expected finite embeddings, found NaN or infinity; its weights are damaged, or too large for fp16"
        )
