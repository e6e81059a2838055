"""Trainer for contrastive sentence encoders: batches, batches in parts (GradCache), and the development score."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import TrainingArguments

from cmlmcse.common.distributed import average_gradients, from_first_process, sums_over_processes
from cmlmcse.common.errors import InputError
from cmlmcse.data.batches import TrainingSentences
from cmlmcse.models.encoders import Encoder
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from modeling_cmlmcse.contrast_terms import contrasts
from modeling_cmlmcse.distributed import processes

from .dev_set import DevScore
from .dev_start import ScoresTheStart
from .frozen_weights import add_frozen, frozen_names
from .large_batch import backward_in_parts
from .lora import has_lora, load_lora_checkpoint, merged_weights, save_adapter
from .sharding import ShardedModel
from .trainer import LossTrainer
from .training_losses import TrainingLosses, without_prefix


class ContrastiveTrainer(LossTrainer):
    """Trains a sentence encoder with :class:`TrainingLosses`. Its checkpoints hold the encoder.

    Args:
        model: the sentence encoder.
        dev_set: the development set, or None. It is scored before the first step too; the values of its items are then
            in the file `dev_start.START_VALUES` of the run's folder.
        start_values: those values, where the caller knows them.
        kwargs: further arguments of `Trainer`.

    Raises:
        InputError: `mini_batch_size` with sharded weights; a last batch of one vector for the head `batchnorm`.
    """

    def __init__(
        self,
        *,
        model: CMLMCSEForSentenceEmbedding,
        dev_set: DevScore | None = None,
        start_values: NDArray[np.float64] | None = None,
        **kwargs: Any,
    ) -> None:
        self.dev_set = dev_set
        # Trainer requires an evaluation dataset. It does not read it: `dev_metrics` scores the development set.
        super().__init__(model=TrainingLosses(model), eval_dataset=[] if dev_set else None, **kwargs)
        if self.args.mini_batch_size and (self.is_fsdp_enabled or self.is_deepspeed_enabled):
            raise InputError("mini_batch_size expects whole weights on every device, found FSDP or DeepSpeed; use DDP")
        if has_lora(self.losses) and (self.is_fsdp_enabled or self.is_deepspeed_enabled):
            raise InputError("lora_r expects whole weights on every device, found FSDP or DeepSpeed; use DDP")
        check_last_batch(self.losses, self.train_dataset, self.args)
        if self.is_fsdp_enabled:
            self.add_callback(ShardedModel(self))
        if dev_set is not None:
            # After `ShardedModel`, which makes `encode` gather the weights.
            self.add_callback(ScoresTheStart(self, start_values))

    @property
    def losses(self) -> TrainingLosses:
        """The trained module without wrappers such as DDP."""
        return self.accelerator.unwrap_model(self.model)

    @contextmanager
    def _model_alone(self) -> Iterator[CMLMCSEForSentenceEmbedding]:
        """Show Trainer only the sentence encoder, without its losses, because checkpoints hold the encoder."""
        alone = self.losses.model
        trained, self.model = self.model, alone
        try:
            yield alone
        finally:
            self.model = trained

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        if not self.args.should_save:
            return
        folder = Path(str(output_dir))
        with self._model_alone() as alone:
            if has_lora(alone):
                weights = merged_weights(alone)
            else:
                weights = alone.state_dict() if state_dict is None else without_prefix(state_dict)
            frozen = {name: weights.pop(name) for name in frozen_names(alone)}
            super()._save(output_dir, weights)
            if frozen:
                add_frozen(folder, frozen, self.last_saved)
            if has_lora(alone):
                save_adapter(alone, folder)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        if self.is_fsdp_enabled:  # FSDP's files name the weights as in the wrapped module
            super()._load_from_checkpoint(resume_from_checkpoint, model)
            return
        with self._model_alone() as alone:
            if has_lora(alone):
                load_lora_checkpoint(alone, Path(resume_from_checkpoint))
            else:
                super()._load_from_checkpoint(resume_from_checkpoint)

    def _load_best_model(self) -> None:
        if self.is_fsdp_enabled:
            super()._load_best_model()
            return
        with self._model_alone() as alone:
            if has_lora(alone):
                load_lora_checkpoint(alone, Path(str(self.state.best_model_checkpoint)))
            else:
                super()._load_best_model()

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        """Trainer's optimizer. With `auxiliary_learning_rate`, auxiliary weights get their own parameter groups."""
        is_new = self.optimizer is None
        optimizer = super().create_optimizer(*args, **kwargs)
        rate = self.args.auxiliary_learning_rate
        if is_new and rate is not None:
            objectives = self.losses.model.objectives.values()
            auxiliary = {weight for objective in objectives for weight in objective.parameters()}
            for group in list(optimizer.param_groups):
                own = [weight for weight in group["params"] if weight in auxiliary]
                group["params"] = [weight for weight in group["params"] if weight not in auxiliary]
                if own:
                    optimizer.add_param_group({**group, "params": own, "lr": rate})
        return optimizer

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """Forward and backward of one batch. A batch in parts (`mini_batch_size`) runs part by part."""
        if "parts" not in inputs:
            return super().training_step(model, inputs, num_items_in_batch)
        model.train()
        inputs = self._prepare_inputs(inputs)
        plain = self.losses  # without DDP, so that the backward passes of the parts synchronise nothing
        steps = self.current_gradient_accumulation_steps
        loss, logs = backward_in_parts(
            plain, inputs["parts"], lambda loss: self.accelerator.backward(loss / steps), self.accelerator.autocast
        )
        self._watch(loss)
        if self.accelerator.sync_gradients and self.accelerator.num_processes > 1:
            average_gradients(plain.parameters())
        self._count(logs, inputs)
        return loss / steps

    def dev_values(self) -> NDArray[np.float64]:
        """(N,) the values of the development set's items. Every process must call this."""
        assert self.dev_set is not None
        losses: Any = self.losses  # under FSDP its `encode` gathers the weights
        sentences = 128 if self.args.device.type == "cpu" else None  # a GPU gets as many as fill it
        return self.dev_set.values(Encoder(losses, self.processing_class, {"batch_size": sentences}))

    def dev_score(self, values: NDArray[np.float64]) -> float:
        """The score of these values, that of the first process. Every process must call this."""
        assert self.dev_set is not None
        return from_first_process(self.dev_set.summary(values))

    def dev_metrics(self) -> dict[str, float]:
        """`dev_score`, and with a conditional MLM `vector_gain` (:meth:`TrainingLosses.vector_gain`, latest batch).

        Every process computes the score, and all use that of the first process. It is in the precision of training, as
        it only chooses a checkpoint; the start and the export are scored in fp32.
        """
        with self.accelerator.autocast():
            metrics = {"dev_score": self.dev_score(self.dev_values())}
        if self.latest is not None and "cmlm" in self.losses.model.objectives:
            with self.accelerator.autocast():
                gain = float(self.losses.vector_gain(self.latest["views"], self.latest["masked"]))
            metrics["vector_gain"] = round(sums_over_processes({"gain": gain})["gain"] / processes(), 4)
        return metrics


def check_last_batch(losses: TrainingLosses, sentences: Any, args: TrainingArguments) -> None:
    """Check that the last batch of an epoch is not a single vector that goes through the head `batchnorm`.

    Raises:
        InputError: it is.
    """
    config = losses.model.config
    views = 1 if config.masked_views == "first" and not contrasts(config) else 2
    if config.projection != "batchnorm" or views > 1 or not losses.reads_head:
        return
    if args.world_size > 1 or args.dataloader_drop_last or not isinstance(sentences, TrainingSentences):
        return  # several processes have a row each, and a stream has no last batch
    batches, left = divmod(len(sentences), args.train_batch_size)
    ends_before = 0 < args.max_steps * args.gradient_accumulation_steps <= batches
    if left == 1 and not ends_before:
        raise InputError(
            "projection batchnorm expects at least 2 sentences in every batch that an objective reads after_head, "
            f"found 1 in the last one, of {len(sentences)} sentences with batches of {args.train_batch_size}; set "
            "--dataloader_drop_last true"
        )
