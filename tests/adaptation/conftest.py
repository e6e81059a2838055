"""The text and the model of adapt's tests."""

import json

import numpy as np
import pytest

from cmlmcse.hub.export import export
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from support.tiny import ENGLISH, tiny_backbone, tiny_tokenizer


@pytest.fixture(scope="package")
def corpus(tmp_path_factory):
    """150 documents, each about three words of its own, with a title."""
    rng = np.random.default_rng(0)
    rows = []
    for row in range(150):
        own = [f"w{word}" for word in rng.choice(60, 3, replace=False)]
        words = [own[rng.integers(3)] if rng.random() < 0.6 else ENGLISH[rng.integers(len(ENGLISH))] for _ in range(50)]
        rows.append({"_id": str(row), "title": " ".join(own), "text": " ".join(words)})
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="package")
def backbone(tmp_path_factory):
    """A tiny model of two layers, with its tokenizer."""
    folder = tmp_path_factory.mktemp("backbone")
    tiny_backbone("bert", num_hidden_layers=2).save_pretrained(folder)
    tiny_tokenizer("bert").save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="package")
def encoder(backbone, tmp_path_factory):
    """The same model as a finished encoder, whose folder records its pooling."""
    model = CMLMCSEForSentenceEmbedding.from_backbone(backbone, pooling="avg", cmlm_weight=0)
    return str(export(model, tiny_tokenizer("bert"), tmp_path_factory.mktemp("encoder") / "export"))
