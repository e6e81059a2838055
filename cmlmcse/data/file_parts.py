"""A large file that is made in small parts, so that an interrupted job loses little. Each part is whole or absent."""

import json
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cmlmcse.common.errors import InputError
from cmlmcse.common.files import atomic_write, replace_json

# A 12-layer model on two CPU cores encodes this many sentences in under a minute. The number is fixed, not measured: a
# part's batches decide the last digits of its embeddings, so parts by time would give another file in every run.
PART_ROWS = 1024


@dataclass(frozen=True)
class Job:
    """An output file of `rows` rows, which is made of parts in the folder `OUT.parts` beside it.

    Attributes:
        output: the file, .npy or .parquet.
        rows: number of rows.
        width: dimensions of an embedding.
        rows_per_shard: rows per file, if the output is several files (shards); None for one file.
        schema: the columns of a .parquet.
    """

    output: Path
    rows: int
    width: int
    rows_per_shard: int | None = None
    schema: Any = None

    @property
    def folder(self) -> Path:
        """The folder of the parts."""
        return self.output.with_name(self.output.name + ".parts")

    @property
    def shards(self) -> dict[Path, range]:
        """The output files, one or several, each with its rows."""
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
        """The parts in order, each with its rows. No part crosses the end of a shard."""
        return {path: rows for shard in self.shards.values() for path, rows in self.parts_of(shard).items()}

    def parts_of(self, shard: range) -> dict[Path, range]:
        """The parts of one shard."""
        starts = range(shard.start, shard.stop, PART_ROWS)
        return {
            self.folder / f"{start:010d}{self.output.suffix}": range(start, min(start + PART_ROWS, shard.stop))
            for start in starts
        }

    def claim_parts(self, settings: dict[str, Any], overwrite: bool) -> None:
        """Create the folder of parts, or reuse a folder that was made with the same settings.

        Args:
            settings: what all parts have in common.
            overwrite: whether to start again, and replace what is there.

        Raises:
            InputError: the output exists, the folder has parts of other settings, or it cannot be written.
        """
        settings = json.loads(json.dumps({**settings, "part_rows": PART_ROWS}))
        existing = self.existing()
        record = self.folder / "settings.json"
        if folders := [path for path in existing if path.is_dir()]:
            raise InputError(f"--output {folders[0]}: expected a file, found a folder; choose another name")
        if not record.exists() and self.folder.is_dir() and any(self.folder.iterdir()):
            raise InputError(f"{self.folder}: expected a folder of parts, found other files in it; remove it")
        # If the record exists too, this job was interrupted while it wrote its output.
        if existing and not overwrite and not record.exists():
            raise InputError(f"--output {existing[0]}: exists; choose another name, or --overwrite")
        try:
            if overwrite:
                shutil.rmtree(self.folder, ignore_errors=True)
                for path in existing if self.rows_per_shard is not None else []:  # a single file stays until replaced
                    path.unlink()
            self.folder.mkdir(exist_ok=True)
            if not record.exists():
                replace_json(record, settings)
            found = json.loads(record.read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(f"{self.folder}: cannot be written: {error.strerror}; choose another --output") from error
        except ValueError as error:
            raise InputError(f"{self.folder}: expected a folder of parts, found {error}; remove it") from error
        if differ := [name for name in settings | found if found.get(name) != settings.get(name)]:
            raise InputError(
                f"{self.folder}: expected parts of the same run, found others ({', '.join(differ)} differ); give the "
                "same arguments to resume that run, or --overwrite to start again"
            )

    def existing(self) -> list[Path]:
        """The output files that are there. Of shards also those of another number, which a reader would take too."""
        if self.rows_per_shard is None:
            return [self.output] if self.output.exists() else []
        stem, suffix = re.escape(self.output.with_suffix("").name), re.escape(self.output.suffix)
        name = re.compile(rf"{stem}-\d{{5}}-of-\d{{5}}{suffix}")
        return sorted(path for path in self.output.parent.iterdir() if name.fullmatch(path.name))

    def todo(self) -> list[tuple[int, Path, range]]:
        """The parts that are not written yet: number, file and rows of each."""
        finished = [rows for shard, rows in self.shards.items() if self._is_finished(shard)]
        return [
            (number, path, rows)
            for number, (path, rows) in enumerate(self.parts.items())
            if not path.exists() and not any(rows.start in shard for shard in finished)
        ]

    def rows_done(self) -> int:
        """The number of rows in the parts that are written."""
        return self.rows - sum(len(rows) for _, _, rows in self.todo())

    def _is_finished(self, shard: Path) -> bool:
        """Whether a shard is finished. A single output file never counts: it may be old, and still to be replaced."""
        return self.rows_per_shard is not None and shard.exists()

    def write_part(self, path: Path, block: Any) -> None:
        """Write one part: an array (rows, width), or a table for a .parquet."""
        self._write(path, [block], len(block))

    def finalize(self) -> list[Path]:
        """Merge the parts into the output files, and remove the parts."""
        for shard, rows in self.shards.items():
            parts = list(self.parts_of(rows))
            if self._is_finished(shard):
                continue
            if len(parts) == 1:
                parts[0].replace(shard)
            else:
                self._write(shard, read_parts(parts), len(rows))
        self.drop_parts()
        return list(self.shards)

    def drop_parts(self) -> None:
        """Remove the folder of the parts."""
        shutil.rmtree(self.folder)

    def _write(self, path: Path, blocks: Iterable[Any], rows: int) -> None:
        if self.output.suffix == ".npy":
            write_npy(path, blocks, rows, self.width)
        else:
            write_parquet(path, blocks, self.schema)


def write_npy(
    path: Path, blocks: Iterable[np.ndarray], rows: int, width: int, dtype: type[np.generic] = np.float32
) -> None:
    """Write blocks (B, H) as one array (rows, H), whole or not at all."""
    header = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": (rows, width)}
    filled = 0
    # No memory map: on a full disk it would kill the process.
    with atomic_write(path) as temporary, open(temporary, "wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for block in blocks:
            file.write(np.ascontiguousarray(block, dtype).data)
            filled += len(block)
        assert filled == rows, (filled, rows)


def write_parquet(path: Path, blocks: Iterable[Any], schema: Any) -> None:
    """Write tables of this schema as one file, whole or not at all."""
    from pyarrow import parquet

    with atomic_write(path) as temporary, parquet.ParquetWriter(temporary, schema, compression="none") as writer:
        for block in blocks:
            writer.write_table(block)


def read_parts(parts: list[Path]) -> Iterator[Any]:
    """Yield the content of the parts, one part at a time."""
    for part in parts:
        if part.suffix == ".npy":
            yield np.load(part, mmap_mode="r")
        else:
            from pyarrow import parquet

            yield parquet.read_table(part)
