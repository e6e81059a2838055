"""Weights sharded over the processes (FSDP 2): what Trainer and Accelerate need to be told about this model."""

from typing import Any

from torch.distributed.fsdp import register_fsdp_forward_method
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from cmlmcse.common.errors import InputError
from modeling_cmlmcse.backbone import blocks
from modeling_cmlmcse.modeling_cmlmcse import CMLMCSEForSentenceEmbedding

from .training_losses import TrainingLosses, without_prefix


class ShardedModel(TrainerCallback):
    """Prepares a trainer's model for FSDP. Before it is sharded: each transformer block is gathered by itself.
    Afterwards: `encode` and `vector_gain` gather weights as `forward` does.

    Raises:
        InputError: FSDP 1.
    """

    def __init__(self, trainer: Trainer) -> None:
        model: Any = trainer.model
        plugin = trainer.accelerator.state.fsdp_plugin
        if plugin.fsdp_version != 2:
            raise InputError(f"fsdp_version must be 2, found {plugin.fsdp_version}; mend the Accelerate configuration")
        # Accelerate refuses the name of a block that the model does not have: that of the other kinds of backbone.
        model._no_split_modules = {type(blocks(model.backbone)[0]).__name__}
        # Autocast alone chooses the precision, as without FSDP: weights in bf16 would change the losses, and BatchNorm
        # does not take them.
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
    """The trained model, with whole weights if they are sharded; None but on the first process.

    Every process must call this.
    """
    losses: TrainingLosses = trainer.accelerator.unwrap_model(trainer.model)
    model: CMLMCSEForSentenceEmbedding = losses.model
    if getattr(trainer, "is_fsdp_enabled", False):
        weights = trainer.accelerator.get_state_dict(trainer.model)  # on the first process, others get nothing
        if trainer.is_world_process_zero():
            model = CMLMCSEForSentenceEmbedding(losses.model.config)
            model.load_state_dict(without_prefix(weights))
    return model if trainer.is_world_process_zero() else None
