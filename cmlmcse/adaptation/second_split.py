"""Train what was chosen once more, on another split of the text.

The documents that this run does not see confirm the choice too, so that twice as many do or more. And the average of
both runs, which is handed back, knows almost all documents.
"""

from typing import Any

from cmlmcse.data.collection import next_seed

from .files import SECOND_SPLIT
from .runs import EVERY, Common, Trial, run_folder, train_run


def train_again(name: str, trial: Trial, fields: dict[str, Any], common: Common) -> Trial:
    """Train an arm with the next seed, which splits the text anew, to the step at which its score was best.

    Args:
        name: of the arm.
        trial: its run on the first split.
        fields: its fields.
        common: what all arms share.

    Returns:
        The run, whose `export/` is the encoder after the last step.
    """
    own = {"seed": next_seed(common.fields["seed"]), "dev_set": "auto_unscored", "early_stopping_patience": None,
           "max_steps": trial.best_step, "save_steps": EVERY, "logging_steps": EVERY}  # fmt: skip
    folder = run_folder(common.folder / SECOND_SPLIT, name)
    return train_run(f"{name}, on another split", folder, {**fields, **own}, common, None)
