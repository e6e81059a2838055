"""The development score before the first step, in the run's folder, and what training changed of it."""

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from cmlmcse.evaluation.bootstrap import interval
from modeling_cmlmcse.distributed import rank

from .dev_set import DevScore, DevSet

if TYPE_CHECKING:
    from .contrastive_trainer import ContrastiveTrainer

START_VALUES = "dev_start.npz"  # in the run's folder; a resumed run reads it there


def bring_start_values(origin: Path, folder: Path) -> None:
    """Copy the scores of the start to the folder of a run that goes on from a checkpoint in another folder."""
    if rank() == 0 and (origin / START_VALUES).is_file() and not (folder / START_VALUES).exists():
        shutil.copy(origin / START_VALUES, folder)


class ScoresTheStart(TrainerCallback):
    """Scores the development set before the first step, so that a run can say what training changed.

    Args:
        trainer: the trainer.
        values: the values of the set's items, if they are known.
    """

    def __init__(self, trainer: "ContrastiveTrainer", values: NDArray[np.float64] | None = None) -> None:
        self.trainer = trainer
        self.values = values

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.global_step == 0:
            start = time.perf_counter()
            values = self.trainer.dev_values() if self.values is None else self.values
            score = self.trainer.dev_score(values)
            if rank() == 0:
                title = np.array(self.trainer.dev_set.title if self.trainer.dev_set else "")
                np.savez(Path(str(args.output_dir)) / START_VALUES, values=values, title=title)
            self.trainer.window.start += time.perf_counter() - start  # scoring is not training time
            self.trainer.log({"eval_dev_score": score, "eval_runtime": round(time.perf_counter() - start, 3)})


def start_values(path: Path, title: str, count: int) -> NDArray[np.float64] | None:
    """The values of the items before training; None if there are none, or if they are of another development set."""
    if not path.exists():  # of a run that began with an older version
        return None
    with np.load(path) as kept:
        same = str(kept["title"]) == title and len(kept["values"]) == count
        return kept["values"] if same else None


def dev_results(dev_set: DevScore, values: NDArray[np.float64], folder: Path) -> dict[str, Any]:
    """The scores of the development set before and after training, with the interval of the change.

    Args:
        dev_set: the development set.
        values: (N,) the values of its items after training.
        folder: the run's folder, with the values before training.
    """
    found = dev_summary(dev_set, dev_set.summary(values), len(values))
    before = start_values(folder / START_VALUES, dev_set.title, len(values))
    if before is not None:
        low, high = interval(dev_set, before, values)
        found |= {"before": round(dev_set.summary(before), 4), "interval": [round(low, 4), round(high, 4)]}
    return found


def dev_summary(dev_set: DevScore, score: float, count: int) -> dict[str, Any]:
    """The score of the development set, and how many pairs or documents it has."""
    score = round(score, 4)
    size = {"spearman": score, "pairs": count} if isinstance(dev_set, DevSet) else {"documents": count}
    return {"set": dev_set.title, "score": score, **size}
