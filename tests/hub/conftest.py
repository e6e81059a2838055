"""What is published, a checkpoint, and the client."""

from pathlib import Path

import pytest
from huggingface_hub import HfApi

from cmlmcse.hub.card import bare_card
from cmlmcse.hub.card_usage import Loading
from cmlmcse.hub.export import export
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from support.tiny import tiny_tokenizer


@pytest.fixture(scope="module")
def exported(backbone_folders, tmp_path_factory) -> Path:
    """An exported folder."""
    model = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders["bert"])
    return export(model, tiny_tokenizer("bert"), tmp_path_factory.mktemp("publish") / "export", bare_card())


@pytest.fixture(scope="module")
def other(backbone_folders, tmp_path_factory) -> Path:
    """Another exported folder, without code."""
    model = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders["bert"], pooling="avg")
    model.backbone.get_input_embeddings().weight.data.mul_(2.0)
    folder = tmp_path_factory.mktemp("publish") / "other"
    return export(model, tiny_tokenizer("bert"), folder, bare_card(Loading(more="Another.")), trust_free=True)


@pytest.fixture
def checkpoint(backbone_folders, tmp_path) -> Path:
    """A training checkpoint."""
    folder = tmp_path / "run" / "checkpoint-5"
    CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders["bert"]).save_pretrained(folder)
    tiny_tokenizer("bert").save_pretrained(folder)
    return folder


@pytest.fixture
def api(hub) -> HfApi:
    """The client."""
    return HfApi()
