"""A file or a folder that must stay as it is while a command reads it, often more than once."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cmlmcse.common.errors import InputError

from .folder import folder_state

Version = tuple[str | int, ...]
ADVICE = "run the command again when nothing writes to it"


class InputChanged(InputError):
    """A file or a folder is not as it was when the command began."""


def version_of(path: Path) -> Version:
    """Values that differ if the file or the folder changed. They are found without reading it.

    Raises:
        OSError: it is gone.
    """
    if path.is_dir():
        return path.name, folder_state(str(path))
    status = os.stat(path)
    return path.name, status.st_size, status.st_mtime_ns


def check_unchanged(path: Path, version: Version, advice: str = ADVICE) -> None:
    """Compare a file or a folder with its version when the command began.

    Args:
        path: the file or the folder.
        version: from :func:`version_of`.
        advice: what to do if it changed.

    Raises:
        InputChanged: it is another one, or gone.
    """
    try:
        now = version_of(path)
    except OSError as error:
        how = error.strerror or "gone"
    except InputError:  # of a folder without text files, or with one that cannot be listed
        how = "its files are gone, or cannot be listed"
    else:
        if now == version:
            return
        how = difference(version[1], now[1])
    raise InputChanged(
        f"{path}: expected text that stays as it is while the command reads it, found it changed ({how}); {advice}"
    )


def difference(before: str | int, now: str | int) -> str:
    """What is different, by the second values of two versions: numbers of bytes, or of a folder a hash."""
    if isinstance(before, str) or isinstance(now, str):
        return "a file in it is new, gone or another one"
    return f"{now:,} bytes, {before:,} before" if now != before else "written at another time"


@contextmanager
def unchanged(path: Path, version: Version) -> Iterator[None]:
    """Read a file or a folder inside the block. If it changed, that is the error, and not what reading it then met.

    Raises:
        InputChanged: it is another one than at the beginning, or gone.
    """
    try:
        yield
    except Exception:
        check_unchanged(path, version)
        raise
    check_unchanged(path, version)
