"""The command `cmlmcse encode MODEL IN --output OUT.npy|OUT.parquet`: embed the texts of a file or a folder.

Rows are read as a stream and encoded in parts of 1,024 rows, so memory does not grow with the file. Each part is
written to a temporary file, which is then renamed: an interrupted job loses only the parts that it was encoding.
Several processes (`accelerate launch -m cmlmcse.encode …`) share the parts. At the end the parts are merged into one
file, or into shards.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cmlmcse.common.alone import alone_in
from cmlmcse.common.command import command
from cmlmcse.common.errors import InputError
from cmlmcse.common.signals import interruptible

from .columns import columns_to_copy, output_schema
from .mentions import mention_cut, mention_unread
from .options import parse
from .parts import encode_parts
from .settings import chosen_prompt, file_provenance, job_settings

if TYPE_CHECKING:
    from accelerate import PartialState

    from cmlmcse.data.file_parts import Job
    from cmlmcse.data.tables import TextFile
    from cmlmcse.models.encoders import Encoder

WAIT = timedelta(days=7)  # for other processes; NCCL's ten minutes are too short while the first one merges


@command
def main(argv: list[str] | None = None) -> None:
    """Encode a file. Under `accelerate launch` every process runs this."""
    args = parse(argv)
    from cmlmcse.data.tables import scan

    copies = args.output.suffix == ".parquet"
    source = scan(args.input, args.text_column, args.title_column, all_columns=copies, passages=args.passages)
    copied = columns_to_copy(args, source)
    state = meet_processes(args)
    encoder = load_encoder(args, state)
    provenance = file_provenance(args, source, encoder)
    job = plan_job(args, source, copied, encoder, provenance)
    lock = args.output.with_name(f".{args.output.name}.lock")
    with alone_in(lock, args.output) if state.is_main_process else nullcontext():
        with state.main_process_first():
            if state.is_main_process:
                begin_job(args, job, source, encoder, provenance)
        again = "the same command without --overwrite" if args.overwrite else "the same command"
        with interruptible(lambda: f"{job.rows_done():,} of {source.rows:,} rows are kept; run {again} to resume"):
            with without_old_parts(job, alone=state.num_processes == 1):
                encode_parts(job, source, encoder, state.process_index, state.num_processes)
            state.wait_for_everyone()
            if state.is_main_process:
                finish_job(job)
    state.wait_for_everyone()
    state.destroy_process_group()


def meet_processes(args: argparse.Namespace) -> "PartialState":
    """This process among those of its launch; each has a device."""
    import torch
    from accelerate import PartialState

    on_cpu = args.device == "cpu" or not torch.cuda.is_available()
    return PartialState(cpu=on_cpu, timeout=WAIT)


def load_encoder(args: argparse.Namespace, state: "PartialState") -> "Encoder":
    """The model on its device, in its precision, with the options of the command line.

    Raises:
        InputError: the model cannot be loaded, or an option does not suit it or its device.
    """
    import torch

    from cmlmcse.common.gpu import check_bf16
    from cmlmcse.models.encoders import load_model_encoder

    device = args.device or str(state.device)
    encoder = load_model_encoder(
        args.model, args.pooling, args.max_seq_length, args.batch_size, device, show_progress_bar=False
    )
    if args.dtype == "bf16" and encoder.model.device.type == "cuda":
        check_bf16("use --dtype fp16")
    encoder.model.to(getattr(torch, {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}[args.dtype]))
    if args.truncate_dim is not None and args.truncate_dim > encoder.width:
        raise InputError(
            f"--truncate_dim must be at most {encoder.width}, the model's, found {args.truncate_dim}; lower it"
        )
    encoder.arguments |= {
        "truncate_dim": args.truncate_dim,
        "normalize": args.normalize or None,  # else as the model does
        "prompt": chosen_prompt(args, encoder),
    }
    return encoder


def plan_job(
    args: argparse.Namespace, source: "TextFile", copied: list[str], encoder: "Encoder", provenance: dict[str, Any]
) -> "Job":
    """The output file and its parts; nothing is written yet.

    Raises:
        InputError: the output is the input, or cannot hold a column of it.
    """
    from cmlmcse.data.file_parts import Job

    width = args.truncate_dim or encoder.width
    schema = output_schema(args, source, copied, width, provenance)
    job = Job(args.output, source.rows, width, args.rows_per_shard, schema)
    if taken := [path for path in job.existing() if path.resolve() == Path(source.path).resolve()]:
        raise InputError(f"--output {args.output}: expected another file than the input, found {taken[0]}; rename it")
    return job


def begin_job(
    args: argparse.Namespace, job: "Job", source: "TextFile", encoder: "Encoder", provenance: dict[str, Any]
) -> None:
    """Make the folder of the parts, or go on with the parts that are in it; and say what is not read.

    Raises:
        InputError: the output exists, or the parts are those of another run.
    """
    mention_unread(source)
    job.claim_parts(job_settings(args, source, encoder.settings, provenance), args.overwrite)
    if done := job.rows_done():
        print(f"{done:,} of {source.rows:,} rows were done already; they are kept and reused", flush=True)
    else:
        with without_old_parts(job, alone=True):  # other processes have not begun
            mention_cut(source, args.model, encoder)


@contextmanager
def without_old_parts(job: "Job", alone: bool) -> Iterator[None]:
    """Remove the parts if the input changed inside the block: no later command can go on with them. While several
    processes encode they are left, because another one may still write; the line says that the next command removes
    them.

    Raises:
        InputError: the input changed.
    """
    from cmlmcse.data.unchanged import InputChanged

    try:
        yield
    except InputChanged as error:
        if not alone:
            raise InputError(f"{error}, with --overwrite, which removes {job.folder}") from error
        job.drop_parts()
        raise


def finish_job(job: "Job") -> None:
    """Merge the parts, and say what was written."""
    written = job.finalize()
    first = written[0] if len(written) == 1 else f"{written[0]} … {written[-1].name}"
    print(f"{job.rows} rows × {job.width} → {first}")
