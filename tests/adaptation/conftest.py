"""Fixtures of the tests of adapt."""

from pathlib import Path

import pytest
from matplotlib.figure import Figure


@pytest.fixture
def pictures() -> None:
    """Asked for by tests that look at a run's pictures."""


@pytest.fixture(autouse=True)
def empty_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes a quarter of a tiny run: where no test looks at them, the pictures are empty files."""
    if "pictures" not in request.fixturenames:
        monkeypatch.setattr(Figure, "savefig", lambda self, path, **_: Path(path).touch())
