"""What a run was started with. Every checkpoint holds it, and a run that goes on from one must have the same: Trainer
would restore the state of another run without a word."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from cmlmcse.common.distributed import from_first_process
from cmlmcse.common.errors import InputError
from cmlmcse.common.locations import resolve
from cmlmcse.common.names import split_names
from cmlmcse.data.text import fingerprint_text
from cmlmcse.models.fingerprint import fingerprint_model
from cmlmcse.models.folders import resolve_model
from modeling_cmlmcse.distributed import processes, rank

from .fields import Recipe

FIELDS = "run_fields.json"  # in a checkpoint
# Fields of the model and of the text that may differ, because no step depends on them or another check compares them.
MAY_DIFFER = ("model_sha256", "query_prompt", "document_prompt", "lora_r", "preprocessing_num_workers",
              "pad_to_multiple_of", "data_dir", "dev_set", "final_evaluation")  # fmt: skip
# The fields of Trainer that change what is learned. All others may differ: where a run writes, when it logs, scores and
# saves, how long it trains, its learning rate, and what it computes on.
LEARNED = ("stage", "seed", "data_seed", "per_device_train_batch_size", "gradient_accumulation_steps",
           "dataloader_drop_last", "optim", "optim_args", "optim_target_modules", "weight_decay", "adam_beta1",
           "adam_beta2", "adam_epsilon", "max_grad_norm", "lr_scheduler_type", "lr_scheduler_kwargs",
           "warmup_steps")  # fmt: skip
BATCH = ("per_device_train_batch_size", "processes")
TEXTS = ("train_file", "synonyms")
MODELS = ("model_name_or_path", "teacher", "mining_model", "rtd_generator", "tokenizer_name")
# Schedules without a formula: the rate is a state that goes down with the scores.
STATEFUL_SCHEDULES = ("reduce_lr_on_plateau", "greedy")


def started_with(recipe: Recipe) -> dict[str, Any]:
    """The fields that must stay, of text and models on this machine their content. Every process must call this."""
    return from_first_process(kept_fields(recipe) if rank() == 0 else {})


def kept_fields(recipe: Recipe) -> dict[str, Any]:
    """The fields that must stay."""
    own = {**dataclasses.asdict(recipe.model), **dataclasses.asdict(recipe.data)}
    fields = {name: value for name, value in own.items() if name not in MAY_DIFFER}
    arguments = recipe.run.to_dict()
    fields |= {name: arguments[name] for name in LEARNED if name in arguments}
    for name in TEXTS:
        names = split_names(fields[name]) if recipe.run.stage == "pretrain" else [fields[name]] if fields[name] else []
        fields[name] = [text_content(each) for each in names]
    for name in MODELS:
        fields[name] = [model_content(each) for each in split_names(fields[name])]
    fields["dev_set"] = "auto" if recipe.data.holds_out else "another"  # auto holds documents out
    fields["auxiliary_learning_rate"] = "none" if recipe.run.auxiliary_learning_rate is None else "one of its own"
    fields["processes"] = processes()
    if recipe.data.streaming:
        fields["dataloader_num_workers"] = recipe.run.dataloader_num_workers  # the order of a stream depends on it
    sharded = recipe.run.deepspeed or os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true"
    if sharded or fields["lr_scheduler_type"] in STATEFUL_SCHEDULES:
        fields["learning_rate"] = recipe.run.learning_rate
    return fields


def text_content(name: str) -> dict[str, Any]:
    """A file by its content; what cannot be read is left to what reads it, which reports the reason."""
    try:
        return fingerprint_text(resolve(name))
    except (InputError, OSError):
        return {"file": name}


def model_content(name: str) -> dict[str, Any]:
    """A model on this machine by its content, another by its name; what cannot be read as :func:`text_content`."""
    try:
        path = Path(resolve_model(name))
        return {"name": path.name, "files": fingerprint_model(str(path), {})} if path.exists() else {"name": name}
    except (InputError, OSError):
        return {"name": name}


def check_started_with(checkpoint: str | None, fields: dict[str, Any]) -> None:
    """Check that a run which goes on has the fields that it was started with.

    Args:
        checkpoint: the folder of the checkpoint that the run goes on from, if it does.
        fields: from :func:`started_with`.

    Raises:
        InputError: a field differs.
    """
    path = Path(checkpoint or "") / FIELDS
    if checkpoint is None or not path.is_file():
        return
    kept, now = json.loads(path.read_text(encoding="utf-8")), json.loads(json.dumps(fields))
    changed = [name for name in now if name in kept and kept[name] != now[name]]
    if "processes" in kept and now.get("streaming"):
        check_processes(checkpoint, kept, now)
    elif "processes" in kept:  # it and the batch of each may change together
        check_batch(checkpoint, kept, now)
        changed = [name for name in changed if name not in BATCH]
    if not changed:
        return
    name = changed[0]
    raise InputError(
        f"{checkpoint} expects the {name} that the run was started with, {before_and_now(kept[name], now[name])}; give "
        "the same one, or start another run with another --output_dir"
    )


def check_processes(checkpoint: str, kept: dict[str, Any], now: dict[str, Any]) -> None:
    """Check that as many processes read a stream as before: each reads its own share, in an order of its own.

    Args:
        checkpoint: the folder that the run goes on from.
        kept, now: the fields of the checkpoint, and of this run.

    Raises:
        InputError: there are more or fewer.
    """
    before, found = kept["processes"], now["processes"]
    if before == found:
        return
    raise InputError(
        f"{checkpoint} expects {before} {'process' if before == 1 else 'processes'}, as the run was started, found "
        f"{found}: the order of a streamed text depends on their number; go on with {before} and a "
        f"per_device_train_batch_size of {kept['per_device_train_batch_size']}, or start another run with another "
        "--output_dir"
    )


def check_batch(checkpoint: str, kept: dict[str, Any], now: dict[str, Any]) -> None:
    """Check that the batch of all processes together is what it was: it is the negatives of a sentence, and the rows of
    the epoch that are done.

    Args:
        checkpoint: the folder that the run goes on from.
        kept, now: the fields of the checkpoint, and of this run.

    Raises:
        InputError: it is another.
    """
    (each, count), (given, found) = ([fields[name] for name in BATCH] for fields in (kept, now))
    whole = each * count
    if given * found == whole:
        return
    advice = f"give a per_device_train_batch_size of {whole // found}, or " if whole % found == 0 else ""
    raise InputError(
        f"{checkpoint} expects a batch of {each} on each of {count} processes ({whole} in all), as the run was "
        f"started, found {given} on each of {found} ({given * found} in all); {advice}start another run with another "
        "--output_dir"
    )


def before_and_now(kept: Any, now: Any) -> str:
    """Two values that differ, for a message: what was expected, and what was found."""
    before, found = shown(kept), shown(now)
    return f"{before}, found {'another content under that name' if before == found else found}"


def shown(value: Any) -> str:
    """A value in a message: of a model or a text its name."""
    if isinstance(value, list):
        return ", ".join(map(shown, value)) or "none"
    if isinstance(value, dict):
        names = [value[name] for name in ("name", "file", "folder", "dataset") if name in value]
        return str(names[0]) if names else json.dumps(value)
    return "none" if value is None else str(value)
