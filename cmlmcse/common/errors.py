"""What a command cannot do, in one line: an error that the user can fix, and a run that stops early."""

from collections.abc import Iterator
from contextlib import contextmanager
from pickle import UnpicklingError


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
