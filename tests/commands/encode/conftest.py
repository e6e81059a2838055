"""A tiny encoder, a text as a file, and the command's arguments."""

from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from support.encoding import ROWS
from support.tiny import WORDS


@pytest.fixture(scope="module")
def model(backbone_folders) -> CMLMCSEForSentenceEmbedding:
    return CMLMCSEForSentenceEmbedding.from_backbone(
        backbone_folders["bert"], cmlm_weight=0.0, projection="none", pooling="avg"
    ).eval()


@pytest.fixture
def lines(tmp_path: Path) -> list[str]:
    """Sentences of 0 to 20 words, in `in.txt` with mixed line ends and a byte-order mark, and in `in.parquet`."""
    rng = np.random.default_rng(0)
    lines = [" ".join(rng.choice(WORDS, rng.integers(20))) for _ in range(ROWS)]
    lines[5], lines[6], lines[7] = "", "  ", "the\u2028cat\x0bsat 🐈"  # one line each, whatever str.splitlines thinks
    ends = ["\r\n" if index % 3 == 0 else "\n" for index in range(ROWS - 1)] + [""]
    text = "\ufeff" + "".join(line + end for line, end in zip(lines, ends, strict=True))
    (tmp_path / "in.txt").write_bytes(text.encode())
    parquet.write_table(pyarrow.table({"text": lines, "n": range(ROWS)}), tmp_path / "in.parquet")
    return lines


@pytest.fixture
def arguments(backbone_folders, tmp_path: Path) -> list[str]:
    return [
        backbone_folders["bert"],
        str(tmp_path / "in.txt"),
        "--pooling",
        "avg",
        "--output",
        str(tmp_path / "out.npy"),
    ]
