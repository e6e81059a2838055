"""How a command ends: errors that the user can fix, and Ctrl-C, are one line on standard error without a traceback."""

import argparse
import atexit
import functools
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pickle import UnpicklingError
from typing import NoReturn

from .cpu import limit_kernel_caches


class InputError(ValueError):
    """A wrong argument, file or model: the message says what was expected, what was found and what to do."""


class Stopped(RuntimeError):
    """A run that ends before its end for a reason of its own, such as a signal: one line, and its exit status."""

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


class Parser(argparse.ArgumentParser):
    """An argument parser whose usage errors are one line."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see {self.prog} --help")


@contextmanager
def as_input_error(prefix: str = "") -> Iterator[None]:
    """Turn a `ValueError` of validation code, and torch's refusal to run what is in a pickle, into an
    :class:`InputError` with `prefix` before its message."""
    try:
        yield
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{prefix}{error}") from error
    except UnpicklingError as error:
        raise InputError(
            f"{prefix}expected weights that are tensors, found a pickle of something else, which was not run; choose "
            "another model"
        ) from error


@contextmanager
def interruptible(kept: Callable[[], str]) -> Iterator[None]:
    """Answer Ctrl-C inside the block with one line: what the function `kept` says is kept, and how to go on.

    Raises:
        Stopped: for Ctrl-C, with the exit status that a shell gives it, 130.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        raise Stopped(f"by Ctrl-C; {kept()}", status=128 + signal.SIGINT) from error


def command(main: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command's `main`: an :class:`InputError` becomes one line on stderr and exit status 2,
    :class:`Stopped` one line and its own status, Ctrl-C one line and status 130."""

    @functools.wraps(main)
    def wrapped(*args: object, **kwargs: object) -> None:
        limit_kernel_caches()
        end = End() if int(os.environ.get("WORLD_SIZE", 1)) > 1 else None
        status = 0
        try:
            with interruptible(lambda: "what was finished before is kept"):
                main(*args, **kwargs)
        except InputError as error:
            print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
            status = 2
        except Stopped as stop:
            print(f"stopped: {' '.join(str(stop).split())}", file=sys.stderr)
            status = stop.status
        if end:
            end.status = status
        if status:
            sys.exit(status)

    return wrapped


class End:
    """How one of several launched processes ends: as soon as all exit handlers have run, without the interpreter's
    own end. A thread of gloo that gives back a tensor during that end asks for the interpreter's lock, and the process
    is aborted with status -6 after all its work is done (pytorch/pytorch#179291); the launcher then stops the others.
    """

    def __init__(self) -> None:
        self.status = 1  # of an exception with a traceback
        atexit.register(self)  # the first to be registered is the last to be called

    def __call__(self) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(self.status)
