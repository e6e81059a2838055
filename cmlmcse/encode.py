"""The command `python -m cmlmcse.encode MODEL IN --output OUT.npy|OUT.parquet`: sentences to vectors.

Rows are read in streams and encoded in parts, each written aside and then renamed, so that memory stays the same
whatever the file's size, an interrupted run goes on with the first part that lacks, and several processes (`accelerate
launch -m cmlmcse.encode …`) share the parts. At the end the parts become one file, or stay as shards.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from cmlmcse.common.errors import InputError, Parser, command
from cmlmcse.common.files import atomic_write

PART_ROWS = 65_536  # at 768 numbers a row 200 MB on disk: some minutes of work to lose at most
BLOCK_ROWS = 8192  # rows held and sorted by length at a time: 25 MB at 768 numbers a row
DTYPES = ("fp32", "bf16", "fp16")
TEXT_COLUMN = "text"


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line.

    Raises:
        InputError: an argument that is wrong by itself.
    """
    from cmlmcse.evaluation.options import positive

    parser = Parser(prog="python -m cmlmcse.encode", description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("model", metavar="MODEL", help="exported folder, checkpoint, run folder, or plain backbone")
    parser.add_argument("input", metavar="IN", type=Path, help="a sentence a line (also .gz, .bz2, .xz, .zst), or a "
                        ".parquet; every line is a row, an empty one too")  # fmt: skip
    parser.add_argument("--output", type=Path, required=True, metavar="OUT", help="OUT.npy, rows × H float32, or "
                        "OUT.parquet, with a column `embedding`")  # fmt: skip
    parser.add_argument("--text_column", help=f"column of a .parquet (default: {TEXT_COLUMN})")
    parser.add_argument("--rows_per_shard", type=positive, metavar="N", help="leave files of N rows, "
                        "OUT-00000-of-00010.npy and so on (default: one file)")  # fmt: skip
    parser.add_argument("--overwrite", action="store_true", help="replace OUT, and begin anew")
    parser.add_argument("--pooling", help="for models that record none: cls_before_pooler, avg, avg_top2, …")
    parser.add_argument("--normalize", action="store_true", help="scale every embedding to length 1")
    parser.add_argument("--truncate_dim", type=positive, metavar="K", help="keep the first K dimensions")
    parser.add_argument("--batch_size", type=positive, default=64, help="sentences in a forward pass (default: 64)")
    parser.add_argument("--max_seq_length", type=positive, help="tokens a sentence is cut to (default: the model's)")
    parser.add_argument("--dtype", choices=DTYPES, default="fp32", help="precision of the model (default: fp32)")
    parser.add_argument("--device", help="cpu, cuda, cuda:1, … (default: the process's own GPU if there is one)")
    args = parser.parse_args(argv)
    if args.output.suffix not in WRITERS:
        parser.error(f"--output must end with .npy or .parquet, found {args.output}")
    if not args.output.parent.is_dir():
        parser.error(
            f"--output {args.output}: expected the folder {args.output.parent} to exist, found none; create it"
        )
    if args.text_column is not None and args.input.suffix != ".parquet":
        parser.error(f"--text_column expects a .parquet file, found {args.input}; drop it")
    return args


@command
def main(argv: list[str] | None = None) -> None:
    """Encode a file; every process of a launch calls this."""
    args = parse(argv)
    rows = count_rows(args.input, args.text_column)

    import torch
    from accelerate import PartialState

    from cmlmcse.models.encoders import load_model_encoder

    state = PartialState(cpu=args.device == "cpu" or not torch.cuda.is_available())
    device = args.device or str(state.device)
    encoder = load_model_encoder(
        args.model, args.pooling, args.max_seq_length, args.batch_size, device, show_progress_bar=False
    )
    encoder.model.to(getattr(torch, {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}[args.dtype]))
    width = encoder.model.config.hidden_size
    if args.truncate_dim is not None and args.truncate_dim > width:
        raise InputError(f"--truncate_dim must be at most {width}, the model's, found {args.truncate_dim}; lower it")
    encoder.arguments |= {
        "truncate_dim": args.truncate_dim,
        "normalize": args.normalize or encoder.arguments["normalize"],
    }
    job = Job(args.output, rows, args.truncate_dim or width, args.rows_per_shard)
    with state.main_process_first():
        if state.is_main_process:
            job.claim_parts(settings(args, rows, encoder.settings), args.overwrite)
    encode_parts(job, args, encoder, state.process_index, state.num_processes)
    state.wait_for_everyone()
    if state.is_main_process:
        written = job.finalize()
        first = written[0] if len(written) == 1 else f"{written[0]} … {written[-1].name}"
        print(f"{rows} rows × {job.width} → {first}")
    state.wait_for_everyone()
    state.destroy_process_group()


def settings(args: argparse.Namespace, rows: int, encoding: dict[str, Any]) -> dict[str, Any]:
    """What parts of one file must have in common: model, text, and all that changes a number or its place."""
    from cmlmcse.evaluation.cache import fingerprint_model
    from cmlmcse.models.encoders import resolve_model

    source = resolve_model(args.model)
    known = ("normalize", "truncate_dim", "dtype", "text_column", "rows_per_shard")
    return {
        "model": fingerprint_model(source, encoding) if Path(source).exists() else source,
        "encoding": {name: encoding[name] for name in ("pooling", "max_seq_length")},
        "input": [args.input.name, args.input.stat().st_size, args.input.stat().st_mtime_ns, rows],
        **{name: getattr(args, name) for name in known},
    }


@dataclass(frozen=True)
class Job:
    """A file of `rows` vectors of `width` numbers that is made in parts beside it, in the folder `OUT.parts`."""

    output: Path
    rows: int
    width: int
    rows_per_shard: int | None

    @property
    def folder(self) -> Path:
        """Where the parts are."""
        return self.output.with_name(self.output.name + ".parts")

    @property
    def part_rows(self) -> int:
        """Rows of every part but the last."""
        return self.rows_per_shard or PART_ROWS

    @property
    def parts(self) -> list[Path]:
        """The parts in order; one at least."""
        count = max(-(-self.rows // self.part_rows), 1)
        return [self.folder / f"{index:05d}{self.output.suffix}" for index in range(count)]

    @property
    def outputs(self) -> list[Path]:
        """What the user gets: one file, or the shards."""
        if self.rows_per_shard is None:
            return [self.output]
        stem, count = self.output.with_suffix("").name, len(self.parts)
        return [
            self.output.with_name(f"{stem}-{index:05d}-of-{count:05d}{self.output.suffix}") for index in range(count)
        ]

    def claim_parts(self, settings: dict[str, Any], overwrite: bool) -> None:
        """Make the folder of parts, or go on with one of the same settings.

        Raises:
            InputError: the output is there already, parts of other settings are, or nothing can be written.
        """
        there = [path for path in self.outputs if path.exists()]
        record = self.folder / "settings.json"
        if there and not overwrite and not record.exists():  # with it, they are this run's, which was just finishing
            raise InputError(f"--output {there[0]}: exists; choose another name, or --overwrite")
        try:
            if overwrite:
                shutil.rmtree(self.folder, ignore_errors=True)
                for path in there if self.rows_per_shard is not None else []:  # one file stays until it is replaced
                    path.unlink()
            self.folder.mkdir(exist_ok=True)
            if not record.exists():
                record.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
            found = json.loads(record.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"{self.folder}: expected a folder of parts, found {error}; remove it") from error
        if differ := [name for name, value in settings.items() if found.get(name) != json.loads(json.dumps(value))]:
            raise InputError(
                f"{self.folder}: expected parts of the same run, found others ({', '.join(differ)} differ); give the "
                "same arguments to go on with them, or --overwrite to begin anew"
            )

    def is_done(self, index: int) -> bool:
        """Whether a part is there, or is a shard already."""
        shard = self.rows_per_shard is not None and self.outputs[index].exists()
        return shard or self.parts[index].exists()

    def finalize(self) -> list[Path]:
        """Make the output of the parts, and remove them."""
        if self.rows_per_shard is None and len(self.parts) > 1:
            WRITERS[self.output.suffix](self.output, merged(self.parts), self.rows, self.width)
        else:
            for part, output in zip(self.parts, self.outputs, strict=True):
                if part.exists():  # else it has its name already
                    part.replace(output)
        shutil.rmtree(self.folder)
        return self.outputs


def encode_parts(
    job: Job, args: argparse.Namespace, encode: Callable[[list[str]], np.ndarray], process: int, of: int
) -> None:
    """Encode every part that is this process's and not there yet.

    Raises:
        InputError: a part cannot be written.
    """
    from transformers.utils import logging

    rows, position = read_rows(args.input, args.text_column), 0
    shown = process == 0 and sys.stderr.isatty()
    for index, part in enumerate(logging.tqdm(job.parts, desc="Encoding", disable=not shown)):
        if index % of != process or job.is_done(index):
            continue
        start, count = index * job.part_rows, min(job.part_rows, job.rows - index * job.part_rows)
        vectors = (encode(block) for block in blocks(islice(rows, start - position, start - position + count)))
        try:
            WRITERS[job.output.suffix](part, vectors, count, job.width)
        except OSError as error:
            raise InputError(f"{part}: cannot be written: {error.strerror}; the parts before it are kept") from error
        position = start + count


def blocks(rows: Iterator[str]) -> Iterator[list[str]]:
    """Rows in lists of `BLOCK_ROWS`."""
    while block := list(islice(rows, BLOCK_ROWS)):
        yield block


def count_rows(path: Path, text_column: str | None) -> int:
    """The rows of a file, all of it read once, so that a fault in its text shows before the work.

    Raises:
        InputError: no such file, one that cannot be read or is not UTF-8, no such column.
    """
    if not path.is_file():
        raise InputError(f"{path}: expected a file of sentences, found {'a folder' if path.is_dir() else 'none'}")
    return sum(1 for _ in read_rows(path, text_column))


def read_rows(path: Path, text_column: str | None) -> Iterator[str]:
    """The sentences of a file in order, a row each; one that is missing in a table is empty."""
    if path.suffix != ".parquet":
        from cmlmcse.data.lines import read_lines

        yield from read_lines(str(path), blank=True)
        return
    import pyarrow
    from pyarrow import parquet

    column = text_column or TEXT_COLUMN
    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if column not in names:
                raise InputError(f"{path}: expected a column {column}, found {', '.join(names)}; see --text_column")
            for batch in file.iter_batches(batch_size=BLOCK_ROWS, columns=[column]):
                for text in batch.column(0).to_pylist():
                    if text is not None and not isinstance(text, str):
                        raise InputError(f"{path}: expected text in the column {column}, found {type(text).__name__}")
                    yield text or ""
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{path}: expected a Parquet file, found one that cannot be read ({error})") from error


def write_npy(path: Path, blocks: Iterator[np.ndarray], rows: int, width: int) -> None:
    """Write blocks (B, H) as one array (rows, H), whole or not at all."""
    with atomic_write(path) as aside:
        if rows == 0:
            with open(aside, "wb") as file:  # a file without bytes cannot be mapped
                np.save(file, np.zeros((0, width), np.float32))
            return
        table = np.lib.format.open_memmap(aside, "w+", np.float32, (rows, width))
        filled = 0
        for block in blocks:
            table[filled : filled + len(block)] = block
            filled += len(block)
        assert filled == rows, (filled, rows)
        table.flush()


def write_parquet(path: Path, blocks: Iterator[np.ndarray], rows: int, width: int) -> None:
    """Write blocks (B, H) as a column `embedding` of H floats a row, whole or not at all."""
    import pyarrow
    from pyarrow import parquet

    schema = pyarrow.schema([("embedding", pyarrow.list_(pyarrow.float32(), width))])
    with atomic_write(path) as aside, parquet.ParquetWriter(aside, schema, compression="none") as writer:
        for block in blocks:
            flat = pyarrow.array(np.ascontiguousarray(block, np.float32).reshape(-1))
            writer.write_table(pyarrow.table([pyarrow.FixedSizeListArray.from_arrays(flat, width)], schema=schema))


WRITERS = {".npy": write_npy, ".parquet": write_parquet}


def merged(parts: list[Path]) -> Iterator[np.ndarray]:
    """The vectors of all parts, (B, H) at a time."""
    for part in parts:
        if part.suffix == ".npy":
            table = np.load(part, mmap_mode="r")
            yield from (table[start : start + BLOCK_ROWS] for start in range(0, len(table), BLOCK_ROWS))
        else:
            from pyarrow import parquet

            with parquet.ParquetFile(part) as file:
                for batch in file.iter_batches(batch_size=BLOCK_ROWS):
                    column = batch.column(0)
                    yield column.flatten().to_numpy().reshape(len(column), -1)


if __name__ == "__main__":
    main()
