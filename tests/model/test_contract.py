"""The model behaves as transformers' own models do: arguments of `forward`, configuration, resizing, compiling."""

import json
import subprocess
from pathlib import Path

import datasets
import numpy as np
import pandas
import pytest
import torch
from accelerate import cpu_offload, disk_offload
from safetensors.torch import load_file
from transformers import PreTrainedModel

from cmlmcse.hub.export import clean_environment, export
from modeling_cmlmcse import CMLMCSEConfig, CMLMCSEForSentenceEmbedding
from modeling_cmlmcse.packing import Packing, PaddedPacking
from support import warm
from support.tiny import KINDS, OTHER_KINDS, load_reference, tiny_backbone, tiny_tokenizer

ALL_KINDS = (*KINDS, *OTHER_KINDS)
TEXTS = ["the cat sat", "a big red dog ran under the tree", "dog"]


def load(folder: str | Path, **fields) -> CMLMCSEForSentenceEmbedding:
    """Our model on a backbone, for evaluation."""
    return CMLMCSEForSentenceEmbedding.from_backbone(str(folder), **{"cmlm_weight": 0.0, **fields}).eval()


def padded(kind: str, texts: list[str] = TEXTS, side: str = "right") -> dict[str, torch.Tensor]:
    """A tokenizer's output without token types."""
    tokenizer = tiny_tokenizer(kind)
    tokenizer.padding_side = side
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    return {name: batch[name] for name in ("input_ids", "attention_mask")}


@pytest.mark.parametrize("kind", ALL_KINDS)
@torch.no_grad()
def test_arguments_of_a_plain_model(kind, backbone_folders):
    """All N + 1 hidden states, word embeddings in place of ids, and positions: the numbers of the plain model."""
    model, reference = load(backbone_folders[kind]), load_reference(kind, backbone_folders[kind])
    batch = padded(kind)
    real = batch["attention_mask"].bool()
    given = [
        {**batch, "output_hidden_states": True},
        {"inputs_embeds": model.get_input_embeddings()(batch["input_ids"]), "attention_mask": batch["attention_mask"]},
    ]
    if kind != "distilbert":
        given.append({**batch, "position_ids": torch.arange(real.shape[1])[None] + 3})
    for arguments in given:
        ours, theirs = model(**arguments), reference(**arguments)
        torch.testing.assert_close(ours.last_hidden_state[real], theirs.last_hidden_state[real], rtol=0, atol=1e-5)
        for found, expected in zip(ours.hidden_states or (), theirs.hidden_states or (), strict=True):
            torch.testing.assert_close(found[real], expected[real], rtol=0, atol=1e-5)
    assert len(model(**given[0]).hidden_states) == reference.config.num_hidden_layers + 1
    for name in ("hidden_size", "num_hidden_layers", "num_attention_heads"):
        assert getattr(model.config, name) == getattr(reference.config, name)


def test_configuration_decides_what_is_returned(backbone_folders):
    """`output_hidden_states` and `return_dict` of the configuration hold where the call says nothing."""
    model, batch = load(backbone_folders["bert"]), padded("bert")
    assert model(**batch).hidden_states is None
    model.config.output_hidden_states = True
    assert len(model(**batch).hidden_states) == 7
    assert model(**batch, output_hidden_states=False).hidden_states is None
    model.config.return_dict = False
    last, pooled, hidden = model(**batch)
    assert (last.shape, pooled.shape, len(hidden)) == ((3, 10, 32), (3, 32), 7)


def test_refusals(backbone_folders):
    """One plain sentence each."""
    model, batch = load(backbone_folders["bert"]), padded("bert")
    with pytest.raises(ValueError, match="output_attentions must be false, found true: packed attention keeps no"):
        model(**batch, output_attentions=True)
    with pytest.raises(ValueError, match=r"inputs_embeds \(N, T, E\), found both"):
        model(**batch, inputs_embeds=torch.zeros(3, 10, 32))
    with pytest.raises(ValueError, match=r"from_backbone\(NAME, pooling=…\)"):
        CMLMCSEForSentenceEmbedding.from_pretrained(backbone_folders["bert"])
    with pytest.raises(ValueError, match=r"found a int as text 1 \(counted from 0\); convert it to str"):
        model.encode(["the cat", 1], tiny_tokenizer("bert"))
    for absent in (None, float("nan"), pandas.NA):
        with pytest.raises(ValueError, match=r"found nothing as text 0 .* leave it out, or put '' in its place"):
            model.encode([absent], tiny_tokenizer("bert"))
    with pytest.raises(ValueError, match=r"half a surrogate pair, '\\ud800', in text 1 \(counted from 0\); replace it"):
        model.encode(["the cat", "a \ud800 dog"], tiny_tokenizer("bert"))
    for texts in (b"the cat", ["the cat", b"a dog"]):
        with pytest.raises(ValueError, match=r"found a bytes as text . \(counted from 0\); decode it"):
            model.encode(texts, tiny_tokenizer("bert"))
    for texts in (None, 5, np.array("the cat")):
        with pytest.raises(ValueError, match=r"encode expects texts, found a .*; give a list of str, or one str"):
            model.encode(texts, tiny_tokenizer("bert"))
    for option in ("batch_size", "batch_tokens", "max_length", "truncate_dim"):
        for value in (8.0, "8"):
            with pytest.raises(ValueError, match=f"{option} must be a whole number, found {value!r}"):
                model.encode(["the cat"], tiny_tokenizer("bert"), **{option: value})
        assert model.encode(["the cat"], tiny_tokenizer("bert"), **{option: np.int64(8)}).shape[0] == 1
    table = pandas.DataFrame({"text": ["the cat"]})
    for whole in (table, dict(table), datasets.Dataset.from_pandas(table)):
        with pytest.raises(ValueError, match=r"give one column of it, such as table\['text'\]"):
            model.encode(whole, tiny_tokenizer("bert"))
    with pytest.raises(ValueError, match="expects a tokenizer in the second place, found int; write batch_size="):
        model.encode(["the cat"], 32)
    with pytest.raises(ValueError, match="encode expects a tokenizer, found none: the model was not loaded from"):
        CMLMCSEForSentenceEmbedding(model.config).encode(["the cat"])


@pytest.mark.parametrize("fields", ({"cmlm_weight": 0.0}, {"cmlm_weight": 0.1, "rtd_weight": 0.1, "mlm_weight": 0.1}))
def test_resized_vocabulary_is_saved(fields, backbone_folders, tmp_path):
    """More tokens, and fewer: every encoder and head follows, and the folder loads again with the same weights."""
    for count in (90, 70):
        model = load(backbone_folders["bert"], **fields)
        before = model.get_input_embeddings().weight.clone()
        model.resize_token_embeddings(count)
        assert model.config.vocab_size == model.backbone.config.vocab_size == count
        assert torch.equal(model.get_input_embeddings().weight[:70], before[:70])
        model.save_pretrained(tmp_path / str(count))
        again = CMLMCSEForSentenceEmbedding.from_pretrained(tmp_path / str(count))
        weights = again.state_dict()
        assert weights.keys() == model.state_dict().keys()
        assert all(torch.equal(weights[name], tensor) for name, tensor in model.state_dict().items())
        assert CMLMCSEConfig.from_pretrained(tmp_path / str(count)).vocab_size == count


def test_encode_takes_what_holds_texts(backbone_folders, tmp_path):
    """Lists, tuples, arrays, Series with another index, a column of a dataset; the tokenizer is the folder's own."""
    model, tokenizer = load(backbone_folders["bert"]), tiny_tokenizer("bert")
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = CMLMCSEForSentenceEmbedding.from_pretrained(tmp_path).eval()
    expected = model.encode(TEXTS, tokenizer)
    table = datasets.Dataset.from_dict({"text": TEXTS})
    for given in (TEXTS, tuple(TEXTS), np.array(TEXTS), pandas.Series(TEXTS, index=[7, 3, 5]), table["text"]):
        np.testing.assert_allclose(loaded.encode(given), expected, atol=1e-6)
    unit = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(loaded.similarity(expected, expected[:2]), unit @ unit[:2].T, atol=1e-6)
    assert isinstance(loaded.similarity(torch.ones(2, 3), torch.ones(4, 3)), torch.Tensor)


def test_dropout_comes_back_after_an_interrupted_encode(backbone_folders, monkeypatch):
    """Ctrl-C in a notebook must not leave a model in training without dropout, and without a word."""
    model, tokenizer = load(backbone_folders["bert"]).train(), tiny_tokenizer("bert")
    model.encode(TEXTS, tokenizer)
    assert model.training

    def interrupted(*_):
        assert not model.training
        raise KeyboardInterrupt

    monkeypatch.setattr(model, "_encode_batch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.encode(TEXTS, tokenizer)
    assert model.training


@pytest.mark.slow
@pytest.mark.parametrize("kind", ("bert", "roberta", "mpnet", "modernbert"))
@torch.no_grad()
def test_forward_is_one_graph(kind, tmp_path):
    """`torch.compile(fullgraph=True)` and `torch.export` with any batch and length: the numbers of plain `forward`, on
    either side's padding. Of one block, for each is traced by itself; ModernBERT's second one has a window."""
    tiny_backbone(kind, num_hidden_layers=2 if kind == "modernbert" else 1).save_pretrained(tmp_path)
    model = load(str(tmp_path), pooling="avg_first_last")
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager", dynamic=True)
    batch, length = torch.export.Dim("batch", min=2), torch.export.Dim("length", min=4, max=64)
    shapes = {name: {0: batch, 1: length} for name in ("input_ids", "attention_mask")}
    exported = torch.export.export(model, (), padded(kind), dynamic_shapes=shapes).module()
    for texts in (TEXTS, ["cat", "the red mat and the tree"]):
        for side in ("right", "left"):
            given = padded(kind, texts, side)
            expected = model(**given)
            for found in (compiled(**given), exported(**given)):
                for name in ("pooler_output", "last_hidden_state"):
                    torch.testing.assert_close(found[name], expected[name], rtol=0, atol=1e-5)


def test_what_is_pushed_is_whole(backbone_folders, tmp_path, monkeypatch):
    """save_pretrained(push_to_hub=True) uploads sentence-transformers' files too. transformers' own would upload the
    folder before they are written."""
    model, folder, uploads = load(backbone_folders["bert"], pooling="avg"), tmp_path / "mine", []

    def push(self, repo_id, **given):
        """transformers' push_to_hub uploads what save_pretrained writes into an empty folder."""
        self.save_pretrained(tmp_path / repo_id / "pushed")
        uploads.append((repo_id, given, {path.name for path in (tmp_path / repo_id / "pushed").iterdir()}))

    monkeypatch.setattr(PreTrainedModel, "push_to_hub", push)
    model.save_pretrained(folder, push_to_hub=True, commit_message="first", token="t")
    model.save_pretrained(folder, push_to_hub=True, repo_id="other", max_shard_size="1GB")
    assert [upload[:2] for upload in uploads] == [
        ("mine", {"commit_message": "first", "token": "t"}),
        ("other", {"token": None, "max_shard_size": "1GB"}),
    ]
    assert all({"model.safetensors", "modules.json", "1_Pooling"} <= files for _, _, files in uploads)
    assert (folder / "modules.json").exists()
    for given, found in (({"variant": "fp16"}, "a variant"), ({"state_dict": model.state_dict()}, "a state_dict")):
        with pytest.raises(ValueError, match=f"expects the model's own weights, found {found}; save without"):
            model.save_pretrained(tmp_path / "refused", push_to_hub=True, **given)
    assert not (tmp_path / "refused").exists()
    assert len(uploads) == 2


@pytest.mark.parametrize("pooling", ["cls", "avg"])
def test_given_weights_are_kept(pooling, backbone_folders, tmp_path):
    """Trainer gives the weights, and transformers empties what it is given. The head is in its file."""
    model = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders["bert"], pooling=pooling, cmlm_weight=0.0)
    weights = {name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}
    names = list(weights)
    model.save_pretrained(tmp_path / "mine", state_dict=weights)
    assert list(weights) == names
    dense = [load_file(path) for path in (tmp_path / "mine").glob("*_Dense/model.safetensors")]
    assert len(dense) == (pooling == "cls")
    assert not any(tensor.any() for part in dense for tensor in part.values())


@pytest.mark.slow
def test_a_plain_load_is_silent(backbone_folders, tmp_path):
    """Plain AutoModel, SentenceTransformer and our class print nothing of weights that are missing or not expected; the
    pooler is the head that the pooling keeps, or zero."""
    models = {pooling: load(backbone_folders["bert"], pooling=pooling) for pooling in ("avg", "cls")}
    for pooling, model in models.items():
        export(model, tiny_tokenizer("bert"), tmp_path / pooling)
    code = """
import sys, torch
from transformers import AutoModel, AutoTokenizer
from sentence_transformers import SentenceTransformer
for folder in sys.argv[1:]:
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    SentenceTransformer(folder, device="cpu")
    AutoModel.from_pretrained(folder, trust_remote_code=True)
    torch.save(model(**tokenizer(["the cat sat"], return_tensors="pt")).pooler_output, folder + ".pt")
"""
    done = subprocess.run(
        [warm.python(), "-c", code, *(str(tmp_path / pooling) for pooling in models)],
        env=clean_environment(str(tmp_path)), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        check=True,
    )  # fmt: skip
    alarms = ("MISSING", "UNEXPECTED", "instantiate a model", "newly initialized")
    assert not [word for word in alarms if word in done.stdout]
    for pooling, model in models.items():
        expected = model.encode("the cat sat", tiny_tokenizer("bert"), convert_to_tensor=True)
        expected = expected if pooling == "cls" else torch.zeros(32)
        torch.testing.assert_close(torch.load(tmp_path / f"{pooling}.pt")[0], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ("bert", "distilbert", "modernbert"))
@pytest.mark.parametrize("offload", (cpu_offload, disk_offload))
@pytest.mark.parametrize("pooling", ("avg", "cls_before_pooler"))
def test_offloaded(offload, kind, pooling, backbone_folders, tmp_path):
    """A model whose weights Accelerate keeps elsewhere computes and encodes as the model does."""
    model, tokenizer = load(backbone_folders[kind], pooling=pooling), tiny_tokenizer(kind)
    expected = model.encode(TEXTS, tokenizer, convert_to_tensor=True)
    folder = () if offload is cpu_offload else (str(tmp_path / "offloaded"),)
    offload(model, *folder, execution_device=torch.device("cpu"))
    assert model.device.type == "meta"
    torch.testing.assert_close(model.encode(TEXTS, tokenizer, convert_to_tensor=True), expected)
    with torch.no_grad():
        torch.testing.assert_close(model(**padded(kind)).pooler_output, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("given", (False, True))
@pytest.mark.parametrize("places", ({"": "disk"}, {"backbone": "cpu", "projection": "disk", "auxiliary": "disk"}))
def test_saved_from_a_disk(places, given, backbone_folders, tmp_path):
    """A model whose head is offloaded to a disk is saved whole, for sentence-transformers too."""
    model, tokenizer = load(backbone_folders["bert"], pooling="cls"), tiny_tokenizer("bert")
    model.save_pretrained(tmp_path / "whole")
    away = CMLMCSEForSentenceEmbedding.from_pretrained(
        tmp_path / "whole", device_map=places, offload_folder=tmp_path / "away"
    )
    assert away.projection.dense.weight.is_meta
    away.save_pretrained(tmp_path / "again", state_dict=away.state_dict() if given else None)
    again = CMLMCSEForSentenceEmbedding.from_pretrained(tmp_path / "again")
    assert np.array_equal(again.encode(TEXTS, tokenizer), model.encode(TEXTS, tokenizer))
    (head,) = (tmp_path / "again").glob("*_Dense/model.safetensors")
    assert head.read_bytes() == (tmp_path / "whole" / head.relative_to(tmp_path / "again")).read_bytes()


@pytest.mark.parametrize("kind", ("bert", "modernbert"))
def test_the_name_that_sentence_transformers_has(kind, backbone_folders):
    """`normalize_embeddings` is `normalize`; columns of tables are texts."""
    model, tokenizer = load(backbone_folders[kind]), tiny_tokenizer(kind)
    table = pandas.DataFrame({"text": ["the cat", "a dog"]})
    expected = model.encode(["the cat", "a dog"], tokenizer, normalize=True)
    for column in (table["text"], datasets.Dataset.from_pandas(table)["text"], table["text"].to_numpy()):
        assert np.array_equal(model.encode(column, tokenizer, normalize_embeddings=True), expected)
    assert np.array_equal(model.encode("a dog", tokenizer, normalize_embeddings=True).round(5), expected[1].round(5))


def test_the_tokenizer_comes_from_where_the_model_did(backbone_folders, tmp_path, monkeypatch):
    """A relative path holds after a change of the working directory; revision and cache are those of the weights."""
    model = load(backbone_folders["bert"])
    model.save_pretrained(tmp_path / "saved")
    tiny_tokenizer("bert").save_pretrained(tmp_path / "saved")
    monkeypatch.chdir(tmp_path)
    again = CMLMCSEForSentenceEmbedding.from_pretrained("saved", revision="v1", cache_dir="cache")
    monkeypatch.chdir("/")
    assert again._tokenizer_place == (str(tmp_path / "saved"), {"cache_dir": "cache", "revision": "v1"})
    assert np.array_equal(again.encode(["the cat"]), model.eval().encode(["the cat"], tiny_tokenizer("bert")))


@pytest.mark.parametrize("kind", ("bert", "modernbert"))
def test_some_hidden_states(kind, backbone_folders):
    """A list of indices gives those states, and None for the others."""
    model = load(backbone_folders[kind])
    with torch.no_grad():
        everything = model(**padded(kind), output_hidden_states=True).hidden_states
        some = model(**padded(kind), output_hidden_states=[0, -1]).hidden_states
    assert len(some) == len(everything) == 7
    assert [state is None for state in some] == [False, *[True] * 5, False]
    assert torch.equal(some[0], everything[0])
    assert torch.equal(some[-1], everything[-1])


def test_a_tokenizer_without_files_is_none(backbone_folders, tmp_path):
    """transformers would make an empty one, of special tokens alone, and every word would be unknown."""
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes(Path(backbone_folders["bert"], name).read_bytes())
    with pytest.raises(ValueError, match=r"encode expects a tokenizer, found none: .* has no tokenizer files; pass"):
        load(tmp_path).encode(["the cat"])


def test_a_mask_fits_the_tokens(backbone_folders):
    """A narrower or wider mask would mix the sentences."""
    model, batch = load(backbone_folders["bert"]), padded("bert")
    for mask in (batch["attention_mask"][:, :-1], batch["attention_mask"][:1], batch["attention_mask"][:, None]):
        with pytest.raises(ValueError, match=r"attention_mask must be of shape \(3, 10\), as the tokens, found \("):
            model(**{**batch, "attention_mask": mask})


def test_one_embedding_is_a_row(backbone_folders):
    """As in sentence-transformers: a query's similarity to M texts is (1, M)."""
    model = load(backbone_folders["bert"])
    vectors = model.encode(["the cat", "a dog"], tiny_tokenizer("bert"))
    found = model.similarity(vectors[0], vectors)
    assert found.shape == (1, 2)
    np.testing.assert_allclose(found, model.similarity(vectors, vectors)[:1], atol=1e-6)
    assert model.similarity(torch.from_numpy(vectors), vectors[1]).shape == (2, 1)


@pytest.mark.parametrize("padded_batch", [False, True])
def test_the_mean_is_added_up_in_fp32(padded_batch):
    """In fp16 the sum of 8,192 nines is no number, and a sum in bf16 stands still at 256."""
    mask = torch.ones(1, 8192, dtype=torch.bool)
    packing = PaddedPacking(mask) if padded_batch else Packing.from_lengths(torch.tensor([8192]), 8192, 8192)
    for dtype in (torch.float16, torch.bfloat16):
        mean = packing.mean(torch.full((8192, 2), 9.0, dtype=dtype))
        assert mean.dtype == dtype
        assert mean.tolist() == [[9.0, 9.0]]


def test_every_objective_loads_in_bf16(backbone_folders, tmp_path):
    """The generator's configuration has a precision of its own."""
    model = load(backbone_folders["bert"], cmlm_weight=0.1, rtd_weight=0.1)
    model.save_pretrained(tmp_path)
    found = CMLMCSEForSentenceEmbedding.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert {weight.dtype for weight in found.parameters()} == {torch.bfloat16}


def test_a_wrong_configuration_of_a_known_kind(backbone_folders, tmp_path):
    """Its own fault is told, and not that the kind is unknown."""
    config = json.loads(Path(backbone_folders["bert"], "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_attention_heads": 5}))
    (tmp_path / "model.safetensors").write_bytes(Path(backbone_folders["bert"], "model.safetensors").read_bytes())
    with pytest.raises(ValueError, match=r"which cannot be loaded: .*(heads|multiple)"):
        load(tmp_path)
