"""What Ctrl-C and SIGTERM do inside a block."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from .errors import Stopped


@contextmanager
def interruptible(kept: Callable[[], str]) -> Iterator[None]:
    """Answer Ctrl-C inside the block with one line. `kept()` returns its text: what is kept and how to resume.

    Raises:
        Stopped: on Ctrl-C, with exit status 130, as in a shell.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        raise Stopped(f"by Ctrl-C; {kept()}", status=128 + signal.SIGINT) from error


@contextmanager
def terminable(kept: Callable[[], str]) -> Iterator[None]:
    """Answer SIGTERM inside the block with one line, wherever training does not answer it with a checkpoint of its own.
    `kept()` returns its text, as in :func:`interruptible`.

    It is for a process that waits for no other one, in code that no signal interrupts: :func:`not_terminable`.

    Raises:
        Stopped: on SIGTERM, with exit status 143, as in a shell.
    """
    status = 128 + signal.SIGTERM

    def stop(*_: object) -> NoReturn:
        raise SystemExit(status)  # which no library takes for an error of its own

    try:
        with _sigterm(stop):
            yield
    except SystemExit as ending:
        if ending.code != status:
            raise
        raise Stopped(f"by SIGTERM; {kept()}", status=status) from ending


@contextmanager
def not_terminable() -> Iterator[None]:
    """Let SIGTERM end the process at once inside the block, whatever is around it."""
    with _sigterm(signal.SIG_DFL):
        yield


@contextmanager
def _sigterm(action: "Callable[..., object] | signal.Handlers") -> Iterator[None]:
    """Answer SIGTERM so inside the block. Only the main thread can."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    previous = signal.signal(signal.SIGTERM, action) if in_main_thread else None
    try:
        yield
    finally:
        if in_main_thread:
            signal.signal(signal.SIGTERM, previous)
