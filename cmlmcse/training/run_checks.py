"""Checks of the fields that say how a run trains: their numbers, what training does not use, and the machine."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from accelerate.utils import DistributedType
from transformers import PreTrainedModel, TrainingArguments
from transformers.optimization import get_scheduler

from cmlmcse.common.errors import InputError
from cmlmcse.common.gpu import check_bf16
from cmlmcse.common.launch import say_once
from cmlmcse.common.recipes import recipe_folder

from .fields import RunArguments, fsdp_requested

LEAST = {"learning_rate": 0, "weight_decay": 0, "adam_epsilon": 0, "max_grad_norm": 0, "mini_batch_size": 1,
         "gradient_accumulation_steps": 1, "dataloader_num_workers": 0, "dataloader_prefetch_factor": 1,
         "save_minutes": 0, "early_stopping_patience": 1, "per_device_train_batch_size": 1,
         "per_device_eval_batch_size": 1}  # fmt: skip
MOST = {"auxiliary_learning_rate": 1, "adam_beta1": 0.999999, "adam_beta2": 0.999999, "seed": 2**32 - 1,
        "data_seed": 2**32 - 1}  # from 0; numpy takes no larger seed  # fmt: skip
STEPS = ("logging_steps", "eval_steps", "save_steps")  # a share of all steps below 1; negative ones mean nothing
# Fields of transformers that this training does not use, and what to do instead of setting them.
UNUSED = {
    "auto_find_batch_size": "set mini_batch_size, or in stage pretrain gradient_accumulation_steps: it would make the "
                            "batch smaller, which is another run",
    "label_smoothing_factor": "leave it out: no loss here has labels to smooth",
    "use_liger_kernel": "leave it out: it has no kernels for these models",
    "neftune_noise_alpha": "leave it out: a batch is one packed row here, for whose length its noise is too small",
    "dataloader_persistent_workers": "leave it out: with it a resumed run would draw another dropout",
    "train_sampling_strategy": "leave it out: every epoch is a random order of all sentences",
    **dict.fromkeys(
        ("push_to_hub", "hub_token", "hub_model_id", "hub_private_repo", "hub_strategy", "hub_always_push",
         "hub_revision"), "leave it out: train first, then publish with `cmlmcse push`"
    ),
}  # fmt: skip


def check_run(run_args: RunArguments) -> None:
    """Check the fields of a run.

    Raises:
        InputError: a number out of range, a field that training does not use, or one that does not fit the machine.
    """
    check_numbers(run_args)
    check_unused(run_args)
    check_schedule(run_args)
    check_precision(run_args)
    check_launch(run_args)


def check_numbers(run_args: RunArguments) -> None:
    """Check that the numbers are in their ranges.

    Raises:
        InputError: one is not.
    """
    for name, least in LEAST.items():
        value = getattr(run_args, name)
        if value is not None and not value >= least:
            raise InputError(f"{name} must be at least {least}, found {value}; raise it, or leave it out")
    for name, most in MOST.items():
        value = getattr(run_args, name)
        if value is not None and not 0 <= value <= most:
            raise InputError(f"{name} must be from 0 to {most}, found {value}; fix it, or leave it out")
    if run_args.max_steps != -1 and run_args.max_steps < 1:
        raise InputError(
            f"max_steps must be at least 1, or -1 for num_train_epochs, found {run_args.max_steps}; raise it"
        )
    for name in ("num_train_epochs", *STEPS):
        value = getattr(run_args, name)
        if value is not None and not value > 0:
            raise InputError(f"{name} must be above 0, found {value}; raise it")


def check_unused(run_args: RunArguments) -> None:
    """Refuse fields of transformers that would do nothing here, or not what they promise, and uploads during training:
    they would send a checkpoint that is not whole, and the token with it. The message never has the value, which may be
    a token.

    Raises:
        InputError: such a field is set.
    """
    for name, advice in UNUSED.items():
        default = TrainingArguments.__dataclass_fields__.get(name)
        value = getattr(run_args, name, None)
        if default is not None and getattr(value, "value", value) not in (None, default.default):
            raise InputError(f"cmlmcse train does not use {name}, found it set; {advice}")
    kwargs = run_args.gradient_checkpointing_kwargs
    if kwargs is not None and not (isinstance(kwargs, dict) and run_args.gradient_checkpointing):
        raise InputError(
            "gradient_checkpointing_kwargs (activation_checkpointing_kwargs) expects a JSON object, and "
            "gradient_checkpointing true, found "
            f"{kwargs!r} and {run_args.gradient_checkpointing}; fix them, or leave it out"
        )
    if run_args.torch_compile and run_args.mini_batch_size is not None:
        raise InputError(
            f"torch_compile expects whole batches, found mini_batch_size {run_args.mini_batch_size}, whose parts run "
            "uncompiled; leave one of them out"
        )
    optimizer = getattr(run_args.optim, "value", run_args.optim)
    if run_args.optim_target_modules is not None and not optimizer.startswith(("galore", "apollo")):
        raise InputError(
            f"optim_target_modules expects an optimizer galore_… or apollo_…, found optim {optimizer}; leave it "
            "out, or choose one"
        )


def check_checkpointing(run_args: RunArguments, model: PreTrainedModel) -> None:
    """Check that transformers can compute the model's blocks again in the backward pass, if that is asked for.

    Raises:
        InputError: transformers cannot.
    """
    if run_args.gradient_checkpointing and not model.supports_gradient_checkpointing:
        raise InputError(
            "gradient_checkpointing (activation_checkpointing) expects a backbone that has it in transformers, found "
            f"{model.backbone.config.model_type}; leave it out, or choose another backbone"  # type: ignore[union-attr]
        )


@contextmanager
def as_option_error(expected: str, *more: type[Exception]) -> Iterator[None]:
    """Turn the refusal of an option by another library into an :class:`InputError`.

    Args:
        expected: the message's beginning, as "cmlmcse train expects options that fit each other".
        more: further errors that are refusals.
    """
    refusals: tuple[type[Exception], ...] = (ValueError, ImportError, RuntimeError, OSError, *more)
    try:
        yield
    except (InputError, torch.OutOfMemoryError):
        raise
    except refusals as error:
        raise InputError(f"{expected}, found: {error or type(error).__name__}; fix it, or leave it out") from error


def check_schedule(run_args: RunArguments) -> None:
    """Check that the learning-rate schedule takes its further numbers, and has those that it needs: build one.

    Raises:
        InputError: a number that it does not know, one that it refuses, or a missing one.
    """
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=run_args.learning_rate)
    numbers = run_args.lr_scheduler_kwargs or {}
    if not isinstance(numbers, dict):  # TrainingArguments reads JSON alone
        raise InputError(f'lr_scheduler_kwargs expects a JSON object, found {numbers!r}; write {{"name": number}}')
    try:
        get_scheduler(run_args.lr_scheduler_type, optimizer, 1, 10, numbers)
    except (TypeError, ValueError) as error:
        kind = getattr(run_args.lr_scheduler_type, "value", run_args.lr_scheduler_type)
        raise InputError(
            f"lr_scheduler_kwargs expects what the schedule {kind} takes, found {numbers}: {error}; fix it, or choose "
            "another --lr_scheduler_type"
        ) from None


def check_precision(run_args: RunArguments) -> None:
    """Check that the device computes in the precision that the fields or the launcher ask for. PyTorch emulates bf16 on
    older GPUs, and crawls; on a CPU Accelerate would train in fp32 instead of fp16, and the records would say fp16.

    Raises:
        InputError: the device does not compute in that precision.
    """
    if run_args.mixed_precision == "bf16" and run_args.device.type == "cuda":
        check_bf16("use --fp16 true, or launch with --mixed_precision fp16")
    if run_args.mixed_precision == "fp16" and run_args.device.type == "cpu":
        raise InputError("mixed_precision fp16 needs a GPU, found none; launch with --mixed_precision no, or bf16")


def check_launch(run_args: RunArguments) -> None:
    """Refuse a launch that would not train as asked.

    Raises:
        InputError: processes that would each train alone, or FSDP on CPUs, which Accelerate would silently ignore.
    """
    launched = int(os.environ["WORLD_SIZE"]) if "LOCAL_RANK" in os.environ else 1
    if run_args.world_size != launched:
        raise InputError(
            f"accelerate launch expects GPUs for its {launched} processes, found none; choose "
            f"{recipe_folder() / 'accelerate' / 'multi-cpu.yaml'}"
        )
    if launched > 1 and run_args.device.type == "cpu" and run_args.process_index == 0:
        say_once(f"no GPU is used: {launched} processes train on CPUs")
    on_cpu = (
        run_args.distributed_state is not None
        and run_args.distributed_state.distributed_type == DistributedType.MULTI_CPU
    )
    if on_cpu and fsdp_requested():
        raise InputError(
            "FSDP expects GPUs, found use_cpu, for which Accelerate has DDP only; choose "
            f"{recipe_folder() / 'accelerate' / 'multi-cpu.yaml'}"
        )
