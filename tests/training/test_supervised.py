"""Labelled rows, sentence, positive and hard negative: read, tokenised, collated, and what the model makes of them."""

import itertools
from contextlib import nullcontext
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch

from cmlmcse.common.errors import InputError
from cmlmcse.data.augmentation import Augmented, drop_one_token
from cmlmcse.data.batches import Example, StreamedSentences, TrainingSentences, tokenize_sentences
from cmlmcse.data.collator import ViewCollator
from cmlmcse.data.masking import Masking
from cmlmcse.data.text import load_sentences
from cmlmcse.training.large_batch import backward_in_parts
from cmlmcse.training.training_losses import TrainingLosses
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from modeling_cmlmcse.losses import info_nce
from support.batches import rows_of
from support.text import write_records
from support.tiny import WORDS, tiny_backbone, tiny_tokenizer

pytestmark = pytest.mark.usefixtures("cache")

COLUMNS = ("sent0", "sent1", "hard_neg")  # as in SimCSE's nli_for_simcse.csv
ROWS = [("a cat", "the cat, sat", "a dog"), ("the tree", " ", "w1"), ("w2 w3", "w4", "w5"), ("big", "red", "")]
WANTED = {"text_column": "sent0", "positive_column": "sent1", "negative_column": "hard_neg"}


def write_table(path: Path, rows=ROWS) -> str:
    """The rows in the format of the path's suffix."""
    return write_records(path, [dict(zip(COLUMNS, row, strict=True)) | {"label": 1} for row in rows])


@pytest.mark.parametrize("suffix", ("csv", "tsv", "jsonl", "parquet"))
@pytest.mark.parametrize("streaming", (False, True))
def test_columns_are_read(suffix, streaming, tmp_path):
    """Every format gives the named columns of the rows in which none of them is blank, others if fewer are named."""
    path = write_table(tmp_path / f"nli.{suffix}")

    def load(**wanted: str) -> list[tuple[str, ...]]:
        rows = list(load_sentences(path, streaming=streaming, **wanted))
        assert all(list(row) == ["text", "positive", "negative"][: len(wanted)] for row in rows)
        return [tuple(row.values()) for row in rows]

    assert load(**WANTED) == [ROWS[0], ROWS[2]]
    assert load(text_column="sent0", positive_column="sent1") == [row[:2] for row in (ROWS[0], ROWS[2], ROWS[3])]
    assert load(text_column="sent1") == [row[1:2] for row in (ROWS[0], ROWS[2], ROWS[3])]


def test_columns_of_a_hub_dataset(monkeypatch):
    """A file inside a Hub dataset, as SimCSE's NLI triplets are kept."""
    seen = {}

    def load_dataset(name: str, **options: object) -> datasets.Dataset:
        seen.update(options, name=name)
        return datasets.Dataset.from_list([dict(zip(COLUMNS, row, strict=True)) for row in ROWS])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    rows = load_sentences("princeton-nlp/datasets-for-simcse", data_files="nli_for_simcse.csv", **WANTED)
    assert [tuple(row.values()) for row in rows] == [ROWS[0], ROWS[2]]
    assert (seen["name"], seen["data_files"]) == ("princeton-nlp/datasets-for-simcse", "nli_for_simcse.csv")


@pytest.mark.parametrize("suffix", ("csv", "tsv", "jsonl", "parquet"))
def test_missing_column(suffix, tmp_path):
    """The message lists the columns found and names the option to give."""
    path = write_table(tmp_path / f"nli.{suffix}")
    found = "found the columns sent0, sent1, hard_neg, label"
    for field in ("positive", "negative"):
        wanted = WANTED | {f"{field}_column": "entailment"}
        with pytest.raises(
            InputError, match=f"nli.{suffix}: expected a column entailment, {found}; give --{field}_column NAME"
        ):
            load_sentences(path, **wanted)
    if suffix in ("jsonl", "parquet"):
        with pytest.raises(
            InputError, match="expected text in the column label, found another type; give another --positive_column"
        ):
            load_sentences(path, "sent0", positive_column="label")


def test_a_text_file_has_no_labels(tmp_path):
    """A sentence a line has one column."""
    (tmp_path / "a.txt").write_text("a cat\n")
    with pytest.raises(
        InputError, match=r"a.txt: expected a column sent1, found the columns text; give --positive_column NAME"
    ):
        load_sentences(str(tmp_path / "a.txt"), positive_column="sent1")


def examples(count: int, columns: int = 3) -> list[Example]:
    """Triplets, or pairs, of sentences of different lengths."""
    draws = np.random.default_rng(0)
    tokenizer = tiny_tokenizer("bert")
    texts = [[" ".join(draws.choice(WORDS, size=draws.integers(4, 12))) for _ in range(columns)] for _ in range(count)]
    tokens = [[tokenizer(text)["input_ids"] for text in row] for row in texts]
    return [Example(row[0], 0, i, row[1:]) for i, row in enumerate(tokens)]


@pytest.mark.parametrize("streaming", (False, True))
def test_tokenised_columns(streaming, tmp_path):
    """Each column is tokenised and cut; a row keeps its columns together, in memory and streamed."""
    path = write_table(tmp_path / "nli.csv", [(f"w{i} w{i} w{i}", f"w{i}", f"w{i} w{i}") for i in range(20)])
    rows = load_sentences(path, streaming=streaming, **WANTED)
    tokenized = tokenize_sentences(rows, tiny_tokenizer("bert"), 4)
    if streaming:
        found = list(itertools.islice(StreamedSentences(tokenized, seed=0), 20))
    else:
        found = TrainingSentences(tokenized).__getitems__([20 + i for i in range(20)])
    assert len(found) == 20
    for example in found:
        word = example.tokens[1]
        assert example.epoch == (0 if streaming else 1)
        assert example.tokens == [2, word, word, 3]
        assert [list(tokens) for tokens in example.others] == [[2, word, 3], [2, word, word, 3]]
    assert [example.text(view) for example in found[:1] for view in range(3)] == [found[0].tokens, *found[0].others]


def masking() -> Masking:
    """40 % masked, so that every sentence has some."""
    tokenizer = tiny_tokenizer("bert")
    return Masking.of(tokenizer, 0.4)


@pytest.mark.parametrize("columns", (2, 3))
def test_views_have_their_own_texts(columns):
    """A view for each column, and the masked sentences of sentence and positive, not of the hard negative."""
    batch = ViewCollator(tiny_tokenizer("bert"), 1, masking())(examples(4, columns))
    texts = [example.text(view) for view in range(columns) for example in examples(4, columns)]
    assert batch["views"]["num_views"] == columns
    assert rows_of(batch["views"]) == texts
    masked = batch["masked"]
    original = masked["input_ids"].index_copy(0, masked["mlm_positions"], masked["mlm_labels"])
    assert rows_of(masked | {"input_ids": original}) == texts[:8]


def test_hard_negatives_are_never_augmented():
    """The augmentation changes the positive, or sentence and positive."""
    for both in (False, True):
        collator = ViewCollator(tiny_tokenizer("bert"), 1, augmented=Augmented(drop_one_token, both))
        views = rows_of(collator(examples(4))["views"])
        texts = [example.text(view) for view in range(3) for example in examples(4)]
        shorter = [len(text) - len(view) for text, view in zip(texts, views, strict=True)]
        assert shorter == [int(both)] * 4 + [1] * 4 + [0] * 4
        assert views[8:] == texts[8:]


def load(folder: Path, **fields: object) -> CMLMCSEForSentenceEmbedding:
    """A model without dropout, in fp64."""
    tiny_backbone("bert", dropout=0.0).save_pretrained(folder)
    torch.manual_seed(1)
    fields = {"temp": 0.5, "pooling": "cls", "hard_negative_weight": 1.5, **fields}
    return CMLMCSEForSentenceEmbedding.from_backbone(folder, **fields).double().train()


@pytest.mark.parametrize("columns", (2, 3))
def test_contrastive_loss_of_labelled_rows(columns, tmp_path):
    """The loss is InfoNCE of the embeddings that `forward` gives for the texts, one sentence at a time."""
    model = load(tmp_path, cmlm_weight=0.0)
    rows = examples(5, columns)
    loss = TrainingLosses(model)(**ViewCollator(tiny_tokenizer("bert"), 1)(rows)).loss
    texts = [[example.text(view) for example in rows] for view in range(columns)]
    embeddings = [torch.cat([model(torch.tensor([text])).pooler_output for text in view]) for view in texts]
    assert loss.item() == pytest.approx(info_nce(torch.stack(embeddings), 0.5, 1.5).item(), rel=1e-6)


@pytest.mark.parametrize("loss", ("info_nce", "nt_xent"))
def test_conditional_mlm_of_labelled_rows_in_parts(loss, tmp_path):
    """With CMLM-CSE's objective beside it: each masked sentence is told the vector of its own text, and a batch in
    parts gives the losses and gradients of the whole."""
    model = load(tmp_path, cmlm_weight=0.5, contrastive_loss=loss)
    rows = examples(7)
    batch = ViewCollator(tiny_tokenizer("bert"), 1, masking())(rows)
    output = TrainingLosses(model)(**batch)
    vectors = TrainingLosses(model).sentence_vectors(batch["views"])  # (3, N, H)
    alone = model.objectives["cmlm"](model.backbone, vectors[:2].flatten(0, 1), batch["masked"])
    assert output.logs["cmlm_loss"].item() == pytest.approx(alone.total.item() / len(batch["masked"]["mlm_labels"]))
    output.loss.backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()

    parts = ViewCollator(tiny_tokenizer("bert"), 1, masking(), mini_batch_size=3)(rows)["parts"]
    assert [part["views"]["num_views"] for part in parts] == [3, 3, 3]
    total, logs = backward_in_parts(TrainingLosses(model), parts, lambda part: part.backward(), nullcontext)
    assert total.item() == pytest.approx(output.loss.item(), rel=1e-6)
    for name, value in output.logs.items():
        assert logs[name].item() == pytest.approx(value.item(), rel=1e-5), name
    for name, gradient in expected.items():
        found = dict(model.named_parameters())[name].grad
        assert (found - gradient).norm() <= 1e-5 * gradient.norm().clamp(min=1e-6), name
