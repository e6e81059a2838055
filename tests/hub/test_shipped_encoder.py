"""The small finished encoder in assets/: it loads without code and does what its card says."""

import json
import re

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer

from cmlmcse.evaluation.command import evaluate
from cmlmcse.models.encoders import load_model_encoder
from support.paths import DATA, ROOT

ENCODER = ROOT / "assets" / "encoder-mini-en"


def test_small_and_without_code() -> None:
    """Half-precision weights, which load as float32; files of transformers and sentence-transformers alone."""
    weights = load_file(ENCODER / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.float16}
    assert sum(path.stat().st_size for path in ENCODER.rglob("*") if path.is_file()) <= 20 * 2**20
    assert not list(ENCODER.rglob("*.py"))
    assert json.loads((ENCODER / "config.json").read_text())["dtype"] == "float32"


def test_gives_the_cosines_of_its_card() -> None:
    """sentence-transformers and this project agree with each other and with the card."""
    card = (ENCODER / "README.md").read_text()
    (listed,) = re.findall(r"sentences = (\[.*\])", card)
    shown = re.findall(r"^# \[([\d. -]+)\]$", card, re.MULTILINE)
    expected = np.array([row.split() for row in shown], dtype=float)
    sentences = json.loads(listed)
    model = SentenceTransformer(str(ENCODER), device="cpu")
    vectors = model.encode(sentences)
    assert next(model.parameters()).dtype == torch.float32
    np.testing.assert_allclose(model.similarity(vectors, vectors).numpy(), expected, atol=0.006)
    np.testing.assert_allclose(load_model_encoder(str(ENCODER), device="cpu")(sentences), vectors, atol=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(not (DATA / "sts").is_dir(), reason="no evaluation data; set CMLMCSE_DATA to their folder")
def test_has_the_score_of_its_card() -> None:
    """STS-B's development set anew."""
    (said,) = re.findall(r"^\| stsb_dev spearman +\| +([\d.]+) \|$", (ENCODER / "README.md").read_text(), re.MULTILINE)
    found = evaluate(ENCODER, ["stsb_dev"], DATA)["stsb_dev"]["spearman"]
    assert found == pytest.approx(float(said), abs=0.05)
