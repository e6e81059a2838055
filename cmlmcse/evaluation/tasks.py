"""Evaluation of sentence encoders: tasks, found by name in `TASKS`, that see nothing but one `encode` callable.

A new task is a module with a loading and a scoring function, and a line in `TASKS`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from cmlmcse.common.errors import InputError

from .card_metric import CardMetric
from .options import positive, positive_number, seed


@dataclass(frozen=True)
class Option:
    """A task's own option of the command line, `--<task>_<name>`, given to its `run` as `<name>`."""

    default: Any
    help: str
    type: Callable[[str], Any] = str


@dataclass(frozen=True)
class Task:
    """A unit of evaluation: load its data, then score an encoder on them.

    `load(data_dir)` gives the data, `run(encode, data, **options)` the entries of the results, `missing(data_dir,
    data)` a line for each part of the data that is not there. A `load` that finds nothing at all raises `MissingData`.
    `card_metrics(entry)` gives what a model card says of the task's own entry. A task that fine-tunes is given the
    model's folder or Hub name in place of `encode`, and `device` among its options.
    """

    summary: str
    load: Callable[[str | None], Any]
    run: Callable[..., dict[str, Any]]
    card_metrics: Callable[[dict[str, Any]], Iterator[CardMetric]]
    missing: Callable[[str | None, Any], list[str]] = lambda data_dir, data: []
    options: dict[str, Option] = field(default_factory=dict)
    fine_tunes: bool = False


def _later(target: str, entry: str | None = None) -> Callable[..., Any]:
    """A function of this package, `module:name`, imported when called; its result goes under `entry` if given."""
    module, name = target.split(":")

    def call(*args: Any, **options: Any) -> Any:
        result = getattr(import_module(f"{__package__}.{module}"), name)(*args, **options)
        return result if entry is None else {entry: result}

    return call


def _lee50(encode: Callable[..., Any], data: None) -> dict[str, Any]:
    """The task `lee50`, whose data come with the package it is in."""
    return {"lee50": _later("lee50:lee50")(encode)}


TASKS: dict[str, Task] = {
    "sts": Task(
        "the seven STS sets, and the STS-B development set",
        _later("sts:load_sts_task"),
        _later("sts:run_sts_task"),
        _later("sts:sts_card_metrics"),
        _later("sts:missing_sts_task"),
    ),
    "stsb_dev": Task(
        "STS-B dev",
        _later("sts_data:load_stsb_dev"),
        _later("sts:stsb_dev", "stsb_dev"),
        _later("sts:stsb_dev_card_metrics"),
    ),
    "geometry": Task(
        "alignment, uniformity, anisotropy and spectrum on STS-B dev",
        _later("sts_data:load_stsb_dev"),
        _later("geometry:geometry", "geometry"),
        _later("geometry:card_metrics"),
    ),
    "lee50": Task(
        "the 50 documents of Lee et al. 2005",
        lambda data_dir: None,
        _lee50,
        _later("lee50:card_metrics"),
    ),
    "retrieval": Task(
        "the sets in BEIR's format: nDCG@10 and more",
        _later("beir_data:load_retrieval"),
        _later("retrieval:retrieval", "retrieval"),
        _later("retrieval:card_metrics"),
        _later("beir_data:missing_retrieval"),
        options={
            "query_prefix": Option("", "put before every query"),
            "query_suffix": Option("", "put after every query"),
            "passage_prefix": Option("", "put before every passage"),
            "passage_suffix": Option("", "put after every passage"),
            "block_size": Option(4096, "passages read, encoded and searched at once", positive),
        },
    ),
    "indomain": Task(
        "paraphrases within the STS-B test set",
        _later("sts_data:load_stsb_test"),
        _later("indomain:indomain", "indomain"),
        _later("indomain:card_metrics"),
    ),
    "transfer": Task(
        "SentEval's transfer tasks, a logistic regression on the embeddings",
        _later("transfer_data:load_transfer"),
        _later("transfer:transfer", "transfer"),
        _later("transfer:card_metrics"),
        _later("transfer_data:missing_transfer"),
    ),
    "glue": Task(
        "GLUE, the model fine-tuned on each of its tasks",
        _later("glue_data:load_glue"),
        _later("glue:run_glue_task"),
        _later("glue:card_metrics"),
        _later("glue_data:missing_glue"),
        options={
            "learning_rate": Option(2e-5, "peak of the linear schedule, without warm-up", positive_number),
            "epochs": Option(3, "passes over a task's training examples", positive),
            "batch_size": Option(32, "training examples in a step, on each device", positive),
            "max_seq_length": Option(128, "tokens that an example is cut to, at most the model's", positive),
            "seed": Option(42, "of the classifier's first weights, the order of the examples and dropout", seed),
        },
        fine_tunes=True,
    ),
}


def all_card_metrics(results: dict[str, Any]) -> list[CardMetric]:
    """What a card says of a results file, task after task; a value that is not defined is left out."""
    found = [one for name, task in TASKS.items() if results.get(name) for one in task.card_metrics(results[name])]
    return [one for one in found if one.value is not None]


def choose_tasks(names: str | Sequence[str], option: str = "--tasks") -> dict[str, Task]:
    """The tasks of a comma-separated list or a sequence of names, each once; `option` is where they were given.

    Raises:
        InputError: a name is not known, or there is none.
    """
    names = [name.strip() for name in (names.split(",") if isinstance(names, str) else names) if name.strip()]
    unknown = [name for name in names if name not in TASKS]
    if unknown or not names:
        found = ", ".join(map(repr, unknown)) or "none"
        raise InputError(f"{option} must name some of {', '.join(TASKS)}, separated by commas, found {found}")
    return {name: TASKS[name] for name in names}
