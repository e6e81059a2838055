"""Types of command-line values, with their checks."""

import math
from argparse import ArgumentTypeError


def positive(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"expected a whole number of at least 1, found {text!r}")
    return int(text)


def positive_number(text: str) -> float:
    """A number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise ArgumentTypeError(f"expected a number above 0, found {text!r}")
    return number


def share(text: str) -> float:
    """A number from 0 to 1."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number <= 1:
        raise ArgumentTypeError(f"expected a number from 0 to 1, found {text!r}")
    return number


def seed(text: str) -> int:
    """A seed that every random generator accepts."""
    if not text.isdecimal() or int(text) >= 2**32:
        raise ArgumentTypeError(f"expected a whole number from 0 to {2**32 - 1}, found {text!r}")
    return int(text)
