"""An export with ONNX files in transformers.js (docs/how-to/onnx.md): fp32 to 1e-5, int8 by cosine.

`make test-compat` runs this where `CMLMCSE_TRANSFORMERS_JS` names a folder in which npm installed the library.
"""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from sentences import EXPORTS, SENTENCES

PACKAGES = os.environ.get("CMLMCSE_TRANSFORMERS_JS")
if not PACKAGES or "CMLMCSE_EXPORTS" not in os.environ:
    pytest.skip("CMLMCSE_TRANSFORMERS_JS or CMLMCSE_EXPORTS is not set", allow_module_level=True)
SCRIPT = Path(__file__).with_name("transformers_js.mjs")
POOLINGS = {
    "avg": "mean",
    "cls_before_pooler": "cls",
}  # the pooling `cls` keeps a head, which the library does not read
FOLDERS = [folder for folder in sorted((EXPORTS / "onnx").glob("*/")) if folder.name.split("-")[1] in POOLINGS]


def embed(folder: Path, dtype: str) -> np.ndarray:
    """(N, H) embeddings of length 1."""
    pooling = POOLINGS[folder.name.split("-")[1]]
    places = [str(Path(PACKAGES).resolve()), str(folder.resolve())]
    command = ["node", str(SCRIPT), *places, pooling, dtype, json.dumps(SENTENCES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return np.array(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_onnx_files_of_push(folder):
    """What `cmlmcse push --onnx` writes, from the folder as it is, with sentences of different lengths in a batch. The
    last one is longer than the model takes: the library cuts off its closing special token, ours does not."""
    expected = np.load(folder.with_name(f"{folder.name}.npy"))
    expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    found = embed(folder, "fp32")
    np.testing.assert_allclose(found[:-1], expected[:-1], atol=1e-5)
    assert found[-1] @ expected[-1] > 0.98
    assert np.abs(found[-1] - expected[-1]).max() > 1e-4  # should this fail, it has learnt it: fix the page
    assert (embed(folder, "q8") * expected).sum(axis=1).min() > 0.98


def test_there_are_exports():
    """One of each kind that make_exports.py writes."""
    assert {folder.name for folder in FOLDERS} == {"bert-avg", "mpnet-avg", "modernbert-cls_before_pooler"}
