"""A model's own prompts in tasks that have queries and documents, as sentence-transformers' evaluators use them.

An encoder that has prompts has two attributes: `prompts`, the texts by name, and `bare`, the same encoder without the
default prompt. A plain callable has neither, and gets the texts as they are.
"""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .sts import Encode


def prompt_of(encode: "Encode", name: str) -> str:
    """The prompt of an encoder by its name, `query` or `document`; empty if it has none."""
    prompts: dict[str, str] = getattr(encode, "prompts", {})
    return prompts.get(name, "")


def bare(encode: "Encode") -> "Encode":
    """The encoder without its default prompt."""
    found: Encode = getattr(encode, "bare", encode)
    return found


def encode_as(encode: "Encode", name: str, texts: list[str]) -> np.ndarray:
    """Texts → (N, H), as queries or as documents."""
    return bare(encode)([prompt_of(encode, name) + text for text in texts])
