"""Types of command-line values, with their checks, and the options that several commands have."""

import math
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable
from typing import Any


def positive(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"expected a whole number of at least 1, found {text!r}")
    return int(text)


def as_number(text: str) -> float:
    """The number that a text is; NaN if it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def positive_number(text: str) -> float:
    """A number above 0."""
    number = as_number(text)
    if not 0 < number < math.inf:
        raise ArgumentTypeError(f"expected a number above 0, found {text!r}")
    return number


def share(text: str) -> float:
    """A number from 0 to 1."""
    number = as_number(text)
    if not 0 <= number <= 1:
        raise ArgumentTypeError(f"expected a number from 0 to 1, found {text!r}")
    return number


def seed(text: str) -> int:
    """A seed that every random generator accepts."""
    if not text.isdecimal() or int(text) >= 2**32:
        raise ArgumentTypeError(f"expected a whole number from 0 to {2**32 - 1}, found {text!r}")
    return int(text)


def add_model(parser: ArgumentParser) -> None:
    """The model of `encode` and `search`."""
    parser.add_argument("model", metavar="MODEL", help="exported folder, checkpoint, run folder, Hub name, "
                        "package:NAME/path, or plain backbone")  # fmt: skip


def add_encoder_options(
    parser: ArgumentParser,
    device: str = "cuda if there is one",
    length: Callable[[str], Any] = positive,
    more: str = "",
) -> None:
    """Add the options that say how a model encodes.

    Args:
        parser: the parser of the command.
        device: the default one, for the help.
        length: the type of `--max_seq_length`.
        more: text that is added to the help of `--max_seq_length`.
    """
    parser.add_argument("--pooling", help="pooling of a model that records none: cls_before_pooler, avg, avg_top2, …")
    parser.add_argument(
        "--batch_size", type=positive, help="texts in a forward pass (default: 64 on a CPU, 16,384 tokens on a GPU)"
    )
    parser.add_argument(
        "--max_seq_length", type=length, help=f"tokens to cut a text to (default: the model's limit){more}"
    )
    parser.add_argument("--device", help=f"cpu, cuda, cuda:1, … (default: {device})")
