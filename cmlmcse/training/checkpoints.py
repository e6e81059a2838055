"""Checkpoints that are always complete: each is written to a temporary folder first, then renamed."""

import json
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

from safetensors import SafetensorError
from torch import nn
from transformers import (
    EarlyStoppingCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_callback import ExportableState

from cmlmcse.common.distributed import from_first_process, shutdown_process_group, sums_over_processes
from cmlmcse.common.errors import InputError, Stopped, first_line
from cmlmcse.data.lengths import forget_lengths
from modeling_cmlmcse.distributed import processes

from .fields import RunArguments
from .resume import TRAINER_STATE_NAME, all_checkpoints, newest_checkpoint
from .started_with import FIELDS

TRAINING_ARGS_NAME = "training_args.bin"
ZIP_WRITER = "inline_container"  # the file of PyTorch that writes, in its RuntimeError where the disk is full
TEMPORARY = ".saving"  # folder in the output folder where a checkpoint is written before it is renamed


class WholeCheckpointTrainer(Trainer):
    """A `Trainer` whose checkpoints are always complete, also if the process is killed while it saves.

    The previous checkpoint is removed only after the new one is in its place. A power cut can still damage a
    checkpoint, because nothing here waits until the disk has written.

    Attributes:
        weights_alone: whether the next checkpoint holds no state to go on from, because it is only the best model
            between two others: a third of the size. The best one is exported; a resumed run finds it again.
        last_saved: the checkpoint that this process saved last.
        run_fields: how the run was started, which is written into every checkpoint (started_with.py); None: nothing.
    """

    args: RunArguments
    in_temporary_folder = False
    weights_alone = False
    last_saved: Path | None = None
    run_fields: dict[str, Any] | None = None

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Remove what a killed run left of a checkpoint, then train as Trainer does."""
        if self.args.should_save and self.args.output_dir:
            shutil.rmtree(Path(self.args.output_dir) / TEMPORARY, ignore_errors=True)
        return super().train(*args, **kwargs)

    def _get_output_dir(self, trial: Any) -> str:
        folder = super()._get_output_dir(trial)
        return str(Path(folder) / TEMPORARY) if self.in_temporary_folder else folder

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing if the resumed run had already ended, where Trainer would make one more step."""
        out_of_patience = False
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, EarlyStoppingCallback):
                # The checkpoint restores its own patience along with its counter; the patience given now wins.
                callback.early_stopping_patience = self.args.early_stopping_patience or callback.early_stopping_patience
                out_of_patience |= callback.early_stopping_patience_counter >= callback.early_stopping_patience
        if self.state.global_step >= self.state.max_steps or out_of_patience:
            self.control.should_training_stop = True
        else:
            super()._run_epoch(*args, **kwargs)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        folder = Path(self._get_output_dir(trial))
        name = f"checkpoint-{self.state.global_step}"
        if self.args.should_save:
            shutil.rmtree(folder / TEMPORARY, ignore_errors=True)  # left by a run that was killed while it saved
        saved_states: Any = self.state.stateful_callbacks
        for callback in self.callback_handler.callbacks:  # a resumed run may have callbacks that its checkpoint lacks
            if isinstance(callback, ExportableState):
                saved_states.setdefault(type(callback).__name__, callback.state())
        self.accelerator.wait_for_everyone()
        best, limit, alone = self.state.best_model_checkpoint, self.args.save_total_limit, self.args.save_only_model
        self.in_temporary_folder, self.args.save_total_limit = True, None
        self.args.save_only_model |= self.weights_alone
        forget_lengths(self.processing_class)
        try:
            super()._save_checkpoint(model, trial)
            if self.args.should_save and self.run_fields is not None:
                (folder / TEMPORARY / name / FIELDS).write_text(json.dumps(self.run_fields, indent=1), encoding="utf-8")
        except (OSError, SafetensorError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and ZIP_WRITER not in str(error):
                raise
            shutil.rmtree(folder / TEMPORARY, ignore_errors=True)  # it takes the room that is missing
            reason = getattr(error, "strerror", None) or first_line(error)
            raise InputError(
                f"{folder / name} cannot be written: {reason}; earlier checkpoints are complete: make room and resume "
                "with --resume_from_checkpoint auto"
            ) from error
        finally:
            self.in_temporary_folder, self.args.save_total_limit, self.args.save_only_model = False, limit, alone
            self.state.best_model_checkpoint = best
        newest_best = folder / f"checkpoint-{self.state.best_global_step}"
        if newest_best.name == name or newest_best.is_dir():
            self.state.best_model_checkpoint = str(newest_best)
        self.accelerator.wait_for_everyone()  # every process has written its share
        if self.args.should_save:
            # This file is a pickle that holds hub_token. run.json has the fields.
            (folder / TEMPORARY / name / TRAINING_ARGS_NAME).unlink(missing_ok=True)
            self.state.save_to_json(str(folder / TEMPORARY / name / TRAINER_STATE_NAME))  # with the path of the best
            removed = folder / TEMPORARY / "removed"  # deleted here, so that no checkpoint is ever there in part
            removed.mkdir()
            if (folder / name).exists():  # same step, written before the run was resumed
                (folder / name).rename(removed / "same")
            (folder / TEMPORARY / name).replace(folder / name)
            self.last_saved = folder / name
            set_aside_later(folder, self.state.global_step, removed)
            for old in spare_checkpoints(folder, limit, self.state.best_model_checkpoint):
                old.rename(removed / old.name)
            shutil.rmtree(folder / TEMPORARY, ignore_errors=True)
        self.accelerator.wait_for_everyone()


def set_aside_later(folder: Path, step: int, removed: Path) -> None:
    """Rename the checkpoints of later steps to `abandoned-checkpoint-N`. A run that goes on from an earlier checkpoint
    leaves them behind, and must not take one for its newest.

    Args:
        folder: the run's folder.
        step: the step that was just saved.
        removed: a folder that is deleted, for what was set aside before under the same name.
    """
    for later in all_checkpoints(folder):
        if int(later.name.removeprefix("checkpoint-")) > step:
            aside = folder / f"abandoned-{later.name}"
            if aside.exists():
                aside.rename(removed / aside.name)
            later.rename(aside)


def spare_checkpoints(folder: Path, limit: int | None, best: str | None) -> list[Path]:
    """The oldest checkpoints beyond the limit, as transformers' `rotate_checkpoints` chooses them.

    That function deletes in place, which a killed run leaves half done. Three are kept in any case: the best one, the
    newest one to go on from, and the one that was best there, because a run that goes on from it may export it.

    Args:
        folder: the run's folder.
        limit: how many to keep; None, 0 and less keep all.
        best: the path of the best one, if there is one.
    """
    found = all_checkpoints(folder)
    newest = newest_checkpoint(folder) or found[-1]
    protected = {newest.name, Path(best or newest).name, best_of(newest)}
    beyond = len(found) - max(limit, len(protected)) if limit is not None and limit > 0 else 0
    return [path for path in found if path.name not in protected][: max(beyond, 0)]


def best_of(checkpoint: Path) -> str:
    """The name of the checkpoint that was the best one at this checkpoint; its own name if it knows none."""
    path = checkpoint / TRAINER_STATE_NAME
    if not path.is_file():
        return checkpoint.name
    return Path(json.loads(path.read_text(encoding="utf-8")).get("best_model_checkpoint") or checkpoint).name


class SavesByTime(TrainerCallback):
    """Leaves out checkpoints that follow the one before too soon: on a fast device `save_steps` may pass in less time
    than a checkpoint takes. The first process's clock decides. The last step is always saved.

    Args:
        minutes: the least time between two checkpoints.

    Attributes:
        left_out: whether the checkpoint of this step was left out.
    """

    def __init__(self, minutes: float) -> None:
        self.minutes = minutes
        self.saved = time.monotonic()
        self.left_out = False

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.saved = time.monotonic()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.left_out = False
        if control.should_save and state.global_step < state.max_steps:
            self.left_out = from_first_process(time.monotonic() - self.saved) < 60 * self.minutes
            control.should_save = not self.left_out

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if not self.left_out or state.global_step == state.max_steps:
            self.saved = time.monotonic()


class StopsAtSignal(TrainerCallback):
    """At SIGTERM, finishes the step, saves a checkpoint and stops. Schedulers send SIGTERM before they end a job.

    Several processes agree on the step at their next log line. After the last step one process stops before the export,
    if that step is saved.

    Raises:
        Stopped: after the checkpoint is written, with exit status 143, as a shell reports SIGTERM.
    """

    def __init__(self) -> None:
        self.received = self.agreed = False
        self.previous_handler: Any = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if threading.current_thread() is threading.main_thread():
            replaced = signal.signal(signal.SIGTERM, self.handle)
            if self.previous_handler is None:  # else training begins again, and `replaced` is this handler
                self.previous_handler = replaced

    def handle(self, *_: Any) -> None:
        """The signal's handler."""
        self.received = True

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if processes() == 1 or state.global_step % state.logging_steps == 0:
            self.agreed = sums_over_processes({"received": float(self.received)})["received"] > 0
            control.should_save = control.should_save or self.agreed

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self.agreed:
            self.stop(state)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.restore()
        newest = newest_checkpoint(Path(args.output_dir or ""))
        if self.received and processes() == 1 and newest and newest.name == f"checkpoint-{state.global_step}":
            self.stop(state)

    def stop(self, state: TrainerState) -> NoReturn:
        """Stop after a step that is saved.

        Raises:
            Stopped: always.
        """
        self.restore()
        shutdown_process_group()
        raise Stopped(
            f"by SIGTERM after step {state.global_step}, which is saved; go on with --resume_from_checkpoint auto",
            status=128 + signal.SIGTERM,
        )

    def restore(self) -> None:
        """Restore the handler that SIGTERM had before training."""
        if self.previous_handler is not None:
            signal.signal(signal.SIGTERM, self.previous_handler)
            self.previous_handler = None
