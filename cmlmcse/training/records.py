"""The records of a run: its folder, run.json and results.json."""

import dataclasses
import importlib.metadata
import platform
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch
from accelerate.state import AcceleratorState
from transformers import TrainingArguments

from cmlmcse.common.errors import InputError
from cmlmcse.common.files import replace_json
from cmlmcse.common.names import split_names
from cmlmcse.common.run_files import EXPORT, RESULTS, RUN
from cmlmcse.hub.run_records import NAME_MODELS

from .fields import Recipe, RunArguments
from .resume import all_checkpoints, check_resumable

PACKAGES = ("torch", "transformers", "accelerate", "datasets", "tokenizers", "numpy")
ROOT = Path(__file__).resolve().parents[2]
CODE = ("cmlmcse", "modeling_cmlmcse")  # run.json has the recipe's fields; a study changes its own files
RUN_FILES = (RUN, RESULTS, EXPORT, "plots")
STRUCTURED = ("lr_scheduler_kwargs", "optim_target_modules", "gradient_checkpointing_kwargs")  # lists and dictionaries


def claim_output_dir(output_dir: str | None, resume: str | None) -> Path:
    """Create the run's folder. A folder that holds a run is accepted only to resume that run.

    Args:
        output_dir: the folder.
        resume: `auto` or a checkpoint; None to start.

    Raises:
        InputError: the folder holds a run, or cannot be created or written.
    """
    if (resume or "").lower() == "true":
        raise InputError(f"resume_from_checkpoint expects auto or a checkpoint's folder, found {resume}; write auto")
    if not output_dir:
        raise InputError("output_dir must name a folder, found nothing; set --output_dir")
    if resume not in (None, "auto"):
        check_resumable(resume)
    folder = Path(output_dir)
    if folder.is_dir() and not goes_on_in(folder, resume):
        held = [name for name in RUN_FILES if (folder / name).exists()] + [p.name for p in folder.glob("checkpoint-*")]
        if held:
            advice = ", or resume with --resume_from_checkpoint auto" if resume is None else ""
            raise InputError(
                f"output_dir must be new or empty of runs, found {held[0]} of another run in {output_dir}; choose "
                f"another --output_dir, or remove it{advice}"
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):  # fails now instead of at the first checkpoint
            pass
    except OSError as error:
        raise InputError(
            f"output_dir must be a folder that can be written, found {output_dir} ({error.strerror}); choose another"
        ) from error
    return folder


def goes_on_in(folder: Path, resume: str | None) -> bool:
    """Whether a run goes on in the folder of its checkpoint. A finished run without any is left to
    :func:`find_checkpoint`, which says so."""
    if resume == "auto":
        return bool(all_checkpoints(folder)) or (folder / RESULTS).exists()
    return resume is not None and Path(resume).resolve().parent == folder.resolve()


def code_version(root: Path = ROOT) -> dict[str, Any]:
    """The commit of a checkout, or None, and whether its code has changes that are not committed. It is read before
    training, because the checkout may change during it.

    Args:
        root: the folder of the checkout.

    Returns:
        `git_commit`, and only where the code was changed `uncommitted_changes`, which is True.
    """
    version: dict[str, Any] = {"git_commit": None}
    if not (root / ".git").exists():  # installed as a package; a surrounding repository is another project's
        return version
    words = ["git", "--no-optional-locks", "-C", str(root), "status", "--porcelain=v2", "--branch"]
    try:
        done = subprocess.run(
            [*words, "--untracked-files=no", "--", *CODE], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return version
    if commit := re.search("^# branch.oid ([0-9a-f]+)$", done.stdout, re.MULTILINE):
        version["git_commit"] = commit[1]
        if re.search("^[^#]", done.stdout, re.MULTILINE):  # a line for each changed file
            version["uncommitted_changes"] = True
    return version


def hardware(run_args: RunArguments) -> dict[str, Any]:
    """Device, number of processes, number of threads and precision of the run; the launcher may set the latter."""
    device = torch.cuda.get_device_name() if run_args.device.type == "cuda" else platform.machine()
    chosen = AcceleratorState().mixed_precision if AcceleratorState._shared_state else "no"
    precision = "fp32" if chosen == "no" else chosen
    threads = torch.get_num_threads()
    return {"device": device, "processes": run_args.world_size, "threads": threads, "precision": precision}


def run_record(recipe: Recipe, measured: dict[str, Any]) -> dict[str, Any]:
    """The content of run.json: recipe, fields, which models are folders here, seed, versions, hardware, and the
    `measured` values."""
    fields = {**dataclasses.asdict(recipe.model), **dataclasses.asdict(recipe.data), **chosen_arguments(recipe.run)}
    named = [name for field in NAME_MODELS for name in split_names(fields.get(field))]
    return {
        "recipe": recipe.name,
        "fields": fields,
        "local": sorted({name for name in named if Path(name).exists()}),
        "seed": recipe.run.seed,
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "hardware": hardware(recipe.run),
        **measured,
    }


def chosen_arguments(run_args: RunArguments) -> dict[str, Any]:
    """The arguments without secrets and folders, and without those that have the default of TrainingArguments and of
    this project."""
    private = ("output_dir", "hub_token", "push_to_hub_token", "logging_dir", "resume_from_checkpoint")
    theirs, ours = (
        {field.name: field.default for field in dataclasses.fields(kind)} for kind in (TrainingArguments, RunArguments)
    )
    return {
        name: value
        for name, value in run_args.to_dict().items()
        if name not in private
        and (isinstance(value, (bool, int, float, str)) or (name in STRUCTURED and value))
        and not value == theirs.get(name) == ours.get(name)
    }


def write_records(folder: Path, record: dict[str, Any], results: dict[str, Any]) -> None:
    """Write run.json and results.json. Where both are there, they are of one run, also if a longer one was killed."""
    (folder / RESULTS).unlink(missing_ok=True)  # written by this run before it was resumed
    for name, content in ((RUN, record), (RESULTS, results)):
        replace_json(folder / name, content)
