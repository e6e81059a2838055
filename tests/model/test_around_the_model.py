"""What people do around a model does not change what it computes: configurations, hooks, modes, overrides, saving."""

import json
from copy import deepcopy

import numpy as np
import pytest
import torch
from peft import LoraConfig
from transformers import AutoModel

from cmlmcse.hub.export import export
from cmlmcse.training.training_losses import TrainingLosses
from modeling_cmlmcse.configuration_cmlmcse import CMLMCSEConfig
from modeling_cmlmcse.families import FAMILIES
from modeling_cmlmcse.modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from support.batches import make_batch
from support.objectives import OBJECTIVES
from support.tiny import tiny_tokenizer

TEXTS = ["the cat sat", "a dog", "two birds in a tree near the house"]


def load(folder, **fields) -> CMLMCSEForSentenceEmbedding:
    """A SimCSE model in eval mode."""
    model = CMLMCSEForSentenceEmbedding.from_backbone(folder, **{"cmlm_weight": 0.0, **fields})
    return model.eval()


@pytest.fixture
def batch():
    """Three padded texts."""
    return tiny_tokenizer("bert")(TEXTS, padding=True, return_tensors="pt")


def test_another_attention_elsewhere_changes_nothing(backbone_folders, batch):
    """A plain model may be built from the model's configuration, and no setting brings another attention in."""
    model = load(backbone_folders["bert"])
    expected = model(**batch).pooler_output
    plain = AutoModel.from_config(model.config.backbone_config, attn_implementation="sdpa").eval()
    assert plain(**batch).last_hidden_state.shape == (3, *batch["input_ids"].shape[1:], 32)
    model.config._attn_implementation = "sdpa"
    model.backbone.set_attn_implementation("sdpa")
    assert torch.equal(model(**batch).pooler_output, expected)


def test_the_encoder_alone_says_what_to_call(backbone_folders, batch):
    """It attends to packed tokens only."""
    with pytest.raises(ValueError, match="expects packed tokens, found a padded batch; call the whole model"):
        load(backbone_folders["bert"]).base_model(**batch)


def test_feed_forward_in_chunks(backbone_folders, batch, tmp_path):
    """A backbone's `chunk_size_feed_forward` gives the same vectors."""
    model = load(backbone_folders["bert"])
    config = deepcopy(model.config)
    config.backbone_config.chunk_size_feed_forward = 5
    chunked = CMLMCSEForSentenceEmbedding(config).eval()
    chunked.load_state_dict(model.state_dict())
    assert torch.equal(chunked(**batch).pooler_output, model(**batch).pooler_output)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pooling": "cls"}, "pooling 'cls' keeps the training head"),
        ({"pooling": "mean"}, "pooling must be one of"),
        ({"temp": 0}, "temp must be a number from"),
        ({"lexical_layers": 99, "cmlm_weight": 0.1}, "lexical_layers must be at most"),
    ],
)
def test_fields_given_at_loading_are_checked(fields, message, backbone_folders, tmp_path):
    """As those of a recipe are."""
    model = load(backbone_folders["bert"], pooling="avg")
    export(model, tiny_tokenizer("bert"), tmp_path / "export")
    with pytest.raises(ValueError, match=message):
        CMLMCSEForSentenceEmbedding.from_pretrained(tmp_path / "export", **fields)


def test_fields_given_at_loading_are_taken(backbone_folders, tmp_path):
    """Prompts are completed as at construction, and an objective that is added starts from finite weights."""
    load(backbone_folders["bert"], pooling="avg").save_pretrained(tmp_path / "saved")
    prompts = {"passage": "passage: "}
    model = CMLMCSEForSentenceEmbedding.from_pretrained(
        tmp_path / "saved", prompts=prompts, retromae_weight=0.1, mlm_weight=0.1, mlm_tied=True
    )
    assert model.config.prompts == CMLMCSEConfig(prompts=prompts).prompts
    assert set(model.objectives) == {"retromae", "mlm"}
    assert all(torch.count_nonzero(each.head.bias) == 0 for each in model.objectives.values())


def test_another_default_device(backbone_folders):
    """After `torch.set_default_device` texts are encoded, and compared, on the model's own device all the same. On the
    meta device a tensor made without saying where would have no values."""
    model, tokenizer = load(backbone_folders["bert"]), tiny_tokenizer("bert")
    expected = model.encode(TEXTS, tokenizer)
    with torch.device("meta"):
        np.testing.assert_array_equal(model.encode(TEXTS, tokenizer), expected)
        cosines = model.similarity(expected, expected)
    np.testing.assert_allclose(np.diag(cosines), 1.0, rtol=1e-6)


@pytest.mark.parametrize("fields", OBJECTIVES.values(), ids=OBJECTIVES)
def test_training_on_another_default_device(fields, backbone_folders):
    """Nor does a batch, its loss or its gradient depend on it."""
    folder = backbone_folders["bert"]
    generator = {"rtd_generator": folder} if "rtd_weight" in fields else {}
    given = {"cmlm_weight": 0.1, "pooling": "avg", **fields, **generator}
    model = CMLMCSEForSentenceEmbedding.from_backbone(folder, **given).train()
    losses, found = TrainingLosses(model), []
    for device in ("cpu", "meta"):
        torch.manual_seed(1)
        model.zero_grad()
        with torch.device(device):
            loss = losses(**make_batch("bert", TEXTS, pad_to_multiple_of=8)).loss
            loss.backward()
        gradients = [weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]
        found.append((loss.item(), torch.cat(gradients)))
    assert found[0][0] == found[1][0]
    assert found[0][1].any()
    torch.testing.assert_close(found[0][1], found[1][1], rtol=0, atol=0)


def test_hooks_are_called_after_encode(backbone_folders, batch):
    """Also those of parts that the fast CPU path would pass by."""
    model, calls = load(backbone_folders["bert"]), []
    layer = model.backbone.encoder.layer[0]
    for part in (layer.intermediate, layer.output):
        part.register_forward_hook(lambda *_: calls.append(1))
    expected = model(**batch).pooler_output
    model.encode(TEXTS, tiny_tokenizer("bert"))
    torch.testing.assert_close(model(**batch).pooler_output, expected)
    assert len(calls) == 6


def test_encode_leaves_modes_and_frozen_weights(backbone_folders):
    """Each part is as it was, whatever the model's own mode."""
    model = load(backbone_folders["bert"], cmlm_weight=0.1, lexical_layers=2, lexical_frozen=False)
    model.requires_grad_(False)
    model.train()
    model.backbone.eval()
    modes = [each.training for each in model.modules()]
    model.encode(TEXTS, tiny_tokenizer("bert"))
    assert [each.training for each in model.modules()] == modes
    assert any(modes)
    assert not all(modes)
    assert not any(weight.requires_grad for weight in model.parameters())


@pytest.mark.parametrize("kind", FAMILIES)
def test_sentence_transformers_knows_the_longest_text(kind, backbone_folders, tmp_path):
    """A saved model says how many tokens a text may have."""
    model = load(backbone_folders[kind])
    model.save_pretrained(tmp_path / "saved")
    assert CMLMCSEConfig.from_pretrained(tmp_path / "saved").max_position_embeddings == model.max_positions


def test_a_part_of_the_backbones_configuration(backbone_folders, tmp_path):
    """It is merged into the stored one, as transformers does."""
    model = load(backbone_folders["bert"])
    model.save_pretrained(tmp_path / "saved")
    again = CMLMCSEForSentenceEmbedding.from_pretrained(
        tmp_path / "saved", backbone_config={"hidden_dropout_prob": 0.0}
    )
    assert again.config.backbone_config.hidden_dropout_prob == 0.0
    assert again.config.backbone_config.hidden_size == model.config.backbone_config.hidden_size


def test_from_backbone_says_that_a_pooling_is_lost(backbone_folders, tmp_path, caplog):
    """An export's own pooling is taken only if it is given; its entries do not reach the backbone's configuration."""
    model, tokenizer = load(backbone_folders["bert"], pooling="avg"), tiny_tokenizer("bert")
    folder = export(model, tokenizer, tmp_path / "export")
    again = load(folder, pooling="avg")
    assert "records the pooling" not in caplog.text
    assert np.array_equal(again.encode(TEXTS, tokenizer), model.encode(TEXTS, tokenizer))
    assert not {"cmlmcse", "auto_map"} & again.config.backbone_config.to_dict().keys()
    load(folder)
    assert "records the pooling that this model was trained with" in caplog.text


def test_saving_by_another_process_or_an_adapter_alone(backbone_folders, tmp_path):
    """Neither writes the files of a whole model."""
    model = load(backbone_folders["bert"], pooling="cls")
    model.save_pretrained(tmp_path / "other", False)
    assert not (tmp_path / "other" / "modules.json").exists()
    model.add_adapter(LoraConfig(target_modules=["dense"]))
    model.save_pretrained(tmp_path / "adapter")
    assert not (tmp_path / "adapter" / "modules.json").exists()
    assert json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["peft_type"] == "LORA"


def test_smaller_edges(backbone_folders, batch):
    """Default precision, one row of token types, wrong indices of hidden states, too few layers for a pooling."""
    model = load(backbone_folders["bert"])
    torch.set_default_dtype(torch.float64)
    try:
        assert model.encode(TEXTS, tiny_tokenizer("bert")).dtype == np.float32
    finally:
        torch.set_default_dtype(torch.float32)
    kinds = torch.zeros_like(batch["input_ids"])
    expected = model(**batch).pooler_output
    assert torch.equal(model(**batch, token_type_ids=kinds[:1]).pooler_output, expected)
    assert model(**batch, output_hidden_states=0).hidden_states is None
    with pytest.raises(ValueError, match="output_hidden_states expects indices from -7 to 6, found 7"):
        model(**batch, output_hidden_states=[7])
    config = deepcopy(model.config.backbone_config)
    config.num_hidden_layers = 1
    with pytest.raises(ValueError, match="pooling 'avg_top2' reads 2 layers of the backbone, found 1"):
        CMLMCSEConfig(backbone_config=config, pooling="avg_top2", cmlm_weight=0.0)
