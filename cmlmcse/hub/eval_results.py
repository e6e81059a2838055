"""`.eval_results/` in an export: the scores that leaderboards on the Hub collect, one file a benchmark.

The form is huggingface_hub's; the names of files and tasks are those that mteb writes. Only numbers that are a
benchmark's own main score are written. The card's model-index holds all others too.
"""

from collections.abc import Sequence
from pathlib import Path

import yaml
from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

from cmlmcse.evaluation.card_metric import CardMetric

FOLDER = ".eval_results"
NOTES = "measured by cmlmcse"


def write_eval_results(measured: Sequence[CardMetric], folder: Path) -> None:
    """Write a file for each benchmark among the numbers; nothing if there is none.

    Args:
        measured: numbers in per cent.
        folder: the export.
    """
    for metric in measured:
        if metric.benchmark is not None and metric.value is not None:
            dataset, task = metric.benchmark
            (folder / FOLDER).mkdir(exist_ok=True)
            entry = EvalResultEntry(dataset_id=dataset, task_id=task, value=metric.value, notes=NOTES)
            text = yaml.safe_dump(eval_result_entries_to_yaml([entry]), sort_keys=False)
            (folder / FOLDER / f"{task}.yaml").write_text(text, encoding="utf-8")
