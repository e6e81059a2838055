"""Pairs with a score: read from every format, trained by CoSENT, alone and beside CMLM-CSE, and refused where wrong."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from cmlmcse.common.errors import InputError
from cmlmcse.common.recipes import find_recipe
from cmlmcse.data.batches import StreamedSentences, TrainingSentences, tokenize_sentences
from cmlmcse.data.collator import ViewCollator
from cmlmcse.data.text import load_sentences
from cmlmcse.training.command import train
from cmlmcse.training.parse import parse_recipe
from cmlmcse.training.training_losses import TrainingLosses
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from support.text import write_records
from support.tiny import WORDS, tiny_backbone, tiny_tokenizer
from support.training import history

pytestmark = pytest.mark.usefixtures("cache")

ROWS = [("a cat", "the cat, sat", 4.5), ("the tree", " ", 1.0), ("w2 w3", "w4", 0), ("big", "red", -0.25)]
COLUMNS = {"text_column": "one", "positive_column": "two", "score_column": "rating"}


def write_table(path: Path, rows=ROWS) -> str:
    """The rows in the format of the path's suffix, with a column more."""
    return write_records(path, [{"one": one, "two": two, "rating": rated, "source": "x"} for one, two, rated in rows])


@pytest.mark.parametrize("suffix", ("csv", "tsv", "jsonl", "parquet"))
@pytest.mark.parametrize("streaming", (False, True))
def test_scores_are_read_and_reach_the_batch(suffix, streaming, tmp_path):
    """The rows in which neither sentence is blank, each with its number, as far as the collated batch."""
    path = write_table(tmp_path / f"pairs.{suffix}")
    pairs = load_sentences(path, streaming=streaming, **COLUMNS)
    kept = [ROWS[0], ROWS[2], ROWS[3]]
    assert [tuple(row.values()) for row in pairs] == kept
    tokenizer = tiny_tokenizer("bert")
    tokenized = tokenize_sentences(pairs, tokenizer, 16)
    if streaming:
        examples = [example for example, _ in zip(StreamedSentences(tokenized, seed=0), range(3), strict=False)]
    else:
        examples = TrainingSentences(tokenized).__getitems__([3, 5, 4])
    views = ViewCollator(tokenizer, 1)(examples)["views"]
    assert views["num_views"] == 2
    assert views["scores"].tolist() == [kept[example.row][2] for example in examples]
    sentences = [rows.tolist() for rows in views["input_ids"].split(views["lengths"].tolist())]
    assert sentences == [tokenizer(kept[each.row][side])["input_ids"] for side in (0, 1) for each in examples]


@pytest.mark.parametrize(
    ("suffix", "scores", "row", "found"),
    [
        ("csv", [0.5, "", ""], 3, "''"),
        ("csv", [0.5, 1, "high"], 3, "'high'"),
        ("csv", ["nan", 1, 1], 1, "'nan'"),
        ("tsv", [0.5, 1, "-inf"], 3, "'-inf'"),
        ("jsonl", [0.5, None, None], 3, "None"),
        ("jsonl", [True, False, True], 1, "True"),
        ("parquet", [0.5, 1.0, None], 3, "None"),
        ("parquet", [[0.5], [1.0], [2.0]], 1, "[0.5]"),
    ],
)
def test_a_wrong_score(suffix, scores, row, found, tmp_path):
    """One line names the file, the column and the row. A row without a second sentence, the second one here, is left
    out and needs no score."""
    rows = [(f"a w{i}", " " if i == 1 else "b", score) for i, score in enumerate(scores)]
    message = f"pairs.{suffix}: expected a finite number in the column rating of row {row}, found {found}; fix the row"
    with pytest.raises(InputError, match=re.escape(message)):
        load_sentences(write_table(tmp_path / f"pairs.{suffix}", rows), **COLUMNS)


def test_equal_scores(recipe, tmp_path):
    """They have no order: one line, before any training."""
    pairs = write_table(tmp_path / "pairs.csv", [(f"a w{i}", "b", 2.0) for i in range(20)])
    with pytest.raises(InputError, match=r"pairs.csv: expected at least two different scores, found 2 alone"):
        train(recipe, train_file=pairs, contrastive_loss="cosent", **COLUMNS)


def test_a_missing_column(tmp_path):
    """The message names the option to give."""
    wanted = COLUMNS | {"score_column": "score"}
    with pytest.raises(InputError, match=r"expected a column score, found the columns one, .*; give --score_column"):
        load_sentences(write_table(tmp_path / "pairs.csv"), **wanted)


def test_the_losses_of_a_batch(tmp_path):
    """CoSENT of the embeddings that `forward` gives each sentence, pair by pair, and CMLM-CSE's loss beside it."""
    tiny_backbone("bert", dropout=0.0).save_pretrained(tmp_path)
    fields = {"pooling": "avg", "contrastive_loss": "cosent", "contrastive_weight": 2.0, "temp": 0.5}
    model = CMLMCSEForSentenceEmbedding.from_backbone(tmp_path, cmlm_weight=0.0, **fields).double().train()
    path = write_table(tmp_path / "pairs.csv")
    tokenizer = tiny_tokenizer("bert")
    rows = tokenize_sentences(load_sentences(path, **COLUMNS), tokenizer, 16)
    examples = TrainingSentences(rows).__getitems__([0, 1, 2])
    loss = TrainingLosses(model)(**ViewCollator(tokenizer, 1)(examples)).loss
    cosine = torch.nn.CosineSimilarity()
    found = [
        cosine(*(model(torch.tensor([each.text(view)])).pooler_output for view in (0, 1))).item() for each in examples
    ]
    # 4.5 > 0 > −0.25
    wrong = sum(math.exp((found[low] - found[high]) / 0.5) for high, low in ((0, 1), (0, 2), (1, 2)))
    assert loss.item() == pytest.approx(2 * math.log(1 + wrong), rel=1e-9)


def rated(seed: int, count: int) -> list[tuple[str, str, float]]:
    """Pairs of tiny sentences; the score, 1 or 0, says whether the same one of four words is among five others."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        topics = rng.choice(WORDS[:4], size=2)
        sentences = [" ".join(rng.permutation([topic, *rng.choice(WORDS[4:], size=5)])) for topic in topics]
        rows.append((*sentences, float(topics[0] == topics[1])))
    return rows


BESIDE = {"cmlm_weight": 0.1, "gradient_accumulation_steps": 2, "mini_batch_size": 5, "lora_r": 4}


@pytest.mark.parametrize("fields", ({}, BESIDE))
def test_two_steps_of_the_recipe(fields, backbone_folders, tmp_path):
    """The recipe on a table of one's own, as it is, and beside CMLM-CSE in parts, accumulated, by LoRA. The card says
    by what it was trained."""
    pairs = write_table(tmp_path / "pairs.csv", rated(0, 60))
    own = {"model_name_or_path": backbone_folders["shallow"], "train_file": pairs,
           "data_dir": tmp_path, "dev_set": "none", "final_evaluation": "none", "max_steps": 2, "logging_steps": 1,
           "max_seq_length": 32, "output_dir": tmp_path / "run", "use_cpu": True, "disable_tqdm": True}  # fmt: skip
    train(find_recipe("cosent-bert-base"), **own, **COLUMNS, **fields)
    losses = history(tmp_path / "run", "contrastive_loss")
    assert len(losses) == 2
    # with equal cosines: log(1 + how many pairs of pairs are ordered), of 16 pairs at most
    assert all(1 < loss < math.log(1 + 16 * 15 / 2) + 1 for loss in losses)
    assert bool(history(tmp_path / "run", "cmlm_loss")) == bool(fields)
    card = (tmp_path / "run" / "export" / "README.md").read_text()
    assert "on labelled pairs" in card
    assert "huang2024cosent" in card


def test_it_learns_what_the_scores_say(recipe, tmp_path):
    """Which words count for the scores is not what the backbone's cosines say; training finds it, on other pairs."""
    (tmp_path / "dev.tsv").write_text("".join(f"{score}\t{one}\t{two}\n" for one, two, score in rated(1, 200)))
    pairs = write_table(tmp_path / "pairs.csv", rated(0, 400))
    train(recipe, train_file=pairs, contrastive_loss="cosent", cmlm_weight=0, learning_rate="3e-3", max_steps=100,
          eval_steps=100, save_steps=100, output_dir=tmp_path / "run", **COLUMNS)  # fmt: skip
    dev = json.loads((tmp_path / "run" / "results.json").read_text())["dev"]
    assert dev["before"] + 20 < dev["spearman"], dev


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"contrastive_loss": "cosent"},
            "cosent expects pairs with a score, found no score_column; set --positive_colu",
        ),
        ({"score_column": "s"}, "score_column expects contrastive_loss cosent, found info_nce, which takes every pair"),
        ({"score_column": "s", "contrastive_loss": "cosent"}, "expects a positive_column, the second sentences, found"),
        ({"negative_column": "n"}, "found negative_column, for positives"),
        ({"dimension_weight": 0.1}, "found dimension_weight, for positives"),
        ({"consistency_weight": 0.1}, "found consistency_weight, for positives"),
        ({"contrastive_weight": 0}, "expects a contrastive loss to read the scores, found contrastive_weight 0"),
        ({"hard_negative_weight": 1}, "hard_negative_weight is for contrastive_loss .*, found 1.0 with cosent"),
        ({"views": "crops"}, "views crops expects unlabelled documents in stage train, found positive_column"),
    ],
)
def test_wrong_fields(fields, message, recipe):
    pairs = {"positive_column": "b", "score_column": "s", "contrastive_loss": "cosent"}
    fields = fields if {"score_column", "contrastive_loss"} & fields.keys() else pairs | fields
    with pytest.raises(InputError, match=message):
        parse_recipe([str(recipe), *(word for name, value in fields.items() for word in (f"--{name}", str(value)))])
