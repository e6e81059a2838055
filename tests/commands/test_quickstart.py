"""The quickstart from the project's own backbone, two steps of it: what it prints, writes and leaves."""

import json
import re
from pathlib import Path

import pytest

from cmlmcse import quickstart
from cmlmcse.common.locations import resolve
from cmlmcse.quickstart import main, scores, table
from support.paths import ROOT
from support.text import one_space


def test_table() -> None:
    """A column for each score that any row has, – where one has none."""
    rows = {"a": scores({"lee50": {"spearman": 47.444}}), "b": scores({"lee50": {"spearman": 1}, "sts": {"avg": 2.0}})}
    heading, sides, *cells = table(rows).splitlines()
    assert one_space(heading) == "| Model | Lee similarity | STS average |"
    assert re.fullmatch(r"\|:-+\|-+:\|-+:\|", sides)  # the name left, the figures right
    assert [one_space(line) for line in cells] == [
        "| a | 47.44 | – |",
        "| b | 1.00 | 2.00 |",
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("warm_python")
def test_own_backbone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """All methods from assets/bert-mini-en without the Hub, scored, drawn, exported, and loaded again elsewhere."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    news = Path(resolve(quickstart.LEE_DOCUMENTS)).read_text("utf-8").splitlines()
    (tmp_path / "news.txt").write_text("\n".join(news[:24]))
    monkeypatch.setattr(quickstart, "LEE_DOCUMENTS", str(tmp_path / "news.txt"))
    monkeypatch.setattr(quickstart, "SEARCHED_SENTENCES", 40)
    short = ["--max_steps", "2", "--eval_steps", "2", "--max_train_samples", "100", "--use_cpu", "true"]
    short += ["--per_device_train_batch_size", "16"]
    main(["--output_dir", str(tmp_path / "out"), *short])
    said = capfd.readouterr().out
    lines = (tmp_path / "out" / "table.md").read_text().splitlines()
    assert "\n".join(lines) in said
    assert "which has seen no labelled pairs" in said
    assert (
        len(re.findall(r"A metal that melts at a low temperature.\n    before +\d.\d\d  \w.*\n    after +\d", said))
        == 1
    )
    named = [f"untrained, {vector}" for vector in ("[CLS]", "mean of tokens", "first and last layer")]
    cells = {line.split("|")[1].strip(): line.split("|")[2:4] for line in lines[2:]}
    assert list(cells) == [*named, "SimCSE", "CMLM-CSE", "two pieces of a document", "BM25"]
    assert cells["BM25"][0].strip() == "–"
    assert 0 < float(cells["untrained, [CLS]"][1]) < float(cells["untrained, mean of tokens"][1]) < 100
    assert (tmp_path / "out" / "scores.png").is_file()
    for run, views, rate in (("cmlmcse", "dropout", 1e-4), ("pieces", "words+sentence", 3e-4)):
        assert (tmp_path / "out" / run / "export" / "modules.json").is_file()
        used = json.loads((tmp_path / "out" / run / "run.json").read_text())["fields"]
        assert (used["views"], used["learning_rate"]) == (views, rate)


def test_unknown_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    """One line that names the known ones."""
    with pytest.raises(SystemExit, match="2"):
        main(["--recipe", "quick"])
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "quickstart-own-backbone" in error
