"""What the record of a run says of the code: its commit, and whether the checkout had changes that no commit has."""

import subprocess
from pathlib import Path

import pytest

from cmlmcse.training.records import code_version

NAME = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "core.hooksPath=none", "-c", "commit.gpgsign=false")


def git(folder: Path, *words: str) -> str:
    """What git prints."""
    return subprocess.run(["git", *NAME, "-C", folder, *words], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with one file of code and one of a study."""
    for name in ("cmlmcse/code.py", "studies/runs.csv"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("as committed\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "First")
    return tmp_path


def test_changed_code_is_recorded(checkout: Path) -> None:
    """Only a change of the code is; a study changes its own records."""
    commit = git(checkout, "rev-parse", "HEAD").strip()
    assert code_version(checkout) == {"git_commit": commit}
    (checkout / "studies" / "runs.csv").write_text("a row more\n")
    (checkout / "cmlmcse" / "notes.txt").write_text("not added\n")
    assert code_version(checkout) == {"git_commit": commit}
    (checkout / "cmlmcse" / "code.py").write_text("changed\n")
    assert code_version(checkout) == {"git_commit": commit, "uncommitted_changes": True}
    git(checkout, "add", ".")
    assert code_version(checkout) == {"git_commit": commit, "uncommitted_changes": True}


def test_without_an_answer(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No commit where there is no checkout, no commit yet, a repository that git refuses, or no git."""
    unknown = {"git_commit": None}
    assert code_version(checkout / "cmlmcse") == unknown
    git(checkout, "update-ref", "-d", "HEAD")
    assert code_version(checkout) == unknown
    (checkout / ".git" / "HEAD").write_text("damaged")
    assert code_version(checkout) == unknown
    monkeypatch.setenv("PATH", "")
    assert code_version(checkout) == unknown
