"""Files that are written whole or not at all."""

from pathlib import Path

import pytest

from cmlmcse.common import alone
from cmlmcse.common.errors import InputError
from cmlmcse.common.files import atomic_write, new_model_folder


def test_two_writers_of_one_name(tmp_path):
    """Neither touches what the other writes, though both have this process's number: the last one to end wins."""
    path = tmp_path / "table"
    with atomic_write(path) as first:
        first.write_text("first")
        with atomic_write(path) as second:
            second.write_text("second")
        assert path.read_text() == "second"
        assert first.read_text() == "first"
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_leaves_the_old_file(tmp_path):
    """And nothing beside it."""
    path = tmp_path / "table"
    path.write_text("old")

    def half() -> None:
        with atomic_write(path) as new:
            new.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        half()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_model_folder(tmp_path, monkeypatch):
    """Weights are as readable as config.json. The folder that another process begins at once is left alone."""
    rename = Path.rename

    def rename_and_begin_another(aside: Path, folder: Path) -> None:
        rename(aside, folder)
        aside.mkdir()

    monkeypatch.setattr(Path, "rename", rename_and_begin_another)
    with new_model_folder(tmp_path / "new" / "model") as aside:
        (aside / "config.json").touch(0o644)
        (aside / "part").mkdir()
        weights = [aside / "model.safetensors", aside / "part" / "model.safetensors"]
        for file in weights:
            file.touch(0o600)
    written = tmp_path / "new" / "model"
    assert [(written / file.relative_to(aside)).stat().st_mode & 0o777 for file in weights] == [0o644, 0o644]
    assert sorted(tmp_path.joinpath("new").iterdir()) == [aside, written]


def test_two_commands_write_one_model_folder(tmp_path, monkeypatch):
    """The second one is refused, while the first one writes and afterwards, and what the first one writes stays."""
    monkeypatch.setattr(alone, "PATIENCE", 0.0)
    folder = tmp_path / "model"
    second = new_model_folder(folder)
    with new_model_folder(folder) as aside:
        (aside / "config.json").touch()
        with pytest.raises(InputError, match=f"found another command that is writing to {folder};"), second:
            pass
        assert (aside / "config.json").exists()
    third = new_model_folder(folder)
    with pytest.raises(InputError, match=f"{folder} must not exist yet, found it; choose another"), third:
        pass
    assert list(tmp_path.rglob("*")) == [folder, folder / "config.json"]


@pytest.mark.parametrize("error", (RuntimeError, KeyboardInterrupt))
def test_an_error_leaves_no_model_folder(error, tmp_path):
    """Also where a command that was killed left its part of one."""
    (tmp_path / ".model.incomplete").mkdir()
    (tmp_path / ".model.incomplete" / "old").touch()

    def half() -> None:
        with new_model_folder(tmp_path / "model") as aside:
            assert list(aside.iterdir()) == []
            (aside / "config.json").touch()
            raise error

    with pytest.raises(error):
        half()
    assert list(tmp_path.iterdir()) == []
