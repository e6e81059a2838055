"""What text-embeddings-inference reads of an export, by the code of its version 1.9.3 (backends `candle` and `ort`).

The server itself is not run. These tests hold the entries that it parses, their types, and the names of the weights.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModel, AutoTokenizer

from cmlmcse.hub.card_usage import graphs_usage
from cmlmcse.hub.export import export
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from support.paths import ROOT
from support.tiny import KINDS, OTHER_KINDS, tiny_tokenizer

SERVED = tuple(kind for kind in (*KINDS, *OTHER_KINDS) if kind != "electra")  # which the server does not know
BERT = {
    **dict.fromkeys(
        ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"), int
    ),
    **dict.fromkeys(("max_position_embeddings", "type_vocab_size", "pad_token_id"), int),
    **dict.fromkeys(("hidden_dropout_prob", "initializer_range", "layer_norm_eps"), float),
    "hidden_act": str,
}
DISTILBERT = {
    **dict.fromkeys(("vocab_size", "dim", "n_layers", "n_heads", "hidden_dim", "max_position_embeddings"), int),
    **{"pad_token_id": int, "activation": str},
}
MPNET = {name: kind for name, kind in BERT.items() if name not in ("type_vocab_size", "pad_token_id")}
MPNET |= {"attention_probs_dropout_prob": float, "relative_attention_num_buckets": int}
MODERNBERT = {
    **dict.fromkeys(
        ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"), int
    ),
    **dict.fromkeys(("max_position_embeddings", "global_attn_every_n_layers", "local_attention"), int),
    **dict.fromkeys(("pad_token_id", "eos_token_id", "bos_token_id", "cls_token_id", "sep_token_id"), int),
    **dict.fromkeys(("initializer_range", "initializer_cutoff_factor", "norm_eps", "attention_dropout"), float),
    **dict.fromkeys(("global_rope_theta", "local_rope_theta"), float),
    **dict.fromkeys(("norm_bias", "attention_bias"), bool),
    **dict.fromkeys(("hidden_activation", "classifier_activation"), str),
}
REQUIRED = {"distilbert": DISTILBERT, "mpnet": MPNET, "modernbert": MODERNBERT}  # the others are read as BERT
WEIGHTS = {  # one of each part that the server looks up by its name
    "distilbert": ("embeddings.word_embeddings.weight", "transformer.layer.0.attention.q_lin.weight"),
    "mpnet": ("embeddings.word_embeddings.weight", "encoder.relative_attention_bias.weight"),
    "modernbert": ("embeddings.tok_embeddings.weight", "layers.0.attn.Wqkv.weight", "final_norm.weight"),
}
ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "swiglu", "tanh")
OPTIONAL = {"use_cache": bool, "auto_map": dict, "id2label": dict, "label2id": dict}  # parsed where they stand
OFFSETS = ("roberta", "xlm-roberta", "camembert")  # whose positions begin behind the padding's
MODULES = {f"sentence_transformers.models.{name}" for name in ("Transformer", "Pooling", "Dense", "Normalize")}


def write_export(kind: str, folders: dict[str, str], target: Path, trust_free: bool = True, **fields: Any) -> Path:
    """An export of a tiny model."""
    model = CMLMCSEForSentenceEmbedding.from_backbone(folders[kind], cmlm_weight=0.0, **fields)
    return export(model.eval(), tiny_tokenizer(kind), target, trust_free=trust_free)


def read(path: Path) -> Any:
    """A JSON file."""
    return json.loads(path.read_text())


@pytest.mark.parametrize("kind", SERVED)
@pytest.mark.parametrize("trust_free", [True, False])
def test_configuration_and_weights(kind, trust_free, backbone_folders, tmp_path) -> None:
    """Each entry that the server demands of a kind, with its type, with and without code; plain names of weights."""
    folder = write_export(kind, backbone_folders, tmp_path / "export", trust_free, pooling="avg")
    config = read(folder / "config.json")
    assert config["model_type"] == kind
    assert [name.endswith("Model") for name in config["architectures"]] == [True]  # …Classification: a classifier
    required = REQUIRED.get(kind, BERT)
    wrong = {name: config.get(name) for name, wanted in required.items() if type(config.get(name)) is not wanted}
    assert not wrong
    assert all(isinstance(value, str) for value in config.get("auto_map", {}).values())
    assert config.get("global_attn_every_n_layers", 3) == 3  # the tiny one's layers 0 and 3 see all tokens
    assert config.get("position_embedding_type", "absolute") == "absolute"
    weights = load_file(folder / "model.safetensors")
    wanted = WEIGHTS.get(kind, ("embeddings.word_embeddings.weight", "encoder.layer.0.attention.self.query.weight"))
    assert set(wanted) <= set(weights)
    assert all(config.get(name) in (*ACTIVATIONS, None) for name in config if "activation" in name or "_act" in name)
    assert all(type(config[name]) is wanted for name, wanted in OPTIONAL.items() if name in config)
    longest = read(folder / "sentence_bert_config.json")["max_seq_length"]
    offset = config["pad_token_id"] + 1 if kind in OFFSETS else 0
    assert longest == 64 <= config["max_position_embeddings"] - offset  # the server checks neither
    assert read(folder / "tokenizer.json")["post_processor"] is not None


@pytest.mark.parametrize("kind", SERVED)
def test_backend_for_onnx(kind, backbone_folders, tmp_path) -> None:
    """What its CPU image reads beside `onnx/model.onnx`. DistilBERT names its sizes otherwise, so `candle` starts."""
    folder = write_export(kind, backbone_folders, tmp_path / "export", pooling="avg")
    config = read(folder / "config.json")
    assert read(folder / "tokenizer_config.json").get("padding_side", "right") == "right"
    sizes = [type(config.get(name)) is int for name in ("hidden_size", "num_hidden_layers")]
    assert sizes == [kind != "distilbert"] * 2


def test_card_of_a_head_beside_onnx() -> None:
    """The graph ends before the head, and `ort` reads no `2_Dense`: the card warns."""
    assert "nor does text-embeddings-inference on a CPU" in graphs_usage("cls", onnx=True, openvino=False)
    assert "text-embeddings-inference" not in graphs_usage("cls_before_pooler", onnx=True, openvino=True)
    assert graphs_usage("cls", onnx=False, openvino=False) == ""


@pytest.mark.parametrize("pooling", ["avg", "cls", "cls_before_pooler"])
@pytest.mark.parametrize("normalize", [True, False])
def test_pooling_and_prompts(pooling, normalize, backbone_folders, tmp_path) -> None:
    """The modes under the names that the server reads, the head, the prompts; no module that it does not know."""
    fields = {"pooling": pooling, "normalize": normalize, "prompts": {"query": "w1 "}}
    folder = write_export("bert", backbone_folders, tmp_path / "export", **fields)
    modes = read(folder / "1_Pooling" / "config.json")
    assert (modes["pooling_mode_cls_token"], modes["pooling_mode_mean_tokens"]) == (pooling != "avg", pooling == "avg")
    assert read(folder / "config_sentence_transformers.json")["prompts"] == {"query": "w1 ", "document": ""}
    modules = read(folder / "modules.json")
    assert {module["type"] for module in modules} <= MODULES
    assert all({"idx", "name", "path", "type"} <= module.keys() for module in modules)
    dense = [module["path"] for module in modules if module["type"].endswith("Dense")]
    assert dense == (["2_Dense"] if pooling == "cls" else [])
    if dense:
        wanted = {"in_features": 32, "out_features": 32, "bias": True}
        wanted["activation_function"] = "torch.nn.modules.activation.Tanh"
        assert read(folder / "2_Dense" / "config.json") == wanted
        assert set(load_file(folder / "2_Dense" / "model.safetensors")) == {"linear.weight", "linear.bias"}


@pytest.mark.parametrize("pooling", ["avg_top2", "avg_first_last"])
def test_poolings_that_the_server_lacks(pooling, backbone_folders, tmp_path) -> None:
    """The layers are averaged by a module that it does not know. docs/how-to/onnx.md warns of it."""
    folder = write_export("bert", backbone_folders, tmp_path / "export", pooling=pooling)
    assert not {module["type"] for module in read(folder / "modules.json")} <= MODULES
    assert not (folder / "1_Pooling").exists()


def test_its_gelu() -> None:
    """The server computes GELU by tanh. Embeddings of our backbone stay the same in direction to five digits."""
    source, texts = ROOT / "assets" / "bert-mini-en", (ROOT / "demo" / "texts.txt").read_text().splitlines()
    tokens = AutoTokenizer.from_pretrained(source)(texts, padding=True, truncation=True, return_tensors="pt")
    mask = tokens["attention_mask"][..., None]  # (N, T, 1)
    found = []
    for activation in ("gelu", "gelu_pytorch_tanh"):
        config = AutoConfig.from_pretrained(source, hidden_act=activation)
        model = AutoModel.from_pretrained(source, config=config, dtype=torch.float32).eval()
        with torch.no_grad():
            found.append((model(**tokens).last_hidden_state * mask).sum(1) / mask.sum(1))  # (N, H)
    cosines = torch.nn.functional.cosine_similarity(*found)
    assert 0.99999 < float(cosines.min()) < 1 - 1e-7  # not the same function
