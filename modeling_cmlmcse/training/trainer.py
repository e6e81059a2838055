"""Trainer for contrastive sentence encoders: the loss, its log, and the development score."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ProgressCallback
from transformers.trainer_utils import get_last_checkpoint

from ..backbone import blocks
from ..errors import InputError
from .data import EpochSampler, TrainingSentences

TRAINER_STATE_NAME = "trainer_state.json"
Encode = Callable[[list[str]], NDArray[np.float32]]


class TrainingWindow:
    """Sums of what the batches since the last log line reported; on the device, so that no step waits for it."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.batches = 0
        self.tokens = 0
        self.start = time.perf_counter()

    def add(self, logs: dict[str, Tensor], tokens: int) -> None:
        """Add one batch."""
        for name, value in logs.items():
            self.sums[name] = self.sums[name] + value if name in self.sums else value
        self.batches += 1
        self.tokens += tokens

    def averages(self) -> dict[str, float]:
        """The means over the batches, and real tokens a second (of both views, on this process)."""
        seconds = time.perf_counter() - self.start
        means = {name: float(total) / self.batches for name, total in self.sums.items()}
        return {**means, "tokens_per_second": round(self.tokens / seconds, 1)}


class ContrastiveTrainer(Trainer):
    """Trainer whose model returns its losses, and whose evaluation is a development score.

    Args:
        dev_score: scores an `encode` function, higher is better; None where there is no development set.
    """

    def __init__(self, *, dev_score: Callable[[Encode], float] | None = None, **kwargs: Any) -> None:
        self.dev_score = dev_score
        self.sampler: EpochSampler | None = None
        # Trainer insists on an evaluation dataset; what it is evaluated on stands behind `dev_score`.
        super().__init__(eval_dataset=[] if dev_score else None, **kwargs)
        self.window = TrainingWindow()
        self.add_callback(EpochOfSampler(self))
        if self.pop_callback(ProgressCallback):
            self.add_callback(DevScoreProgress)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """The loss of one batch; a mean over its own rows, so gradient accumulation averages batches."""
        output = model(**inputs)
        tokens = inputs["views"]["input_ids"].numel()
        self.state.num_input_tokens_seen += tokens  # real tokens of all views on this process
        self.window.add(output.logs, tokens)
        return (output.loss, output) if return_outputs else output.loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the window's averages to a training log line, and stop at a loss that is no number."""
        if "loss" in logs and self.window.batches:
            logs = {**logs, **self.window.averages()}
            self.window = TrainingWindow()
        super().log(logs, start_time)
        if not np.isfinite(logs.get("loss", 0.0)):
            raise FloatingPointError(
                f"the loss is {logs['loss']} at step {self.state.global_step}: lower the learning rate"
            )

    def evaluate(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> dict[str, float]:
        """The development score, as `eval_dev_score`."""
        if self.dev_score is None:
            return {}
        start = time.perf_counter()
        model = self.accelerator.unwrap_model(self.model)

        def encode(sentences: list[str]) -> NDArray[np.float32]:
            return model.encode(sentences, self.processing_class, batch_size=128)

        score = self.dev_score(encode)
        metrics = {
            f"{metric_key_prefix}_dev_score": score,
            f"{metric_key_prefix}_runtime": round(time.perf_counter() - start, 3),
        }
        self.window.start += time.perf_counter() - start  # scoring is not training time
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """6 · tokens · weights of the encoder's blocks, forward and backward of one batch."""
        layers = blocks(self.accelerator.unwrap_model(self.model).backbone)
        return 6 * inputs["views"]["input_ids"].numel() * sum(weight.numel() for weight in layers.parameters())

    def _get_train_sampler(self, train_dataset: Any = None) -> EpochSampler | None:
        dataset = self.train_dataset if train_dataset is None else train_dataset
        self.sampler = (
            EpochSampler(len(dataset), self.args.data_seed if self.args.data_seed is not None else self.args.seed)
            if isinstance(dataset, TrainingSentences)
            else None
        )
        return self.sampler


class EpochOfSampler(TrainerCallback):
    """Tells the sampler which epoch begins, also where a resumed run has wrapped it."""

    def __init__(self, trainer: ContrastiveTrainer) -> None:
        self.trainer = trainer

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.trainer.sampler is not None:
            self.trainer.sampler.set_epoch(int(state.epoch or 0))


class DevScoreProgress(ProgressCallback):
    """Progress bar with the current and the best development score."""

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        if self.training_bar is not None and metrics and "eval_dev_score" in metrics:
            score = metrics["eval_dev_score"]
            self.training_bar.set_postfix(dev=f"{score:.2f}", best=f"{max(score, state.best_metric or score):.2f}")


def find_checkpoint(output_dir: str | Path, resume: str | None) -> str | None:
    """The checkpoint to go on from: `auto` is the newest whole one in `output_dir`.

    Raises:
        InputError: there is none, or the named one is no checkpoint.
    """
    if resume is None:
        return None
    if resume != "auto":
        if not (Path(resume) / TRAINER_STATE_NAME).is_file():
            raise InputError(
                f"--resume_from_checkpoint expects auto or a checkpoint folder with {TRAINER_STATE_NAME}, found "
                f"{resume!r} without it; name a checkpoint-N folder of a run"
            )
        return resume
    last = get_last_checkpoint(str(output_dir))
    if last is None:
        raise InputError(
            "--resume_from_checkpoint auto expects a checkpoint in output_dir, found none; leave it out to start anew"
        )
    return last
