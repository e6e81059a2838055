"""What the stages `train` and `pretrain` share: how a run begins, how it trains, and what its records say of both."""

from pathlib import Path
from typing import Any, NamedTuple

from cmlmcse.common.locations import PACKAGE

from .fields import Recipe
from .precision import choose_precision
from .records import claim_output_dir, code_version
from .resume import find_checkpoint
from .started_with import check_started_with, started_with
from .trainer import LossTrainer


class Run(NamedTuple):
    """A run that has its folder and its precision.

    Attributes:
        folder: the run's folder.
        checkpoint: the folder of the checkpoint that it goes on from, if it does.
        fields: what it was started with.
    """

    folder: Path
    checkpoint: str | None
    fields: dict[str, Any]

    def train(self, trainer: LossTrainer) -> dict[str, Any]:
        """Train to the end; return what run.json says of it: the version of the code and the seconds."""
        trainer.run_fields = self.fields
        version = code_version()
        trainer.train(resume_from_checkpoint=self.checkpoint)
        return {**version, "train_seconds": trainer.seconds_trained()}


def begin_run(recipe: Recipe) -> Run:
    """Claim the run's folder, find its checkpoint, and choose its precision. Every process must call this.

    Raises:
        InputError: the folder holds another run, or the checkpoint is damaged or of other fields.
    """
    folder = claim_output_dir(recipe.run.output_dir, recipe.run.resume_from_checkpoint)
    checkpoint = find_checkpoint(folder, recipe.run.resume_from_checkpoint)
    fields = started_with(recipe)
    check_started_with(checkpoint, fields)
    choose_precision(recipe.run, checkpoint)
    return Run(folder, checkpoint, fields)


def progress_record(trainer: LossTrainer, tokens: int) -> dict[str, Any]:
    """What run.json says of how far a run went: steps, tokens, and the best checkpoint."""
    best = Path(trainer.state.best_model_checkpoint or "").name or None
    return {"steps": trainer.state.global_step, "tokens": tokens, "best_checkpoint": best}


def text_record(train_file: str, found: dict[str, Any]) -> dict[str, Any]:
    """What run.json says of the text: its fingerprint, `found` before training, because a file may change meanwhile.
    Text inside a package keeps the recipe's name for it instead of a local path."""
    return {**found, "file": train_file} if train_file.startswith(PACKAGE) else found
