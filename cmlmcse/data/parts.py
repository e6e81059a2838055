"""A large file that is made in small parts, each whole or not there, so that an interrupted job loses little."""

import json
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cmlmcse.common.errors import InputError
from cmlmcse.common.files import atomic_write

PART_ROWS = 1024  # a 12-layer model on two CPU cores encodes so many sentences in less than a minute


@dataclass(frozen=True)
class Job:
    """A file of `rows` rows that is made of parts beside it, in the folder `OUT.parts`.

    Attributes:
        output: the file, .npy or .parquet.
        rows: its rows.
        width: numbers in a row's embedding.
        rows_per_shard: rows of each of several files in place of one; None for one.
        schema: the columns of a .parquet.
    """

    output: Path
    rows: int
    width: int
    rows_per_shard: int | None = None
    schema: Any = None

    @property
    def folder(self) -> Path:
        """Where the parts are."""
        return self.output.with_name(self.output.name + ".parts")

    @property
    def shards(self) -> dict[Path, range]:
        """What the user gets, each file with its rows: one file, or several."""
        if self.rows_per_shard is None:
            return {self.output: range(self.rows)}
        starts = range(0, max(self.rows, 1), self.rows_per_shard)
        stem, suffix = self.output.with_suffix("").name, self.output.suffix
        return {
            self.output.with_name(f"{stem}-{index:05d}-of-{len(starts):05d}{suffix}"): range(
                start, min(start + self.rows_per_shard, self.rows)
            )
            for index, start in enumerate(starts)
        }

    @property
    def parts(self) -> dict[Path, range]:
        """The parts in order, each with its rows; none reaches over a shard's end."""
        return {path: rows for shard in self.shards.values() for path, rows in self.parts_of(shard).items()}

    def parts_of(self, shard: range) -> dict[Path, range]:
        """The parts of one shard."""
        starts = range(shard.start, shard.stop, PART_ROWS)
        return {
            self.folder / f"{start:010d}{self.output.suffix}": range(start, min(start + PART_ROWS, shard.stop))
            for start in starts
        }

    def claim_parts(self, settings: dict[str, Any], overwrite: bool) -> None:
        """Make the folder of parts, or go on with one of the same settings.

        Raises:
            InputError: the output is there already, parts of other settings are, or nothing can be written.
        """
        settings = {**settings, "part_rows": PART_ROWS}
        there = [path for path in self.shards if path.exists()]
        record = self.folder / "settings.json"
        if there and not overwrite and not record.exists():  # with it, they are this run's, which was just finishing
            raise InputError(f"--output {there[0]}: exists; choose another name, or --overwrite")
        try:
            if overwrite:
                shutil.rmtree(self.folder, ignore_errors=True)
                for path in there if self.rows_per_shard is not None else []:  # one file stays until it is replaced
                    path.unlink()
            self.folder.mkdir(exist_ok=True)
            if not record.exists():
                with atomic_write(record) as aside:
                    aside.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
            found = json.loads(record.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"{self.folder}: expected a folder of parts, found {error}; remove it") from error
        if differ := [name for name, value in settings.items() if found.get(name) != json.loads(json.dumps(value))]:
            raise InputError(
                f"{self.folder}: expected parts of the same run, found others ({', '.join(differ)} differ); give the "
                "same arguments to go on with them, or --overwrite to begin anew"
            )

    def todo(self) -> list[tuple[int, Path, range]]:
        """The parts that are not made yet: their number, file and rows."""
        finished = [rows for shard, rows in self.shards.items() if self._has_its_name(shard)]
        return [
            (number, path, rows)
            for number, (path, rows) in enumerate(self.parts.items())
            if not path.exists() and not any(rows.start in shard for shard in finished)
        ]

    def rows_done(self) -> int:
        """The rows of the parts that are made."""
        return self.rows - sum(len(rows) for _, _, rows in self.todo())

    def _has_its_name(self, shard: Path) -> bool:
        """Whether a shard is finished. One file in its place may be an older one, which stays until it is replaced."""
        return self.rows_per_shard is not None and shard.exists()

    def write_part(self, path: Path, block: Any) -> None:
        """Write one part: an array (rows, width), or a table for a .parquet."""
        self._write(path, [block], len(block))

    def finalize(self) -> list[Path]:
        """Make the output of the parts, and remove them."""
        for shard, rows in self.shards.items():
            parts = list(self.parts_of(rows))
            if self._has_its_name(shard):
                continue
            if len(parts) == 1:
                parts[0].replace(shard)
            else:
                self._write(shard, merged(parts), len(rows))
        shutil.rmtree(self.folder)
        return list(self.shards)

    def _write(self, path: Path, blocks: Iterable[Any], rows: int) -> None:
        if self.output.suffix == ".npy":
            write_npy(path, blocks, rows, self.width)
        else:
            write_parquet(path, blocks, self.schema)


def write_npy(path: Path, blocks: Iterable[np.ndarray], rows: int, width: int) -> None:
    """Write blocks (B, H) as one array (rows, H), whole or not at all."""
    with atomic_write(path) as aside:
        if rows == 0:
            with open(aside, "wb") as file:  # a file without bytes cannot be mapped
                np.save(file, np.zeros((0, width), np.float32))
            return
        table = np.lib.format.open_memmap(aside, "w+", np.float32, (rows, width))
        filled = 0
        for block in blocks:
            table[filled : filled + len(block)] = block
            filled += len(block)
        assert filled == rows, (filled, rows)
        table.flush()


def write_parquet(path: Path, blocks: Iterable[Any], schema: Any) -> None:
    """Write tables of this schema as one file, whole or not at all."""
    from pyarrow import parquet

    with atomic_write(path) as aside, parquet.ParquetWriter(aside, schema, compression="none") as writer:
        for block in blocks:
            writer.write_table(block)


def merged(parts: list[Path]) -> Iterator[Any]:
    """The content of all parts, one part at a time."""
    for part in parts:
        if part.suffix == ".npy":
            yield np.load(part, mmap_mode="r")
        else:
            from pyarrow import parquet

            yield parquet.read_table(part)
