"""The sections "Training" and "Limits" of a card, from the record of a run."""

from typing import Any

from cmlmcse.evaluation.tasks import TASKS
from cmlmcse.models.encoders import Encoder

from .card_method import method_facts, public_name
from .card_writer import Identity, bullets
from .run_records import Record, scored_checkpoint
from .start import start_name, start_text


def text_name(run: Record) -> str:
    """The name of the text: of a file or folder without its path, of a Hub dataset whole."""
    name = str(run.part("fields")["train_file"])
    text = run.get("train_data") or {}
    return str(text.get("file") or text.get("folder") or public_name(name))


def training_text(run: Record) -> str:
    """Start, text, settings, time and hardware in words. Settings that the method does not use are left out."""
    fields, hardware, versions = run.part("fields"), run.part("hardware"), run.part("versions")
    text, source = run.get("train_data") or {}, fields["model_name_or_path"]
    facts = {
        "start": start_text(source, run.get("start"), bool(fields.get("from_scratch"))),
        "text": f"`{text_name(run)}`" + (f", sha256 `{text['sha256']}`" if "sha256" in text else ""),
        "recipe": f"`{run['recipe']}`",
        **method_facts(fields),
        "learning rate": rate_text(fields),
        "texts per batch": batch_text(fields, hardware),
        "longest training text": length_text(fields),
        "pooling": fields["pooling"],
        **encoder_facts(run.get("encoder")),
        "steps": steps_text(run),
        "tokens seen": thousands(run.get("tokens")),
        "seed": run["seed"],
        "training time": f"{thousands(run['train_seconds'])} s on {hardware_text(hardware)}",
        "precision": hardware.get("precision"),
        "torch / transformers": f"{versions['torch']} / {versions['transformers']}",
        "commit of the training code": commit_text(run),
    }
    return bullets(facts)


def commit_text(run: Record) -> str | None:
    """The commit, and whether the code had changes that it lacks."""
    commit = run.get("git_commit")
    return f"{commit}, with uncommitted changes" if commit and run.get("uncommitted_changes") else commit


def rate_text(fields: Record) -> str | None:
    """The learning rate, and its schedule where the recipe chose one."""
    more = [
        f"{what} {fields[name]}"
        for name, what in (
            ("lr_scheduler_type", "schedule"),
            ("warmup_steps", "warm-up"),
            ("warmup_ratio", "warm-up"),
            ("weight_decay", "weight decay"),
        )
        if fields.get(name)
    ]
    return ", ".join([str(fields["learning_rate"]), *more]) if "learning_rate" in fields else None


def batch_text(fields: Record, hardware: Record) -> str | None:
    """The texts of a step, of all processes together."""
    each = fields.get("per_device_train_batch_size")
    times = fields.get("gradient_accumulation_steps", 1)
    return None if each is None else thousands(each * times * hardware["processes"])


def length_text(fields: Record) -> str | None:
    """The length that training texts were cut to."""
    return f"{fields['max_seq_length']} tokens" if fields.get("max_seq_length") is not None else None


def steps_text(run: Record) -> str:
    """The steps of the run and, if they are not its last ones, the checkpoint that the weights are of."""
    own = run.get("weights") or scored_checkpoint(run)
    same = own in (None, f"checkpoint-{run['steps']}")
    return f"{run['steps']:,}" + ("" if same else f"; these weights are those of `{own}`")


def hardware_text(hardware: Record) -> str:
    """The device and the number of processes, and of threads on a CPU."""
    counts = [f"{hardware['processes']} process" + "es" * (hardware["processes"] != 1)]
    if "threads" in hardware:
        counts.append(f"{hardware['threads']} thread" + "s" * (hardware["threads"] != 1))
    return ", ".join([str(hardware["device"]), *counts])


def thousands(number: float | None) -> str | None:
    """A number with commas between thousands."""
    return None if number is None else f"{number:,}"


def encoder_record(encoder: Encoder) -> dict[str, Any]:
    """What the records of a run keep of the encoder: its dimension, the tokens that it reads, and its pooling."""
    pooling = encoder.model.config.pooling
    return {"dimension": encoder.width, "max_tokens": encoder.max_seq_length, "pooling": pooling}


def encoder_facts(kept: dict[str, Any] | None) -> dict[str, str]:
    """What a card says of :func:`encoder_record`; nothing of records from before there was one."""
    if kept is None:
        return {}
    return {
        "embedding": f"{kept['dimension']} dimensions, compared by {kept.get('similarity', 'cosine')}",
        "longest text": f"{kept['max_tokens']} tokens; the rest of a longer one is not read",
    }


def limits_of(run: Record, results: Record) -> list[str]:
    """What the records do not show."""
    fields = run.part("fields")
    absent = [name for name, task in TASKS.items() if name not in results and not task.own_data]
    length, kept = fields.get("max_seq_length"), (run.get("encoder") or {}).get("max_tokens")
    lines = [
        "This is one run with one seed. Another seed gives other scores.",
        "Use cosines to rank pairs. Their values are not calibrated: choose a threshold on your own data.",
        "It was trained on the text named above, and tested on no other domain or language than those of its results.",
    ]
    if not fields.get("from_scratch"):
        lines.append(inherited(start_name(fields["model_name_or_path"], run.get("start"))))
    if length is not None and (kept is None or length < kept):
        lines.append(
            f"Training sentences were cut to {length} tokens. It encodes longer texts, but saw none in training."
        )
    if absent:
        lines.append(f"Not measured, of the tasks of `cmlmcse evaluate`: {', '.join(absent)}.")
    return lines


def inherited(start: str) -> str:
    """A line on what a start brings."""
    return f"It keeps what `{start}` learned before, biases included."


def licence_limit(identity: Identity | None) -> list[str]:
    """A line for readers of a card without a licence."""
    return [] if identity and identity.license else ["No licence is named: ask the author before you use the weights."]
