"""Training on searches: what a teacher finds for queries made from documents is what the model learns to rank."""

import json

import datasets
import numpy as np
import pytest

from cmlmcse.common.errors import InputError
from cmlmcse.data.latent import LatentSpace
from cmlmcse.models.encoders import load_encoder
from cmlmcse.training.command import train
from cmlmcse.training.parse import parse_recipe
from cmlmcse.training.searches import search_pairs
from cmlmcse.training.teachers import teacher_vectors
from support.tiny import WORDS
from support.training import history

SEARCH = {"views": "search", "contrastive_weight": 0, "cmlm_weight": 0, "distillation_weight": 1, "teacher": "lsa",
          "distillation_loss": "list_net"}  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache of the library datasets."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture
def documents():
    """60 documents, each of words of its own."""
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(60):
        own = rng.choice(WORDS, size=8, replace=False)
        rows.append({"title": " ".join(own[:4]), "text": " ".join(rng.choice(own, size=30)) + "."})
    return datasets.Dataset.from_list(rows)


@pytest.fixture
def corpus(documents, tmp_path):
    """The documents as a file."""
    (tmp_path / "corpus.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in documents))
    return tmp_path / "corpus.jsonl"


def parsed(recipe, **fields):
    """The three groups of a recipe's fields."""
    words = [word for name, value in fields.items() for word in (f"--{name}", str(value))]
    return parse_recipe([str(recipe), *words])[1:]


def test_pairs_and_their_vectors(recipe, backbone_folders, documents):
    """Each query's vectors are those of its text, each passage's those of its document, by the model and by the words
    of the text; the query's own document is not its passage. A second call reads the files."""
    model, _, run = parsed(recipe, **{**SEARCH, "teacher": f"{backbone_folders['bert']},lsa", "teacher_pooling": "avg"})
    pairs, files = search_pairs(documents, model, run, seed=4)
    assert len(pairs) > 100
    texts = [f"{row['title']} {row['text']}" for row in documents]
    encode, space = load_encoder(backbone_folders["bert"], "avg", 64, show_progress_bar=False), LatentSpace(texts)
    for (asked, given), vectors in zip(files, (encode, space), strict=True):
        np.testing.assert_allclose(np.load(asked), vectors(pairs["text"][:]), atol=1e-5)
        np.testing.assert_allclose(np.load(given), vectors(pairs["positive"][:]), atol=1e-5)
    for query, passage in zip(pairs["text"], pairs["positive"], strict=True):
        assert query not in passage.split(" ", 4)[4] or query.count(" ") < 4  # a sentence or a title stands in its own
    again = search_pairs(documents, model, run, seed=4)
    assert again[1] == files
    assert again[0].to_dict() == pairs.to_dict()
    assert search_pairs(documents, model, run, seed=5)[0].to_dict() != pairs.to_dict()


def test_a_run_learns_the_teachers_ranking(recipe, corpus, tmp_path):
    """The loss falls, in parts as in the whole, and an interrupted run goes on to the same losses."""
    fields = {**SEARCH, "train_file": corpus, "dev_set": "none", "logging_steps": 1, "backbone_dropout": 0,
              "lr_scheduler_type": "constant", "learning_rate": 1e-2,
              "save_steps": 6, "per_device_train_batch_size": 16}  # fmt: skip
    train(recipe, **fields, max_steps=12, output_dir=tmp_path / "whole")
    losses = history(tmp_path / "whole", "distillation_loss")
    assert np.mean(losses[-3:]) < np.mean(losses[:3]) - 0.05
    train(recipe, **fields, max_steps=12, mini_batch_size=5, output_dir=tmp_path / "parts")
    assert history(tmp_path / "parts", "distillation_loss") == pytest.approx(losses, rel=1e-3)
    train(recipe, **fields, max_steps=6, output_dir=tmp_path / "half")
    train(recipe, **fields, max_steps=12, output_dir=tmp_path / "half", resume_from_checkpoint="auto")
    assert history(tmp_path / "half", "distillation_loss")[-6:] == losses[-6:]


def test_latent_semantic_analysis_teaches_sentences_and_pairs_too(recipe, documents):
    """The space is fitted to all texts of the rows."""
    lines = documents["text"][:]
    sentences, pairs = {"text": lines}, {"text": lines, "positive": documents["title"][:]}
    for columns in (sentences, pairs):
        rows = datasets.Dataset.from_dict(columns)
        (files,) = teacher_vectors(rows, *parsed(recipe, teacher="lsa", distillation_weight=1))
        space = LatentSpace([text for name in columns for text in columns[name]])
        for path, texts in zip(files, columns.values(), strict=True):
            np.testing.assert_allclose(np.load(path), space(texts), atol=1e-5)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"distillation_weight": 0}, "views search expects teachers .* found distillation_weight 0"),
        ({"contrastive_weight": 1}, "need not be its positive, found contrastive_weight"),
        ({"consistency_weight": 1}, "found consistency_weight"),
        ({"mined_negatives": 1}, "mined_negatives"),
        ({"views": "search+words"}, "views must be one of .* found 'search'"),
        ({"positive_column": "title"}, "views search expects unlabelled documents"),
        ({"teacher": "nowhere/at-all"}, "nowhere/at-all"),
    ],
)
def test_what_searches_cannot_be(changed, expected, recipe, corpus):
    with pytest.raises(InputError, match=expected):
        train(recipe, **{**SEARCH, "train_file": corpus, "dev_set": "none", **changed})


def test_documents_without_words_ask_nothing(recipe, tmp_path):
    (tmp_path / "signs.jsonl").write_text("".join(json.dumps({"text": f"{i} ?! - {i}"}) + "\n" for i in range(30)))
    with pytest.raises(InputError, match="found 30 documents and 0 queries"):
        train(recipe, **{**SEARCH, "train_file": tmp_path / "signs.jsonl", "dev_set": "none"})
