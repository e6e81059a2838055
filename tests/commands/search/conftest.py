"""A model, texts, and their stored vectors."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from cmlmcse.data import tables
from cmlmcse.encode import command as encode
from support.search import QUERY
from support.tiny import WORDS


@pytest.fixture
def place(backbone_folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model, 50 texts as lines and as a table, and the table encoded; small blocks."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tables, "TABLE_ROWS", 7)
    shutil.copytree(backbone_folders["bert"], "model")
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, rng.integers(2, 9))) for _ in range(50)]
    texts[11] = texts[30] = QUERY  # the same score: the earlier row is first
    Path("texts.txt").write_text("\n".join(texts) + "\n")
    with Path("texts.jsonl").open("w") as file:
        file.writelines(json.dumps({"sentence": text, "id": f"d{row}"}) + "\n" for row, text in enumerate(texts))
    encode.main(["model", "texts.jsonl", "--text_column", "sentence", "--pooling", "avg", "--output", "texts.parquet"])
    return tmp_path
