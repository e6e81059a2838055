"""Text that is odd, but text: it trains, and every line is encoded."""

import json

import numpy as np
import pytest

from cmlmcse.encode import command as encode
from support.paths import ROOT
from support.training import run

pytestmark = pytest.mark.slow
FILLER = [f"the big dog sat on a w{number} mat" for number in range(20)]
ODD = {
    "empty lines": "\n\n" + "\n\n\n".join(FILLER) + "\n\n",
    "100,000 characters": "the cat sat " * 8334 + "\n" + "x" * 100_000 + "\n" + "\n".join(FILLER) + "\n",
    "emoji": "\n".join(f"{line} 😀👩‍👩‍👧‍👦🏳️‍🌈" for line in FILLER) + "\n",
    "control characters": "\n".join(f"{line}\x00\x07\x1b[31m\x0b\x0c\x85\u2028" for line in FILLER) + "\n",
    "right to left": "\n".join(["שלום עולם", "مرحبا بالعالم \u202e cat", *FILLER]) + "\n",
    "special tokens alone": "\n".join(["[CLS] [SEP] [MASK] [PAD] [UNK]", "[MASK]", *FILLER]) + "\n",
    "CRLF": "\r\n".join(FILLER) + "\r\n",
    "byte-order mark": "\ufeff" + "\n".join(FILLER) + "\n",
    "duplicates": "the cat sat\n" * 20,
    "no last line end": "\n".join(FILLER),
    "blanks": "\n".join(f" \t {line}\u00a0\u3000" for line in FILLER) + "\n",
}


@pytest.mark.parametrize("kind", ODD)
def test_odd_text(kind, backbone_folders, monkeypatch, tmp_path, capsys):
    """Two steps with finite losses; then a finite row for each line, empty ones included."""
    file = tmp_path / "text.txt"
    file.write_bytes(ODD[kind].encode())
    options = {
        "model_name_or_path": backbone_folders["bert"], "train_file": file, "dev_set": "none", "max_steps": 2,
        "final_evaluation": "none", "per_device_train_batch_size": 4, "logging_steps": 1, "use_cpu": True,
        "disable_tqdm": True, "output_dir": tmp_path / "run", "lexical_layers": 4, "fusion_layers": 2,
    }  # fmt: skip
    recipe = ROOT / "configuration" / "cmlmcse-bert-base.yaml"
    run(monkeypatch, recipe, *(word for name, value in options.items() for word in (f"--{name}", value)))
    losses = [row["loss"] for row in json.loads((tmp_path / "run" / "run.json").read_text())["log"] if "loss" in row]
    assert len(losses) == 2
    assert np.isfinite(losses).all()
    encode.main([str(tmp_path / "run" / "export"), str(file), "--output", str(tmp_path / "out.npy")])
    rows = np.load(tmp_path / "out.npy")
    assert len(rows) == ODD[kind].removesuffix("\n").count("\n") + 1
    assert np.isfinite(rows).all()
