"""Checks of single fields: each returns the value as the configuration keeps it, or says what is wrong."""

from collections.abc import Iterable, Sequence
from typing import Any


def one_of(name: str, value: Any, known: Any) -> str:
    """`value`, if it is among the known names.

    Raises:
        ValueError: it is not; the message lists them.
    """
    if value not in list(known):  # a list, because a value that has no hash is wrong too
        raise ValueError(f"{name} must be one of {', '.join(known)}, found {value!r}; choose one of them")
    return value


def in_range(name: str, value: Any, kind: type, low: float, high: float) -> Any:
    """`value`, if it is a number, whole number or boolean (`kind`: float, int, bool) between `low` and `high`.

    Raises:
        ValueError: it is not; the message says what was expected and found.
    """
    if kind is bool:
        if not isinstance(value, bool):
            raise ValueError(f"{name} must be true or false, found {value!r}; fix the recipe")
        return value
    right_type = isinstance(value, int if kind is int else (int, float)) and value is not True
    if not right_type or not low <= value <= high:
        number = "whole number" if kind is int else "number"
        raise ValueError(f"{name} must be a {number} from {low:g} to {high:g}, found {value!r}; fix the recipe")
    return value


def as_dims(given: Sequence[int] | str | None, size: int) -> list[int] | None:
    """Numbers of dimensions, from a sequence or a text with commas.

    Raises:
        ValueError: not different whole numbers from 1 to `size`.
    """
    if given is None:
        return None
    listed = given.split(",") if isinstance(given, str) else given if isinstance(given, Iterable) else []
    parts = [part.strip() if isinstance(part, str) else part for part in listed]
    dims = [int(part) if str(part).isdecimal() else 0 for part in parts]
    if not dims or len(set(dims)) < len(dims) or not all(1 <= each <= size for each in dims):
        raise ValueError(
            f"matryoshka_dims must be different whole numbers from 1 to {size}, as 256,128,64, found {given!r}; fix "
            "the recipe"
        )
    return dims


def as_token_id(name: str, value: Any) -> int | None:
    """`value`, if it is the id of a token or None.

    Raises:
        ValueError: `value` is neither.
    """
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise ValueError(f"{name} must be the id of a token, 0 or more, found {value!r}; take the tokenizer's")
    return value


def as_dropouts(given: Any) -> dict[str, float] | None:
    """Dropout probabilities by name, or None.

    Raises:
        ValueError: something else.
    """
    if given is None:
        return None
    if not isinstance(given, dict) or not all(isinstance(name, str) for name in given):
        raise ValueError(
            f"exported_dropouts must be probabilities by name, as {{'hidden_dropout_prob': 0.1}}, found {given!r}; fix "
            "them"
        )
    return {name: in_range(f"exported_dropouts {name}", value, float, 0.0, 1.0) for name, value in given.items()}
