"""Ranking distillation in a run: teachers encode the text once, and a step reads their vectors by row."""

import pickle

import datasets
import numpy as np
import pytest
import torch

from cmlmcse.common.errors import InputError
from cmlmcse.data.batches import TrainingSentences, ViewCollator, tokenize_sentences
from cmlmcse.models import encoders
from cmlmcse.models.encoders import load_encoder
from cmlmcse.training import teachers
from cmlmcse.training.command import train
from cmlmcse.training.parse import parse_recipe
from cmlmcse.training.teachers import teacher_vectors
from cmlmcse.training.training_losses import TrainingLosses
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from modeling_cmlmcse.ranking import ranking_consistency, ranking_distillation
from support.tiny import tiny_tokenizer
from support.training import history

RANKCSE = {"consistency_weight": 1.0, "distillation_weight": 1.0, "distillation_loss": "list_net"}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache of the library datasets."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path / "cache"


def parsed(recipe, **fields):
    """The three groups of a recipe's fields."""
    words = [word for name, value in fields.items() for word in (f"--{name}", str(value))]
    return parse_recipe([str(recipe), *words])[1:]


def test_vectors_of_a_row(recipe, backbone_folders, cache, monkeypatch):
    """Each row has the vector that the teacher's own `encode` gives for its sentence, cut where the student's is cut; a
    second run reads the file, another text or pooling makes another, and nothing is encoded without distillation."""
    names = f"{backbone_folders['roberta']}, {backbone_folders['bert']}"
    fields = parsed(recipe, teacher=names, teacher_pooling="avg", max_seq_length=8, **RANKCSE)
    lines = ["the cat sat on the mat under the big tree and ran", "a dog", "w1 w2 w3"]
    text = datasets.Dataset.from_dict({"text": lines})
    paths = teacher_vectors(text, *fields)
    for path, kind in zip(paths, ("roberta", "bert"), strict=True):
        expected = load_encoder(backbone_folders[kind], "avg", 8, show_progress_bar=False)(lines)
        np.testing.assert_allclose(np.load(path), expected, atol=1e-6)

    tokenizer = tiny_tokenizer("bert")
    rows = TrainingSentences(tokenize_sentences(text, tokenizer, 8), paths)
    batch = ViewCollator(tokenizer, 1, mini_batch_size=2)(rows.__getitems__([2 + 3, 0 + 3, 1]))
    sent = pickle.loads(pickle.dumps(batch))  # to the trainer's process
    for index, path in enumerate(paths):
        vectors = torch.cat([part["views"]["teachers"][index] for part in sent["parts"]])
        assert np.array_equal(vectors, np.load(path)[[2, 0, 1]])
    assert torch.equal(sent["parts"][0]["views"]["input_ids"], batch["parts"][0]["views"]["input_ids"])

    monkeypatch.setattr(encoders.Encoder, "__call__", lambda *_: pytest.fail("encoded again"))
    assert teacher_vectors(text, *fields) == paths
    assert teacher_vectors(text, *parsed(recipe, teacher=names)) == []
    monkeypatch.undo()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", cache)
    others = teacher_vectors(text.select([1, 0, 2]), *fields)
    others += teacher_vectors(text, *parsed(recipe, teacher=names, max_seq_length=8, **RANKCSE))  # [CLS] by default
    assert len({*paths, *others}) == 6


def test_the_losses_of_a_batch(backbone_folders, sentences):
    """A batch's loss is InfoNCE and the weighted terms of the projected vectors; without vectors it is refused."""
    fields = {
        "cmlm_weight": 0.0,
        "consistency_weight": 2.0,
        "distillation_weight": 0.3,
    }
    losses = TrainingLosses(CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders["bert"], **fields).train())
    torch.manual_seed(0)
    vectors, teacher = torch.randn(2, 5, 32), torch.randn(5, 6)
    total, _, logs = losses.contrast(vectors, [teacher])
    projected = losses.model.projection(vectors)
    expected = {
        "consistency_loss": ranking_consistency(projected, 0.05),
        "distillation_loss": ranking_distillation(projected, [teacher], "list_mle", 0.05, 0.025, 0.33),
    }
    assert {name: logs[name].item() for name in expected} == pytest.approx({k: v.item() for k, v in expected.items()})
    weighted = logs["contrastive_loss"] + 2 * logs["consistency_loss"] + 0.3 * logs["distillation_loss"]
    assert total.item() == pytest.approx(weighted.item(), rel=1e-6)
    with pytest.raises(ValueError, match="distillation_weight above 0 expects the vectors of one teacher or two"):
        losses.contrast(vectors)


@pytest.mark.slow
def test_runs_with_an_empty_and_a_full_cache_are_equal(recipe, backbone_folders, tmp_path, capsys, monkeypatch):
    """RankCSE with CMLM-CSE, in parts and with a worker: the second run encodes nothing and has the same losses to the
    last digit; the distillation loss falls."""
    fields = {**RANKCSE, "teacher": backbone_folders["roberta"], "teacher_pooling": "avg", "contrastive_weight": 0.1,
              "mini_batch_size": 6, "dataloader_num_workers": 1, "dev_set": "none", "max_steps": 24}  # fmt: skip
    logs = []
    for name in ("cold", "warm"):
        train(recipe, **fields, output_dir=tmp_path / name)
        logs.append({key: history(tmp_path / name, key) for key in ("loss", "distillation_loss", "consistency_loss")})
        assert ("encodes 200 rows once" in capsys.readouterr().out) == (name == "cold")
    assert logs[0] == logs[1]
    assert logs[0]["distillation_loss"][-1] < logs[0]["distillation_loss"][0]
    assert all(0 < value < np.log(2) for value in logs[0]["consistency_loss"])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "distillation_weight 1.0 expects one teacher or two, found 0"),
        ({"teacher": "a,b,c"}, "found 3"),
        ({"teacher": "a", "teacher_pooling": "max"}, "teacher_pooling must be one of"),
        ({"teacher": "a", "streaming": "true"}, "expects a file of sentences without labels, found streaming"),
        ({"teacher": "a", "positive_column": "p"}, "without labels, found positive_column"),
        ({"teacher": "a", "views": "crops"}, "without labels, found documents"),
    ],
)
def test_wrong_fields(fields, message, recipe):
    with pytest.raises(InputError, match=message):
        parsed(recipe, distillation_weight=1.0, **fields)


def test_a_teacher_that_is_not_there(recipe):
    fields = parsed(recipe, teacher="./no-such-model", distillation_weight=1.0)
    with pytest.raises(InputError, match=r"no-such-model: expected a model's folder, found none"):
        teachers.teacher_vectors(datasets.Dataset.from_dict({"text": ["a", "b"]}), *fields)
