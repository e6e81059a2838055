"""Checks that the readers of evaluation data share: a file's encoding, a score, and the published number of rows."""

import math

from cmlmcse.common.errors import InputError
from cmlmcse.common.options import as_number


def not_utf8(where: str, error: UnicodeDecodeError) -> InputError:
    """The error for text in another encoding."""
    found = f"byte {error.object[error.start]:#04x} at offset {error.start}"
    return InputError(f"{where}: expected UTF-8, found {found}; restore the file")


def parse_score(text: str, where: str, advice: str = "restore the file") -> float:
    """A human score.

    Raises:
        InputError: not a finite number.
    """
    score = as_number(text)
    if not math.isfinite(score):
        raise InputError(f"{where}: expected a number as score, found {text!r}; {advice}")
    return score


def check_published(source: str, expected: str, found: str, files: str) -> None:
    """Refuse data of another size than the published ones, given in words: "1500 pairs".

    Raises:
        InputError: the sizes differ; it advises to take these files.
    """
    if found != expected:
        raise InputError(
            f"{source}: expected {expected}, as published, found {found}; scores on other data cannot be compared: "
            f"take {files}'s files"
        )
