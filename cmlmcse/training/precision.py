"""The precision of training where nobody names one: bf16 on a CPU that computes faster in it, else fp32."""

import json
import os
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from cmlmcse.common.cpu import bf16_is_faster
from cmlmcse.common.distributed import from_first_process
from modeling_cmlmcse.distributed import rank
from modeling_cmlmcse.linear import onednn_choice, take_onednn

from .fields import RunArguments
from .resume import TRAINER_STATE_NAME


def precision_is_named(run_args: RunArguments) -> bool:
    """Whether the recipe, the command line or the launcher names a precision. `run_args.mixed_precision` is then that
    one.

    Accelerate's launcher always names one: `no` (fp32), unless it was asked for another.
    """
    return run_args.bf16 is not None or run_args.fp16 or "ACCELERATE_MIXED_PRECISION" in os.environ


def choose_precision(run_args: RunArguments, checkpoint: str | None) -> None:
    """Choose between bf16 and fp32, in place, if neither the recipe, the command line nor the launcher has.

    A run that goes on keeps the precision of its checkpoint, and the library that multiplied in fp32. Else the first
    process measures, for all. GPUs compute in fp32, as with transformers' Trainer.

    Args:
        run_args: the fields; `bf16` afterwards says whether training computes in bf16, whoever has chosen it.
        checkpoint: the folder of the checkpoint that the run goes on from, if it does.
    """
    recorded = recorded_precision(Path(checkpoint)) if checkpoint else {}
    if recorded.get("onednn") is not None:
        take_onednn(recorded["onednn"])
    if not precision_is_named(run_args) and run_args.device.type == "cpu":
        if checkpoint is None:
            chosen, why = from_first_process(rank() == 0 and bf16_is_faster()), "this CPU is faster in it"
        else:
            chosen, why = recorded.get("precision") == "bf16", "the checkpoint was"
        if chosen:
            run_args.mixed_precision = "bf16"
            if rank() == 0:
                print(f"training computes in bf16, because {why}; --bf16 false computes in fp32")
    run_args.bf16 = run_args.mixed_precision == "bf16"


def recorded_precision(checkpoint: Path) -> dict[str, Any]:
    """How a checkpoint was trained, if it says so: `precision` is `no` (fp32), `bf16` or `fp16`, and `onednn` whether
    oneDNN multiplied (None: nothing was large enough)."""
    state = json.loads((checkpoint / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
    found = state.get("stateful_callbacks", {}).get(RecordsPrecision.__name__, {})
    return found.get("attributes", {})


class RecordsPrecision(TrainerCallback, ExportableState):
    """Writes the precision of training into every checkpoint, and the library that multiplied."""

    def __init__(self) -> None:
        self.precision = "no"

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        self.precision = args.mixed_precision

    def state(self) -> dict[str, dict[str, Any]]:
        """The state that a checkpoint stores."""
        return {"args": {}, "attributes": {"precision": self.precision, "onednn": onednn_choice()}}
