"""Two commands do not write to one output folder at the same time."""

import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from cmlmcse.common import alone
from cmlmcse.common.alone import alone_in
from cmlmcse.common.errors import InputError
from cmlmcse.training.command import main


def hold(folder: Path, entered) -> None:
    """Be in the folder until this process is killed."""
    with alone_in(folder):
        entered.set()
        signal.pause()


@pytest.fixture
def holder(tmp_path):
    """Another process that is in the folder `out`."""
    context = multiprocessing.get_context("spawn")
    entered = context.Event()
    process = context.Process(target=hold, args=(tmp_path / "out", entered))
    process.start()
    assert entered.wait(60)
    yield process
    process.kill()
    process.join()


def test_another_command_is_kept_out(holder, tmp_path, monkeypatch, capsys):
    """It waits for a moment, then says what to do, and writes nothing. When the other one is killed the folder is
    free."""
    monkeypatch.setattr(alone, "PATIENCE", 0.3)
    words = ["simcse-bert-base", "--train_file", "text.txt", "--output_dir", str(tmp_path / "out")]
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert "output_dir must be free, found another command that is writing to" in error
    assert error.count("\n") == 1
    assert not list((tmp_path / "out").iterdir())
    os.kill(holder.pid, signal.SIGKILL)
    monkeypatch.setattr(alone, "PATIENCE", 60.0)
    with alone_in(tmp_path / "out"):
        pass
    assert (tmp_path / "out").exists()  # it was there before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_worker_that_lingers_does_not_hold_it(tmp_path, monkeypatch):
    """A process that was forked in the block, as a data loader's, has the folder open; the next run goes on there."""
    monkeypatch.setattr(alone, "PATIENCE", 0.0)
    with alone_in(tmp_path):
        worker = multiprocessing.get_context("fork").Process(target=signal.pause)
        worker.start()
    try:
        with alone_in(tmp_path):
            pass
    finally:
        worker.kill()
        worker.join()


def test_a_new_folder_goes_if_it_stays_empty(tmp_path):
    """What was written stays."""
    with alone_in(tmp_path / "deep" / "empty"):
        pass
    with alone_in(tmp_path / "deep" / "full"):
        (tmp_path / "deep" / "full" / "file").touch()
    assert sorted(path.name for path in (tmp_path / "deep").iterdir()) == ["full"]


def test_a_folder_that_was_removed_is_not_the_one(tmp_path, monkeypatch):
    """Who waits may get the lock of a folder that the command before has removed. It then takes the one at the path."""
    lock, seen = alone._lock, []

    def removed_meanwhile(held):
        if not seen:
            (tmp_path / "out").rmdir()
        seen.append(os.fstat(held).st_ino)
        return lock(held)

    monkeypatch.setattr(alone, "_lock", removed_meanwhile)
    with alone_in(tmp_path / "out"):
        assert len(seen) == 2
        monkeypatch.setattr(alone, "_lock", lock)
        monkeypatch.setattr(alone, "PATIENCE", 0.0)
        with pytest.raises(InputError, match="output_dir must be free"), alone_in(tmp_path / "out"):
            pass
        assert (tmp_path / "out").is_dir()


def test_without_locks(tmp_path, monkeypatch):
    """A folder that cannot be locked, or cannot be made, is not in the way."""

    def no_locks(*_):
        raise OSError("no locks available")

    monkeypatch.setattr(alone.fcntl, "flock", no_locks)
    (tmp_path / "file").touch()
    for folder in (tmp_path / "out", tmp_path / "file" / "out"):
        with alone_in(folder):
            pass


def test_an_output_file(tmp_path, monkeypatch):
    """A folder stands for it. It goes again, also where a killed command has left it."""
    monkeypatch.setattr(alone, "PATIENCE", 0.0)
    (tmp_path / ".out.lock").mkdir()
    given = tmp_path / ".out.lock", tmp_path / "out"
    with alone_in(*given), pytest.raises(InputError, match=r"output must be free, .*/out; wait"), alone_in(*given):
        pass
    assert not list(tmp_path.iterdir())
