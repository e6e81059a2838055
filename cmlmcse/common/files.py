"""Files that are written whole or not at all."""

import errno
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .alone import alone_in
from .errors import InputError

BLOCK = 1 << 20  # bytes read at a time


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`. It is renamed to `path` at the end, or deleted after an error."""
    temporary = beside(path)
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def check_writable(path: Path, option: str) -> None:
    """Check before the work that a file can be written at its end: write one beside it, and remove it. Permissions do
    not say: they stop no root user, and a read-only disk grants them.

    Args:
        path: the file.
        option: the option that names it, for the message.

    Raises:
        InputError: it cannot be written.
    """
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        temporary = beside(path)
        temporary.touch()
        temporary.unlink()
    except OSError as error:
        raise InputError(f"{option} {path}: cannot be written: {error.strerror}; choose another") from error


def beside(path: Path) -> Path:
    """A temporary name beside a path. It is like no other, because containers that share a folder may have processes of
    the same number."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}")


def replace_text(path: Path, text: str) -> None:
    """Write a text file at once, because several processes may write it and others may read it."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_asked(path: Path, text: str, option: str) -> None:
    """Write the text file that an option names, whole or not at all.

    Raises:
        InputError: it cannot be written.
    """
    try:
        replace_text(path, text)
    except OSError as error:
        raise InputError(f"{option} {path}: cannot be written: {error.strerror}") from error


def update_from_file(digest: "hashlib._Hash", path: str | os.PathLike[str]) -> None:
    """Add a file's content to a hash. It is read in blocks: a model's weights may not fit in memory."""
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)


def replace_json(path: Path, content: Any) -> None:
    """Write indented JSON with a newline at the end, at once."""
    replace_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


@contextmanager
def new_model_folder(folder: Path) -> Iterator[Path]:
    """Yield a new folder for a model's files. It gets the name `folder` at the end, or is deleted after an error.

    Those may then read its weights who may read its config.json: safetensors makes them readable by the owner alone,
    and a server often runs as another user.

    Raises:
        InputError: it cannot be made, or another command makes it or has made it meanwhile.
    """
    aside = folder.with_name(f".{folder.name}.incomplete")
    with alone_in(folder.with_name(f".{folder.name}.lock"), folder):
        if folder.exists():
            raise InputError(f"{folder} must not exist yet, found it; choose another --output_dir or remove it")
        shutil.rmtree(aside, ignore_errors=True)  # of a command that was killed
        try:
            aside.mkdir(parents=True)
        except OSError as error:
            raise InputError(f"{folder} cannot be created ({error.strerror}); choose another --output_dir") from error
        try:
            yield aside
            for weights in aside.rglob("*.safetensors"):
                shutil.copymode(aside / "config.json", weights)
            aside.rename(folder)
        except BaseException:  # and not always: where folders have no locks, another process may write there now
            shutil.rmtree(aside, ignore_errors=True)
            raise
