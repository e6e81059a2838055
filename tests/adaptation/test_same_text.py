"""The text that must stay as it is while adapt works: what is watched, and what goes when it changed."""

import os
import shutil

import pytest

from cmlmcse.adaptation.same_text import SameText
from cmlmcse.common.errors import InputError, Stopped
from cmlmcse.data.unchanged import InputChanged


def test_what_text_is_watched(tmp_path):
    """A file, and a folder also when nothing is left in it; a name that is not on this machine is not. A file that is
    written again as it was is no other one."""
    SameText("owner/dataset").check()
    (tmp_path / "text.txt").write_text("a\n")
    text = SameText(str(tmp_path / "text.txt"))
    os.utime(tmp_path / "text.txt", (1, 1))
    text.check()
    (tmp_path / "text.txt").write_text("b\n")
    with pytest.raises(InputChanged, match="written at another time"):
        text.check()
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("a\n")
    folder = SameText(str(tmp_path / "notes"))
    folder.check()
    (tmp_path / "notes" / "b.md").write_text("b\n")
    with pytest.raises(InputChanged, match=r"\(a file in it is new, gone or another one\); start again with another"):
        folder.check()
    shutil.rmtree(tmp_path / "notes")
    with pytest.raises(InputChanged, match=r"notes: expected text that stays as it is .* \(No such file"):
        folder.check()
    (tmp_path / "notes").mkdir()
    with pytest.raises(InputChanged, match=r"\(its files are gone, or cannot be listed\)"):
        folder.check()


@pytest.mark.parametrize(
    ("content", "error", "expected", "kept"),
    [
        ("other\n", Stopped("by Ctrl-C"), Stopped, True),
        ("a\n", InputError("too few documents"), InputError, True),
        ("", InputError("too few documents"), InputChanged, False),
        ("other\n", None, InputChanged, False),
    ],
)
def test_what_fails_in_a_changed_text(content, error, expected, kept, tmp_path):
    """The change is the error, and the run goes; a run that was stopped, or whose text is as it was, stays."""
    text, run = tmp_path / "text.txt", tmp_path / "run"
    text.write_text("a\n")
    run.mkdir()

    def train():
        with SameText(str(text)).around(run):
            if text.read_text() != content:
                text.write_text(content)
            if error is not None:
                raise error

    with pytest.raises(expected) as failed:
        train()
    assert type(failed.value) is expected
    assert run.exists() is kept
