"""Training on searches: what a teacher finds for queries made from documents is what the model learns to rank."""

import json
import shutil

import datasets
import numpy as np
import pytest

from cmlmcse.common.errors import InputError
from cmlmcse.common.names import join_names
from cmlmcse.common.vectors import unit
from cmlmcse.data.searches import make_queries
from cmlmcse.data.tables import with_titles
from cmlmcse.evaluation.bm25 import BM25
from cmlmcse.models.encoders import load_encoder
from cmlmcse.training.command import train
from cmlmcse.training.parse import parse_recipe
from cmlmcse.training.searches import LEXICAL_SCALE, search_pairs
from cmlmcse.training.teachers import teacher_vectors
from support.tiny import WORDS
from support.training import history

SEARCH = {"views": "search", "contrastive_weight": 0, "cmlm_weight": 0, "distillation_weight": 1, "teacher": "bm25",
          "distillation_loss": "list_net", "max_seq_length": 64}  # fmt: skip

pytestmark = pytest.mark.usefixtures("cache")


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
    """A recipe with its fields."""
    words = [word for name, value in ({"data_seed": 4} | fields).items() for word in (f"--{name}", str(value))]
    return parse_recipe([str(recipe), *words])


def test_pairs_and_their_vectors(recipe, backbone_folders, documents):
    """The cosines of the kept vectors are those of the model, and BM25 over the query's best score among the documents
    that are not its own, times a factor. A second call reads the files; another seed makes others."""
    fields = {**SEARCH, "teacher": f"{backbone_folders['bert']},bm25", "teacher_pooling": "avg"}
    run = parsed(recipe, **fields)
    pairs, (by_model, by_words) = search_pairs(documents, run)
    asked, given = pairs["text"][:], pairs["positive"][:]
    assert len(asked) > 100
    texts = [f"{row['title']} {row['text']}" for row in documents]
    encode = load_encoder(backbone_folders["bert"], "avg", 64, show_progress_bar=False)
    cosines = unit(encode(asked)) @ unit(encode(given)).T
    np.testing.assert_allclose(np.load(by_model[0]) @ np.load(by_model[1]).T, cosines, atol=1e-5)

    places = [texts.index(passage) for passage in given]
    scores, own = BM25(texts).scores(asked), make_queries(documents, seed=4).owners
    others = scores.copy()
    others[np.arange(len(asked)), own] = 0
    expected = LEXICAL_SCALE * scores[:, places] / others.max(axis=1, keepdims=True)
    words = [np.load(path).astype(np.float32) for path in by_words]
    for table in words:
        np.testing.assert_allclose(np.linalg.norm(table, axis=1), 1, atol=1e-3)
    np.testing.assert_allclose(words[0] @ words[1].T, expected, atol=1e-3)
    assert (own != places).all()

    again = search_pairs(documents, run)
    assert again[1] == [by_model, by_words]
    assert again[0].to_dict() == pairs.to_dict()
    assert search_pairs(documents, parsed(recipe, **{**fields, "data_seed": 5}))[0].to_dict() != pairs.to_dict()


@pytest.mark.parametrize("default", [None, "other"])
def test_a_teacher_is_asked_with_its_prompts(default, recipe, backbone_folders, documents, tmp_path):
    """Each side with its own, and none with the default one. The model's folder has a comma in its name."""
    folder = tmp_path / "with, comma"
    shutil.copytree(backbone_folders["bert"], folder)
    prompts = {"query": "w1 w2 ", "passage": "w3 ", "other": "w4 w4 w4 "}
    recorded = {"prompts": prompts, "default_prompt_name": default}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(recorded))
    fields = {**SEARCH, "teacher": join_names([str(folder)]), "teacher_pooling": "avg"}
    run = parsed(recipe, **fields)
    pairs, (kept,) = search_pairs(documents, run)
    encode = load_encoder(backbone_folders["bert"], "avg", 64, show_progress_bar=False)
    assert pairs["text"][:] == make_queries(documents, seed=4).texts  # training reads the texts alone
    assert set(pairs["positive"]) <= set(with_titles(documents["title"], documents["text"]))
    for path, name, prompt in zip(kept, ("text", "positive"), ("w1 w2 ", "w3 "), strict=True):
        np.testing.assert_allclose(np.load(path), unit(encode([prompt + text for text in pairs[name]])), atol=1e-5)


def test_no_prompt_for_passages_is_not_the_default_one(recipe, backbone_folders, documents, tmp_path):
    """Kept vectors of the same texts with the default prompt are not taken for those without any."""
    folder = shutil.copytree(backbone_folders["bert"], tmp_path / "model")
    recorded = {"prompts": {"query": "w1 ", "other": "w4 w4 "}, "default_prompt_name": "other"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(recorded))
    run = parsed(recipe, **{**SEARCH, "teacher": folder, "teacher_pooling": "avg"})
    teacher_vectors(documents, run)
    pairs, ((_, kept),) = search_pairs(documents, run)
    encode = load_encoder(backbone_folders["bert"], "avg", 64, show_progress_bar=False)
    np.testing.assert_allclose(np.load(kept), unit(encode(pairs["positive"][:])), atol=1e-5)


def test_the_share_decides_what_is_found(recipe, backbone_folders, documents):
    """With all of the share BM25 alone draws the passages, so their scores are higher than by the model alone."""
    found = {}
    for share in (0, 1):
        fields = {"teacher": f"{backbone_folders['bert']},bm25", "teacher_share": share, "teacher_pooling": "avg"}
        run = parsed(recipe, **{**SEARCH, **fields})
        _, (_, by_words) = search_pairs(documents, run)
        asked, given = (np.load(path).astype(np.float32) for path in by_words)
        found[share] = (asked * given).sum(axis=1).mean()
    assert found[0] > 1.5 * found[1] > 0


def test_a_teacher_reads_what_training_reads(recipe, backbone_folders, documents):
    """Not a word beyond `max_seq_length`; BM25 knows the whole text."""
    fields = {**SEARCH, "teacher": f"{backbone_folders['bert']},bm25", "teacher_pooling": "avg", "max_seq_length": 8}
    run = parsed(recipe, **fields)
    pairs, (by_model, by_words) = search_pairs(documents, run)
    given = pairs["positive"][:]
    encode = load_encoder(backbone_folders["bert"], "avg", 8, show_progress_bar=False)
    np.testing.assert_allclose(np.load(by_model[1]), unit(encode(given)), atol=1e-5)
    run = parsed(recipe, **{**fields, "max_seq_length": 64})
    longer, (_, same_words) = search_pairs(documents, run)
    assert longer["positive"][:] != given
    counts = [(np.load(path[1])[:, :-2] != 0).sum() / len(pairs) for path in (by_words, same_words)]
    assert counts[0] == pytest.approx(counts[1], rel=0.1)


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


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"distillation_weight": 0}, "views search expects teachers .* found distillation_weight 0"),
        ({"contrastive_weight": 1}, "need not be its positive, found contrastive_weight"),
        ({"consistency_weight": 1}, "found consistency_weight"),
        ({"mined_negatives": 1}, "mined_negatives"),
        ({"views": "search+words"}, "views must be one of .*, or search by itself, found 'search'"),
        ({"views": "words"}, "teacher bm25 expects views search, .* found views words"),
        ({"positive_column": "title"}, "views search expects unlabelled documents"),
        ({"teacher": "nowhere/at-all"}, "nowhere/at-all"),
    ],
)
def test_what_searches_cannot_be(changed, expected, recipe, corpus):
    with pytest.raises(InputError, match=expected):
        train(recipe, **{**SEARCH, "train_file": corpus, "dev_set": "none", **changed})


def test_too_few_documents_for_a_batch(recipe, corpus):
    with pytest.raises(InputError, match=r"at least 64 documents, .* found 60"):
        train(recipe, **{**SEARCH, "train_file": corpus, "dev_set": "none", "per_device_train_batch_size": 64},
              dataloader_drop_last=True)  # fmt: skip


def test_documents_without_words_ask_nothing(recipe, tmp_path):
    (tmp_path / "signs.jsonl").write_text("".join(json.dumps({"text": f"{i} ?! - {i}"}) + "\n" for i in range(30)))
    with pytest.raises(InputError, match="found 30 documents and 0 queries"):
        train(recipe, **{**SEARCH, "train_file": tmp_path / "signs.jsonl", "dev_set": "none"})
