"""Mined hard negatives in a run: the start or another model says what is near, once; the loss sees the negatives."""

import datasets
import numpy as np
import pytest

from cmlmcse.common.errors import InputError
from cmlmcse.data.negatives import NO_ROW
from cmlmcse.models import encoders
from cmlmcse.models.encoders import load_encoder
from cmlmcse.training.command import train
from cmlmcse.training.mining import mine_negatives
from support.training import history, parsed

LINES = ["the cat sat", "the cat sat on", "a dog ran", "a dog ran under", "w1 w2 w3", "w1 w2 w4", "red", "the cat sat"]

pytestmark = pytest.mark.usefixtures("cache")


def cosines_of(texts: list[str], folder: str, pooling: str, limit: int) -> np.ndarray:
    """All cosines of a model's own embeddings minus their mean; none of a text with itself."""
    vectors = load_encoder(folder, pooling, limit, show_progress_bar=False)(texts)
    vectors = vectors - vectors.mean(axis=0)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -np.inf)
    return cosines


@pytest.mark.parametrize("documents", (False, True))
def test_what_is_mined(documents, recipe, backbone_folders, monkeypatch, capsys):
    """The nearest rows beyond the margin, by the start's own vectors with the run's pooling; of a document the title is
    read too. A second run encodes nothing; another margin or model finds others."""
    fields = {"mined_negatives": 1, "mining_candidates": 3, "mining_margin": 0.1, "max_seq_length": 6}
    rows, texts, limit = {"text": LINES}, LINES, 6
    if documents:
        rows["title"] = [f"w{i}" for i in range(8)]
        texts, limit = [f"w{i} {line}" for i, line in enumerate(LINES)], 64
    text = datasets.Dataset.from_dict(rows)
    found = mine_negatives(text, parsed(recipe, **fields))
    assert "encodes 8 rows once" in capsys.readouterr().out
    cosines = cosines_of(texts, backbone_folders["shallow"], "avg", limit)
    for row, known in enumerate(np.load(found.path)):
        allowed = [each for each in np.argsort(-cosines[row], kind="stable") if cosines[row, each] <= 0.9][:3]
        given = [each for each in known if each != NO_ROW]
        assert cosines[row, given] == pytest.approx(cosines[row, allowed], abs=1e-5)  # equal texts in any order
    assert documents or 7 not in np.load(found.path)[0]  # the same sentence

    monkeypatch.setattr(encoders.Encoder, "__call__", lambda *_: pytest.fail("encoded again"))
    assert mine_negatives(text, parsed(recipe, **fields)).path == found.path
    assert mine_negatives(text, parsed(recipe, **{**fields, "mining_margin": 0.2})).path != found.path
    assert mine_negatives(text, parsed(recipe)) is None
    monkeypatch.undo()
    other = mine_negatives(text, parsed(recipe, **fields, mining_model=backbone_folders["roberta"]))
    assert other.path != found.path


@pytest.mark.parametrize("fields", ({"pooling": "cls"}, {"pooling": "prompt"}, {"pooling": "cls_before_pooler"}))
def test_every_pooling_can_mine(fields, recipe):
    """A fresh head is left out; a template is put around the text."""
    text = datasets.Dataset.from_dict({"text": LINES})
    given = parsed(recipe, mined_negatives=1, mining_margin=0.001, max_seq_length=6, **fields)
    assert np.load(mine_negatives(text, given).path).shape == (8, 10)


def test_a_margin_that_leaves_nothing(recipe):
    text = datasets.Dataset.from_dict({"text": LINES})
    with pytest.raises(InputError, match=r"cosine of at most -0.9, found fewer for 8 of 8 rows; lower mining_margin"):
        mine_negatives(text, parsed(recipe, mined_negatives=1, mining_margin=1.9))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mined_negatives": -1}, "mined_negatives must be a whole number from 0 to 100"),
        (
            {"mined_negatives": 2, "mining_candidates": 1},
            "mining_candidates must be at least mined_negatives, 2, found 1",
        ),
        ({"mined_negatives": 1, "mining_margin": 0}, "mining_margin must be a number from 0.001 to 2, found 0"),
        ({"mining_model": "a"}, "mining_model expects mined_negatives of at least 1, found 0"),
        ({"mined_negatives": 1, "streaming": "true"}, "without labels, found streaming"),
        ({"mined_negatives": 1, "positive_column": "p"}, "without labels, found positive_column"),
        (
            {"mined_negatives": 1, "stage": "pretrain"},
            "mined_negatives is for stage train, found 1 with stage pretrain",
        ),
    ],
)
def test_wrong_fields(fields, message, recipe):
    with pytest.raises(InputError, match=message):
        parsed(recipe, **fields)


@pytest.mark.slow
def test_a_run(recipe, tmp_path, capsys):
    """Beside CMLM-CSE, with SimCSE's contrast and with SimCSE++'s: the loss has the negatives as candidates; the second
    run compares nothing."""
    for loss in ("info_nce", "off_dropout"):
        fields = {"mined_negatives": 2, "contrastive_loss": loss, "temp": 0.5, "output_dir": tmp_path / loss}
        train(recipe, **fields, max_steps=1, logging_steps=1, dev_set="none")
        # 16 sentences whose cosines are near 1 have a loss of log 16, with two negatives of each log 48
        assert history(tmp_path / loss, "contrastive_loss") == pytest.approx([np.log(48)], abs=0.25)
    assert capsys.readouterr().out.count("mining: compared 200 rows with each other") == 1
