"""From which checkpoint a run goes on: the newest one that holds the state of training, checked before it is read."""

import json
from pathlib import Path
from pickle import UnpicklingError

import torch
from safetensors import SafetensorError, safe_open
from transformers.trainer_pt_utils import safe_globals
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME

from cmlmcse.common.distributed import from_first_process
from cmlmcse.common.errors import InputError, first_line
from cmlmcse.common.run_files import RESULTS
from modeling_cmlmcse.distributed import rank

TRAINER_STATE_NAME = "trainer_state.json"


def all_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a run's folder, by their steps."""
    found = [path for path in folder.glob("checkpoint-*") if path.name.removeprefix("checkpoint-").isdigit()]
    return sorted(found, key=lambda path: int(path.name.removeprefix("checkpoint-")))


def can_go_on(checkpoint: Path) -> bool:
    """Whether a checkpoint holds the state of training, and not the weights alone. Every state has random states."""
    return (checkpoint / TRAINER_STATE_NAME).is_file() and any(checkpoint.glob("rng_state*.pth"))


def check_resumable(resume: str) -> None:
    """Check that a named folder is a checkpoint that a run can go on from.

    Raises:
        InputError: the folder is no such checkpoint.
    """
    if not can_go_on(Path(resume)):
        raise InputError(
            f"--resume_from_checkpoint expects auto or a checkpoint folder with {TRAINER_STATE_NAME} and "
            f"rng_state.pth, found {resume!r} without; name a checkpoint-N folder that holds more than weights"
        )


def newest_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint that a run can go on from."""
    return next((path for path in reversed(all_checkpoints(folder)) if can_go_on(path)), None)


def find_checkpoint(output_dir: str | Path, resume: str | None) -> str | None:
    """The checkpoint to resume from. `auto` is the newest one in `output_dir`; None, with a line that says so, if there
    is none yet, so that a scheduler can use one command line for the first start and every later one.

    Raises:
        InputError: the named folder is no checkpoint, its files are damaged, the run has ended and kept none, or the
            processes see different folders.
    """
    if resume is None:
        return None
    if resume != "auto":
        found: Path | None = Path(resume)
        check_resumable(resume)
    elif (found := newest_checkpoint(Path(output_dir))) is None:
        if (Path(output_dir) / RESULTS).exists():
            raise InputError(
                f"--resume_from_checkpoint auto expects a checkpoint, found a finished run without any in "
                f"{output_dir}; choose another --output_dir"
            )
        if rank() == 0:
            print(f"{output_dir} holds no checkpoint yet: training starts from the beginning")
    check_same_everywhere(found, output_dir)
    if found is not None:
        check_checkpoint(found)
    return None if found is None else str(found)


def check_same_everywhere(found: Path | None, output_dir: str | Path) -> None:
    """Check that every process found the checkpoint that the first one found. Every process must call this.

    Raises:
        InputError: this one found another, or none.
    """
    digits = "" if found is None else found.name.rpartition("-")[2]
    step = -1 if found is None else int(digits) if digits.isdigit() else 0
    first = from_first_process(step)
    if step != first:
        names = ["no checkpoint" if each < 0 else f"checkpoint-{each:.0f}" for each in (first, step)]
        raise InputError(
            f"--output_dir expects a folder that all machines share, found {names[0]} on the first process and "
            f"{names[1]} on process {rank()} in {output_dir}; put it on a shared file system"
        )


def check_checkpoint(folder: Path) -> None:
    """Check that every file of a checkpoint can be read and holds only tensors and plain values.

    torch refuses pickles that would run code. The values of the tensors are not read.

    Raises:
        InputError: a file cannot be read, or holds something else.
    """
    for path in sorted({*folder.iterdir(), *shards(folder)}):
        try:
            if path.suffix == ".json":
                json.loads(path.read_text(encoding="utf-8"))
            elif path.suffix == ".safetensors":
                with safe_open(path, "pt"):
                    pass
            elif path.suffix in (".pt", ".pth"):
                with safe_globals():  # needed for numpy's random state
                    torch.load(path, map_location="meta", weights_only=True, mmap=True)
        except (OSError, ValueError, RuntimeError, EOFError, UnpicklingError, SafetensorError) as error:
            raise InputError(
                f"{path}: expected tensors and plain values, as cmlmcse train writes them, found something else "
                f"({first_line(error)}); resume from an earlier checkpoint"
            ) from error


def shards(folder: Path) -> list[Path]:
    """The files that must hold the weights of a checkpoint in parts; none if its index cannot be read."""
    try:
        index = json.loads((folder / SAFE_WEIGHTS_INDEX_NAME).read_text(encoding="utf-8"))
        return [folder / Path(name).name for name in index["weight_map"].values()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
