"""The script in train.py's place."""

from pathlib import Path

import pytest

from cmlmcse.study import runner
from support.studies import STAND_IN


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The script in train.py's place."""
    script = tmp_path / "stand_in.py"
    script.write_text(STAND_IN)
    monkeypatch.setattr(runner, "TRAIN", (str(script),))
    return script
