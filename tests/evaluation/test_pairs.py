"""The task `pairs`: somebody's own scored pairs."""

import json
import math

import numpy as np
import pytest

from cmlmcse.common.errors import InputError
from cmlmcse.evaluation.command import main
from cmlmcse.evaluation.pairs import load_pairs, scored_pairs
from cmlmcse.evaluation.sts_data import MissingData
from cmlmcse.evaluation.tasks import all_card_metrics


def at_angle(texts: list[str]) -> np.ndarray:
    """A text that ends with a number of degrees → the unit vector at that angle."""
    angles = [math.radians(float(text.split()[-1])) for text in texts]
    return np.array([[math.cos(angle), math.sin(angle)] for angle in angles], np.float32)


def test_each_file_has_its_own_score(tmp_path):
    """Cosines in the order of the scores give 100, in the opposite order -100; the card has both."""
    (tmp_path / "pairs").mkdir()
    (tmp_path / "pairs" / "near.tsv").write_text("5\ta 0\tb 10\n3\ta 0\tb 40\n0.5\ta 0\tb 90\n")
    (tmp_path / "pairs" / "far.tsv").write_text("\ufeff5\ta 0\tb 90\n1\ta 0\tb 10\n")  # as Windows writes it
    found = scored_pairs(at_angle, load_pairs(str(tmp_path)))
    assert {name: (entry["spearman"], entry["pairs"]) for name, entry in found.items()} == {
        "far": (-100.0, 2), "near": (100.0, 3)
    }  # fmt: skip
    cosines = np.cos(np.radians([10, 40, 90]))
    assert found["near"]["pearson"] == pytest.approx(100 * np.corrcoef(cosines, [5, 3, 0.5])[0, 1], abs=1e-3)
    assert [(one.name, one.value) for one in all_card_metrics({"pairs": found})] == [("far", -100.0), ("near", 100.0)]


def test_command(backbone_folders, tmp_path, capsys):
    """As any other task: a table on the screen, and an entry of the results."""
    (tmp_path / "pairs").mkdir()
    (tmp_path / "pairs" / "mine.tsv").write_text("5\tthe cat sat\tthe cat sat\n1\tthe cat sat\ta dog\n2\tw1\tw2 w3\n")
    output = tmp_path / "o.json"
    main([backbone_folders["bert"], "--pooling", "avg", "--tasks", "pairs", "--data_dir", str(tmp_path),
          "--output", str(output)])  # fmt: skip
    entry = json.loads(output.read_text())["pairs"]["mine"]
    assert entry["pairs"] == 3
    assert f"{entry['spearman']:.2f}" in capsys.readouterr().out


def test_a_folder_of_own_data_needs_tasks(tmp_path, capsys):
    """The default task finds nothing in it; the message names the tasks that score data of one's own."""
    with pytest.raises(SystemExit, match="2"):
        main(["MODEL", "--data_dir", str(tmp_path)])
    said = capsys.readouterr().err
    assert "no data for --tasks sts: " in said
    assert "check --data_dir, or score on data of your own: --data_dir DIR with --tasks pairs (scored pairs, " in said


def test_what_is_missing_or_wrong(tmp_path):
    """No folder, no file, and scores that tell nothing."""
    with pytest.raises(MissingData, match=r"pairs: they are your own, and have no Hub dataset"):
        load_pairs(None)
    with pytest.raises(MissingData, match=r"pairs: no .*NAME\.tsv"):
        load_pairs(str(tmp_path))
    (tmp_path / "pairs").mkdir()
    (tmp_path / "pairs" / "flat.tsv").write_text("1\ta 0\tb 0\n1\ta 0\tb 10\n")
    with pytest.raises(InputError, match=r"flat\.tsv: expected pairs with different scores, found 2 pairs; add some"):
        load_pairs(str(tmp_path))
