"""FSDP 2: settings that Trainer and Accelerate need to shard this model over the processes."""

from typing import Any

from torch.distributed.fsdp import register_fsdp_forward_method
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from cmlmcse.common.errors import InputError
from modeling_cmlmcse.backbone import blocks
from modeling_cmlmcse.modeling_cmlmcse import CMLMCSEForSentenceEmbedding

from .lora import merge_lora
from .training_losses import TrainingLosses, without_prefix


class ShardedModel(TrainerCallback):
    """Prepares a trainer's model for FSDP.

    Before sharding, it makes each transformer block a unit of its own. After sharding, it makes `encode` and
    `vector_gain` gather the weights as `forward` does.

    Raises:
        InputError: FSDP 1.
    """

    def __init__(self, trainer: Trainer) -> None:
        model: Any = trainer.model
        plugin = trainer.accelerator.state.fsdp_plugin
        if plugin.fsdp_version != 2:
            raise InputError(f"fsdp_version must be 2, found {plugin.fsdp_version}; fix the Accelerate configuration")
        # Accelerate refuses block names that the model does not contain, so only this backbone's name is set.
        model._no_split_modules = {type(blocks(model.backbone)[0]).__name__}
        # Only autocast chooses the precision, as without FSDP. Weights in bf16 would change the losses, and BatchNorm
        # does not accept them.
        plugin.mixed_precision_policy = None

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: Any = None,
        **kwargs: Any,
    ) -> None:
        register_fsdp_forward_method(model, "encode")
        register_fsdp_forward_method(model, "vector_gain")


def whole_model(trainer: Trainer) -> CMLMCSEForSentenceEmbedding | None:
    """The trained model with unsharded and merged weights on the first process; None on the others.

    Every process must call this.
    """
    losses: TrainingLosses = trainer.accelerator.unwrap_model(trainer.model)
    model: CMLMCSEForSentenceEmbedding = losses.model
    merge_lora(model)
    if getattr(trainer, "is_fsdp_enabled", False):
        weights = trainer.accelerator.get_state_dict(trainer.model)  # empty on all processes except the first
        if trainer.is_world_process_zero():
            model = CMLMCSEForSentenceEmbedding(losses.model.config)
            model.load_state_dict(without_prefix(weights))
    return model if trainer.is_world_process_zero() else None
