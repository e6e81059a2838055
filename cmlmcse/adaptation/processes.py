"""Several processes of one launch: the first one reads, scores and decides; the others train the arms with it."""

import contextlib
import io
from collections.abc import Callable, Iterator
from datetime import timedelta

import numpy as np
from numpy.typing import NDArray

from cmlmcse.common.distributed import from_first_process, kept_process_group, shutdown_process_group
from cmlmcse.common.errors import InputError
from cmlmcse.common.launch import launched_processes
from cmlmcse.common.signals import not_terminable
from cmlmcse.training.command import run

Train = Callable[[list[str], NDArray[np.float64] | None], object]
"""Trains a run: the words of its command line, and the start's values as in :func:`cmlmcse.training.command.run`."""

WAIT = timedelta(days=1)  # for the first process while it scores; NCCL's own ten minutes may be too short for that


@contextlib.contextmanager
def on_all_processes(on_cpu: bool) -> Iterator[Train | None]:
    """What trains a run on all processes of the launch, for the first process. It has the others end with the block.

    For every other process it is None, and comes when nothing is left to do. With a single process it is
    :func:`cmlmcse.training.command.run`. A process that fails while all of them train ends alone, as in a training run:
    the launcher then stops the others.

    Args:
        on_cpu: whether the processes compute on CPUs.
    """
    if launched_processes() == 1:
        yield run
        return
    from accelerate import PartialState

    if PartialState(cpu=on_cpu, timeout=WAIT).is_main_process:
        yield from lead()
    else:
        follow()
        yield None


def lead() -> Iterator[Train]:
    """The part of the first process."""
    training = False

    def train(arguments: list[str], start_values: NDArray[np.float64] | None) -> None:
        nonlocal training
        training = True
        with not_terminable(), kept_process_group():  # SIGTERM interrupts no wait for the others
            from_first_process((arguments, start_values))
            run(arguments, start_values)
        training = False

    try:
        yield train
    except InputError:
        if not training:  # else the others have met it too
            dismiss()
        raise
    dismiss()


def dismiss() -> None:
    """Tell the other processes that nothing is left to do."""
    from_first_process(None)
    shutdown_process_group()


def follow() -> None:
    """The part of every other process: train what the first one sends, until it sends nothing."""
    while (sent := from_first_process(None)) is not None:
        with contextlib.redirect_stdout(io.StringIO()), kept_process_group():  # the first process keeps the log
            run(*sent)
    shutdown_process_group()
