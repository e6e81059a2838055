"""`cmlmcse push --onnx` and `--openvino`: when they refuse. What they write is loaded by `make test-compat`."""

import numpy as np
import pytest
import torch

from cmlmcse.common.errors import InputError
from cmlmcse.hub import onnx_files, openvino_files, push
from cmlmcse.hub.export import export
from cmlmcse.hub.onnx_files import FP32, check_graph, pooled, write_onnx
from cmlmcse.hub.openvino_files import write_openvino
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from support.tiny import tiny_tokenizer

OPTIONS = {"onnx": onnx_files.PACKAGES, "openvino": openvino_files.PACKAGES}


@pytest.fixture
def model(backbone_folders) -> CMLMCSEForSentenceEmbedding:
    return CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders["bert"], pooling="avg", cmlm_weight=0.0).eval()


def test_a_pooling_that_needs_the_code(monkeypatch) -> None:
    """No reader of such files knows where a template has its mask token."""
    monkeypatch.setattr(onnx_files, "find_spec", lambda name: name)
    with pytest.raises(InputError, match="--onnx expects a pooling that readers of such files know, found prompt"):
        check_graph("onnx", (), "prompt")


@pytest.mark.parametrize(
    ("option", "missing", "pooling", "words"),
    [
        ("onnx", ("onnxscript",), "avg", 'found no onnxscript; pip install "cmlmcse[onnx]"'),
        ("onnx", onnx_files.PACKAGES, "avg", "found no onnx, onnxruntime, onnxscript; pip install"),
        ("onnx", (), "avg_top2", "--onnx expects a pooling of the last layer, found avg_top2"),
        ("openvino", ("openvino",), "avg", 'found no openvino; pip install "cmlmcse[openvino]"'),
        ("openvino", (), "avg_first_last", "--openvino expects a pooling of the last layer, found avg_first_last"),
    ],
)
def test_refused_before_any_work(option, missing, pooling, words, model, monkeypatch, tmp_path, capsys) -> None:
    """One line, status 2, and no folder."""
    monkeypatch.setattr(onnx_files, "find_spec", lambda name: None if name in missing else name)
    with pytest.raises(InputError, match=f"--{option}"):
        check_graph(option, OPTIONS[option], pooling)
    model.config.pooling = pooling
    model.save_pretrained(tmp_path / "checkpoint")
    arguments = [tmp_path / "checkpoint", f"--{option}", "--export_only", "--output_dir", tmp_path / "out"]
    with pytest.raises(SystemExit, match="2"):
        push.main([str(argument) for argument in arguments])
    assert words in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


@pytest.mark.parametrize(
    ("shift", "turn", "refused"), [(5e-5, 0.1, False), (2e-4, 0.1, True), (np.nan, 0.0, True), (0.0, 0.33, True)]
)
@pytest.mark.parametrize("option", OPTIONS)
def test_what_it_wrote_is_compared(option, shift, turn, refused, model, sentences, monkeypatch, tmp_path) -> None:
    """A coordinate that is off by `shift` in fp32, and for ONNX vectors turned by an angle in int8."""
    tokenizer = tiny_tokenizer("bert")
    folder = export(model, tokenizer, tmp_path / "export", trust_free=True)
    right = torch.from_numpy(model.encode(sentences, tokenizer))  # (N, H)
    beside = torch.randn_like(right)
    beside -= (beside * right).sum(1, keepdim=True) / right.square().sum(1, keepdim=True) * right  # orthogonal
    beside *= right.norm(dim=1, keepdim=True) / beside.norm(dim=1, keepdim=True)
    wrong = right.clone()
    wrong[1, 3] += shift * max(1.0, float(right.abs().max()))
    found = {True: wrong, False: np.cos(turn) * right + np.sin(turn) * beside}
    for module, name in ((onnx_files, "export_graph"), (openvino_files, "export_graph"), (onnx_files, "quantize"),
                         (openvino_files, "convert")):  # fmt: skip
        monkeypatch.setattr(module, name, lambda *arguments: None)
    monkeypatch.setattr(onnx_files, "run_onnx", lambda path, tokens: path.name == FP32)
    monkeypatch.setattr(openvino_files, "CompiledModel", lambda path: lambda tokens: True)
    monkeypatch.setattr(onnx_files, "pooled", lambda model, fp32, tokens: found[fp32][: len(tokens["input_ids"])])
    write = write_onnx if option == "onnx" else write_openvino
    if refused and not (option == "openvino" and turn > 0.3):  # OpenVINO's file has no int8
        with pytest.raises(InputError, match=f"--{option} expects a difference of at most 1e-04"):
            write(model, tokenizer, folder, sentences)
        return
    check = write(model, tokenizer, folder, sentences)
    if option == "openvino":
        assert check == f"openvino/openvino_model.xml: largest difference {shift:.1e}"
        return
    assert check.difference == pytest.approx(shift, rel=0.05)
    assert (check.mean_cosine, check.least_cosine) == pytest.approx((np.cos(turn), np.cos(turn)), abs=1e-5)


def test_pooled_token_vectors(model, sentences) -> None:
    """Token vectors of the model itself, padding included, are pooled to its own embeddings."""
    tokenizer = tiny_tokenizer("bert")
    tokens = onnx_files.tokenize(tokenizer, sentences)
    with torch.no_grad():
        states = model(**tokens).last_hidden_state.numpy()
    np.testing.assert_allclose(pooled(model, states, tokens), model.encode(sentences, tokenizer), atol=1e-5)
