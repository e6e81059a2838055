"""Loading any kind of model as one callable: the right vectors, and a clear refusal of what is wrong."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, BertTokenizer

from cmlmcse.common.errors import InputError
from cmlmcse.hub.export import export
from cmlmcse.models.encoders import load_encoder, load_model_encoder
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from support.tiny import tiny_tokenizer


@pytest.fixture
def folder(tmp_path: Path, backbone_folders: dict[str, str]) -> Path:
    """A copy of the tiny BERT's folder, to be changed."""
    return Path(shutil.copytree(backbone_folders["bert"], tmp_path / "bert"))


def write(path: Path, content: object) -> None:
    """Write JSON, and the folders above."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_checkpoint_export_and_run_folder(kind, tmp_path, backbone_folders, sentences) -> None:
    """A checkpoint, its export and the run folder give the model's own embeddings, with its pooling."""
    model = CMLMCSEForSentenceEmbedding.from_backbone(
        backbone_folders[kind], lexical_layers=2, fusion_layers=1, pooling="avg_first_last"
    )
    tokenizer = tiny_tokenizer(kind)
    expected = model.encode(sentences, tokenizer=tokenizer)
    model.save_pretrained(tmp_path / "run" / "checkpoint-5")
    tokenizer.save_pretrained(tmp_path / "run" / "checkpoint-5")
    export(model, tokenizer, tmp_path / "run" / "export")
    for name in ("run/checkpoint-5", "run/export", "run"):
        encoder = load_encoder(str(tmp_path / name), show_progress_bar=False)
        assert np.abs(encoder(sentences) - expected).max() < 1e-5
        assert encoder.settings["pooling"] == "avg_first_last"
        assert encoder.settings["max_seq_length"] == 64
        with pytest.raises(InputError, match="was trained with the pooling 'avg_first_last', found --pooling 'avg'"):
            load_encoder(str(tmp_path / name), pooling="avg")


def test_files_in_half_precision_are_computed_in_fp32(folder, tmp_path, sentences) -> None:
    """A CPU computes fp16 several times more slowly. The weights are those of the file."""
    model = CMLMCSEForSentenceEmbedding.from_backbone(str(folder), cmlm_weight=0.0, pooling="avg")
    export(model, tiny_tokenizer("bert"), tmp_path / "export")
    path = tmp_path / "export" / "model.safetensors"
    save_file({name: tensor.half() for name, tensor in load_file(path).items()}, path, {"format": "pt"})
    encoder = load_encoder(str(tmp_path / "export"), show_progress_bar=False)
    by_hand = AutoModel.from_pretrained(tmp_path / "export", trust_remote_code=True)
    assert {weight.dtype for one in (encoder.model, by_hand) for weight in one.parameters()} == {torch.float32}
    assert 0 < np.abs(encoder(sentences) - model.encode(sentences, tokenizer=tiny_tokenizer("bert"))).max() < 1e-2


@pytest.mark.parametrize(
    ("pooling", "ours"),
    [
        ({"pooling_mode": "mean", "embedding_dimension": 32}, "avg"),
        ({"pooling_mode": ["cls"], "embedding_dimension": 32}, "cls_before_pooler"),
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, "avg"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls_before_pooler"),
    ],
)
def test_sentence_transformers_folder(pooling, ours, folder, sentences) -> None:
    """Old and new configurations of sentence-transformers give the pooling, the length and the normalisation."""
    plain = load_encoder(str(folder), pooling=ours, max_seq_length=9, show_progress_bar=False)(sentences)
    kinds = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    write(
        folder / "modules.json",
        [{"path": path, "type": f"sentence_transformers.models.{kind}"} for kind, path in kinds.items()],
    )
    write(folder / "1_Pooling" / "config.json", pooling)
    write(folder / "sentence_bert_config.json", {"max_seq_length": 9})
    encoder = load_encoder(str(folder), show_progress_bar=False)
    assert encoder.settings["pooling"] == ours
    assert encoder.settings["max_seq_length"] == 9
    assert np.abs(encoder(sentences) - plain / np.linalg.norm(plain, axis=1, keepdims=True)).max() < 1e-6


@pytest.mark.parametrize("kind", ["any", "bert"])
def test_lower_case_of_sentence_transformers(kind, folder) -> None:
    """`do_lower_case` holds over a tokenizer that keeps capitals, in our vectors as in the library's, and in an export,
    whose tokenizer does it itself. BERT's makes its normalizer anew when it is loaded."""
    path, told = folder / "tokenizer.json", folder / "sentence_bert_config.json"
    content = json.loads(path.read_text())
    content["normalizer"] = None
    write(path, content)
    if kind == "bert":
        vocabulary = tiny_tokenizer("bert").get_vocab()
        BertTokenizer(vocab=vocabulary, do_lower_case=False, model_max_length=64).save_pretrained(folder)
    texts = ["The CAT sat", "the cat sat"]
    kept = load_encoder(str(folder), pooling="avg", show_progress_bar=False)(texts)
    assert np.abs(kept[0] - kept[1]).max() > 1e-3
    kinds = {"Transformer": "", "Pooling": "1_Pooling"}
    modules = [
        {"idx": i, "name": kind, "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(kinds.items())
    ]
    write(folder / "modules.json", modules)
    write(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True})
    write(told, {"max_seq_length": 9, "do_lower_case": True})
    encoder = load_model_encoder(str(folder), show_progress_bar=False)
    found = encoder(texts)
    assert np.abs(found[0] - found[1]).max() < 1e-6
    assert np.abs(found - kept[1]).max() < 1e-6
    exported = export(encoder.model, encoder.tokenizer, folder / "export")
    for name in (folder, exported):
        theirs = SentenceTransformer(str(name), device="cpu").encode(texts)
        assert np.abs(theirs - found).max() < 1e-6, name


def test_cut_to_changes_the_vectors_and_the_record(folder, sentences) -> None:
    """The shorter model reads as many tokens as its settings say; the first one stays as it was."""
    encoder = load_encoder(str(folder), pooling="avg", max_seq_length=9, show_progress_bar=False)
    before, shorter = encoder(sentences), encoder.cut_to(4)
    assert (shorter.max_seq_length, shorter.settings) == (4, encoder.settings | {"max_seq_length": 4})
    assert (encoder.max_seq_length, encoder.width) == (9, before.shape[1])
    loaded = load_encoder(str(folder), pooling="avg", max_seq_length=4, show_progress_bar=False)
    assert np.array_equal(shorter(sentences), loaded(sentences))
    assert np.array_equal(encoder(sentences), before)
    assert np.abs(shorter(sentences) - before).max() > 1e-3


def test_settings_say_what_the_encoder_does(folder) -> None:
    """They follow its length and its precision. Vectors that earlier versions kept are named by the same settings."""
    encoder = load_encoder(str(folder), pooling="avg", max_seq_length=9, device="cpu", show_progress_bar=False)
    usual = {"pooling": "avg", "max_seq_length": 9, "batch_size": 64, "device": "cpu"}
    assert encoder.settings == usual
    assert replace(encoder, arguments=encoder.arguments | {"max_length": 5}).settings == usual | {"max_seq_length": 5}
    assert replace(encoder, bf16=True).settings == usual | {"precision": "bf16"}


def test_agrees_with_sentence_transformers(folder: Path, tmp_path: Path, sentences: list[str]) -> None:
    """What the installed sentence-transformers writes is read as it reads it itself."""
    package = pytest.importorskip("sentence_transformers", reason="needs sentence-transformers")
    theirs = package.SentenceTransformer(str(folder), device="cpu")  # mean pooling by default
    theirs.save(str(tmp_path / "saved"))
    ours = load_encoder(str(tmp_path / "saved"), show_progress_bar=False)
    assert ours.settings["pooling"] == "avg"
    assert np.abs(ours(sentences) - theirs.encode(sentences)).max() < 1e-5


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", None, "no config.json"),
        ("config.json", "{", "config.json: expected JSON"),
        ("config.json", "[]", "expected a JSON dict, found a list"),
        ("config.json", '{"model_type": "gpt2"}', "cannot be loaded.*one of bert"),
        ("config.json", '{"cmlmcse": 3}', "expected cmlmcse to be a dict, found 3"),
        ("tokenizer.json", None, "expected a tokenizer, found none"),
        ("tokenizer.json", "{", "tokenizer cannot be loaded"),
        ("model.safetensors", None, "model cannot be loaded"),
        ("model.safetensors", "short", "model cannot be loaded"),
        ("modules.json", '[{"type": "a.Transformer"}, {"type": "a.Dense"}]', "found Dense too"),
        (
            "1_Pooling/config.json",
            '{"pooling_mode": "max"}',
            "expected the sentence-transformers pooling cls or mean",
        ),
    ],
)
def test_wrong_folder(name: str, content: str | None, message: str, folder: Path) -> None:
    """A file that lacks, cannot be read or says something impossible is an input error that says so."""
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    with pytest.raises(InputError, match=message):
        load_encoder(str(folder), pooling="avg")


@pytest.mark.parametrize("name", ["", "./nowhere", "/no/such/folder", "a/b/c", "tests/nowhere", "org/no-such-model"])
def test_no_such_model(name: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """A path that is not there, and a Hub name that cannot be reached, are input errors."""
    (folder.parent / "tests").mkdir()
    monkeypatch.chdir(folder.parent)
    with pytest.raises(InputError, match="expected a model's folder"):
        load_encoder(name, pooling="avg")


def test_the_models_of_the_checkout_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The recipes name them as they lie in the checkout. In another folder the Hub is not to blame."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="it is in the checkout of cmlmcse: go there, or give its whole path"):
        load_encoder("assets/bert-mini-en", pooling="avg")


def test_pooling_is_needed(folder: Path) -> None:
    """A plain backbone needs a pooling; `cls` would need a trained head."""
    with pytest.raises(InputError, match="cls_before_pooler, prompt, avg, avg_top2, avg_first_last, found none"):
        load_encoder(str(folder))
    with pytest.raises(InputError, match="found 'cls'"):
        load_encoder(str(folder), pooling="cls")


def test_tokenizer_of_another_model(folder: Path) -> None:
    """A tokenizer with more tokens than the model has embeddings is refused."""
    tokenizer = tiny_tokenizer("bert")
    tokenizer.add_tokens(["more", "words"])
    tokenizer.save_pretrained(folder)
    with pytest.raises(InputError, match="expected a tokenizer of at most"):
        load_encoder(str(folder), pooling="avg")
