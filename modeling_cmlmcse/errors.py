"""Errors that are the user's to mend: one line on standard error, exit status 2, no traceback."""

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class InputError(ValueError):
    """A wrong argument, file or model: the message says what was expected, what was found and what to do."""


@contextmanager
def as_input_error(prefix: str = "") -> Iterator[None]:
    """Turn a `ValueError` of validation code into an :class:`InputError` with `prefix` before its message."""
    try:
        yield
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{prefix}{error}") from error


def command(main: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command's `main`: an :class:`InputError` becomes one line on stderr and exit status 2."""

    @functools.wraps(main)
    def wrapped(*args: object, **kwargs: object) -> None:
        try:
            main(*args, **kwargs)
        except InputError as error:
            print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
            sys.exit(2)

    return wrapped
