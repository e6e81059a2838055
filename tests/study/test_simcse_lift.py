"""The gate of a backbone: the lift of SimCSE, its picture, and what is not a curve."""

import csv
import json
from pathlib import Path

import pytest

from cmlmcse.common.figures import plt
from cmlmcse.study import simcse_lift as gate
from cmlmcse.study.simcse_lift import lifts, main, read_rows
from support.paths import ROOT

ROWS = [
    {"tokens": 8e6, "untrained": {"mean": 57.0, "[CLS]": 50.0}, "simcse": {"news": {"[CLS]": 62.5}}},
    {"tokens": 4e6, "untrained": {"mean": 54.0, "[CLS]": 30.0}},
]


@pytest.fixture
def curve(tmp_path: Path) -> Path:
    """A curve of two rows, the later one first."""
    path = tmp_path / "curve.json"
    path.write_text(json.dumps({"title": "A backbone", "rows": ROWS}))
    return path


def test_lift() -> None:
    """Above the best pooling, not above the one that was trained."""
    assert lifts(ROWS[0]) == {"news": 5.5}
    assert lifts(ROWS[1]) == {}


def test_picture(curve: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each pooling before and after, in the order of the tokens, and the gate above the best untrained."""
    drawn = {}
    monkeypatch.setattr(gate, "save", lambda figure, *_: drawn.update(axes=figure.axes[0]))
    main([str(curve)])
    lines = {line.get_label(): line.get_xydata().tolist() for line in drawn["axes"].lines}
    assert lines == {
        "mean, untrained": [[4, 54], [8, 57]],
        "[CLS], untrained": [[4, 30], [8, 50]],
        "[CLS], after SimCSE on news": [[8, 62.5]],
        "the gate: best untrained + 5": [[4, 59], [8, 62]],
    }
    assert capsys.readouterr().out == "   4.0 million tokens: –\n   8.0 million tokens: +5.50 on news\n"
    plt.close("all")


@pytest.mark.usefixtures("pictures")
def test_files(curve: Path) -> None:
    """Both kinds of picture lie beside the rows."""
    main([str(curve)])
    assert {path.name for path in curve.parent.iterdir()} == {"curve.json", "gate.png", "gate.svg"}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"title": "t", "rows": []}',
        '{"title": "t", "rows": [{"tokens": 1}]}',
        '{"title": "t", "rows": [{"tokens": 1, "untrained": {}}]}',
        '{"title": "t", "rows": [{"tokens": 1, "untrained": [50]}]}',
        '{"title": "t", "rows": [{"tokens": 1, "untrained": {"mean": NaN}}]}',
        '{"title": "t", "rows": [{"tokens": 1, "untrained": {"mean": 50}, "simcse": {"mean": 50}}]}',
        '{"title": "t", "rows": [{"tokens": 1, "untrained": {"mean": 50}, "simcse": {"news": {"mean": "good"}}}]}',
    ],
)
def test_no_curve(content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another form: one line, and no picture."""
    path = tmp_path / "curve.json"
    path.write_text(content)
    with pytest.raises(SystemExit, match="2"):
        main([str(path)])
    assert "expected JSON with a title and rows, each with tokens and untrained scores" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["curve.json"]


def test_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the system says of it."""
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path / "none.json")])
    assert "found No such file or directory" in capsys.readouterr().err


def test_committed_curve() -> None:
    """The study's own rows: SimCSE passes the gate with short sentences of several kinds, not with Wikipedia's, as
    docs/results/backbone.md says, and each of its scores is one that a study measured."""
    studies = ROOT / "studies"
    _, rows = read_rows(studies / "gate-bert-mini-4x256/curve.json")
    texts = ("Wikipedia", "STS-B train", "captions, news, films, questions")
    found = {text: [each[text] for row in rows if text in (each := lifts(row))] for text in texts}
    assert len(rows) == 6
    assert max(found["Wikipedia"]) < 1
    assert max(found["STS-B train"]) >= gate.LIFT
    assert max(found["captions, news, films, questions"]) >= gate.LIFT
    records = [*studies.glob("gate-bert-mini-4x256*/runs.csv")]
    records += [studies / name / "runs.csv" for name in ("indomain-bert-mini-40m", "texts-bert-mini-59m")]
    runs = [run for path in records for run in csv.DictReader(path.open()) if run["dev.spearman"]]
    measured = {round(float(run["dev.spearman"]), 2) for run in runs}  # one seed an arm
    by_text = [by_pooling for row in rows for by_pooling in row.get("simcse", {}).values()]
    assert {score for by_pooling in by_text for score in by_pooling.values()} <= measured
