"""Sentences that are copies of others: how many there are, and when a run says so."""

from types import SimpleNamespace

import pytest
from datasets import Dataset

from cmlmcse.data import copies
from cmlmcse.training.build_text import say_copies


def test_how_many_are_copies(monkeypatch) -> None:
    """All of them are compared, in blocks; of more than the sample takes every third block, here of two."""
    monkeypatch.setattr(copies, "BLOCK", 2)
    texts = ["a", "b", "c", "a", "a", "d", "e", "f", "g", "g", "h", "i", "j"]
    rows = Dataset.from_dict({"text": texts, "positive": texts})
    share, count = copies.share_of_copies(rows)
    assert (round(share * 13), count) == (3, 13)  # two more "a", one more "g"
    monkeypatch.setattr(copies, "SAMPLE", 5)  # rows 0, 1, 6, 7 and 12
    assert copies.share_of_copies(rows) == (0, 5)
    assert copies.share_of_copies(Dataset.from_dict({"text": ["a"] * 13})) == (0.8, 5)


@pytest.mark.parametrize(
    ("count", "weight", "positive", "process", "said"),
    [
        (2, 1.0, None, 0, "2.0% of 100 sentences are copies of others"),
        (1, 1.0, None, 0, ""),
        (50, 1.0, None, 1, ""),
        (51, 0.0, None, 0, ""),  # no batch has negatives
        (52, 1.0, "answer", 0, ""),
    ],
)
def test_what_a_run_says(count, weight, positive, process, said, capsys) -> None:
    """Above one in a hundred, where copies are negatives of each other."""
    texts = [f"w{row}" for row in range(100 - count)] + ["w0"] * count
    recipe = SimpleNamespace(
        run=SimpleNamespace(process_index=process),
        model=SimpleNamespace(contrastive_weight=weight),
        data=SimpleNamespace(positive_column=positive),
    )
    say_copies(Dataset.from_dict({"text": texts}), recipe)
    error = capsys.readouterr().err
    assert error.startswith(said) if said else not error
