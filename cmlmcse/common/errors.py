"""How a command ends: an error that the user can fix, or Ctrl-C, prints one line on standard error, no traceback."""

import argparse
import atexit
import errno
import functools
import io
import os
import re
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from pickle import UnpicklingError
from typing import NoReturn

from .cpu import limit_kernel_caches
from .launch import launched_processes, says_it_first

FULL = (errno.ENOSPC, errno.EDQUOT)
REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)
NO_FOLDER = (errno.ENOTDIR, errno.EEXIST, errno.ENOENT)  # below a file, in place of one, and in no place at all
CACHES = ("HF_HOME", "HF_DATASETS_CACHE", "HF_HUB_CACHE")  # of Hugging Face's libraries
LEFT = re.compile("gloo.*Connection (closed|reset) by peer")  # in a process that waits for one that has ended


class InputError(ValueError):
    """A wrong argument, file or model. The message says what was expected, what was found and what to do."""


class Stopped(RuntimeError):
    """A run that stops early on purpose, for example after a signal. It prints one line and has its own exit status."""

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


class Diverged(Stopped):
    """A run whose loss became NaN or infinite.

    Args:
        found: what was found, and where.
        advice: what to do.
    """

    def __init__(self, found: str, advice: str) -> None:
        super().__init__(f"{found}; {advice}")
        self.found = found


class DashedPaths(argparse.ArgumentParser):
    """An argument parser that says what to do where a path begins with a dash."""

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def, override]
        words = sys.argv[1:] if args is None else list(args)
        for word in words[: words.index("--")] if "--" in words else words:
            number = self._negative_number_matcher.match(word)  # a value to argparse, as is a word with a space
            if dashed(word) and not number and word not in self._option_string_actions and os.path.exists(word):
                self.error(f"expected a path that does not begin with a dash, found {word}; write ./{word}")
        return super().parse_known_args(words, namespace)


def dashed(word: str) -> bool:
    """Whether a word without a space begins with one dash. `-` alone is standard input."""
    return word.startswith("-") and not word.startswith("--") and word != "-" and " " not in word


class Parser(DashedPaths):
    """An argument parser that raises usage errors as :class:`InputError`."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see {self.prog} --help")


def first_line(error: Exception) -> str:
    """The first line of an error's message; the error's class if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@contextmanager
def as_input_error(prefix: str = "") -> Iterator[None]:
    """Turn a `ValueError` of validation code, and torch's refusal to unpickle unknown objects, into an
    :class:`InputError`. Its message starts with `prefix`."""
    try:
        yield
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{prefix}{error}") from error
    except UnpicklingError as error:
        raise InputError(
            f"{prefix}expected a file of tensors, found a pickle with other objects, which was not loaded; choose "
            "another model"
        ) from error


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


def command(main: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command's `main`, so that expected errors print one line on stderr and set the exit status.

    The status is 2 after an :class:`InputError`, on a full disk, where a file or folder is refused, and where a cache
    cannot be made. It is 130 after Ctrl-C, its own after :class:`Stopped`, and 141 without a line where nobody reads
    the output any more, as after `| head`. Of the launched processes of a machine one says what all of them meet, and
    one that another has left says so.
    """

    @functools.wraps(main)
    def wrapped(*args: object, **kwargs: object) -> None:
        limit_kernel_caches()
        open_closed_streams()
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() not in ("utf-8", "utf8"):
                with suppress(OSError):  # where it cannot be changed
                    stream.reconfigure(errors="replace")  # it may lack an arrow or a Greek letter
        immediate_exit = ImmediateExit() if launched_processes() > 1 else None
        status = 0
        try:
            with interruptible(lambda: "what was finished before is kept"):
                main(*args, **kwargs)
                sys.stdout.flush()  # here, where a reader that has gone is answered
        except BrokenPipeError:
            if not reader_has_gone():
                raise
            status = 128 + signal.SIGPIPE
        except InputError as error:
            say(f"error: {' '.join(str(error).split())}")
            status = 2
        except Stopped as stop:
            say(f"stopped: {' '.join(str(stop).split())}")
            status = stop.status
        except Exception as error:
            if full := full_disk(error):
                say(f"error: {full}; free space and repeat")
                status = 2
            elif refused := refused_place(error):
                say(f"error: {refused}; change its permissions, or set HF_HOME to another folder if it is a cache")
                status = 2
            elif not_made := missing_cache(error):
                say(f"error: {not_made}; set it to another folder")
                status = 2
            elif launched_processes() > 1 and isinstance(error, RuntimeError) and LEFT.search(str(error)):
                say("stopped: another process of this launch has ended; its line says why, or the launcher's report")
                status = 1
            else:
                raise
        if immediate_exit:
            immediate_exit.status = status
        if status:
            sys.exit(status)

    return wrapped


def say(line: str) -> None:
    """Print a line on stderr, unless another process of this launch and machine has. A progress bar that stands there
    makes room for it."""
    if not says_it_first(line):
        return
    if "tqdm" in sys.modules:
        sys.modules["tqdm"].tqdm.write(line, file=sys.stderr)
    else:
        print(line, file=sys.stderr)


def full_disk(error: Exception) -> str | None:
    """What could not be written because the disk or the quota is full; None for another error.

    safetensors and tokenizers, which are written in Rust, give the system's error as text.
    """
    if isinstance(error, OSError) and error.errno in FULL:
        return f"{error.filename or 'a file'} cannot be written: {error.strerror}"
    number = re.search(r"\(os error (\d+)\)", str(error))
    if number and int(number[1]) in FULL:
        return f"a file cannot be written: {os.strerror(int(number[1]))}"
    return None


def refused_place(error: Exception) -> str | None:
    """Which file or folder this user may not read or write; None for another error."""
    if isinstance(error, OSError) and error.errno in REFUSED and error.filename is not None:
        return f"{error.filename}: expected a place that this user may read and write, found: {error.strerror}"
    return None


def missing_cache(error: Exception) -> str | None:
    """Which cache cannot be made, because no folder can be where its variable says; None for another error."""
    if not isinstance(error, OSError) or error.errno not in NO_FOLDER or error.filename is None:
        return None
    met = Path(os.path.abspath(os.fsdecode(error.filename)))
    for name in filter(os.environ.get, CACHES):
        place = Path(os.path.abspath(os.path.expanduser(os.environ[name])))
        if met.is_relative_to(place) or place.is_relative_to(met):
            try:
                place.mkdir(parents=True, exist_ok=True)
            except OSError:
                return f"{name}={os.environ[name]}: expected a folder that can be made, found: {error.strerror}"
    return None


def open_closed_streams() -> None:
    """Where the caller has closed standard output or standard error, as `>&-` does, drop what is written there. Python
    has None for the stream, and a file that is opened next would get its number and what C code prints. Standard input
    comes first, so that each of them gets its own number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 (open until the process ends)


def reader_has_gone() -> bool:
    """Whether nobody reads standard output any more. What is still to be written to it is then dropped."""
    pipe = select.poll()
    pipe.register(sys.stdout, select.POLLERR)
    gone = bool(pipe.poll(0))
    if gone:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return gone


class ImmediateExit:
    """Ends one of several launched processes as soon as its exit handlers have run, without the interpreter's shutdown.

    During that shutdown a thread of gloo may free a tensor and ask for the interpreter's lock. The process is then
    aborted with status -6, although its work is done (pytorch/pytorch#179291), and the launcher stops the others.
    """

    def __init__(self) -> None:
        self.status = 1  # the status after an exception with a traceback
        atexit.register(self)  # the handler that is registered first is called last

    def __call__(self) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(self.status)
