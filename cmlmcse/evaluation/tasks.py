"""The evaluation tasks. `TASKS` finds a task by its name; a task scores a callable `encode` and knows no model.

To add a task, write a module with a function that loads and one that scores, and add an entry to `TASKS`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from cmlmcse.common.errors import InputError
from cmlmcse.common.options import positive, positive_number, seed

from .card_metric import CardMetric


@dataclass(frozen=True)
class Option:
    """An option of one task: `--<task>_<name>` on the command line, the argument `<name>` of its `run`."""

    default: Any
    help: str
    type: Callable[[str], Any] = str


@dataclass(frozen=True)
class Task:
    """One evaluation task: it loads its data, then scores an encoder on them.

    - `load(data_dir)` returns the data. It raises `MissingData` if there are none.
    - `run(encode, data, **options)` returns entries of the results.
    - `missing(data_dir, data)` returns one line for each missing part of the data.
    - `card_metrics(entry)` returns the numbers for a model card from the task's own entry.
    - `own_data`: the data are the user's own, so a card does not say that they were not measured.
    - `by_query(encode, data, **options)` returns the task's own entry, and values of each query, for intervals.
    - `long_texts(data)` returns texts that a model may cut, or a sample of them, by the name of their set. Single
      sentences are not worth a look.
    - `fine_tunes`: `run` takes the model's folder or Hub name instead of `encode`, and the option `device`.
    - `check(model)` raises an `InputError` if a model that the task fine-tunes is none that it can.
    """

    summary: str
    load: Callable[[str | None], Any]
    run: Callable[..., dict[str, Any]]
    card_metrics: Callable[[dict[str, Any]], Iterator[CardMetric]]
    missing: Callable[[str | None, Any], list[str]] = lambda data_dir, data: []
    options: dict[str, Option] = field(default_factory=dict)
    own_data: bool = False
    by_query: Callable[..., tuple[dict[str, Any], dict[str, Any]]] | None = None
    long_texts: Callable[[Any], dict[str, list[str]]] = lambda data: {}
    fine_tunes: bool = False
    check: Callable[[str], Any] = lambda model: None


def _lazy(target: str, entry: str | None = None) -> Callable[..., Any]:
    """A function `module:name` of this package, imported when it is called; with `entry` it returns {entry: result}."""
    module, name = target.split(":")

    def call(*args: Any, **options: Any) -> Any:
        result = getattr(import_module(f"{__package__}.{module}"), name)(*args, **options)
        return result if entry is None else {entry: result}

    return call


TASKS: dict[str, Task] = {
    "sts": Task(
        "the seven STS sets, and the STS-B development set",
        _lazy("sts:load_sts_task"),
        _lazy("sts:run_sts_task"),
        _lazy("sts:sts_card_metrics"),
        _lazy("sts:missing_sts_task"),
    ),
    "stsb_dev": Task(
        "STS-B dev",
        _lazy("sts_data:load_stsb_dev"),
        _lazy("sts:stsb_dev", "stsb_dev"),
        _lazy("sts:stsb_dev_card_metrics"),
    ),
    "geometry": Task(
        "alignment, uniformity, anisotropy and spectrum on STS-B dev",
        _lazy("sts_data:load_stsb_dev"),
        _lazy("geometry:geometry", "geometry"),
        _lazy("geometry:card_metrics"),
    ),
    "pairs": Task(
        "pairs of your own with human scores",
        _lazy("pairs:load_pairs"),
        _lazy("pairs:scored_pairs", "pairs"),
        _lazy("pairs:card_metrics"),
        own_data=True,
        long_texts=_lazy("pairs:sentences_of_files"),
    ),
    "lee50": Task(
        "the 50 documents of Lee et al. 2005",
        _lazy("lee50:load_lee50_task"),
        _lazy("lee50:lee50", "lee50"),
        _lazy("lee50:card_metrics"),
        long_texts=_lazy("lee50:documents", "lee50"),
    ),
    "retrieval": Task(
        "data sets in BEIR's format: nDCG@10 and more",
        _lazy("beir_data:load_retrieval"),
        _lazy("retrieval:retrieval", "retrieval"),
        _lazy("retrieval:card_metrics"),
        _lazy("beir_data:missing_retrieval"),
        by_query=_lazy("retrieval:search_sets"),
        long_texts=_lazy("retrieval:some_passages"),
        options={
            "query_prefix": Option(None, "text before every query; by default the model's own prompt"),
            "query_suffix": Option("", "text after every query"),
            "passage_prefix": Option(None, "text before every passage; by default the model's own prompt"),
            "passage_suffix": Option("", "text after every passage"),
            "bm25_weight": Option(0.3, "of BM25 beside the cosine, in `hybrid`; 1 for a weak model", positive_number),
            "block_size": Option(4096, "passages that are read, encoded and searched at a time", positive),
        },
    ),
    "indomain": Task(
        "paraphrases within the STS-B test set",
        _lazy("sts_data:load_stsb_test"),
        _lazy("indomain:indomain", "indomain"),
        _lazy("indomain:card_metrics"),
    ),
    "transfer": Task(
        "SentEval's transfer tasks: logistic regression on the embeddings",
        _lazy("transfer_data:load_transfer"),
        _lazy("transfer:transfer", "transfer"),
        _lazy("transfer:card_metrics"),
        _lazy("transfer_data:missing_transfer"),
    ),
    "glue": Task(
        "GLUE: the model is fine-tuned on each task",
        _lazy("glue_data:load_glue"),
        _lazy("glue:run_glue_task"),
        _lazy("glue:card_metrics"),
        _lazy("glue_data:missing_glue"),
        options={
            "learning_rate": Option(2e-5, "peak of the linear schedule, without warm-up", positive_number),
            "epochs": Option(3, "passes over a task's training examples", positive),
            "batch_size": Option(32, "training examples per step on each device", positive),
            "max_seq_length": Option(128, "cut examples to this many tokens, at most the model's limit", positive),
            "seed": Option(
                42, "seed of the classifier's initial weights, the order of the examples, and dropout", seed
            ),
        },
        fine_tunes=True,
        check=_lazy("glue:check_classifier"),
    ),
}


def all_card_metrics(results: dict[str, Any]) -> list[CardMetric]:
    """The numbers of a results file for a model card, in the order of the tasks. Undefined values are left out."""
    found = [one for name, task in TASKS.items() if results.get(name) for one in task.card_metrics(results[name])]
    return [one for one in found if one.value is not None]


def choose_tasks(names: str | Sequence[str], option: str = "--tasks") -> dict[str, Task]:
    """The tasks named in a comma-separated list or a sequence. Error messages name `option`.

    Raises:
        InputError: an unknown name, or no name.
    """
    names = [name.strip() for name in (names.split(",") if isinstance(names, str) else names) if name.strip()]
    unknown = [name for name in names if name not in TASKS]
    if unknown or not names:
        found = ", ".join(map(repr, unknown)) or "none"
        raise InputError(f"{option} must name some of {', '.join(TASKS)}, separated by commas, found {found}")
    return {name: TASKS[name] for name in names}
