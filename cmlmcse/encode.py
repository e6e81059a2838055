"""The command `cmlmcse encode MODEL IN --output OUT.npy|OUT.parquet`: the texts of a file become embeddings.

Rows are read in a stream and encoded in parts of 1,024 rows, each written aside and then renamed. So memory does not
grow with the file, an interrupted job loses the parts in work alone, and several processes (`accelerate launch -m
cmlmcse.encode …`) share the parts. At the end the parts become one file, or shards.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cmlmcse.common.errors import InputError, Parser, command, interruptible

if TYPE_CHECKING:
    import numpy as np
    import pyarrow

    from cmlmcse.data.parts import Job
    from cmlmcse.data.tables import TextFile

DTYPES = ("fp32", "bf16", "fp16")
TEXT, EMBEDDING = "text", "embedding"  # columns of a .parquet
METADATA = b"cmlmcse"  # key of a .parquet's metadata: JSON, what it was encoded with


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line.

    Raises:
        InputError: an argument that is wrong by itself.
    """
    from cmlmcse.evaluation.options import positive

    parser = Parser(
        prog="cmlmcse encode",
        description="Turn the texts of a file into embeddings, a row a text, in order. An interrupted job goes on "
        "where it stopped when the same command is given again. `accelerate launch -m cmlmcse.encode ...` shares the "
        "work between processes.",
        allow_abbrev=False,
    )
    parser.add_argument("model", metavar="MODEL", help="exported folder, checkpoint, run folder, Hub name, "
                        "package:NAME/path, or plain backbone")  # fmt: skip
    parser.add_argument("input", metavar="IN", type=Path, help="a table with a column of texts (.csv, .tsv, .jsonl, "
                        ".parquet), or a text a line; all but .parquet also as .gz, .bz2, .xz, .zst; every row stays, "
                        "an empty one too")  # fmt: skip
    parser.add_argument("--output", type=Path, required=True, metavar="OUT", help="OUT.npy, rows x H float32; or "
                        "OUT.parquet with the columns `text`, `embedding` and every other column of IN")  # fmt: skip
    parser.add_argument("--text_column", help=f"column of the texts (default: {TEXT}, or the only one of strings)")
    parser.add_argument("--no_text", action="store_true", help="leave the texts out of OUT.parquet")
    parser.add_argument("--rows_per_shard", type=positive, metavar="N", help="write files of N rows, "
                        "OUT-00000-of-00010.npy and so on (default: one file)")  # fmt: skip
    parser.add_argument("--overwrite", action="store_true", help="replace OUT, and start again from the first row")
    parser.add_argument("--pooling", help="for models that record none: cls_before_pooler, avg, avg_top2, …")
    parser.add_argument("--normalize", action="store_true", help="scale every embedding to length 1")
    parser.add_argument("--truncate_dim", type=positive, metavar="K", help="keep the first K dimensions")
    parser.add_argument("--batch_size", type=positive, default=64, help="texts in a forward pass (default: 64)")
    parser.add_argument("--max_seq_length", type=positive, help="tokens a text is cut to (default: the model's)")
    parser.add_argument("--dtype", choices=DTYPES, default="fp32", help="precision of the model (default: fp32)")
    parser.add_argument("--device", help="cpu, cuda, cuda:1, … (default: the process's own GPU if there is one)")
    args = parser.parse_args(argv)
    if args.output.suffix not in (".npy", ".parquet"):
        parser.error(f"--output must end with .npy or .parquet, found {args.output}")
    if not args.output.parent.is_dir():
        parser.error(
            f"--output {args.output}: expected the folder {args.output.parent} to exist, found none; create it"
        )
    if args.no_text and args.output.suffix != ".parquet":
        parser.error(f"--no_text expects --output OUT.parquet, found {args.output}; drop it")
    return args


@command
def main(argv: list[str] | None = None) -> None:
    """Encode a file; every process of a launch calls this."""
    args = parse(argv)
    from cmlmcse.data.tables import scan

    source = scan(args.input, args.text_column)
    others = other_columns(args, source)

    import torch
    from accelerate import PartialState

    from cmlmcse.data.parts import Job
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
    width = args.truncate_dim or width
    origin = origin_of(args.model, encoder.settings["pooling"]) | {"truncate_dim": args.truncate_dim}
    job = Job(args.output, source.rows, width, args.rows_per_shard, output_schema(args, source, others, width, origin))
    with state.main_process_first():
        if state.is_main_process:
            job.claim_parts(settings(args, source, encoder.settings, origin), args.overwrite)
            if done := job.rows_done():
                print(f"{done:,} of {source.rows:,} rows were done already; they are kept and reused", flush=True)
    with interruptible(lambda: f"{job.rows_done():,} of {source.rows:,} rows are kept; the same command goes on"):
        encode_parts(job, source, encoder, state.process_index, state.num_processes)
        state.wait_for_everyone()
        if state.is_main_process:
            written = job.finalize()
            first = written[0] if len(written) == 1 else f"{written[0]} … {written[-1].name}"
            print(f"{source.rows} rows × {width} → {first}")
    state.wait_for_everyone()
    state.destroy_process_group()


def other_columns(args: argparse.Namespace, source: "TextFile") -> list[str]:
    """The columns of the input that go into a .parquet as they are; an old `embedding` makes way for the new one.

    Raises:
        InputError: one has the name that the texts get.
    """
    if args.output.suffix != ".parquet":
        return []
    others = [name for name in source.schema.names if name not in (source.text_column, EMBEDDING)]
    if TEXT in others and not args.no_text:
        raise InputError(
            f"{args.input}: the texts of the column {source.text_column} go to a column {TEXT}, found another one of "
            "that name; rename it, or leave the texts out with --no_text"
        )
    return others


def origin_of(model: str, pooling: str) -> dict[str, Any]:
    """What tells a model again: its name, the hash of its files if it is on this machine, and its pooling."""
    from cmlmcse.evaluation.cache import fingerprint_model
    from cmlmcse.models.encoders import resolve_model

    source = Path(resolve_model(model))
    local = source.exists()
    return {
        "model": source.name if local else model,  # no path of this machine goes into the file
        "fingerprint": fingerprint_model(str(source), {"pooling": pooling}) if local else None,
        "pooling": pooling,
    }


def output_schema(
    args: argparse.Namespace, source: "TextFile", others: list[str], width: int, origin: dict[str, Any]
) -> "pyarrow.Schema":
    """The columns of a .parquet: the texts, the embeddings of `width` floats, the input's other columns."""
    import pyarrow

    text = [] if args.no_text else [pyarrow.field(TEXT, pyarrow.string())]
    embedding = pyarrow.field(EMBEDDING, pyarrow.list_(pyarrow.float32(), width))
    fields = [*text, embedding, *(source.schema.field(name) for name in others)]
    return pyarrow.schema(fields, metadata={METADATA: json.dumps(origin)})


def settings(
    args: argparse.Namespace, source: "TextFile", encoding: dict[str, Any], origin: dict[str, Any]
) -> dict[str, Any]:
    """What parts of one file must have in common: model, text, and all that changes a number or its place."""
    known = ("normalize", "truncate_dim", "dtype", "text_column", "no_text", "rows_per_shard")
    return {
        "model": origin["fingerprint"] or origin["model"],
        "encoding": {name: encoding[name] for name in ("pooling", "max_seq_length")},
        "input": [args.input.name, args.input.stat().st_size, args.input.stat().st_mtime_ns, source.rows],
        **{name: getattr(args, name) for name in known},
    }


def encode_parts(
    job: "Job", source: "TextFile", encode: Callable[[list[str]], "np.ndarray"], process: int, of: int
) -> None:
    """Encode every part that is this process's and not there yet.

    Raises:
        InputError: a part cannot be written.
    """
    from transformers.utils import logging

    from cmlmcse.data.tables import read_ranges

    todo = [(path, rows) for number, path, rows in job.todo() if number % of == process]
    tables = read_ranges(source.tables(), [rows for _, rows in todo])
    shown = process == 0 and sys.stderr.isatty()
    for path, _ in logging.tqdm(todo, desc="Encoding", disable=not shown):
        table = next(tables)
        texts = source.texts(table)
        vectors = encode(texts)  # (rows, H)
        try:
            job.write_part(path, vectors if path.suffix == ".npy" else output_table(job.schema, table, texts, vectors))
        except OSError as error:
            raise InputError(f"{path}: cannot be written: {error.strerror}; the parts before it are kept") from error


def output_table(
    schema: "pyarrow.Schema", table: "pyarrow.Table", texts: list[str], vectors: "np.ndarray"
) -> "pyarrow.Table":
    """The rows of a .parquet: the columns of `schema`, from the input's table, its texts and their vectors (B, H)."""
    import numpy as np
    import pyarrow

    flat = pyarrow.array(np.ascontiguousarray(vectors, np.float32).reshape(-1))
    made = {TEXT: pyarrow.array(texts, pyarrow.string()),
            EMBEDDING: pyarrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1])}  # fmt: skip
    keeps_text = TEXT in schema.names and schema.names.index(TEXT) < schema.names.index(EMBEDDING)
    if not keeps_text:
        del made[TEXT]  # a column of that name is the input's own
    return pyarrow.table([made[name] if name in made else table[name] for name in schema.names], schema=schema)


if __name__ == "__main__":
    main()
