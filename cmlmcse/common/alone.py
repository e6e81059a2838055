"""One command at a time in an output folder."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import InputError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

PATIENCE = 10.0  # seconds in which the data loader's processes of a killed run end; PyTorch's look every 5 seconds


@contextmanager
def alone_in(folder: Path, output: Path | None = None) -> Iterator[None]:
    """Keep other commands out of a folder for as long as this block runs. Two runs in one folder would delete each
    other's half-written checkpoints. A new folder goes again if nothing was written to it.

    The kernel's lock is on the folder itself: filelock would leave a file in it, and a new run wants an empty one. The
    lock ends with the process, also with a killed one. A folder that cannot be created, and a file system
    without locks, are left to whoever writes there.

    Args:
        folder: an output folder; or, with `output`, a folder that stands for that file and is removed at the end.
        output: the output file, where the command writes no folder.

    Raises:
        InputError: another command is in it.
    """
    new, held = output is not None or not folder.exists(), _claim(folder, output)
    if held is None:
        yield
        return
    try:
        yield
    finally:
        if new:
            with suppress(OSError):  # the folder is not empty
                folder.rmdir()
        _unlock(held)
        os.close(held)


def _claim(folder: Path, output: Path | None) -> int | None:
    """Lock a folder, and make it if it is not there: the open folder, or None if it cannot be opened.

    Raises:
        InputError: another process has the lock, and does not let go of it soon.
    """
    end = time.monotonic() + PATIENCE
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            held = os.open(folder, os.O_RDONLY)
        except OSError:
            return None
        if _lock(held) and _is(held, folder):
            return held
        os.close(held)
        if time.monotonic() > end:
            raise InputError(
                f"{'output' if output else 'output_dir'} must be free, found another command that is writing to "
                f"{output or folder}; wait for it or stop it, or choose another"
            )
        time.sleep(0.2)


def _is(held: int, folder: Path) -> bool:
    """Whether an open folder is still the one at its path. The command before may have removed it."""
    try:
        return os.path.samestat(os.fstat(held), os.stat(folder))
    except OSError:
        return False


def _lock(held: int) -> bool:
    """Lock an open folder, unless another process has the lock. True too where nothing can be locked."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # NFS locks no folder
        pass
    return True


def _unlock(held: int) -> None:
    """Let go of the lock, also where a process that was forked meanwhile still has the folder open."""
    if fcntl is not None:
        with suppress(OSError):
            fcntl.flock(held, fcntl.LOCK_UN)
