"""Every field is validated at construction, and a configuration survives a round trip."""

import inspect
import json

import pytest
from transformers import BertConfig, RobertaConfig

from modeling_cmlmcse import CMLMCSEConfig, CMLMCSEForSentenceEmbedding
from modeling_cmlmcse.configuration_cmlmcse import FUSION_INITS


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pooling": "max"}, "pooling must be one of cls, cls_before_pooler, .*found 'max'"),
        ({"projection": "linear"}, "projection must be one of mlp, batchnorm, nonlinear, none, found 'linear'"),
        (
            {"contrastive_loss": "triplet"},
            "contrastive_loss must be one of info_nce, extended_info_nce, nt_xent, off_dropout, cosent, "
            "found 'triplet'; choose one of them",
        ),
        ({"hard_negative_weight": "log 2"}, "hard_negative_weight must be a number from -100 to 100, found 'log 2'"),
        ({"positive_ratio": -1}, "positive_ratio must be a number from 0 to 10, found -1"),
        ({"dimension_weight": "high"}, "dimension_weight must be a number from 0 to 1e\\+06, found 'high'"),
        ({"dimension_temp": 0}, "dimension_temp must be a number from 0.0001 to 1000, found 0"),
        ({"distillation_loss": "kl"}, "distillation_loss must be one of list_mle, list_net, mse, found 'kl'"),
        ({"teacher_share": 1.5}, "teacher_share must be a number from 0 to 1, found 1.5"),
        ({"temp": 0.0}, "temp must be a number from 0.0001 to 10, found 0.0"),
        ({"temp": "hot"}, "temp must be a number from 0.0001 to 10, found 'hot'"),
        ({"temp": True}, "temp must be a number from 0.0001 to 10, found True"),
        ({"temp": float("nan")}, "temp must be a number"),
        ({"cmlm_weight": -1}, "cmlm_weight must be a number from 0 to 1e\\+06, found -1"),
        ({"lexical_layers": 13}, "lexical_layers must be at most 12, the backbone's depth, found 13"),
        ({"lexical_layers": -1}, "lexical_layers must be a whole number of at least 0, found -1"),
        ({"fusion_layers": 0}, "fusion_layers must be a whole number of at least 1, found 0"),
        ({"fusion_layers": 1.5}, "fusion_layers must be a whole number of at least 1, found 1.5"),
        *(
            (
                {"fusion_layers": 13, "fusion_init": init},
                "fusion_layers must be at most 12, the backbone's depth, found 13",
            )
            for init in FUSION_INITS
        ),
        (
            {"cmlm_weight": 0, "condenser_weight": 1, "fusion_layers": 13, "fusion_init": "random"},
            "fusion_layers must be at most 12, the backbone's depth, found 13",
        ),
        ({"fusion_init": "next", "lexical_layers": 10}, "fusion_init 'next' takes the fusion layers"),
        (
            {"fusion_init": "first"},
            "fusion_init must be one of last, next, random, pretrained, checkpoint, found 'first'",
        ),
        ({"cmlm_condition": "middle"}, "cmlm_condition must be one of before_head, after_head"),
        ({"masked_views": "second"}, "masked_views must be one of both, first"),
        ({"lexical_dropout": 1}, "lexical_dropout must be true or false, found 1"),
        ({"backbone_config": 3}, "backbone_config must be a configuration or a dictionary, found int"),
        ({"denosent_layers": 1.5}, "denosent_layers must be a whole number from 1 to 1000, found 1.5"),
        ({"denosent_layers": True}, "denosent_layers must be a whole number from 1 to 1000, found True"),
        ({"denosent_layers": "4"}, "denosent_layers must be a whole number from 1 to 1000, found '4'"),
        ({"mask_token_id": "a"}, "mask_token_id must be the id of a token, 0 or more, found 'a'"),
        ({"mask_token_id": -1}, "mask_token_id must be the id of a token, 0 or more, found -1"),
        ({"exported_dropouts": 3}, "exported_dropouts must be probabilities by name, .*, found 3"),
        ({"exported_dropouts": {"attention_dropout": 2}}, "exported_dropouts attention_dropout must be a number from"),
        ({"pooling": ["avg"]}, r"pooling must be one of cls, .*, found \['avg'\]"),
        ({"matryoshka_dims": 64, "projection": "none"}, "matryoshka_dims must be different whole numbers .*, found 64"),
        ({"pooling": "cls", "projection": "none"}, "expects projection 'mlp', found 'none'"),
        ({"pooling": "cls", "projection": "nonlinear"}, "expects projection 'mlp', found 'nonlinear'"),
    ],
)
def test_wrong_fields(fields, message):
    """A wrong field is refused with what was expected and what was found."""
    with pytest.raises(ValueError, match=message):
        CMLMCSEConfig(**fields)


@pytest.mark.parametrize(("fields", "head"), [
    ({}, "mlp"), ({"pooling": "cls"}, "mlp"), ({"pooling": "avg"}, "none"), ({"pooling": "avg_first_last"}, "none"),
    ({"pooling": "avg", "projection": "mlp"}, "mlp"), ({"projection": "none"}, "none"),
])  # fmt: skip
def test_the_usual_head(fields, head, tmp_path):
    """SimCSE's code has a head for [CLS] alone. A saved configuration names its head, whatever the default."""
    config = CMLMCSEConfig(**fields)
    assert config.projection == head
    config.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["projection"] == head


def test_depths_of_no_auxiliary_network_are_not_checked():
    """SimCSE from a recipe of CMLM-CSE, on a backbone that is not deep enough for its auxiliary network."""
    shallow = {"backbone_config": BertConfig(num_hidden_layers=4), "lexical_layers": 8, "fusion_layers": 6}
    unchecked = CMLMCSEConfig(cmlm_weight=0, **shallow)
    assert (unchecked.lexical_layers, unchecked.fusion_layers) == (8, 6)
    with pytest.raises(ValueError, match="lexical_layers must be at most 4"):
        CMLMCSEConfig(**shallow)


@pytest.mark.parametrize("backbone", (BertConfig(hidden_size=24, num_attention_heads=2), RobertaConfig(pad_token_id=1)))
def test_round_trip(backbone, tmp_path):
    """Saved and loaded, the configuration and its nested backbone are the same, and give their width."""
    config = CMLMCSEConfig(backbone_config=backbone, temp=0.1, fusion_init="next", pooling="avg_first_last")
    config.save_pretrained(tmp_path)
    loaded = CMLMCSEConfig.from_pretrained(tmp_path)
    assert loaded.to_dict() == config.to_dict()
    assert type(loaded.backbone_config) is type(backbone)
    assert loaded.hidden_size == backbone.hidden_size


def test_more_fusion_layers_than_the_backbone(backbone_folders, tmp_path):
    """They have no layers to start from, whatever says so: the keywords or a saved configuration."""
    fields = {"cmlm_weight": 0.1, "lexical_layers": 2, "fusion_init": "random"}
    at_most = "fusion_layers must be at most 3, the backbone's depth, found 5"
    with pytest.raises(ValueError, match=at_most):
        CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders["shallow"], fusion_layers=5, **fields)
    config = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders["shallow"], fusion_layers=3, **fields).config
    config.fusion_layers = 5
    config.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=at_most):
        CMLMCSEConfig.from_pretrained(tmp_path)


def test_from_backbone_names_every_field(backbone_folders):
    """The signature has the configuration's fields with its defaults, and a name that is none of them is refused."""
    own = inspect.signature(CMLMCSEForSentenceEmbedding.from_backbone).parameters
    fields = inspect.signature(CMLMCSEConfig).parameters
    assert {"name_or_path", "fusion_init", "from_scratch"} <= set(own)
    assert set(fields) - set(own) == {"backbone_config", "kwargs"}
    assert own["temp"].default == fields["temp"].default == 0.05
    message = "from_backbone expects fields of CMLMCSEConfig, found 'lexical_layer'; write lexical_layers"
    with pytest.raises(TypeError, match=message):
        CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders["bert"], lexical_layer=2)


@pytest.mark.parametrize(("fields", "message"), [
    ({"pooling": "max"}, "pooling must be one of cls, .*, found 'max'"),
    ({"pooling": None}, "pooling must be one of cls, .*, found None"),
    ({"rtd_weight": "x"}, "rtd_weight must be a number from 0 to 1e\\+06, found 'x'"),
    ({"cmlm_weight": 0, "condenser_weight": "x"}, "condenser_weight must be a number from 0 to 1e\\+06, found 'x'"),
    ({"denosent_weight": 1.0, "denosent_layers": 1.5}, "denosent_layers must be a whole number"),
])  # fmt: skip
def test_from_backbone_checks_fields_first(fields, message):
    """A wrong field is refused as in the configuration, before the backbone, which is none, is looked for."""
    with pytest.raises(ValueError, match=message):
        CMLMCSEForSentenceEmbedding.from_backbone("no-such-backbone", **fields)


def test_from_backbone_takes_what_depends_on_the_backbone(backbone_folders):
    """Depths and dimensions of a backbone that is smaller than the default one."""
    fields = {"pooling": "avg", "matryoshka_dims": "32,8", "lexical_layers": 1, "fusion_layers": 2}
    config = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders["shallow"], **fields).config
    assert (config.matryoshka_dims, config.lexical_layers, config.fusion_layers) == ([32, 8], 1, 2)
