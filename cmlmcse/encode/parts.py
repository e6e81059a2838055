"""The loop over the parts of a file of embeddings. While the model computes, threads read and write other parts."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import takewhile
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from cmlmcse.common.errors import InputError
from cmlmcse.common.progress import progress
from cmlmcse.common.vectors import check_finite

from .columns import output_table

if TYPE_CHECKING:
    import numpy as np
    import pyarrow

    from cmlmcse.data.file_parts import Job
    from cmlmcse.data.tables import TextFile
    from cmlmcse.models.encoders import Encoder
    from modeling_cmlmcse.text_encoding import Tokens


def encode_parts(job: "Job", source: "TextFile", encoder: "Encoder", process_index: int, num_processes: int) -> None:
    """Encode the parts that belong to this process and are not written yet, in their order.

    While the model computes a part, one thread reads and tokenises the next part, and another one writes the part
    before. So a GPU does not wait for the file or the tokenizer. No thread goes further: three parts are in memory,
    whatever the size of the file. After an error or Ctrl-C it waits for what the threads have begun: a part at most.

    Raises:
        InputError: a text cannot be read or encoded, or a part cannot be written. The parts before it are written.
    """
    todo = [(path, rows) for number, path, rows in job.todo() if number % num_processes == process_index]
    stopped = Event()
    parts = read_parts(source, [rows for _, rows in todo], encoder, stopped)
    share = "" if num_processes == 1 else f" (process 1 of {num_processes})"
    with (
        progress(sum(len(rows) for _, rows in todo), f"Encoding{share}", "texts", shown=process_index == 0) as shown,
        ExitStack() as at_end,
    ):
        threads = at_end.enter_context(ThreadPoolExecutor(2))
        at_end.callback(stopped.set)  # before it waits for the threads
        following = threads.submit(next, parts)
        written: Future[None] | None = None
        for path, rows in todo:
            table, tokens = following.result()
            following = threads.submit(next, parts)  # after the last part: StopIteration, which is never read
            with in_part(source, rows):
                vectors = encoder(tokens)  # (rows, H)
            check_finite(vectors)
            if written is not None:
                written.result()
            written = threads.submit(write_part, job, path, source, table, vectors)
            shown.add(len(rows))
        if written is not None:
            written.result()


def read_parts(
    source: "TextFile", ranges: list[range], encoder: "Encoder", stopped: Event
) -> Iterator[tuple["pyarrow.Table", "Tokens"]]:
    """Yield the rows of each range with the tokens of their texts. It ends soon after `stopped` is set, also while it
    passes over many rows that are done already.

    Raises:
        InputError: the file cannot be read, it changed, or a text cannot be tokenised.
    """
    from cmlmcse.data.tables import read_ranges

    tables = takewhile(lambda _: not stopped.is_set(), source.tables())
    for rows, table in zip(ranges, read_ranges(tables, ranges), strict=False):  # the ranges end first
        if stopped.is_set():
            return
        with in_part(source, rows):
            tokens = encoder.tokenize(source.titled_texts(table))
        if rows == ranges[-1]:  # what lies behind it is not read
            source.check_unchanged()
        yield table, tokens


@contextmanager
def in_part(source: "TextFile", rows: range) -> Iterator[None]:
    """Add to an error's message in which part of the file it occurred.

    Raises:
        InputError: the error.
    """
    try:
        yield
    except InputError as error:
        raise InputError(f"{source.path}, in the part from row {rows.start} on: {error}") from error


def write_part(job: "Job", path: Path, source: "TextFile", table: "pyarrow.Table", vectors: "np.ndarray") -> None:
    """Write one part, whole or not at all.

    Raises:
        InputError: it cannot be written.
    """
    try:
        new = vectors if path.suffix == ".npy" else output_table(job.schema, table, source.texts(table), vectors)
        job.write_part(path, new)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}; the parts before it are kept") from error
