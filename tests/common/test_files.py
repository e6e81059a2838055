"""Files that are written whole or not at all."""

import pytest

from cmlmcse.common.files import atomic_write


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
