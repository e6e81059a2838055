"""An export loads, and gives the same embeddings, in another environment than the one that wrote it.

`make test-compat` runs this with the newest transformers 4; without exports (`CMLMCSE_EXPORTS`) it is skipped.
"""

import os

import numpy as np
import pytest
import torch
import transformers
from sentences import EXPORTS, SENTENCES
from transformers import AutoModel, AutoTokenizer

if "CMLMCSE_EXPORTS" not in os.environ:
    pytest.skip("CMLMCSE_EXPORTS, a folder of make_exports.py, is not set", allow_module_level=True)
sentence_transformers = pytest.importorskip("sentence_transformers")

NAMES = sorted(path.stem for path in EXPORTS.glob("*.npy"))
WITH_CODE = [name for name in NAMES if (EXPORTS / name / "modeling_cmlmcse.py").exists()]
UNNORMED = pytest.mark.xfail(
    transformers.__version__ < "5",
    reason="the last of ModernBERT's hidden_states is not through the final norm in transformers 4",
    strict=True,
)


def test_every_export_is_there():
    """Something is tested at all."""
    assert len(WITH_CODE) == len(NAMES) - 1 > 15


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=UNNORMED if name == "modernbert-avg_first_last" else ()) for name in NAMES]
)
def test_sentence_transformers(name):
    """Without trusting any code."""
    found = sentence_transformers.SentenceTransformer(str(EXPORTS / name), device="cpu").encode(SENTENCES)
    np.testing.assert_allclose(found, np.load(EXPORTS / f"{name}.npy"), atol=1e-5)


@pytest.mark.parametrize("name", WITH_CODE)
def test_auto_model(name):
    """With the code of the export: its output, padded, and its `encode`."""
    expected = np.load(EXPORTS / f"{name}.npy")
    model = AutoModel.from_pretrained(EXPORTS / name, trust_remote_code=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(EXPORTS / name)
    assert type(model).__module__.startswith("transformers_modules."), type(model).__module__
    with torch.no_grad():
        output = model(**tokenizer(SENTENCES, padding=True, truncation=True, return_tensors="pt"))
    np.testing.assert_allclose(output.pooler_output.numpy(), expected, atol=1e-5)
    np.testing.assert_allclose(model.encode(SENTENCES, tokenizer=tokenizer), expected, atol=1e-5)
