"""The trainer of both stages: logs the model's losses, watches for NaN, and evaluates the development set."""

import math
import time
from collections import deque
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers import (
    EarlyStoppingCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_callback import ExportableState, ProgressCallback

from cmlmcse.common.distributed import sums_over_processes
from cmlmcse.common.errors import Diverged, InputError
from cmlmcse.data.batches import EpochSampler, TrainingSentences
from modeling_cmlmcse.backbone import blocks
from modeling_cmlmcse.distributed import processes, rank
from modeling_cmlmcse.fast_cpu import use_fast_cpu_kernels
from modeling_cmlmcse.read_later import ReadLater

from .checkpoints import SavesByTime, StopsAtSignal, WholeCheckpointTrainer
from .precision import RecordsPrecision
from .run_checks import as_option_error


class TrainingWindow:
    """Sums of the logged values since the last log line. They stay on the device, so that no step waits for them."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.batches = 0
        self.tokens = 0
        self.start = time.perf_counter()

    def add(self, logs: dict[str, Tensor], tokens: int) -> None:
        """Add one batch."""
        for name, value in logs.items():
            self.sums[name] = self.sums.get(name, 0.0) + value  # never `value` itself: a CUDA graph overwrites it
        self.batches += 1
        self.tokens += tokens

    def averages(self) -> dict[str, float]:
        """Means over the batches of all processes, and tokens per second (all views, without padding)."""
        seconds = time.perf_counter() - self.start
        sums = sums_over_processes({name: float(total) for name, total in self.sums.items()} | {"tokens": self.tokens})
        tokens = sums.pop("tokens")
        means = {name: total / (self.batches * processes()) for name, total in sums.items()}
        return {**means, "tokens_per_second": round(tokens / seconds, 1)}


class LossTrainer(WholeCheckpointTrainer):
    """Trainer for models that return a loss and values to log. Its evaluation is :meth:`dev_metrics`."""

    def __init__(self, **kwargs: Any) -> None:
        self.sampler: EpochSampler | None = None
        with as_option_error("Trainer expects options that fit each other and this machine"):
            super().__init__(**kwargs)
        assert self.model is not None
        use_fast_cpu_kernels(self.model)
        self.window = TrainingWindow()
        self.tokens_seen = 0  # on this process, since the last `add_up_tokens`
        self.latest: dict[str, Any] | None = None  # the latest batch, or the first part of it
        self.unchecked: deque[tuple[int, ReadLater]] = deque()  # steps and losses not yet checked for NaN
        if processes() > 1:
            set_seed(self.args.seed + rank())  # each process draws its own dropout
        self.add_callback(EpochOfSampler(self))
        self.add_callback(TrainingTime())
        self.add_callback(RecordsPrecision())
        self.by_time = SavesByTime(self.args.save_minutes or 0.0)
        self.add_callback(self.by_time)
        self.signals = StopsAtSignal()
        self.add_callback(self.signals)  # after it, for a signal's checkpoint is never left out
        if self.args.early_stopping_patience:
            self.add_callback(EarlyStoppingCallback(self.args.early_stopping_patience))
        if self.pop_callback(ProgressCallback):
            self.add_callback(DevScoreProgress)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train as Trainer does. Afterwards, also after an error, SIGTERM is handled as before."""
        try:
            return super().train(*args, **kwargs)
        finally:
            self.signals.restore()

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Optimizer:
        """Create the optimizer as Trainer does.

        Raises:
            InputError: the optimizer is not installed, or refuses its options.
        """
        with as_option_error(
            f"optim {getattr(self.args.optim, 'value', self.args.optim)} expects its package and options"
        ):
            return super().create_optimizer(*args, **kwargs)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Load the states as Trainer does, but keep the learning rates of this run. The states hold those of the run
        that wrote the checkpoint.

        Raises:
            InputError: the states are of other fields.
        """
        rates: list[float | Tensor] = list(getattr(self.lr_scheduler, "base_lrs", ()))
        try:
            super()._load_optimizer_and_scheduler(checkpoint)
        except (ValueError, KeyError) as error:
            raise InputError(
                f"{checkpoint}: expected the optimizer's state of a run with these fields, found another; give the "
                "fields of the run that wrote it, also --optim and --auxiliary_learning_rate"
            ) from error
        if isinstance(self.lr_scheduler, LambdaLR):  # its rates may be others, and so may the number of its steps
            self._set_rates(self.lr_scheduler, rates)

    def _set_rates(self, schedule: LambdaLR, rates: list[float | Tensor]) -> None:
        """Give every parameter group its peak rate, in order, and the rate that the schedule makes of it now."""
        schedule.base_lrs = rates
        factors = [factor(schedule.last_epoch) for factor in schedule.lr_lambdas]
        schedule._last_lr = [rate * factor for rate, factor in zip(rates, factors, strict=True)]
        assert self.optimizer is not None
        for group, rate, now in zip(self.optimizer.param_groups, rates, schedule._last_lr, strict=True):
            group["initial_lr"], group["lr"] = rate, now

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """The loss of one batch. It is a mean over its own rows, so gradient accumulation averages over batches."""
        with self.accelerator.autocast():  # Accelerate does this for DDP, but not for FSDP 2
            output = model(**inputs)
        self._watch(output.loss)
        self._count(output.logs, inputs)
        return (output.loss, output) if return_outputs else output.loss

    def _watch(self, loss: Tensor | None = None) -> None:
        """Stop if a loss is NaN or infinite.

        A CPU checks before the optimizer step. A GPU checks one step later, so that no step waits for its loss. A
        checkpoint is never saved before the check; for that, call this without a loss.

        Raises:
            Diverged: a loss is infinite or NaN.
        """
        if loss is not None:
            self.unchecked.append((self.state.global_step + 1, ReadLater(loss.detach())))
        allowed = 1 if loss is not None and loss.device.type != "cpu" else 0
        while len(self.unchecked) > allowed:
            step, later = self.unchecked.popleft()
            if not math.isfinite(value := float(later.value())):
                where = f"step {step} (epoch {self.state.epoch or 0:.2f}, process {rank()})"
                raise Diverged(
                    f"the loss of a batch of {where} is {value}",
                    "checkpoints before it are good: lower the learning rate and resume with --resume_from_checkpoint "
                    "auto, or fix the text and start again",
                )

    def _count(self, logs: dict[str, Tensor], inputs: dict[str, Any]) -> None:
        """Add a batch's logged values and its tokens (all views, without padding) to the window."""
        tokens = count_tokens(inputs)
        self.latest = inputs.get("parts", [inputs])[0]
        self.tokens_seen += tokens
        self.window.add(logs, tokens)

    def add_up_tokens(self) -> int:
        """Tokens trained on so far (all processes, all views, without padding). Every process must call this."""
        self.state.num_input_tokens_seen += int(sums_over_processes({"tokens": self.tokens_seen})["tokens"])
        self.tokens_seen = 0
        return self.state.num_input_tokens_seen

    def seconds_trained(self) -> float:
        """Wall-clock seconds of training. A resumed run includes the time up to its checkpoint."""
        clock = next(callback for callback in self.callback_handler.callbacks if isinstance(callback, TrainingTime))
        return round(clock.total(), 1)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        self._watch()
        self.add_up_tokens()
        super()._save_checkpoint(model, trial)
        self.weights_alone = False

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """Decide as Trainer does. Even if the time between checkpoints is not over, save the last model, and the best
        one so far. The best one is then saved without the state of training."""
        is_best, stops = super()._determine_best_metric(metrics, trial), self.control.should_training_stop
        too_soon = self.by_time.left_out and not self.control.should_save  # a signal's checkpoint never is
        sharded = self.is_fsdp_enabled or self.is_deepspeed_enabled  # they load no weights without the state
        self.weights_alone = too_soon and is_best and not stops and not sharded
        self.control.should_save |= too_soon and (is_best or stops)
        return is_best

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the window's averages to a training log line."""
        if "loss" in logs and self.window.batches:
            logs = {**logs, **self.window.averages()}
            self.window = TrainingWindow()
        super().log(logs, start_time)

    def evaluate(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> dict[str, float]:
        """The metrics on the development set (:meth:`dev_metrics`), logged."""
        if self.eval_dataset is None:
            return {}
        start = time.perf_counter()
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in self.dev_metrics().items()}
        metrics[f"{metric_key_prefix}_runtime"] = round(time.perf_counter() - start, 3)
        self.window.start += time.perf_counter() - start  # scoring is not training time
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def dev_metrics(self) -> dict[str, float]:
        """The metrics on the development set, by name. Every process must call this."""
        raise NotImplementedError

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """FLOPs of forward and backward of one batch: 6 · tokens · number of weights in the encoder's blocks."""
        layers = blocks(self.accelerator.unwrap_model(self.model).backbone)
        return 6 * count_tokens(inputs) * sum(weight.numel() for weight in layers.parameters())

    def _get_train_sampler(self, train_dataset: Any = None) -> EpochSampler | None:
        dataset = self.train_dataset if train_dataset is None else train_dataset
        self.sampler = None
        if isinstance(dataset, TrainingSentences):
            self.sampler = EpochSampler(len(dataset), self.args.text_seed)
        return self.sampler


def count_tokens(inputs: dict[str, Any]) -> int:
    """Tokens of a batch (all views, without padding and filler); the batch may be in parts."""
    packed = [part.get("views") or part["masked"] for part in inputs.get("parts", [inputs])]
    packed += [views["plain"] for views in packed if "plain" in views]
    return sum(rows["input_ids"].numel() - rows.get("filler_tokens", 0) for rows in packed)


class EpochOfSampler(TrainerCallback):
    """Tells the sampler which epoch begins. Trainer itself does not, because a resumed run wraps the sampler."""

    def __init__(self, trainer: LossTrainer) -> None:
        self.trainer = trainer

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.trainer.sampler is not None:
            self.trainer.sampler.set_epoch(int(state.epoch or 0))


class TrainingTime(TrainerCallback, ExportableState):
    """Seconds of training. Checkpoints store them, and a resumed run continues the count."""

    def __init__(self) -> None:
        self.before = 0.0
        self.start: float | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.start = time.perf_counter()

    def total(self) -> float:
        """Seconds until now."""
        return self.before + (0.0 if self.start is None else time.perf_counter() - self.start)

    def state(self) -> dict[str, dict[str, Any]]:
        """The state that a checkpoint stores."""
        return {"args": {}, "attributes": {"before": self.total()}}


class DevScoreProgress(ProgressCallback):
    """Progress bar that shows the current and the best development score."""

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
