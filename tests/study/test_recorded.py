"""The report of a study whose runs are gone, as in a clone: from its runs.csv."""

import json
import shutil
from pathlib import Path

import pytest

from cmlmcse.study.command import main
from cmlmcse.study.plan import load_study
from cmlmcse.study.statistics import compare, measure_title, table

STUDIES = Path(__file__).resolve().parents[2] / "studies"


def test_a_clone_reports_from_the_record(tmp_path, monkeypatch):
    """The record stays as it is, and means, intervals and pictures come from it. An arm that the study no longer has is
    left out."""
    name = "mixed-bert-mini-59m"
    shutil.copy(STUDIES / f"{name}.yaml", tmp_path)
    (tmp_path / name).mkdir()
    record = (STUDIES / name / "runs.csv").read_text()
    (tmp_path / name / "runs.csv").write_text(record)
    monkeypatch.chdir(tmp_path)
    main([f"{name}.yaml", "--report"])
    assert (tmp_path / name / "runs.csv").read_text() == record
    assert (tmp_path / name / "plot.png").is_file()
    assert "+0.93 to +1.92" in (tmp_path / name / "summary.md").read_text()

    study = load_study(tmp_path / f"{name}.yaml")
    found = compare(study, table(study))["sts.avg"]["cmlm-cse"]
    assert (found.scores.n, round(found.difference.mean, 2)) == (5, 1.43)
    folder = study.runs[0].folder  # one run made again: its own row, beside the recorded ones
    folder.mkdir(parents=True)
    (folder / "results.json").write_text(json.dumps({"sts": {"avg": 50.0}}))
    (folder / "run.json").write_text("{}")
    rows = {(row["arm"], row["seed"]): row for row in table(study)}
    assert len(rows) == len(study.runs)
    assert rows[study.runs[0].arm, study.runs[0].seed]["sts.avg"] == 50.0
    shutil.rmtree(folder)
    del study.arms["infocse"]
    assert {row["arm"] for row in table(study)} == set(study.arms)


@pytest.mark.parametrize(
    ("metric", "title"),
    (
        ("sts.avg", "seven STS sets, Spearman × 100"),
        ("retrieval.scifact.ndcg@10", "scifact, nDCG@10 × 100"),
        ("retrieval.scifact.map", "retrieval.scifact.map"),
        ("transfer.avg", "transfer.avg"),
    ),
)
def test_axes_say_what_is_measured(metric, title):
    """Known measures have a name and a unit, others their path."""
    assert measure_title(metric) == title
