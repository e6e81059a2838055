"""A study's report: the figures against those by hand, the plots, and which records count."""

import csv
import json
import shutil
from pathlib import Path

import pyarrow.parquet
import pytest

from cmlmcse.study import runner
from cmlmcse.study.command import main
from cmlmcse.study.plan import load_study
from cmlmcse.study.report import markdown
from cmlmcse.study.statistics import Estimate, choose, compare, lookup, table
from support.studies import METHOD_ARMS, PLAN, logs, write
from support.text import one_space


@pytest.mark.slow
@pytest.mark.usefixtures("pictures")
def test_command(tmp_path: Path, stand_in: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One command does all runs, and reports; the second time it does none; --list and --report do none either."""
    path = write(tmp_path)
    main([str(path), "--list"])
    assert "  5  hot, seed 3: to do" in capsys.readouterr().out
    main([str(path), "--workers", "2", "--max_steps", "6"])
    printed = capsys.readouterr().out
    assert printed.count(": begins") == printed.count(": done") == 6
    assert "| hot | 3 | 62.00 | 1.00 | +10.00 | +10.00 to +10.00 | 83.76 |" in one_space(printed)
    assert "Published: a paper, Table 9" in printed
    assert "6 of 6 runs have no `sts.avg`" in printed
    folder = tmp_path / "small"
    rows = list(csv.DictReader((folder / "runs.csv").open()))
    assert [row["dev.spearman"] for row in rows] == ["51.0", "61.0", "52.0", "62.0", "53.0", "63.0"]
    assert pyarrow.parquet.read_table(folder / "runs.parquet").column("seed").to_pylist() == [1, 1, 2, 2, 3, 3]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["metrics"]["dev.spearman"]["hot"]["difference"]["mean"] == pytest.approx(10)
    assert (folder / "plot.png").stat().st_size > 10_000
    curves = list(csv.DictReader((folder / "curves.csv").open()))
    assert [(row["arm"], row["seed"], row["step"], row["dev_score"]) for row in curves[:3]] == [
        ("plain", "1", "2", "50.0"), ("plain", "1", "5", "51.0"), ("hot", "1", "2", "60.0"),
    ]  # fmt: skip
    assert len(curves) == 12
    assert (folder / "curves.png").stat().st_size > 10_000
    picture = (folder / "plot.svg").read_bytes()
    main([str(path), "--max_steps", "6", "--data_dir", "of another machine"])
    assert ": begins" not in capsys.readouterr().out
    main([str(path), "--report"])
    assert (folder / "plot.svg").read_bytes() == picture
    assert logs(load_study(path))["hot-3"].count("fresh") == 1
    write(tmp_path, arms={"plain": {"temp": 0.5}, "hot": {"temp": 0.7, "bf16": False}})
    with pytest.raises(SystemExit):
        main([str(path), "--report"])
    assert "hot, seed 1 expects temp 0.7, found a run with 0.6" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("pictures")
def test_sweeps_are_drawn(tmp_path: Path, stand_in: Path) -> None:
    """A point for each value that was measured, on a scale whose ticks they are; nothing where two are."""
    path = write(tmp_path, arms={f"temp-{temp}": {"temp": temp} for temp in (0.01, 0.05, 0.5)}, baseline="temp-0.01",
                 published=None)  # fmt: skip
    picture = tmp_path / "small" / "sweeps.svg"
    main([str(path), "--only", "temp-0.01", "--only", "temp-0.05"])
    assert not picture.exists()
    main([str(path)])
    assert [f">{tick}</text>" in picture.read_text() for tick in ("0.01", "0.05", "0.5", "0.1")] == [True] * 3 + [False]


def test_figures_by_hand(tmp_path: Path) -> None:
    """Scores 50, 52, 57 and 53, 54, 61: differences 3, 2, 4 have mean 3, sd 1, and t(0.975, 2) = 4.3027."""
    study = load_study(write(tmp_path, arms={"plain": None, "hot": {}, "new": {}}, published=None))
    scores = {"plain": [50, 52, 57], "hot": [53, 54, 61], "new": [60]}
    rows = [
        {"arm": arm, "seed": seed, "dev.spearman": score, "sts.avg": None}
        for arm, by_seed in scores.items()
        for seed, score in enumerate(by_seed, 1)
    ]
    found = compare(study, rows[::-1])["dev.spearman"]
    plain, hot = found["plain"], found["hot"]
    assert plain.difference is None
    assert (plain.scores.n, plain.scores.mean, plain.scores.sd) == (3, 53, pytest.approx(13**0.5))
    half = 4.302653 / 3**0.5
    assert vars(hot.difference) == pytest.approx({"n": 3, "mean": 3, "sd": 1, "low": 3 - half, "high": 3 + half})
    assert found["new"].difference == Estimate(1, 10, None, None, None)
    assert compare(study, rows)["sts.avg"]["hot"].scores is None
    unpaired = [row for row in rows if (row["arm"], row["seed"]) != ("plain", 1)]
    assert compare(study, unpaired)["dev.spearman"]["hot"].difference.mean == 3
    assert compare(study, unpaired)["dev.spearman"]["hot"].difference.n == 2
    assert lookup({"a": {"b": 1, "c": None, "d": True, "e": float("nan")}}, "a.b") == 1.0
    assert [lookup({"a": {"c": None, "d": True}}, path) for path in ("a.c", "a.d", "a", "a.x.y", "z")] == [None] * 5


def test_runs_of_changed_code(tmp_path: Path) -> None:
    """The last line says where the code of the runs may differ. runs.csv keeps it for a clone; the column is there
    only then."""
    study = load_study(write(tmp_path, metrics=["dev.spearman"], seeds=[1, 2], published=None))
    for changes, expected in (
        ({}, "Commits: abc."),
        ({1: {"git_commit": "def"}}, "Commits: abc, def. So the code of the runs may differ."),
        ({3: {"git_commit": "abc", "uncommitted_changes": True}},
         "Commits: abc. 1 of 4 runs had code with uncommitted changes. So the code of the runs may differ."),
    ):  # fmt: skip
        for run in study.runs:
            run.folder.mkdir(parents=True, exist_ok=True)
            (run.folder / "results.json").write_text('{"dev": {"spearman": 50}}')
            (run.folder / "run.json").write_text(json.dumps(changes.get(run.index, {"git_commit": "abc"})))
        rows = table(study)
        assert markdown(study, rows, compare(study, rows)).splitlines()[-1] == expected
        assert ("uncommitted_changes" in rows[0]) == (3 in changes)
    with open(study.folder / "runs.csv", "w") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    shutil.rmtree(study.folder / "runs")
    assert [row["uncommitted_changes"] for row in table(study)] == [None, None, None, True]


METHODS = {"SimCSE": ["cold", "warm"], "CMLM-CSE": ["low", "high"]}


def test_methods_at_their_best(tmp_path: Path) -> None:
    """Each method is compared at the setting that is best on dev over the seeds, and not by one lucky seed.

    cold has the best single score (60), but warm the better mean (55 against 54). Their differences 10, −4, −3 have
    mean 1 and sd 7.8: the seeds cannot tell them apart. high leads low by 2, 2, 3 and can be told apart.
    """
    path = write(tmp_path, arms=METHOD_ARMS, methods=METHODS, baseline="SimCSE", published=None)
    study = load_study(path)
    scores = {"cold": [45, 60, 57], "warm": [55, 56, 54], "low": [56, 57, 58], "high": [58, 59, 61]}
    rows = [
        {"arm": arm, "seed": seed, "dev.spearman": score, "sts.avg": -score, "git_commit": "abc"}
        for arm, by_seed in scores.items()
        for seed, score in enumerate(by_seed, 1)
    ]
    chosen = choose(study, rows)
    assert [(choice.arm, choice.second, choice.clear) for choice in chosen.values()] == [
        ("warm", "cold", False), ("high", "low", True)]  # fmt: skip
    assert chosen["SimCSE"].lead.mean == 1
    assert chosen["SimCSE"].lead.sd == pytest.approx(61**0.5)
    compared = compare(study, rows)
    assert compared["dev.spearman"]["warm"].difference is None
    assert compared["dev.spearman"]["high"].difference.mean == pytest.approx(13 / 3)
    assert compared["sts.avg"]["high"].difference.mean == pytest.approx(-13 / 3)  # the test score chose nothing
    summary = one_space(markdown(study, rows, compared))
    assert "Settings of each method: 2, each with all seeds." in summary
    assert "cannot tell warm from cold; the one that is stronger on dev is the baseline" in summary
    assert "− warm, paired" in summary
    assert "| **warm** |" in summary
    assert "| cold |" in summary
    only_one = [row for row in rows if row["arm"] != "cold"]  # no seed that all settings of SimCSE have
    assert list(choose(study, only_one)) == ["CMLM-CSE"]
    assert compare(study, only_one)["dev.spearman"]["high"].difference is None


def test_a_record_is_of_what_the_study_asks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without its folders, a run whose fields were changed since is not done. What the command line said, other seeds
    and arms, and the machine's fields change nothing, and rows of older versions stay."""

    def recorded(**changes: object) -> int:
        return len(table(load_study(write(tmp_path, **changes))))

    path = write(tmp_path)
    study = load_study(path).with_fields({"max_steps": "9", "train_file": "mine.txt"})
    for run in study.runs:
        run.folder.mkdir(parents=True)
        runner.prepare(run)
        (run.folder / "results.json").write_text('{"dev": {"spearman": 50}}')
        (run.folder / "run.json").write_text("{}")
    main([str(path), "--report"])
    with pytest.raises(SystemExit):
        main([str(write(tmp_path, common={"max_steps": 7})), "--report"])  # the folders say what their runs were asked
    assert "the study's file gives it now, found a run from before they were changed" in capsys.readouterr().err
    shutil.rmtree(study.folder / "runs")
    assert recorded() == 6
    assert recorded(common={"max_steps": 5, "data_dir": "elsewhere"}) == 6
    assert recorded(seeds=[1, 2, 3, 4], arms={**PLAN["arms"], "new": {"temp": 0.1}}) == 6
    assert recorded(common={"max_steps": 7}) == 0
    assert recorded(recipe="simcse-roberta-base") == 0
    changed = {"plain": {"temp": 0.5}, "hot": {"temp": 0.7, "bf16": False}}
    assert recorded(arms=changed) == 3

    rows = [line.rsplit(",", 1)[0] for line in (study.folder / "runs.csv").read_text().splitlines()]
    (study.folder / "runs.csv").write_text("\n".join(rows) + "\n")
    assert recorded(arms=changed) == 6
    last = load_study(path).runs[-1]
    last.folder.mkdir(parents=True)
    for name in ("results.json", "run.json"):
        (last.folder / name).write_text("{}")
    main([str(path), "--report"])
    found = [row["fields"] for row in csv.DictReader((study.folder / "runs.csv").open())]
    assert found == [""] * 6
    assert pyarrow.parquet.read_table(study.folder / "runs.parquet").column("fields").to_pylist() == [None] * 6
