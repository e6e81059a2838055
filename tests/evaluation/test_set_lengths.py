"""`--max_seq_length N,SET=N`: some retrieval sets cut their texts to a length of their own."""

import json
from pathlib import Path

import pytest

from cmlmcse.common.errors import InputError
from cmlmcse.evaluation.command import evaluate, main
from support.retrieval_sets import write
from support.tiny import WORDS

LONG = [(f"d{i}", " ".join(WORDS[(i * k) % 20] for k in range(1, 30))) for i in range(20)]
ASKED = [("q", f"{WORDS[3]} {WORDS[6]}"), ("p", f"{WORDS[9]} {WORDS[18]}")]


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """Two sets with the same passages of 29 words."""
    for name in ("one", "two"):
        write(tmp_path, LONG, ASKED, [("q", "d3", 1), ("p", "d9", 1)], name)
    return str(tmp_path)


def test_each_set_has_the_figures_of_its_length(folder: str, backbone_folders, tmp_path: Path) -> None:
    """As if it were evaluated alone, for two models, with a cache and cut vectors; the length is in the results."""
    bert, shallow = backbone_folders["bert"], backbone_folders["shallow"]
    options = {"tasks": "retrieval", "data_dir": folder, "pooling": "avg"}
    alone = {length: evaluate(bert, max_seq_length=length, **options)["retrieval"] for length in (6, 20)}
    assert alone[6]["one"]["map"] != alone[20]["one"]["map"]
    found = evaluate(bert, max_seq_length="retrieval=6, two=20", **options)
    settings = found["settings"]
    assert (settings["max_seq_length"], settings["set_lengths"]) == (64, {"one": 6, "two": 20})
    assert found["retrieval"]["one"] == alone[6]["one"]
    assert found["retrieval"]["two"] == alone[20]["two"]

    words = [f"--{name}={value}" for name, value in options.items()] + ["--max_seq_length", "6,two=20"]
    more = ["--cache", str(tmp_path / "cache"), "--truncate_dim", "8", "--output", str(tmp_path / "out.json")]
    main([bert, shallow, *words, *more])
    whole, *others = json.loads((tmp_path / "out.json").read_text())["results"]
    assert whole["settings"]["max_seq_length"] == 6
    assert whole["retrieval"]["one"] == alone[6]["one"]
    assert whole["retrieval"]["two"] == alone[20]["two"]
    for other in others:  # cut vectors, and the other model's: the same passages, another length
        assert other["settings"]["set_lengths"] == {"two": 20}
        assert other["retrieval"]["one"]["map"] != other["retrieval"]["two"]["map"]


@pytest.mark.parametrize(
    ("length", "words"),
    [
        ("two=20,two=30", "expected each name once, as 128,scifact=256, found two twice in 'two=20,two=30'"),
        ("20,30", "found two numbers or a length without a name in '20,30'"),
        ("two=20,three=20", "expects names of retrieval sets, one, two, or retrieval for all, found 'three'"),
        ("two=65", "--max_seq_length must be from 3 to 64"),
        ("two=0", "expected a whole number of at least 1, found '0'"),
        ("two=", "expected a whole number of at least 1, found ''"),
        ("=20", "found two numbers or a length without a name in '=20'"),
    ],
)
def test_refusals(length: str, words: str, folder: str, backbone_folders, capsys) -> None:
    """One line, status 2, before anything is encoded."""
    options = ["--tasks", "retrieval", "--data_dir", folder, "--pooling", "avg", "--max_seq_length", length]
    with pytest.raises(SystemExit, match="2"):
        main([backbone_folders["bert"], *options])
    assert words in capsys.readouterr().err.strip().splitlines()[-1]


def test_a_set_without_its_task_is_refused(data_dir: Path, backbone_folders, tmp_path: Path) -> None:
    """So is a length for word vectors, which read whole texts."""
    with pytest.raises(InputError, match="one=9 expects the task retrieval and its data, found none"):
        evaluate(backbone_folders["bert"], "stsb_dev", data_dir, "avg", max_seq_length="one=9")
    write(tmp_path, LONG, ASKED, [("q", "d3", 1)])
    (tmp_path / "words.txt").write_text("".join(f"{word} {i} 1\n" for i, word in enumerate(WORDS)))
    with pytest.raises(InputError, match="--max_seq_length expects a model with layers, found word vectors"):
        evaluate(str(tmp_path / "words.txt"), "retrieval", tmp_path, max_seq_length="tiny=9")
