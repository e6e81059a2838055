"""Training on documents: views, augmentation, auxiliary objectives, large batches and the label-free score together."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from datasets import Dataset

from cmlmcse.data.batches import TrainingSentences, tokenize_pieces
from cmlmcse.training.build_collator import build_views
from cmlmcse.training.command import train
from cmlmcse.training.fields import DataArguments
from support.tiny import WORDS, tiny_tokenizer
from support.training import history


@pytest.fixture
def corpus(tmp_path):
    """150 documents with titles of their own words."""
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(150):
        own = rng.choice(WORDS, size=8, replace=False)
        rows.append({"title": " ".join(own[:4]), "text": " ".join(rng.choice(own, size=60))})
    (tmp_path / "corpus.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return tmp_path / "corpus.jsonl"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("views", "name", "weight"),
    [("words+sentence", "cmlm", 0.1), ("title_body+crops", "condenser", 0.1), ("neighbours", "mlm", 0.1)],
)
def test_a_batch_in_parts_trains_as_the_whole(views, name, weight, corpus, recipe, tmp_path):
    """Every loss of a run by GradCache is that of the run without it, with deleted words in both views; the label-free
    score has a before and an after."""
    fields = {"cmlm_weight": 0, f"{name}_weight": weight, "lexical_layers": 1, "views": views, "backbone_dropout": 0,
              "augmentation": "delete_tokens", "augmented_views": "both", "train_file": corpus, "dev_set": "auto",
              "logging_steps": 1, "max_steps": 6}  # fmt: skip
    for folder, size in (("whole", None), ("parts", 6)):
        train(recipe, **fields, mini_batch_size=size, output_dir=tmp_path / folder)
    for loss in ("contrastive_loss", f"{name}_loss"):
        found, expected = (history(tmp_path / folder, loss) for folder in ("parts", "whole"))
        assert len(found) == 6
        assert found == pytest.approx(expected, rel=1e-3)
    dev = json.loads((tmp_path / "parts" / "results.json").read_text())["dev"]
    assert dev["documents"] >= 20
    assert 0 < dev["before"] != dev["score"]


def test_one_document_is_much_longer_than_the_others(corpus, recipe, tmp_path):
    """100,000 words beside documents of 60: every view trains on pieces of at most `max_seq_length` tokens."""
    rng = np.random.default_rng(1)
    with corpus.open("a") as file:
        file.write(json.dumps({"title": "w1 w2 w3", "text": " ".join(rng.choice(WORDS, 100_000))}) + "\n")
    fields = {"views": "crops+neighbours+title_body+words+sentence", "train_file": corpus, "max_seq_length": 20,
              "cmlm_weight": 0, "dev_set": "none", "num_train_epochs": 1, "max_steps": -1}  # fmt: skip
    train(recipe, **fields)
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["steps"] == 10  # 151 documents in batches of 16, the long one among them
    assert 0 < record["tokens"] <= 2 * 151 * 20


def test_most_documents_are_too_short(recipe, tmp_path, capsys):
    """119 documents of two words and one of forty: the run trains, and one line says that views are alike."""
    lines = [*(f"w{i % 60} w{i % 7}" for i in range(119)), " ".join(WORDS[:40])]
    (tmp_path / "short.txt").write_text("\n\n".join(lines) + "\n")
    fields = {"views": "crops", "train_file": tmp_path / "short.txt", "cmlm_weight": 0, "dev_set": "none"}
    train(recipe, **fields, max_steps=1)
    said = [line for line in capsys.readouterr().err.splitlines() if "documents are too short" in line]
    assert said == [
        "119 of 120 documents are too short for views crops: of fewer than 10 tokens both views are the same text; "
        "join short texts into longer documents, or choose the views dropout"
    ]


@pytest.mark.parametrize(
    ("views", "titles", "short", "process", "found"),
    [
        ("neighbours", 0, 50, 0, "50 of 60 documents are too short for views neighbours: "),
        ("sentence", 50, 50, 0, "50 of 60 documents are too short for views sentence: "),
        ("words", 0, 50, 0, "50 of 60 documents are too short for views words: "),  # both words ask for both
        ("title_body", 20, 50, 0, "30 of 60 documents are too short for views title_body: "),  # those without a title
        ("dropout+crops", 0, 50, 0, "50 of 60 documents are too short for views dropout+crops: "),
        ("title_body", 50, 50, 0, ""),
        ("dropout", 0, 50, 0, ""),  # one text on purpose
        ("crops", 0, 6, 0, ""),  # a tenth
        ("crops", 0, 50, 1, ""),  # the first process says it
    ],
)
def test_documents_that_are_too_short_are_counted(views, titles, short, process, found, capsys):
    """Documents of two words, all of them words of others, among those of forty; the first ones have a title."""
    texts = [("cat tree", "dog mat")[row % 2] for row in range(short)]
    texts += [" ".join(WORDS[row : row + 40]) for row in range(60 - short)]
    named = ["small"] * titles + [""] * (60 - titles)
    tokenizer = tiny_tokenizer("bert")
    pieces = tokenize_pieces(Dataset.from_dict({"title": named, "text": texts}), tokenizer)
    recipe = SimpleNamespace(data=DataArguments(views=views), run=SimpleNamespace(process_index=process))
    capsys.readouterr()
    for _ in range(2):  # as two arms of adapt; the second one repeats nothing
        build_views(recipe, tokenizer, TrainingSentences(pieces))
    said = capsys.readouterr().err
    assert said.startswith(found)
    assert said.count("too short") == bool(found)
