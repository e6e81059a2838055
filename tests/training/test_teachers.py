"""Ranking distillation in a run: teachers encode the text once, and a step reads their vectors by row."""

import json
import pickle

import datasets
import numpy as np
import pytest
import torch

from cmlmcse.common.errors import InputError
from cmlmcse.data.batches import TrainingSentences, tokenize_sentences
from cmlmcse.data.collator import ViewCollator
from cmlmcse.models import encoders
from cmlmcse.models.encoders import load_encoder
from cmlmcse.training import teachers
from cmlmcse.training.command import train
from cmlmcse.training.teachers import teacher_vectors
from cmlmcse.training.training_losses import TrainingLosses
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from modeling_cmlmcse.ranking import ranking_consistency, ranking_distillation
from support.tiny import WORDS, tiny_tokenizer
from support.training import history, parsed

RANKCSE = {"consistency_weight": 1.0, "distillation_weight": 1.0, "distillation_loss": "list_net"}

pytestmark = pytest.mark.usefixtures("cache")


def test_vectors_of_a_row(recipe, backbone_folders, cache, monkeypatch):
    """Each row has the vector that the teacher's own `encode` gives for its sentence, cut where the student's is cut; a
    second run reads the file, another text or pooling makes another, and nothing is encoded without distillation."""
    names = f"{backbone_folders['roberta']}, {backbone_folders['bert']}"
    fields = parsed(recipe, teacher=names, teacher_pooling="avg", max_seq_length=8, **RANKCSE)
    lines = ["the cat sat on the mat under the big tree and ran", "a dog", "w1 w2 w3"]
    text = datasets.Dataset.from_dict({"text": lines})
    files = teacher_vectors(text, fields)
    paths = [path for (path,) in files]
    for path, kind in zip(paths, ("roberta", "bert"), strict=True):
        expected = load_encoder(backbone_folders[kind], "avg", 8, show_progress_bar=False)(lines)
        np.testing.assert_allclose(np.load(path), expected, atol=1e-6)

    tokenizer = tiny_tokenizer("bert")
    rows = TrainingSentences(tokenize_sentences(text, tokenizer, 8), files)
    batch = ViewCollator(tokenizer, 1, mini_batch_size=2)(rows.__getitems__([2 + 3, 0 + 3, 1]))
    sent = pickle.loads(pickle.dumps(batch))  # to the trainer's process
    for index, path in enumerate(paths):
        vectors = torch.cat([part["views"]["teachers"][index] for part in sent["parts"]])
        assert np.array_equal(vectors[:, 0], np.load(path)[[2, 0, 1]])
    assert torch.equal(sent["parts"][0]["views"]["input_ids"], batch["parts"][0]["views"]["input_ids"])

    monkeypatch.setattr(encoders.Encoder, "__call__", lambda *_: pytest.fail("encoded again"))
    assert teacher_vectors(text, fields) == files
    assert teacher_vectors(text, parsed(recipe, teacher=names)) == []
    monkeypatch.undo()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", cache)
    others = teacher_vectors(text.select([1, 0, 2]), fields)
    others += teacher_vectors(text, parsed(recipe, teacher=names, max_seq_length=8, **RANKCSE))  # [CLS] by default
    assert len({*paths, *(path for (path,) in others)}) == 6


@pytest.mark.parametrize(
    ("columns", "texts", "most_tokens"),
    [
        (("text", "positive", "negative", "score"), ("{text}", "{positive}"), 8),
        (("title", "text"), ("{title} {text}",), 256),
    ],
)
def test_vectors_of_pairs_and_documents(columns, texts, most_tokens, recipe, backbone_folders):
    """A pair has the vectors of both its texts, and a document that of its title and text, further than a sentence is
    read. They reach the batch by their rows."""
    values = {"text": "the cat w{i} " * 6, "positive": "a dog w{i}", "negative": "w{i} tree", "title": "big w{i}"}
    rows = [{name: values[name].format(i=i) if name != "score" else i / 2 for name in columns} for i in range(3)]
    fields = parsed(recipe, teacher=backbone_folders["bert"], teacher_pooling="avg", max_seq_length=8, **RANKCSE)
    (files,) = teacher_vectors(datasets.Dataset.from_list(rows), fields)
    encode = load_encoder(backbone_folders["bert"], "avg", min(most_tokens, 64), show_progress_bar=False)
    expected = np.stack([encode([text.format(**row) for row in rows]) for text in texts], axis=1)  # (3, S, 32)
    sentences = datasets.Dataset.from_list([{"text": row["text"]} for row in rows])
    tokenizer = tiny_tokenizer("bert")
    examples = TrainingSentences(tokenize_sentences(sentences, tokenizer, 8), [files]).__getitems__([2, 4, 0])
    (vectors,) = ViewCollator(tokenizer, 1)(examples)["views"]["teachers"]
    np.testing.assert_allclose(vectors, expected[[2, 1, 0]], atol=1e-6)


def test_the_losses_of_a_batch(backbone_folders, sentences):
    """A batch's loss is InfoNCE and the weighted terms of the projected vectors; without vectors it is refused."""
    fields = {
        "cmlm_weight": 0.0,
        "consistency_weight": 2.0,
        "distillation_weight": 0.3,
    }
    losses = TrainingLosses(CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders["bert"], **fields).train())
    torch.manual_seed(0)
    vectors, teacher = torch.randn(2, 5, 32), torch.randn(5, 1, 6)
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


@pytest.fixture
def tables(tmp_path):
    """Labelled pairs with a score, and documents with titles."""
    rng = np.random.default_rng(0)
    rows = [[" ".join(rng.choice(WORDS, size=size)) for size in (5, 12)] for _ in range(100)]
    pairs = "".join(f"{first},{second},{i % 5}\n" for i, (first, second) in enumerate(rows))
    (tmp_path / "pairs.csv").write_text(f"a,b,score\n{pairs}")
    documents = "".join(json.dumps({"title": first, "text": second}) + "\n" for first, second in rows)
    (tmp_path / "documents.jsonl").write_text(documents)
    return tmp_path


PAIRS = {"train_file": "pairs.csv", "text_column": "a", "positive_column": "b"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        PAIRS,
        {**PAIRS, "score_column": "score", "contrastive_loss": "cosent"},
        {"train_file": "documents.jsonl", "views": "title_body"},
    ],
    ids=("pairs", "scored pairs", "documents"),
)
def test_regression_on_the_cosines(text, tables, recipe, backbone_folders):
    """With pairs, scored pairs and documents, beside CMLM-CSE: the cosines come near a teacher's."""
    fields = text | {"train_file": tables / text["train_file"], "teacher": backbone_folders["roberta"],
                     "teacher_pooling": "avg", "distillation_weight": 10, "distillation_loss": "mse",
                     "contrastive_weight": 0.01, "learning_rate": "3e-3", "max_steps": 30, "logging_steps": 10,
                     "dev_set": "none", "output_dir": tables / "run"}  # fmt: skip
    train(recipe, **fields)
    losses = history(tables / "run", "distillation_loss")
    assert 0 < losses[-1] < 0.8 * losses[0], losses


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "distillation_weight 1.0 expects one teacher or two, found 0"),
        ({"teacher": "a,b,c"}, "found 3"),
        ({"teacher": "a", "teacher_pooling": "max"}, "teacher_pooling must be one of"),
        (
            {"teacher": "a", "streaming": "true"},
            "a text that a teacher encodes before training, found streaming",
        ),
        (
            {"teacher": "a", "distillation_loss": "kl"},
            "distillation_loss must be one of list_mle, list_net, mse",
        ),
    ],
)
def test_wrong_fields(fields, message, recipe):
    with pytest.raises(InputError, match=message):
        parsed(recipe, distillation_weight=1.0, **fields)


def test_a_teacher_that_is_not_there(recipe):
    fields = parsed(recipe, teacher="./no-such-model", distillation_weight=1.0)
    with pytest.raises(InputError, match=r"no-such-model: expected a model's folder, found none"):
        teachers.teacher_vectors(datasets.Dataset.from_dict({"text": ["a", "b"]}), fields)
