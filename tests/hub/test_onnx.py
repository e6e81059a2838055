"""`cmlmcse push --onnx`: when it refuses. What it writes is loaded by `make test-compat` (tests/compat)."""

from pathlib import Path

import numpy as np
import pytest
import torch

from cmlmcse.common.errors import InputError
from cmlmcse.hub import onnx_files, push
from cmlmcse.hub.export import export
from cmlmcse.hub.onnx_files import FP32, check_onnx, write_onnx
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from support.tiny import tiny_tokenizer


@pytest.fixture
def model(backbone_folders) -> CMLMCSEForSentenceEmbedding:
    return CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders["bert"], pooling="avg", cmlm_weight=0.0).eval()


def test_a_pooling_that_needs_the_code(monkeypatch) -> None:
    """No reader of ONNX files knows where a template has its mask token."""
    monkeypatch.setattr(onnx_files, "find_spec", lambda name: name)
    with pytest.raises(InputError, match="readers of ONNX files know, found prompt"):
        check_onnx("prompt")


@pytest.mark.parametrize(
    ("missing", "pooling", "words"),
    [
        (("onnxscript",), "avg", 'found no onnxscript; pip install "cmlmcse[onnx]"'),
        (onnx_files.PACKAGES, "avg", "found no onnx, onnxruntime, onnxscript; pip install"),
        ((), "avg_top2", "expects a pooling of the last layer, found avg_top2"),
    ],
)
def test_refused_before_any_work(missing, pooling, words, model, monkeypatch, tmp_path, capsys) -> None:
    """One line, status 2, and no folder."""
    monkeypatch.setattr(onnx_files, "find_spec", lambda name: None if name in missing else name)
    with pytest.raises(InputError, match="--onnx"):
        check_onnx(pooling)
    model.config.pooling = pooling
    model.save_pretrained(tmp_path / "checkpoint")
    with pytest.raises(SystemExit, match="2"):
        push.main([str(tmp_path / "checkpoint"), "--onnx", "--export_only", "--output_dir", str(tmp_path / "out")])
    assert words in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


@pytest.mark.parametrize(
    ("shift", "turn", "refused"), [(5e-5, 0.1, False), (2e-4, 0.1, True), (np.nan, 0.0, True), (0.0, 0.33, True)]
)
def test_what_it_wrote_is_compared(shift, turn, refused, model, sentences, monkeypatch, tmp_path) -> None:
    """A coordinate that is off by `shift` in fp32, and vectors turned by an angle in int8."""
    tokenizer = tiny_tokenizer("bert")
    folder = export(model, tokenizer, tmp_path / "export", trust_free=True)
    right = torch.from_numpy(model.encode(sentences, tokenizer))  # (N, H)
    beside = torch.randn_like(right)
    beside -= (beside * right).sum(1, keepdim=True) / right.square().sum(1, keepdim=True) * right  # orthogonal
    beside *= right.norm(dim=1, keepdim=True) / beside.norm(dim=1, keepdim=True)
    wrong = right.clone()
    wrong[1, 3] += shift * max(1.0, float(right.abs().max()))
    found = {True: wrong, False: np.cos(turn) * right + np.sin(turn) * beside}
    monkeypatch.setattr(onnx_files, "export_graph", lambda *arguments: None)
    monkeypatch.setattr(onnx_files, "quantize", lambda *arguments: None)
    monkeypatch.setattr(
        onnx_files, "embed", lambda model, path, tokens: found[Path(path).name == FP32][: len(tokens["input_ids"])]
    )
    if refused:
        with pytest.raises(InputError, match="--onnx expects a difference of at most 1e-04 and a mean cosine"):
            write_onnx(model, tokenizer, folder, sentences)
        return
    check = write_onnx(model, tokenizer, folder, sentences)
    assert check.difference == pytest.approx(shift, rel=0.05)
    assert (check.mean_cosine, check.least_cosine) == pytest.approx((np.cos(turn), np.cos(turn)), abs=1e-5)
