"""What a task scores: an encoder, a callable that turns texts into vectors, and one that remembers them.

A model's own prompts are used in tasks that have queries and documents, as sentence-transformers' evaluators use them.
An encoder that has prompts has two attributes: `prompts`, the texts by name, and `bare`, the same encoder without the
default prompt. A plain callable has neither, and gets the texts as they are.
"""

from collections.abc import Callable, Iterable
from functools import cached_property

import numpy as np

Encode = Callable[[list[str]], np.ndarray]
"""A sentence encoder: N texts → (N, H) array, in input order."""


def prompt_of(encode: Encode, name: str) -> str:
    """The prompt of an encoder by its name, `query` or `document`; empty if it has none."""
    prompts: dict[str, str] = getattr(encode, "prompts", {})
    return prompts.get(name, "")


def bare(encode: Encode) -> Encode:
    """The encoder without its default prompt."""
    found: Encode = getattr(encode, "bare", encode)
    return found


def encode_as(encode: Encode, name: str, texts: list[str]) -> np.ndarray:
    """Texts → (N, H), as queries or as documents."""
    return bare(encode)([prompt_of(encode, name) + text for text in texts])


class EncodeOnce:
    """An encoder that encodes each distinct text once, over all tasks; texts (N,) → (N, H).

    Attributes:
        by_set: the same model for retrieval sets whose texts are cut to another length, by the set's name.
    """

    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        self.prompts: dict[str, str] = getattr(encode, "prompts", {})
        self.by_set: dict[str, EncodeOnce] = {}
        self._rows: dict[str, int] = {}
        self._table = np.zeros((0, 0), np.float32)  # (distinct texts, H)

    @classmethod
    def of(cls, encode: Encode) -> "EncodeOnce":
        """The encoder itself if it is an EncodeOnce already, else wrapped in one."""
        return encode if isinstance(encode, cls) else cls(encode)

    @cached_property
    def bare(self) -> "EncodeOnce":
        """The encoder without its default prompt; itself if it has none."""
        inner = bare(self._encode)
        return self if inner is self._encode else EncodeOnce(inner)

    def prepare(self, sentences: Iterable[str]) -> "EncodeOnce":
        """Encode the new ones of these sentences in one call; returns self.

        Raises:
            ValueError: the wrapped encoder did not return one row for each sentence.
        """
        new = [text for text in dict.fromkeys(sentences) if text not in self._rows]
        if new:
            vectors = np.asarray(self._encode(new))  # (new, H)
            if vectors.ndim != 2 or len(vectors) != len(new):
                raise ValueError(f"encode must return ({len(new)}, H) for {len(new)} sentences, found {vectors.shape}")
            self._table = np.concatenate([self._table, vectors]) if self._rows else vectors
            self._rows.update(zip(new, range(len(self._rows), len(self._table)), strict=True))
        return self

    def encode_uncached(self, sentences: list[str]) -> np.ndarray:
        """Texts → (N, H), not kept: for more texts than memory can hold."""
        return np.asarray(self._encode(sentences))

    def __call__(self, sentences: list[str]) -> np.ndarray:
        """Texts → (N, H); known texts come from memory."""
        self.prepare(sentences)
        return self._table[[self._rows[text] for text in sentences]]  # (N, H)


class MappedEncoder(EncodeOnce):
    """An encoder whose vectors go through a function: N texts → (N, K). What is kept are the vectors before it.

    Args:
        whole: the encoder.
        function: (N, H) → (N, K).
    """

    def __init__(self, whole: EncodeOnce, function: Callable[[np.ndarray], np.ndarray]) -> None:
        self._whole, self._function, self.prompts = whole, function, whole.prompts
        self.by_set = {name: MappedEncoder(each, function) for name, each in whole.by_set.items()}

    @cached_property
    def bare(self) -> EncodeOnce:
        """The encoder without its default prompt, with the same function; itself if it has none."""
        inner = self._whole.bare
        return self if inner is self._whole else MappedEncoder(inner, self._function)

    def prepare(self, sentences: Iterable[str]) -> EncodeOnce:
        """As in :class:`EncodeOnce`."""
        self._whole.prepare(sentences)
        return self

    def encode_uncached(self, sentences: list[str]) -> np.ndarray:
        """Texts → (N, K), not kept."""
        return self._function(self._whole.encode_uncached(sentences))

    def __call__(self, sentences: list[str]) -> np.ndarray:
        """Texts → (N, K)."""
        return self._function(self._whole(sentences))
