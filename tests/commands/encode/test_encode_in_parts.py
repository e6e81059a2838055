"""The command `encode` in parts: shards, interruptions and several processes give the same rows; foreign files stay."""

import re
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import torch
import torch.distributed as dist
from pyarrow import parquet

from cmlmcse.common import progress
from cmlmcse.common.errors import InputError
from cmlmcse.data import file_parts
from cmlmcse.encode import command
from cmlmcse.encode.command import main
from support.encoding import ROWS, expected
from support.machines import on_two_machines
from support.processes import launch


@pytest.mark.slow
def test_shards(model, lines, arguments, tmp_path) -> None:
    """Files of so many rows, the last one shorter."""
    main([*arguments, "--rows_per_shard", "40", "--truncate_dim", "3"])
    shards = [np.load(tmp_path / f"out-0000{index}-of-00003.npy") for index in range(3)]
    assert [len(shard) for shard in shards] == [40, 40, 3]
    np.testing.assert_allclose(np.concatenate(shards), expected(model, lines)[:, :3], atol=1e-5)


def test_nothing_that_is_read_or_foreign_is_removed(lines, arguments, tmp_path, capsys) -> None:
    """An input that is called as a shard of the output; a folder of somebody's files where the parts would be."""
    table = tmp_path / "out-00000-of-00002.parquet"
    parquet.write_table(pyarrow.table({"text": ["a cat", "a dog"]}), table)
    (tmp_path / "other.npy.parts").mkdir()
    (tmp_path / "other.npy.parts" / "notes.txt").write_text("mine")
    for words, message in (
        ([arguments[0], str(table), *arguments[2:-1], str(tmp_path / "out.parquet"), "--rows_per_shard", "1",
          "--overwrite"],
         "expected another file than the input, found"),
        ([*arguments[:-1], str(tmp_path / "other.npy")], "expected a folder of parts, found other files in it"),
    ):  # fmt: skip
        with pytest.raises(SystemExit, match="2"):
            main(words)
        assert message in capsys.readouterr().err
    assert table.exists()
    assert (tmp_path / "other.npy.parts" / "notes.txt").exists()


def test_overwriting_shards_and_going_on(lines, arguments, tmp_path, monkeypatch, capsys) -> None:
    """Shards of another number go too; an interrupted --overwrite goes on without it; a folder is refused."""
    main([*arguments, "--rows_per_shard", "40"])
    with pytest.raises(SystemExit):
        main([*arguments, "--rows_per_shard", "50"])
    assert "out-00000-of-00003.npy: exists" in capsys.readouterr().err
    monkeypatch.setattr(file_parts, "PART_ROWS", 20)
    write, written = file_parts.Job.write_part, []

    def dying(self, path, block) -> None:
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(path)
        write(self, path, block)

    monkeypatch.setattr(file_parts.Job, "write_part", dying)
    again = [*arguments, "--rows_per_shard", "50", "--overwrite"]
    with pytest.raises(SystemExit, match="130"):
        main(again)
    assert "40 of 83 rows are kept; run the same command without --overwrite to resume" in capsys.readouterr().err
    monkeypatch.setattr(file_parts.Job, "write_part", write)
    main(again[:-1])
    assert "40 of 83 rows were done already" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.glob("out-*")) == ["out-00000-of-00002.npy", "out-00001-of-00002.npy"]
    (tmp_path / "out.npy").mkdir()
    with pytest.raises(SystemExit, match="2"):
        main([*arguments, "--overwrite"])
    assert "expected a file, found a folder" in capsys.readouterr().err


def test_a_log_says_how_far_it_is(lines, arguments, monkeypatch, capsys) -> None:
    """Without a terminal. What is counted are the texts that this call still has to encode."""
    monkeypatch.setattr(file_parts, "PART_ROWS", 30)
    monkeypatch.setattr(progress, "EVERY", 0)
    main(arguments)
    said = re.findall(r"^Encoding: (\S+) of (\d+) texts, about \d+ s left$", capsys.readouterr().err, re.MULTILINE)
    assert said == [("30", "83"), ("60", "83")]


@pytest.mark.slow
def test_goes_on_while_shards_get_their_names(model, lines, arguments, tmp_path, monkeypatch, capsys) -> None:
    """Killed between two renames: the next run takes the shards that have their names as done."""
    rename, renamed = Path.replace, []

    def dying(self: Path, target: Path) -> Path:
        if Path(target).name.startswith("out-"):
            renamed.append(target)
            if len(renamed) == 2:
                raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", dying)
    with pytest.raises(SystemExit, match="130"):
        main([*arguments, "--rows_per_shard", "40"])
    assert "stopped: by Ctrl-C; 83 of 83 rows are kept" in capsys.readouterr().err
    monkeypatch.setattr(Path, "replace", rename)
    assert [path.name for path in tmp_path.glob("out-*")] == ["out-00000-of-00003.npy"]
    main([*arguments, "--rows_per_shard", "40"])
    found = np.concatenate([np.load(path) for path in sorted(tmp_path.glob("out-*.npy"))])
    np.testing.assert_allclose(found, expected(model, lines), atol=1e-5)
    assert not (tmp_path / "out.npy.parts").exists()
    with pytest.raises(SystemExit):
        main([*arguments, "--rows_per_shard", "40"])  # now they are somebody's results
    main([*arguments, "--rows_per_shard", "40", "--overwrite", "--truncate_dim", "2"])
    assert np.load(tmp_path / "out-00002-of-00003.npy").shape == (3, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reason", "status", "said"),
    [
        (OSError(28, "No space left on device"), 2, "No space left on device; the parts before it are kept"),
        (KeyboardInterrupt(), 130, "stopped: by Ctrl-C; 30 of 83 rows are kept; run the same command to resume\n"),
    ],
    ids=["disk", "Ctrl-C"],
)
def test_goes_on_after_an_interruption(
    reason, status, said, model, lines, arguments, tmp_path, monkeypatch, capsys
) -> None:
    """Parts that are there are not encoded again; other settings and another text are refused, or begin anew."""
    monkeypatch.setattr(file_parts, "PART_ROWS", 10)
    written: list[str] = []
    write = file_parts.write_npy

    def failing(path: Path, *rest) -> None:
        if len(written) == 3:
            raise reason
        written.append(path.name)
        write(path, *rest)

    monkeypatch.setattr(file_parts, "write_npy", failing)
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == status
    assert said in capsys.readouterr().err
    assert written == ["0000000000.npy", "0000000010.npy", "0000000020.npy"]
    assert not (tmp_path / "out.npy").exists()
    kept = (tmp_path / "out.npy.parts" / "0000000010.npy").stat().st_mtime_ns

    monkeypatch.setattr(file_parts, "write_npy", lambda path, *rest: (written.append(path.name), write(path, *rest)))
    with pytest.raises(SystemExit):
        main([*arguments, "--normalize"])
    assert (tmp_path / "out.npy.parts" / "0000000010.npy").stat().st_mtime_ns == kept
    main(arguments)
    assert "30 of 83 rows were done already; they are kept and reused\n" in capsys.readouterr().out
    assert written[3:] == [f"00000000{start}.npy" for start in range(30, 90, 10)] + ["out.npy"]
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected(model, lines), atol=1e-5)
    main([*arguments, "--overwrite", "--truncate_dim", "2"])
    assert np.load(tmp_path / "out.npy").shape == (ROWS, 2)


@pytest.mark.slow
def test_two_machines(model, lines, tmp_path, arguments) -> None:
    """`accelerate launch` shares the parts out to the processes of two launchers; the file is that of one process."""
    said = on_two_machines(tmp_path, "-m", "cmlmcse.encode", *arguments, "--rows_per_shard", "10")
    assert said.count("rows ×") == 1
    found = np.concatenate([np.load(path) for path in sorted(tmp_path.glob("out-*.npy"))])
    np.testing.assert_allclose(found, expected(model, lines), atol=1e-5)


def encode_noting_the_wait(arguments: list[str]) -> None:
    """The command; each process writes for how many seconds it would wait for the others."""
    whole = command.encode_parts

    def noting(*given) -> None:
        group = dist.distributed_c10d._get_default_group()
        seconds = group._get_backend(torch.device("cpu")).options._timeout.total_seconds()
        Path(f"wait-{dist.get_rank()}").write_text(str(seconds))
        whole(*given)

    command.encode_parts = noting
    main(arguments)


@pytest.mark.slow
def test_processes_wait_while_the_first_one_merges(model, lines, arguments, tmp_path) -> None:
    """Merging a large file takes longer than the ten minutes of NCCL, or the half hour of gloo, after which the other
    processes would give up."""
    launch(encode_noting_the_wait, 2, tmp_path, *arguments)
    assert [float((tmp_path / f"wait-{rank}").read_text()) for rank in range(2)] == [7 * 24 * 3600.0] * 2
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected(model, lines), atol=1e-5)


@pytest.mark.parametrize(("first", "then"), [({}, {"passages": True}), ({"passages": True}, {}), ({"a": 1}, {"a": 2})])
def test_parts_of_other_options_are_refused(first, then, tmp_path) -> None:
    """Also where one of the two jobs does not have the option at all."""
    job = file_parts.Job(tmp_path / "out.npy", 10, 4)
    job.claim_parts(first, overwrite=False)
    job.claim_parts(first, overwrite=False)
    (name,) = first | then
    with pytest.raises(InputError, match=rf"found others \({name} differ\); give the same arguments"):
        job.claim_parts(then, overwrite=False)
    job.claim_parts(then, overwrite=True)
