"""Checkpoints that are whole or not there: written aside, then renamed, so that no moment leaves half of one."""

import json
import shutil
import signal
import threading
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
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
from transformers.trainer_pt_utils import safe_globals
from transformers.trainer_utils import get_last_checkpoint, rotate_checkpoints

from cmlmcse.common.distributed import shutdown_process_group, sums_over_processes
from cmlmcse.common.errors import InputError, Stopped
from modeling_cmlmcse.distributed import processes

TRAINER_STATE_NAME, TRAINING_ARGS_NAME = "trainer_state.json", "training_args.bin"
ASIDE = ".saving"  # the folder, within the output folder, where a checkpoint is written


class WholeCheckpointTrainer(Trainer):
    """A `Trainer` that saves in this way: a run that is killed while it saves goes on from the checkpoint before, and
    nothing older is removed until the new one is in its place.

    A power cut is another matter: nothing here waits for the disk.
    """

    saving_aside = False

    def _get_output_dir(self, trial: Any) -> str:
        folder = super()._get_output_dir(trial)
        return str(Path(folder) / ASIDE) if self.saving_aside else folder

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        """Nothing, for a run that is resumed from its end; Trainer would make a step more."""
        out_of_patience = False
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, EarlyStoppingCallback):
                # The checkpoint's patience has come with its count; what counts is the one that was asked for now.
                asked = getattr(self.args, "early_stopping_patience", None)
                callback.early_stopping_patience = asked or callback.early_stopping_patience
                out_of_patience |= callback.early_stopping_patience_counter >= callback.early_stopping_patience
        if self.state.global_step >= self.state.max_steps or out_of_patience:
            self.control.should_training_stop = True
        else:
            super()._run_epoch(*args, **kwargs)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        folder = Path(self._get_output_dir(trial))
        name = f"checkpoint-{self.state.global_step}"
        if self.args.should_save:
            shutil.rmtree(folder / ASIDE, ignore_errors=True)  # of a run that was killed while it saved
        kept: Any = self.state.stateful_callbacks
        for callback in self.callback_handler.callbacks:  # also one that the checkpoint gone on from did not know
            if isinstance(callback, ExportableState):
                kept.setdefault(type(callback).__name__, callback.state())
        self.accelerator.wait_for_everyone()
        best, limit = self.state.best_model_checkpoint, self.args.save_total_limit
        self.saving_aside, self.args.save_total_limit = True, None
        try:
            super()._save_checkpoint(model, trial)
        except (OSError, SafetensorError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(
                f"{folder / name} cannot be written: {reason}; earlier checkpoints are whole: make room and go on with "
                "--resume_from_checkpoint auto"
            ) from error
        finally:
            self.saving_aside, self.args.save_total_limit = False, limit
            self.state.best_model_checkpoint = best
        newest_best = folder / f"checkpoint-{self.state.best_global_step}"
        if newest_best.name == name or newest_best.is_dir():
            self.state.best_model_checkpoint = str(newest_best)
        self.accelerator.wait_for_everyone()  # now all of them have written their share
        if self.args.should_save:
            # A pickle, with hub_token in it; run.json has the fields.
            (folder / ASIDE / name / TRAINING_ARGS_NAME).unlink(missing_ok=True)
            self.state.save_to_json(str(folder / ASIDE / name / TRAINER_STATE_NAME))  # with the best one's place
            shutil.rmtree(folder / name, ignore_errors=True)  # of the same step, before the run was resumed
            (folder / ASIDE / name).replace(folder / name)
            shutil.rmtree(folder / ASIDE, ignore_errors=True)
            rotate_checkpoints(str(folder), limit, self.state.best_model_checkpoint, use_mtime=True)
        self.accelerator.wait_for_everyone()


class StopsAtSignal(TrainerCallback):
    """SIGTERM, which schedulers send some seconds before they end a job: the step is finished and saved, and the run
    stops. Several processes agree on the step when they next write a log line.

    Raises:
        Stopped: when the checkpoint is written, with the exit status that a shell gives SIGTERM, 143.
    """

    def __init__(self) -> None:
        self.received = self.agreed = False
        self.before: Any = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if threading.current_thread() is threading.main_thread():
            self.before = signal.signal(signal.SIGTERM, self.note)

    def note(self, *_: Any) -> None:
        """The signal's handler."""
        self.received = True

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if processes() == 1 or state.global_step % state.logging_steps == 0:
            self.agreed = sums_over_processes({"received": float(self.received)})["received"] > 0
            control.should_save = control.should_save or self.agreed

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self.agreed:
            self.restore()
            shutdown_process_group()
            raise Stopped(
                f"by SIGTERM after step {state.global_step}, which is saved; go on with --resume_from_checkpoint auto",
                status=128 + signal.SIGTERM,
            )

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.restore()

    def restore(self) -> None:
        """Leave the signal to whom it belonged before."""
        if self.before is not None:
            signal.signal(signal.SIGTERM, self.before)
            self.before = None


def find_checkpoint(output_dir: str | Path, resume: str | None) -> str | None:
    """The checkpoint to go on from: `auto` is the newest one in `output_dir`, which is whole as all of them are.

    Raises:
        InputError: there is none, or the named one is no checkpoint, or has been damaged.
    """
    if resume is None:
        return None
    if resume != "auto":
        if not (Path(resume) / TRAINER_STATE_NAME).is_file():
            raise InputError(
                f"--resume_from_checkpoint expects auto or a checkpoint folder with {TRAINER_STATE_NAME}, found "
                f"{resume!r} without it; name a checkpoint-N folder of a run"
            )
    elif (resume := get_last_checkpoint(str(output_dir))) is None:
        raise InputError(
            "--resume_from_checkpoint auto expects a checkpoint in output_dir, found none; leave it out to start anew"
        )
    check_checkpoint(Path(resume))
    return resume


def check_checkpoint(folder: Path) -> None:
    """See that every file of a checkpoint can be read, and holds tensors and plain values: what a pickle could run
    besides is refused by torch. The tensors themselves are not read.

    Raises:
        InputError: one cannot, or does not.
    """
    for path in sorted(folder.iterdir()):
        try:
            if path.suffix == ".json":
                json.loads(path.read_text(encoding="utf-8"))
            elif path.suffix == ".safetensors":
                with safe_open(path, "pt"):
                    pass
            elif path.suffix in (".pt", ".pth"):
                with safe_globals():  # of numpy's random state
                    torch.load(path, map_location="meta", weights_only=True, mmap=True)
        except (OSError, ValueError, RuntimeError, EOFError, UnpicklingError, SafetensorError) as error:
            raise InputError(
                f"{path}: expected tensors and plain values, as cmlmcse train writes them, found something else "
                f"({str(error).splitlines()[0]}); go on from an earlier checkpoint"
            ) from error
