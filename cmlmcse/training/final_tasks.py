"""The tasks of `final_evaluation`: loaded before training, run on the export after it."""

import sys
from typing import Any

from cmlmcse.evaluation.encoding import EncodeOnce
from cmlmcse.evaluation.tables import TRUNCATED
from cmlmcse.evaluation.tasks import Task, choose_tasks
from cmlmcse.evaluation.truncation import truncated
from modeling_cmlmcse import CMLMCSEConfig

from .fields import DataArguments

FinalTasks = dict[str, tuple[Task, Any]]


def load_final_tasks(data_args: DataArguments) -> FinalTasks:
    """The final tasks with their data. They are loaded before training, so that missing data is reported at once.

    Raises:
        InputError: an unknown task, or a task without any data.
    """
    if data_args.final_evaluation in (None, "none"):
        return {}
    tasks = choose_tasks(data_args.final_evaluation, "final_evaluation")
    loaded = {name: (task, task.load(data_args.data_dir)) for name, task in tasks.items()}
    for task, data in loaded.values():
        for line in task.missing(data_args.data_dir, data):
            print(f"missing: {line}", file=sys.stderr)
    return loaded


def final_results(
    encode: EncodeOnce, final_tasks: FinalTasks, exported: str, device: str | None = None
) -> dict[str, Any]:
    """The results of the final tasks. A data set that was not found has no entry.

    Args:
        encode: the trained model as an encoder.
        final_tasks: from :func:`load_final_tasks`.
        exported: the exported folder, for tasks that fine-tune it.
        device: "cpu", or None for the device that transformers' Trainer chooses; for tasks that fine-tune.
    """
    results: dict[str, Any] = {}
    for task, data in final_tasks.values():
        results |= task.run(exported, data, device=device) if task.fine_tunes else task.run(encode, data)
    return results


def truncated_results(encode: EncodeOnce, final_tasks: FinalTasks, config: CMLMCSEConfig) -> dict[str, Any]:
    """The entry `TRUNCATED`: the results of the vectors cut to each number of Matryoshka dimensions but the whole one.
    Empty without such dimensions, or without tasks. A task that fine-tunes has none."""
    found: dict[str, Any] = {}
    for size in config.matryoshka_dims or ():
        for task, data in final_tasks.values():
            if size < config.hidden_size and not task.fine_tunes:
                found.setdefault(str(size), {}).update(task.run(truncated(encode, size), data))
    return {TRUNCATED: found} if found else {}
