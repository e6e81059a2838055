"""Embeddings kept on disk: a model encodes a text once, even over several evaluations."""

import hashlib
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import numpy as np

from cmlmcse.common.errors import InputError

from .encoding import Encode, bare

KEYS_PER_QUERY = 500  # SQLite allows at most 999 parameters in a query


class CachedEncoder:
    """An encoder whose vectors are kept in a SQLite file, N texts → (N, H) float32.

    The file's name is the model's fingerprint. So another model, or the same model with other settings, has another
    file. Several processes may use one file at the same time. A file that can only be read is read.

    Raises:
        InputError: the folder cannot be written to and has no such file, the file is not such a database, or the disk
            is full.
    """

    def __init__(self, encode: Encode, folder: Path, fingerprint: str) -> None:
        self._encode, self._folder, self._fingerprint = encode, folder, fingerprint
        self.prompts: dict[str, str] = getattr(encode, "prompts", {})
        self.path = folder / f"{fingerprint}.sqlite"
        self._keeps = True
        with self._usable():
            folder.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(self.path, timeout=60)
            self._database.execute(
                "create table if not exists vectors (text blob primary key, vector blob) without rowid"
            )

    @contextmanager
    def _usable(self) -> Iterator[None]:
        """Use the folder and the file inside the block.

        Raises:
            InputError: they cannot be used.
        """
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            raise InputError(
                f"--cache {self._folder}: expected a folder to keep embeddings in, found {error}; make room, give "
                "another folder, or leave --cache out"
            ) from error

    @cached_property
    def bare(self) -> "CachedEncoder":
        """The encoder without its default prompt, with a file of its own; itself if it has none."""
        inner = bare(self._encode)
        return self if inner is self._encode else CachedEncoder(inner, self._folder, f"{self._fingerprint}-bare")

    def __call__(self, sentences: list[str]) -> np.ndarray:
        """Texts → (N, H). Known texts are read from the file, new ones are encoded and stored."""
        keys = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in sentences]
        found = dict(self._stored_vectors(keys))
        new = {key: text for key, text in zip(keys, sentences, strict=True) if key not in found}
        if new:
            vectors = np.ascontiguousarray(self._encode(list(new.values())), np.float32)  # (new, H)
            rows = list(zip(new, map(bytes, vectors), strict=True))
            if self._keeps:
                self._store(rows)
            found |= dict(rows)
        return np.stack([np.frombuffer(found[key], np.float32) for key in keys])  # (N, H)

    def _store(self, rows: list[tuple[bytes, bytes]]) -> None:
        """Keep keys and their vectors; none from now on if the file can only be read."""
        try:
            with self._usable(), self._database:
                self._database.executemany("insert or replace into vectors values (?, ?)", rows)
        except InputError as error:
            if "readonly" not in str(error.__cause__):
                raise
            self._keeps = False
            print(f"--cache {self._folder}: can only be read, so new embeddings are not kept", file=sys.stderr)

    def _stored_vectors(self, keys: list[bytes]) -> Iterator[tuple[bytes, bytes]]:
        """The keys that the file holds, of those given, each with its vector."""
        for start in range(0, len(keys), KEYS_PER_QUERY):
            chunk = keys[start : start + KEYS_PER_QUERY]
            placeholders = ",".join("?" * len(chunk))
            with self._usable():
                yield from self._database.execute(
                    f"select text, vector from vectors where text in ({placeholders})", chunk
                )
