"""A data folder in place of the published one."""

from pathlib import Path

import numpy as np
import pytest

from cmlmcse.evaluation import sts_data
from cmlmcse.evaluation.sts_data import STS_SETS
from support.tiny import WORDS


@pytest.fixture
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with all sets of 6 to 9 pairs a subset, and the counts to match."""
    rng = np.random.default_rng(0)
    monkeypatch.setattr(sts_data, "STSB_DEV", sts_data.STSB_DEV._replace(counts={"dev": 9}))
    for name, one in list(STS_SETS.items()):
        counts = {subset: 6 + i % 4 for i, subset in enumerate(one.counts)}
        monkeypatch.setitem(STS_SETS, name, one._replace(counts=counts))
    for one in [*STS_SETS.values(), sts_data.STSB_DEV]:
        folder = tmp_path / "data" / "sts" / one.folder
        folder.mkdir(parents=True, exist_ok=True)
        for subset, count in one.counts.items():
            pairs = [(rng.integers(0, 6), *(" ".join(rng.choice(WORDS, 4)) for _ in "ab")) for _ in range(count)]
            (folder / f"{subset}.tsv").write_text("".join(f"{s}\t{a}\t{b}\n" for s, a, b in pairs))
    return tmp_path / "data"
