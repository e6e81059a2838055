"""Checkpoints and exports: byte for byte, in a fresh process, in sentence-transformers."""

import json

import numpy as np
import pytest
import torch
from transformers import AutoModel

from cmlmcse.common.errors import InputError
from cmlmcse.hub.export import export
from cmlmcse.models.encoders import load_encoder
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from support.processes import run_fresh
from support.tiny import tiny_tokenizer

POOLINGS = ("cls_before_pooler", "cls", "avg", "avg_top2", "avg_first_last")
FRESH = """
import sys, json
import numpy as np
from transformers import AutoModel, AutoTokenizer
sentences = json.loads(sys.argv[1])
for folder in sys.argv[2:]:
    model = AutoModel.from_pretrained(folder, trust_remote_code=True)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert type(model).__module__.startswith("transformers_modules."), type(model).__module__
    output = model(**tokenizer(sentences, padding=True, truncation=True, return_tensors="pt"))
    encoded = model.encode(sentences, tokenizer=tokenizer)
    np.savez(folder + ".npz", pooler=output.pooler_output.detach().numpy(), encoded=encoded)
    model.save_pretrained(folder + "-again")
"""


def load(folder: str, **fields) -> CMLMCSEForSentenceEmbedding:
    """The model from a tiny backbone."""
    return CMLMCSEForSentenceEmbedding.from_backbone(folder, **fields).eval()


@pytest.mark.parametrize("weight", (0.0, 0.005))
def test_save_load_save_is_byte_equal(weight, backbone_folders, tmp_path):
    """A saved, loaded and saved model gives the same bytes in every file."""
    load(backbone_folders["bert"], cmlm_weight=weight).save_pretrained(tmp_path / "a")
    CMLMCSEForSentenceEmbedding.from_pretrained(tmp_path / "a").save_pretrained(tmp_path / "b")
    files = sorted(str(p.relative_to(tmp_path / "a")) for p in (tmp_path / "a").rglob("*") if p.is_file())
    assert files == sorted(str(p.relative_to(tmp_path / "b")) for p in (tmp_path / "b").rglob("*") if p.is_file())
    assert {"config.json", "model.safetensors", "modeling_cmlmcse.py", "conditional_mlm.py", "packing.py"} <= set(files)
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


@pytest.mark.slow
def test_exports_in_a_fresh_process(backbone_folders, sentences, tmp_path):
    """Exported folders alone, in a new process with an empty module cache, give the same embeddings, one of them of
    length 1."""
    expected = {}
    for kind, pooling, normalize in (("bert", "cls", False), ("roberta", "avg_first_last", True),
                                     ("xlm-roberta", "avg", False)):  # fmt: skip
        tokenizer = tiny_tokenizer(kind)
        model = load(backbone_folders[kind], pooling=pooling, normalize=normalize)
        expected[export(model, tokenizer, tmp_path / kind)] = model.encode(sentences, tokenizer)
    run_fresh(FRESH, json.dumps(sentences), *map(str, expected), cache=tmp_path / "modules")
    for folder, embeddings in expected.items():
        out = np.load(f"{folder}.npz")
        np.testing.assert_allclose(out["encoded"], embeddings, atol=1e-5)
        np.testing.assert_allclose(out["pooler"], embeddings, atol=1e-5)
        assert (tmp_path / f"{folder.name}-again" / "modeling_cmlmcse.py").is_file()
    np.testing.assert_allclose(np.linalg.norm(expected[tmp_path / "roberta"], axis=1), 1, rtol=1e-6)


@pytest.mark.parametrize("kind", ("bert", "roberta"))
@pytest.mark.parametrize(("pooling", "normalize"), [*((pooling, False) for pooling in POOLINGS), ("cls", True)])
def test_export_in_sentence_transformers(kind, pooling, normalize, backbone_folders, sentences, tmp_path):
    """SentenceTransformer(folder) gives the same embeddings without trusting any code, with every pooling."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    tokenizer = tiny_tokenizer(kind)
    model = load(backbone_folders[kind], pooling=pooling, normalize=normalize)
    folder = export(model, tokenizer, tmp_path / "export")
    loaded = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    np.testing.assert_allclose(loaded.encode(sentences), model.encode(sentences, tokenizer), atol=1e-5)


@pytest.mark.parametrize(("pooling", "normalize"), [*((pooling, False) for pooling in POOLINGS), ("avg", True)])
def test_what_save_pretrained_writes(pooling, normalize, backbone_folders, sentences, tmp_path):
    """model.save_pretrained(), of a loaded export or of a model with its training parts, leaves a folder that
    SentenceTransformer reads as the model does; its tokenizer is saved beside it."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    tokenizer = tiny_tokenizer("bert")
    model = load(backbone_folders["bert"], pooling=pooling, normalize=normalize)
    folder = export(model, tokenizer, tmp_path / "export")
    for name, saved in (("again", AutoModel.from_pretrained(folder, trust_remote_code=True)), ("checkpoint", model)):
        saved.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
        loaded = sentence_transformers.SentenceTransformer(
            str(tmp_path / name), device="cpu", trust_remote_code=True, local_files_only=True
        )
        np.testing.assert_allclose(loaded.encode(sentences), model.encode(sentences, tokenizer), atol=1e-5)


@pytest.mark.parametrize("trust", (False, True))
def test_after_training_with_sentence_transformers(trust, backbone_folders, sentences, tmp_path):
    """The head that it trained and saved in a module of its own is the one that this project loads and exports."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    tokenizer = tiny_tokenizer("bert")
    folder = export(load(backbone_folders["bert"], pooling="cls"), tokenizer, tmp_path / "export")
    trained = sentence_transformers.SentenceTransformer(str(folder), device="cpu", trust_remote_code=trust)
    with torch.no_grad():
        for weight in trained.parameters():
            weight.add_(0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel())))
    expected = trained.encode(sentences)
    trained.save_pretrained(str(tmp_path / "trained"))
    encoder = load_encoder(str(tmp_path / "trained"), show_progress_bar=False)
    np.testing.assert_allclose(encoder(sentences), expected, atol=1e-5)
    again = export(encoder.model, encoder.tokenizer, tmp_path / "whole")
    found = AutoModel.from_pretrained(again, trust_remote_code=True).encode(sentences, tokenizer)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_export_holds_the_encoder_alone(backbone_folders, tmp_path):
    """No auxiliary weights; plain names that a plain model loads; trust-free has neither code nor auto_map."""
    model, tokenizer = load(backbone_folders["bert"]), tiny_tokenizer("bert")
    folder = export(model, tokenizer, tmp_path / "export")
    plain = AutoModel.from_pretrained(folder, add_pooling_layer=False)
    assert plain.state_dict().keys() == model.backbone.state_dict().keys()
    config = json.loads((folder / "config.json").read_text())
    assert config["cmlmcse"]["pooling"] == "cls_before_pooler"
    assert config["cmlmcse"]["cmlm_weight"] == 0.0
    free = export(model, tokenizer, tmp_path / "free", trust_free=True)
    assert not list(free.glob("*.py"))
    config = json.loads((free / "config.json").read_text())
    assert "auto_map" not in config
    assert "cmlmcse" not in config
    assert str(tmp_path) not in "".join(p.read_text(errors="ignore") for p in folder.rglob("*.json"))


def test_export_never_overwrites(backbone_folders, tmp_path):
    """An existing folder is refused and stays as it was."""
    (tmp_path / "export").mkdir()
    (tmp_path / "export" / "mine").write_text("kept")
    with pytest.raises(InputError, match="must not exist yet"):
        export(load(backbone_folders["bert"]), tiny_tokenizer("bert"), tmp_path / "export")
    assert (tmp_path / "export" / "mine").read_text() == "kept"
