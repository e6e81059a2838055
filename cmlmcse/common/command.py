"""How a command ends: an error that the user can fix, or Ctrl-C, prints one line on standard error, no traceback."""

import atexit
import errno
import functools
import io
import os
import re
import select
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from .cpu import limit_kernel_caches
from .errors import InputError, Stopped
from .launch import launched_processes, says_it_first
from .signals import interruptible

FULL = (errno.ENOSPC, errno.EDQUOT)
REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)
NO_FOLDER = (errno.ENOTDIR, errno.EEXIST, errno.ENOENT)  # below a file, in place of one, and in no place at all
CACHES = ("HF_HOME", "HF_DATASETS_CACHE", "HF_HUB_CACHE")  # of Hugging Face's libraries
LEFT = re.compile("gloo.*Connection (closed|reset) by peer")  # in a process that waits for one that has ended


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
