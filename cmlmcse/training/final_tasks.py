"""The tasks of `final_evaluation`: loaded before training, run on the export after it."""

import sys
from typing import Any

from cmlmcse.evaluation.encoding import EncodeOnce
from cmlmcse.evaluation.tables import TRUNCATED
from cmlmcse.evaluation.tasks import Task, choose_tasks
from cmlmcse.evaluation.truncation import truncated
from modeling_cmlmcse import CMLMCSEConfig
from modeling_cmlmcse.distributed import rank

from .dev_set import LABEL_FREE
from .fields import DataArguments

FinalTasks = dict[str, tuple[Task, Any]]


def load_final_tasks(data_args: DataArguments) -> FinalTasks:
    """The final tasks with their data. They are loaded before training, so that missing data is reported at once.

    Where `final_evaluation` is not given, it is set here.

    Raises:
        InputError: an unknown task, or a task without any data.
    """
    if data_args.final_evaluation is None:
        data_args.final_evaluation = default_evaluation(data_args)
    if data_args.final_evaluation == "none":
        return {}
    tasks = choose_tasks(data_args.final_evaluation, "final_evaluation")
    loaded = {name: (task, task.load(data_args.data_dir)) for name, task in tasks.items()}
    for task, data in loaded.values():
        for line in task.missing(data_args.data_dir, data):
            print(f"missing: {line}", file=sys.stderr)
    return loaded


def default_evaluation(data_args: DataArguments) -> str:
    """The final tasks where the user names none: `sts`, or `none` for a run that reads no other evaluation data."""
    if data_args.dev_set not in ("none", *LABEL_FREE) or data_args.data_dir is not None:
        return "sts"
    if rank() == 0:
        print(
            f"final_evaluation is none, because dev_set is {data_args.dev_set}; --final_evaluation sts scores the "
            "export on STS"
        )
    return "none"


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
