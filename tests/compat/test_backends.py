"""An export in sentence-transformers' ONNX and OpenVINO backends: fp32 to 1e-5, int8 by cosine (docs/how-to/onnx.md).

`make test-compat` runs this; without exports (`CMLMCSE_EXPORTS`) or a backend's libraries it is skipped.
"""

import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from sentences import EXPORTS, SENTENCES

if "CMLMCSE_EXPORTS" not in os.environ:
    pytest.skip("CMLMCSE_EXPORTS, a folder of make_exports.py, is not set", allow_module_level=True)
sentence_transformers = pytest.importorskip("sentence_transformers")

LIBRARIES = {"onnx": "optimum.onnxruntime", "openvino": "optimum.intel.openvino"}
FP32 = {"ov_config": {"INFERENCE_PRECISION_HINT": "f32"}}  # without it OpenVINO computes in bf16 where the CPU can
OPTIONS = {"onnx": {}, "openvino": FP32}
LAST_LAYER = sorted(path.stem for path in EXPORTS.glob("*.npy") if "avg_" not in path.stem)
SOME = ("bert-avg", "bert-cls", "modernbert-cls")  # OpenVINO takes seconds for each


@pytest.fixture(params=sorted(LIBRARIES))
def backend(request) -> str:
    """The name of a backend whose libraries are installed."""
    pytest.importorskip(LIBRARIES[request.param])
    return request.param


def load(folder: str | Path, backend: str, **options):
    """The export in a backend."""
    load_model = partial(sentence_transformers.SentenceTransformer, device="cpu", backend=backend)
    return load_model(str(folder), model_kwargs={**OPTIONS[backend], **options})


def cosines(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """(N, H) and (N, H) → (N,)."""
    norms = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
    return (found * expected).sum(axis=1) / norms


@pytest.mark.parametrize("name", LAST_LAYER)
def test_fp32(name, backend, tmp_path):
    """Converted while it loads, and again from what was saved, whole."""
    if backend == "openvino" and name not in SOME:
        pytest.skip("takes long")
    expected = np.load(EXPORTS / f"{name}.npy")
    model = load(EXPORTS / name, backend)
    np.testing.assert_allclose(model.encode(SENTENCES), expected, atol=1e-5)
    model.save_pretrained(str(tmp_path / "saved"))
    np.testing.assert_allclose(load(tmp_path / "saved", backend).encode(SENTENCES), expected, atol=1e-5)


def test_layer_averages_are_lost(backend):
    """The converted graph has no other layer's output, and sentence-transformers takes the last one's without a word.
    Should this fail, the libraries have learnt it: fix docs/how-to/onnx.md."""
    for name in ("bert-avg_top2", "bert-avg_first_last"):
        found = load(EXPORTS / name, backend).encode(SENTENCES)
        assert np.abs(found - np.load(EXPORTS / f"{name}.npy")).max() > 0.05


@pytest.mark.parametrize("folder", sorted((EXPORTS / "onnx").glob("*/")), ids=lambda folder: folder.name)
def test_onnx_files_of_push(folder):
    """What `cmlmcse push --onnx` writes: loaded as it is, without converting."""
    pytest.importorskip(LIBRARIES["onnx"])
    expected = np.load(folder.with_name(f"{folder.name}.npy"))
    for options in ({}, {"file_name": "onnx/model.onnx"}):
        np.testing.assert_allclose(load(folder, "onnx", **options).encode(SENTENCES), expected, atol=1e-4)
    int8 = load(folder, "onnx", file_name="onnx/model_quantized.onnx").encode(SENTENCES)
    assert cosines(int8, expected).min() > 0.98


@pytest.mark.parametrize("folder", sorted((EXPORTS / "onnx").glob("*/")), ids=lambda folder: folder.name)
def test_openvino_file_of_push(folder):
    """What `cmlmcse push --openvino` writes: loaded as it is, without converting."""
    pytest.importorskip(LIBRARIES["openvino"])
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    model = load(folder, "openvino", export=False)
    np.testing.assert_allclose(model.encode(SENTENCES), np.load(folder.with_name(f"{folder.name}.npy")), atol=1e-4)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


@pytest.mark.parametrize("name", SOME)
def test_onnx_int8(name, tmp_path):
    """Dynamic quantisation: a smaller file, and almost the same directions."""
    pytest.importorskip(LIBRARIES["onnx"])
    folder, model = tmp_path / "onnx", load(EXPORTS / name, "onnx")
    model.save_pretrained(str(folder))
    sentence_transformers.export_dynamic_quantized_onnx_model(model, "avx2", str(folder))
    loaded = load(folder, "onnx", file_name="onnx/model_quint8_avx2.onnx")
    assert cosines(loaded.encode(SENTENCES), np.load(EXPORTS / f"{name}.npy")).min() > 0.99


def test_openvino_int8(tmp_path):
    """Static quantisation, calibrated on a text file; needs a model of at least 384 positions."""
    quantization = pytest.importorskip(LIBRARIES["openvino"])
    pytest.importorskip("datasets")
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "train.txt").write_text("\n".join(SENTENCES * 4) + "\n")
    folder, model = tmp_path / "openvino", load(EXPORTS / "bert-word_pieces", "openvino")
    model.save_pretrained(str(folder))
    sentence_transformers.export_static_quantized_openvino_model(
        model,
        quantization.OVQuantizationConfig(num_samples=16),
        str(folder),
        dataset_name=str(tmp_path / "text"),
        dataset_config_name="default",
        dataset_split="train",
        column_name="text",
    )
    loaded = load(folder, "openvino", file_name="openvino/openvino_model_qint8_quantized.xml")
    assert cosines(loaded.encode(SENTENCES), np.load(EXPORTS / "bert-word_pieces.npy")).min() > 0.95
