"""The command `encode` reads, computes and writes at once: nothing else changes."""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import numpy as np
import pyarrow
import pytest

from cmlmcse.common.errors import InputError
from cmlmcse.data import file_parts, tables
from cmlmcse.encode.parts import encode_parts
from cmlmcse.models.encoders import Encoder
from support.encoding import Ones, without_special_tokens
from support.tiny import tiny_tokenizer

PARTS = 5


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a table of as many parts as `PARTS`, of two rows each; a part is a block of the file."""
    monkeypatch.setattr(file_parts, "PART_ROWS", 2)
    monkeypatch.setattr(tables, "TABLE_ROWS", 2)
    rows = [{"text": f"the cat w{number}" + " sat" * number} for number in range(2 * PARTS)]
    (tmp_path / "in.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return tmp_path


def claimed(place: Path, width: int) -> file_parts.Job:
    """The job that encodes the table."""
    job = file_parts.Job(place / "out.npy", 2 * PARTS, width)
    job.claim_parts({}, overwrite=False)
    return job


def kept(job: file_parts.Job) -> list[int]:
    """The first rows of the parts that are written, in order."""
    return sorted(int(path.stem) for path in job.folder.glob("*.npy"))


def test_the_same_vectors(place, model) -> None:
    """To the last bit those of one part after the other, with what changes the tokens and what changes the vectors."""
    options = {"prompt": "w7 ", "max_length": 8, "normalize": True}
    encoder, source = Encoder(model, tiny_tokenizer("bert"), options), tables.scan(place / "in.jsonl")
    job = claimed(place, 32)
    encode_parts(job, source, encoder, 0, 1)
    job.finalize()
    texts = [source.texts(table) for table in source.tables()]
    np.testing.assert_array_equal(np.load(job.output), np.concatenate([encoder(part) for part in texts]))
    for option in options:
        other = Encoder(model, encoder.tokenizer, {**options, option: None})(texts[-1])
        assert np.abs(np.load(job.output)[-2:] - other).max() > 1e-3, option


class Watched(Ones):
    """Computes a part when the next one is tokenised."""

    def __init__(self) -> None:
        self.tokenized, self.computed = ([Event() for _ in range(PARTS)] for _ in range(2))
        self.ahead: list[int] = []

    def tokenize(self, texts: list[str]) -> list[str]:
        number = sum(each.is_set() for each in self.tokenized)
        self.ahead.append(number - sum(each.is_set() for each in self.computed))
        self.tokenized[number].set()
        return texts

    def __call__(self, tokens: list[str]) -> np.ndarray:
        number = sum(each.is_set() for each in self.computed)
        assert number == PARTS - 1 or self.tokenized[number + 1].wait(10)
        self.computed[number].set()
        return super().__call__(tokens)


def test_a_part_is_computed_while_others_are_read_and_written(place, monkeypatch) -> None:
    """The next one is tokenised before the model ends, and no other; the one before is not on the disk until then."""
    encoder, write, written = Watched(), file_parts.Job.write_part, []

    def slow(self: file_parts.Job, path: Path, block: np.ndarray) -> None:
        written.append(int(path.stem) // 2)
        assert written[-1] == PARTS - 1 or encoder.computed[written[-1] + 1].wait(10)
        write(self, path, block)

    monkeypatch.setattr(file_parts.Job, "write_part", slow)
    job = claimed(place, 64)
    encode_parts(job, tables.scan(place / "in.jsonl"), encoder, 0, 1)
    assert written == list(range(PARTS))
    assert max(encoder.ahead) == 1
    assert kept(job) == [0, 2, 4, 6, 8]


def test_a_row_that_cannot_be_read(place) -> None:
    """One error, which names its line; the parts before are written. The file looks as if it had not changed."""
    path, job = place / "in.jsonl", claimed(place, 64)
    source, status = tables.scan(path), path.stat()
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:7], lines[7].replace("}", " "), *lines[8:]]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(InputError, match="expected one JSON object per line, found line 8"):
        encode_parts(job, source, Ones(), 0, 1)
    assert kept(job) == [0, 2, 4]


def test_a_text_that_cannot_be_tokenised(place, model) -> None:
    """The same; the error names the part."""
    lines = (place / "in.jsonl").read_text().splitlines()
    (place / "in.jsonl").write_text("\n".join([*lines[:7], '{"text": ""}', *lines[8:]]))
    encoder, job = Encoder(model, without_special_tokens(), {}), claimed(place, 32)
    with pytest.raises(InputError, match=r"in the part from row 6 on: encode expects at least one token .* in text 1"):
        encode_parts(job, tables.scan(place / "in.jsonl"), encoder, 0, 1)
    assert kept(job) == [0, 2, 4]


class Endless:
    """A file that takes minutes to read."""

    path, title_column = Path("endless"), None

    def __init__(self) -> None:
        self.begun = Event()

    def tables(self) -> Iterator[pyarrow.Table]:
        for _ in range(2000):
            yield pyarrow.table({"text": ["the cat", "a dog"]})
            self.begun.set()
            time.sleep(0.05)


def test_ctrl_c_while_a_thread_reads(tmp_path) -> None:
    """It goes over the rows that are done, and stops at once."""
    job, source = file_parts.Job(tmp_path / "out.npy", 10_000, 64), Endless()
    job.claim_parts({}, overwrite=False)
    for path in list(job.parts)[:-1]:
        path.touch()
    main = threading.main_thread().ident
    threading.Thread(target=lambda: source.begun.wait(10) and signal.pthread_kill(main, signal.SIGINT)).start()
    start = time.monotonic()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in a shell's background ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            encode_parts(job, source, Ones(), 0, 1)
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - start < 5
