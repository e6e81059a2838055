"""The task retrieval on the command line: its options, and what it says of texts that are cut."""

import inspect
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cmlmcse.evaluation.command import main
from cmlmcse.evaluation.retrieval import search_sets
from cmlmcse.evaluation.tasks import TASKS
from support.retrieval_sets import write
from support.text import one_space
from support.tiny import WORDS


@pytest.fixture
def command_line(tmp_path: Path, backbone_folders: dict[str, str]) -> Callable[..., list[str]]:
    """The command's arguments for a tiny set, with options."""
    passages = [(f"d{i}", f"{WORDS[i]} {WORDS[i + 1]}") for i in range(20)]
    write(tmp_path / "data", passages, [("q", WORDS[3]), ("p", WORDS[9])], [("q", "d3", 1), ("p", "d9", 1)])
    start = [backbone_folders["bert"], "--data_dir", str(tmp_path / "data"), "--pooling", "avg"]
    return lambda *options: [*start, "--tasks", "retrieval", "--output", str(tmp_path / "out.json"), *options]


def test_command(command_line, tmp_path: Path, capsys) -> None:
    """The task by its name, with its options; its figures are printed and written."""
    main(command_line())
    plain = json.loads((tmp_path / "out.json").read_text())["retrieval"]["tiny"]
    assert plain["queries"] == 2
    assert plain["recall@100"] == 100.0
    assert f"| retrieval tiny ndcg@10 | {plain['ndcg@10']:.2f} |" in one_space(capsys.readouterr().out)
    main(command_line("--retrieval_block_size", "3"))
    assert json.loads((tmp_path / "out.json").read_text())["retrieval"]["tiny"] == plain
    main(command_line("--retrieval_query_prefix", "w5 w6 "))
    prefixed = json.loads((tmp_path / "out.json").read_text())["retrieval"]["tiny"]
    assert prefixed["query_prefix"] == "w5 w6 "
    assert prefixed["map"] != plain["map"]
    with pytest.raises(SystemExit, match="2"):
        main(command_line("--retrieval_block_size", "0"))
    assert "--retrieval_block_size: expected a whole number of at least 1, found '0'" in capsys.readouterr().err


def test_what_the_model_does_not_see_is_said(tmp_path: Path, backbone_folders, capsys) -> None:
    """Passages of 80 words for a model that reads 16 tokens, of which two are special; and a tokenizer's limit below
    the model's positions."""
    passages = [(f"d{i}", " ".join([WORDS[i % 20]] * 80)) for i in range(30)]
    write(tmp_path / "data", passages, [("q", WORDS[3])], [("q", "d3", 1)])
    start = [backbone_folders["bert"], "--data_dir", str(tmp_path / "data"), "--pooling", "avg", "--tasks", "retrieval"]
    main([*start, "--max_seq_length", "16"])
    said = capsys.readouterr().err
    assert f"warning: tiny: {start[0]} reads the first 16 tokens of a text, which cuts off 80% of all tokens;" in said
    assert "its tokenizer allows 64 tokens, the model has 66 positions" in said
    write(tmp_path / "data", [(name, text[:20]) for name, text in passages], [("q", WORDS[3])], [("q", "d3", 1)])
    main(start)
    assert "cuts off" not in capsys.readouterr().err


def test_what_is_not_seen_of_other_texts_is_said(tmp_path: Path, backbone_folders, data_dir, capsys) -> None:
    """Documents of pairs too; and the tokenizer's limit with every task, also where all texts are sentences."""
    (tmp_path / "pairs").mkdir()
    texts = [f"{WORDS[i]} " * 80 for i in range(12)]
    lines = (f"{i}\t{one}\t{other}\n" for i, (one, other) in enumerate(zip(texts, reversed(texts), strict=True)))
    (tmp_path / "pairs" / "mine.tsv").write_text("".join(lines))
    model = backbone_folders["bert"]
    main([model, "--pooling", "avg", "--data_dir", str(tmp_path), "--tasks", "pairs", "--max_seq_length", "16"])
    assert "warning: mine: " in (said := capsys.readouterr().err)
    assert "which cuts off 80% of all" in said
    main([model, "--pooling", "avg", "--data_dir", str(data_dir), "--tasks", "stsb_dev"])
    assert "its tokenizer allows 64 tokens, the model has 66 positions" in (said := capsys.readouterr().err)
    assert "cuts off" not in said


def test_a_declared_limit_is_not_warned_of(tmp_path: Path, backbone_folders, data_dir, capsys) -> None:
    """The folder's sentence-transformers settings declare the tokenizer's limit. A higher one is warned of."""
    model = shutil.copytree(backbone_folders["bert"], tmp_path / "model")
    for declared in (64, 66):
        (model / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": declared}))
        main([str(model), "--pooling", "avg", "--data_dir", str(data_dir), "--tasks", "stsb_dev"])
        assert ("its tokenizer allows" in capsys.readouterr().err) == (declared > 64)


def test_options_are_those_of_the_function() -> None:
    """The command line and a call from Python have the same defaults."""
    defaults = {name: one.default for name, one in inspect.signature(search_sets).parameters.items()}
    assert {name: defaults[name] for name in TASKS["retrieval"].options} == {
        name: option.default for name, option in TASKS["retrieval"].options.items()
    }
