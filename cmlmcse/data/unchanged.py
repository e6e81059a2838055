"""A file or a folder that must stay as it is while a command reads it, often more than once."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cmlmcse.common.errors import InputError

from .folder import folder_state

Version = tuple[str | int, ...]


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


def check_unchanged(path: Path, version: Version) -> None:
    """Compare a file or a folder with its version when the command began.

    Raises:
        InputChanged: it is another one, or gone.
    """
    try:
        now = version_of(path)
        found = f"{now[1]:,} bytes, {version[1]:,} before" if now[1:2] != version[1:2] and len(now) > 2 else "a new one"
    except OSError as error:
        now, found = (), error.strerror or "none"
    if now != version:
        raise InputChanged(
            f"{path}: expected text that stays as it is while the command reads it, found it changed ({found}); run "
            "the command again when nothing writes to it"
        )


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
