"""The command `cmlmcse encode MODEL IN --output OUT.npy|OUT.parquet`: embed the texts of a file or a folder.

Rows are read as a stream and encoded in parts of 1,024 rows, so memory does not grow with the file. Each part is
written to a temporary file, which is then renamed: an interrupted job loses only the parts that it was encoding.
Several processes (`accelerate launch -m cmlmcse.encode …`) share the parts. At the end the parts are merged into one
file, or into shards.
"""

import argparse
import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cmlmcse.common.alone import alone_in
from cmlmcse.common.errors import InputError, Parser, as_input_error, command, interruptible

if TYPE_CHECKING:
    import numpy as np
    import pyarrow

    from cmlmcse.data.file_parts import Job
    from cmlmcse.data.tables import TextFile
    from cmlmcse.models.encoders import Encoder

DTYPES = ("fp32", "bf16", "fp16")
FIRST = 200  # texts whose length is measured; their share of cut tokens is known to some points
TEXT, EMBEDDING, TITLE = "text", "embedding", "title"  # columns of a .parquet
WAIT = timedelta(days=7)  # for other processes; NCCL's ten minutes are too short while the first one merges
METADATA = b"cmlmcse"  # key in a .parquet's metadata; the value is JSON that names the model


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Parse the command line.

    Raises:
        InputError: an argument is invalid.
    """
    from cmlmcse.common.options import add_encoder_options, add_model, positive
    from cmlmcse.data.options import add_text_options

    parser = Parser(
        prog="cmlmcse encode",
        description="Turn the texts of a file into embeddings, one row per text, in the same order. To resume an "
        "interrupted job, run the same command again. `accelerate launch -m cmlmcse.encode ...` shares the "
        "work between processes.",
        allow_abbrev=False,
    )
    add_model(parser)
    parser.add_argument("input", metavar="IN", type=Path, help="a table with a column of texts (.csv, .tsv, .jsonl, "
                        ".parquet), or one text per line; all but .parquet may be compressed as .gz, .bz2, .xz or "
                        ".zst; every row is kept, empty ones too; or a folder of .txt and .md files, which are cut "
                        "into passages")  # fmt: skip
    parser.add_argument("--output", type=Path, required=True, metavar="OUT", help="OUT.npy, rows x H float32; or "
                        "OUT.parquet with the columns `text`, `embedding` and every other column of IN")  # fmt: skip
    add_text_options(
        parser,
        titles="those of a folder, none of a table",
        passages=": a row each, with the columns of their row, and its number as `document`",
    )
    parser.add_argument("--no_text", action="store_true", help="leave the texts out of OUT.parquet")
    parser.add_argument("--rows_per_shard", type=positive, metavar="N", help="write several files of N rows, "
                        "OUT-00000-of-00010.npy and so on (default: one file)")  # fmt: skip
    parser.add_argument("--overwrite", action="store_true", help="replace OUT, and start again from the first row")
    parser.add_argument("--prompt_name", metavar="NAME", help="the model's prompt to put before each text: query, "
                        "document, … (default: document, if the model has prompts)")  # fmt: skip
    parser.add_argument("--prompt", metavar="TEXT", help="a text to put before each text instead; '' for none")
    parser.add_argument("--normalize", action="store_true", help="scale every embedding to length 1")
    parser.add_argument("--truncate_dim", type=positive, metavar="K", help="keep the first K dimensions")
    parser.add_argument("--dtype", choices=DTYPES, default="fp32", help="precision of the model (default: fp32)")
    add_encoder_options(parser, device="the process's own GPU if there is one")
    args = parser.parse_args(argv)
    if args.output.suffix not in (".npy", ".parquet"):
        parser.error(f"--output must end with .npy or .parquet, found {args.output}")
    if not args.output.parent.is_dir():
        parser.error(
            f"--output {args.output}: expected the folder {args.output.parent} to exist, found none; create it"
        )
    if args.no_text and args.output.suffix != ".parquet":
        parser.error(f"--no_text expects --output OUT.parquet, found {args.output}; drop it")
    if args.passages and args.output.suffix != ".parquet" and not args.input.is_dir():
        parser.error(
            f"--passages expects --output OUT.parquet, which has each passage's text, found {args.output}; rename it"
        )
    if args.prompt is not None and args.prompt_name is not None:
        parser.error("--prompt expects no --prompt_name, found both; drop one of them")
    return args


@command
def main(argv: list[str] | None = None) -> None:
    """Encode a file. Under `accelerate launch` every process runs this."""
    args = parse(argv)
    from cmlmcse.data.tables import scan

    copies = args.output.suffix == ".parquet"
    source = scan(args.input, args.text_column, args.title_column, all_columns=copies, passages=args.passages)
    copied = columns_to_copy(args, source)

    import torch
    from accelerate import PartialState

    from cmlmcse.common.gpu import check_bf16
    from cmlmcse.data.file_parts import Job
    from cmlmcse.models.encoders import load_model_encoder

    on_cpu = args.device == "cpu" or not torch.cuda.is_available()
    state = PartialState(cpu=on_cpu, timeout=WAIT)
    device = args.device or str(state.device)
    encoder = load_model_encoder(
        args.model, args.pooling, args.max_seq_length, args.batch_size, device, show_progress_bar=False
    )
    if args.dtype == "bf16" and encoder.model.device.type == "cuda":
        check_bf16("use --dtype fp16")
    encoder.model.to(getattr(torch, {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}[args.dtype]))
    width = encoder.model.config.hidden_size
    if args.truncate_dim is not None and args.truncate_dim > width:
        raise InputError(f"--truncate_dim must be at most {width}, the model's, found {args.truncate_dim}; lower it")
    encoder.arguments |= {
        "truncate_dim": args.truncate_dim,
        "normalize": args.normalize or None,  # else as the model does
        "prompt": chosen_prompt(args, encoder),
    }
    width = args.truncate_dim or width
    provenance = model_provenance(args.model, encoder.settings["pooling"])
    provenance |= {name: encoder.arguments[name] for name in ("truncate_dim", "prompt")}
    columns = {"title_column": source.title_column, "file_column": source.file_column}
    provenance |= {name: column for name, column in columns.items() if column}
    job = Job(
        args.output, source.rows, width, args.rows_per_shard, output_schema(args, source, copied, width, provenance)
    )
    if taken := [path for path in job.existing() if path.resolve() == Path(source.path).resolve()]:
        raise InputError(f"--output {args.output}: expected another file than the input, found {taken[0]}; rename it")
    lock = args.output.with_name(f".{args.output.name}.lock")
    with alone_in(lock, args.output) if state.is_main_process else nullcontext():
        with state.main_process_first():
            if state.is_main_process:
                mention_unread(source)
                job.claim_parts(job_settings(args, source, encoder.settings, provenance), args.overwrite)
                if done := job.rows_done():
                    print(f"{done:,} of {source.rows:,} rows were done already; they are kept and reused", flush=True)
                else:
                    mention_cut(source, args.model, encoder)
        again = "the same command without --overwrite" if args.overwrite else "the same command"
        with interruptible(lambda: f"{job.rows_done():,} of {source.rows:,} rows are kept; run {again} to resume"):
            encode_parts(job, source, encoder, state.process_index, state.num_processes)
            state.wait_for_everyone()
            if state.is_main_process:
                written = job.finalize()
                first = written[0] if len(written) == 1 else f"{written[0]} … {written[-1].name}"
                print(f"{source.rows} rows × {width} → {first}")
    state.wait_for_everyone()
    state.destroy_process_group()


def mention_unread(source: "TextFile") -> None:
    """Say which files of a folder are not read, and where titles are not that `cmlmcse adapt` would read."""
    from cmlmcse.data.folder import unread_files

    if said := unread_files(str(source.path)):
        print(said, file=sys.stderr)
    if source.title_column is None and TITLE in source.schema.names and source.text_column != TITLE:
        print(
            f"{source.path}: the column {TITLE} is not read; --title_column {TITLE} puts each title before its text, "
            "as cmlmcse adapt reads them",
            file=sys.stderr,
        )


def mention_cut(source: "TextFile", model: str, encoder: "Encoder") -> None:
    """Say where much of the first rows' text lies beyond what the model reads."""
    from cmlmcse.data.lengths import LARGE_CUT, measure_lengths

    first = next(source.tables(), None)
    texts = [] if first is None else [text for text in source.titled_texts(first.slice(0, FIRST)) if text]
    limit = encoder.settings["max_seq_length"]
    if texts and (share := measure_lengths(texts, encoder.tokenizer).cut(limit)) > LARGE_CUT:
        advice = (
            "a model of more positions reads more" if source.file_column else "--passages cuts long ones into passages"
        )
        print(
            f"{source.path}: {model} reads the first {limit} tokens of a text, which cuts off {share:.0%} of the first "
            f"{len(texts):,} texts; {advice}",
            file=sys.stderr,
        )


def chosen_prompt(args: argparse.Namespace, encoder: "Encoder") -> str:
    """The text that is put before each text: the given one, or the model's of the given name, or that for documents.

    Raises:
        InputError: the model has no prompt of that name.
    """
    from modeling_cmlmcse.prompts import DOCUMENT, choose_prompt

    with as_input_error("--prompt_name: "):
        return choose_prompt(encoder.prompts, None, args.prompt_name or DOCUMENT, args.prompt)


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


def model_provenance(model: str, pooling: str) -> dict[str, Any]:
    """What identifies a model: its name, its pooling, and, if it is on this machine, the hash of its files."""
    from cmlmcse.models.fingerprint import fingerprint_model
    from cmlmcse.models.folders import resolve_model

    source = Path(resolve_model(model))
    local = source.exists()
    return {
        "model": source.name if local else model,  # the file must not hold a path of this machine
        "fingerprint": fingerprint_model(str(source), {"pooling": pooling}) if local else None,
        "pooling": pooling,
    }


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


if __name__ == "__main__":
    main()
