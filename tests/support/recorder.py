"""What a piece of code asks of PyTorch: every operation that is dispatched, backward passes included."""

import sys
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import TrainerCallback

READS = ("_local_scalar_dense", "nonzero", "masked_select", "_unique", "equal", "multinomial")  # a GPU is waited for
CHECK = "cmlmcse/training/trainer.py:_watch"  # it reads the loss; on a GPU a copy of that of the step before
COPY = "lift_fresh"  # a tensor of Python's numbers: on a GPU a copy from memory that is not pinned, which waits too
BETWEEN = ("torch/_dynamo/", "torch/_compile.py", "torch/utils/_python_dispatch.py")  # frames that say nothing


class Recorder(TorchDispatchMode):
    """Keeps the names of all operations in `names`, and in `waits` those that would make the host wait for a GPU, with
    the place in the code.

    Args:
        allowed: `file:function` that may wait; the end of the file's path is enough.
    """

    def __init__(self, *allowed: str) -> None:
        super().__init__()
        self.allowed = allowed
        self.names: list[str] = []
        self.waits: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        name = func.overloadpacket._qualified_op_name.split("::")[-1]
        self.names.append(name)
        if name.startswith((*READS, COPY)) or needs_values(name, args, options):
            files = callers()
            if not files[0].rsplit(":", 1)[0].endswith(self.allowed):
                self.waits.append(f"{name} at {' < '.join(files[:6])}")
        return func(*args, **options)


class RecordsSteps(TrainerCallback):
    """Records from the beginning of a step to its optimizer, whose counters are tensors of the host."""

    def __init__(self) -> None:
        self.recorder = Recorder(CHECK)

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self.recorder.__enter__()

    def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        self.recorder.__exit__(None, None, None)


def needs_values(name: str, args: Any, options: dict[str, Any]) -> bool:
    """Whether values are needed elsewhere: repeats without a given total, a copy to another kind of device, an index of
    booleans. Several processes on a CPU call it cpu:0, cpu:1, …"""
    if name == "repeat_interleave":
        return options.get("output_size") is None
    if name == "_to_copy":
        return (options.get("device") or args[0].device).type != args[0].device.type
    indices = args[1] if name in ("index", "index_put", "index_put_") else ()
    return any(index is not None and index.dtype == torch.bool for index in indices)


def callers() -> list[str]:
    """The places in the Python code that asked for an operation, innermost first."""
    frame, found = sys._getframe(2), []
    while frame is not None:
        if not any(part in frame.f_code.co_filename for part in BETWEEN):
            found.append(f"{frame.f_code.co_filename}:{frame.f_code.co_name}:{frame.f_lineno}")
        frame = frame.f_back
    return found
