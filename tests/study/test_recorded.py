"""The report of a study whose runs are gone, as in a clone: from its runs.csv."""

import importlib
import json
import shutil
from pathlib import Path
from statistics import fmean

import pytest

from cmlmcse.study.command import main
from cmlmcse.study.plan import load_study
from cmlmcse.study.statistics import Estimate, compare, measure_title, scores_of, table
from support.text import one_space

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
    ("arm", "other", "expected"),
    [
        ("cmlm-retromae", "retromae", "+1.86 (1.69 to 2.02)"),
        ("cmlm-retromae-mined", "retromae-mined", "+1.16 (0.99 to 1.33)"),
        ("cmlm-retromae", "simcse-6e-4", "+2.83 (2.21 to 3.45)"),
        ("cmlm-retromae-mined", "simcse-6e-4", "+3.05 (2.34 to 3.75)"),
        ("cmlm-retromae-0.3", "simcse-3e-4", "+2.62 (2.31 to 2.92)"),
        ("cmlm-retromae", "simcse-3e-4", "+2.87 (2.51 to 3.23)"),
        ("cmlm-retromae-mined", "simcse-3e-4", "+3.09 (2.74 to 3.44)"),
        ("cmlm-retromae-mined-0.3", "simcse-3e-4", "+2.92 (2.58 to 3.27)"),
        ("cmlm-retromae-mined-0.3", "cmlm-retromae-mined", "−0.16 (−0.37 to 0.05)"),
    ],
)
def test_differences_of_the_frontier(arm: str, other: str, expected: str) -> None:
    """Those that no summary.md has, because they are between two studies or two arms: the page has what the records
    give."""
    scores: dict[str, dict[int, float]] = {}
    for name in ("frontier-tests-2-bert-mini-59m", "frontier-time-bert-mini-59m"):
        study = load_study(STUDIES / f"{name}.yaml")
        scores |= scores_of(study, table(study), "sts.avg")
    difference = Estimate.of([scores[arm][seed] - scores[other][seed] for seed in range(4, 9)])
    said = f"{difference.mean:+.2f} ({difference.low:.2f} to {difference.high:.2f})".replace("-", "−")
    assert said == expected
    page = (STUDIES.parent / "docs" / "results" / "frontier.md").read_text("utf-8").replace("**", "")
    assert expected in page


FIVE = [f"retrieval.{name}.ndcg@10" for name in ("cacm", "cisi", "med", "npl", "scifact")]


@pytest.mark.parametrize(
    ("name", "arm", "other", "measures", "expected"),
    [
        ("wikipedia-search-bert-mini-59m", "words+sentence", "crops", FIVE, "+0.97 (−0.96 to 2.90)"),
        ("wikipedia-search-bert-mini-59m", "words+sentence", "crops", FIVE[-1:], "+2.55 (2.21 to 2.89)"),
        ("wikipedia-search-bert-mini-59m", "words+sentence", "crops", ["sts.avg"], "−0.10 (−1.47 to 1.27)"),
        ("wikipedia-search-bert-mini-59m", "cmlm", "crops", FIVE, "+0.98 (−1.05 to 3.01)"),
        ("wikipedia-search-bert-mini-59m", "cmlm", "words+sentence", FIVE, "+0.01 (−0.39 to 0.41)"),
        ("wikipedia-search-bert-mini-59m", "cmlm", "words+sentence", ["sts.avg"], "+0.24 (0.18 to 0.29)"),
        ("wikipedia-search-bert-mini-208m", "cmlm", "words+sentence", FIVE, "−0.02 (−0.23 to 0.19)"),
        ("wikipedia-search-bert-mini-208m", "cmlm", "words+sentence", ["sts.avg"], "+0.01 (−0.00 to 0.03)"),
        ("frontier-search-bert-mini-59m", "cmlm-retromae-mined", "simcse", FIVE, "+1.32 (−0.13 to 2.78)"),
        ("frontier-search-bert-mini-59m", "cmlm-retromae-mined", "simcse", FIVE[-1:], "+2.17 (0.95 to 3.39)"),
        ("frontier-minilm-4", "consistency", "simcse", ["sts.avg"], "+0.01 (−0.01 to 0.03)"),
        ("frontier-minilm-4", "retromae", "simcse", ["sts.avg"], "−2.44 (−3.86 to −1.01)"),
        ("frontier-minilm-4", "denosent", "simcse", ["sts.avg"], "−4.52 (−8.52 to −0.52)"),
        ("frontier-minilm-4", "dimensions", "simcse", ["sts.avg"], "−0.65 (−1.92 to 0.62)"),
        ("frontier-minilm-6", "templates", "simcse", ["sts.avg"], "−5.31 (−7.10 to −3.52)"),
        ("frontier-minilm-5", "mined", "simcse", ["sts.avg"], "−0.09 (−0.65 to 0.47)"),
    ],
)
def test_differences_of_search(name: str, arm: str, other: str, measures: list[str], expected: str) -> None:
    """The means of five collections and the differences between two arms, which no summary.md has."""
    study = load_study(STUDIES / f"{name}.yaml")
    found = [scores_of(study, table(study), measure) for measure in measures]
    seeds = found[0][arm].keys() & found[0][other].keys()
    pairs = [fmean(scores[arm][seed] - scores[other][seed] for scores in found) for seed in sorted(seeds)]
    difference = Estimate.of(pairs)
    said = f"{difference.mean:+.2f} ({difference.low:.2f} to {difference.high:.2f})".replace("-", "−")
    assert said == expected
    assert expected in (STUDIES.parent / "docs" / "results" / f"{name.partition('-')[0]}.md").read_text("utf-8")


def test_the_table_of_templates_before_training() -> None:
    """Each row is the record's."""
    folder = STUDIES.parent / "docs" / "results"
    page = (folder / "methods.md").read_text("utf-8").replace("**", "")
    rows = json.loads((folder / "records" / "prompt-untrained-208m.json").read_text("utf-8"))["results"]
    assert len(rows) == 4
    for title, row in rows.items():
        title = title.replace("first and last layer, average", "average of first and last layer")
        title = title.replace("{sentence} is {mask}.", '"{sentence} is {mask}."')
        assert f"| {title} | {row['stsb_dev']['spearman']:.2f} | {row['sts']['avg']:.2f} |" in page


OTHERS = {
    "SimCSE, 600 steps": "simcse-600",
    "CLEAR": "clear",
    "DiffCSE": "diffcse",
    "InfoCSE": "infocse",
    "CMLM-CSE, RetroMAE's decoder, mined negatives, negatives without dropout; three seeds": "all",
}


def test_the_table_of_all_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row of the page, and what its text and README say of pairs, is computed from the record."""
    study = load_study(STUDIES / "frontier-tests-bert-mini-208m.yaml")
    rows = table(study)
    found = {name: scores_of(study, rows, name) for name in study.metrics}
    monkeypatch.syspath_prepend(STUDIES.parent / "docs" / "figures")
    options = {title: arms for title, arms in importlib.import_module("draw_methods").OPTIONS.items() if arms[1]}
    assert len(options) == 11
    page = (STUDIES.parent / "docs" / "results" / "methods.md").read_text("utf-8").replace("**", "")

    def mean(measure: str, arm: str) -> str:
        return f"{fmean(found[measure][arm].values()):.2f}"

    def pair(measure: str, arm: str, other: str) -> str:
        first, second = found[measure][arm], found[measure][other]
        difference = Estimate.of([first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())])
        return f"{difference.mean:+.2f} ({difference.low:.2f} to {difference.high:.2f})".replace("-", "−")

    for title, (alone, both) in options.items():
        cells = [
            cell
            for measure in ("sts.avg", "retrieval.avg")
            for cell in (mean(measure, alone), mean(measure, both), pair(measure, both, alone))
        ]
        cells += [mean("indomain.r@1", arm) for arm in (alone, both)]
        assert f"| {title} | {' | '.join(cells)} |" in page
    for title, arm in OTHERS.items():
        cells = [mean("dev.spearman", arm)]
        for measure in ("sts.avg", "retrieval.avg"):
            cells += [mean(measure, arm), pair(measure, arm, "simcse")]
        assert f"| {title} | {' | '.join([*cells, mean('indomain.r@1', arm)])} |" in page
    parts = sorted(float(pair("indomain.r@1", both, alone).split()[0]) for alone, both in options.values())
    *ten, cot = parts
    rows = f"zero in all eleven rows: {ten[0]:+.2f} to {ten[-1]:+.2f} in ten rows, and {cot:+.2f} with CoT-BERT's"
    assert rows in page
    assert f"CMLM-CSE has {pair('indomain.r@1', 'cmlm', 'simcse')}. This task has only 97 pairs" in page
    readme = (STUDIES.parent / "README.md").read_text("utf-8").replace("**", "")
    for title, arm in {"CMLM-CSE, λ = 0.5": "cmlm", "CMLM-CSE and mined negatives": "cmlm-mined"}.items():
        pairs = {measure: pair(measure, arm, "simcse") for measure in ("sts.avg", "retrieval.avg")}
        assert f"| {title} | {' | '.join(f'{mean(name, arm)} | {said}' for name, said in pairs.items())} |" in readme
        assert all(said in one_space(page) for said in pairs.values())
    for arm, other in (("cmlm", "simcse-600"), ("cmlm-mined", "mined")):
        assert all(pair(name, arm, other).lstrip("+") in one_space(page) for name in ("sts.avg", "retrieval.avg"))


def test_the_best_combination() -> None:
    """Its rows, and what CMLM-CSE adds to it, are computed from the record."""
    study = load_study(STUDIES / "frontier-tests-2-bert-mini-208m.yaml")
    rows = table(study)
    dev, sts = (scores_of(study, rows, name) for name in study.metrics)
    page = (STUDIES.parent / "docs" / "results" / "methods.md").read_text("utf-8").replace("**", "")

    def less(found: dict[str, dict[int, float]], arm: str, other: str) -> str:
        difference = Estimate.of([found[arm][seed] - found[other][seed] for seed in study.seeds])
        return f"{difference.mean:+.2f} ({difference.low:.2f} to {difference.high:.2f})"

    both, alone = "cmlm-mined-off-dropout", "mined-off-dropout"
    for title, arm in {"CMLM-CSE, mined negatives, negatives without dropout": both,
                       "mined negatives, negatives without dropout": alone}.items():  # fmt: skip
        scores = [Estimate.of(list(found[arm].values())) for found in (dev, sts)]
        cells = [f"{score.mean:.2f} ± {score.sd:.2f}" for score in scores]
        assert f"| {title} | 5 | {' | '.join(cells)} | {less(sts, arm, 'simcse')} |" in page
    assert f"CMLM-CSE's own part is {less(sts, both, alone)} on the seven sets, and {less(dev, both, alone)} on" in page


@pytest.mark.parametrize(
    ("arm", "title"), [("fusion", "InfoCSE's network"), ("retromae", "RetroMAE's decoder")], ids=["fusion", "retromae"]
)
def test_what_stands_beside_the_pre_training(arm: str, title: str) -> None:
    """The rows of two pages are those of the record; the average of the five collections is computed here."""
    pages = STUDIES.parent / "docs" / "results"
    found = json.loads((pages / "records" / "backbone-208m.json").read_text())["arms"][arm]
    for when, key in (("before the contrast", "before contrast, mean"), ("after", "after contrast")):
        search, similarity = found[key]["ndcg@10"], found[key]["sts"]
        cells = [search[name] for name in ("med", "cisi", "cacm", "npl", "scifact")]
        cells += [fmean(cells), found[key]["stsb_dev"], similarity["avg"]]
        row = f"| {title} | {when} | {' | '.join(f'{cell:.2f}' for cell in cells)} |"
        assert row in (pages / "wikipedia.md").read_text("utf-8").replace("**", "")
    poolings, before = found["stsb_dev before contrast, by pooling"], found["before contrast, mean"]
    cells = [
        found["pretraining"]["mlm_loss"],
        *(poolings[name] for name in ("cls_before_pooler", "avg", "avg_first_last")),
    ]
    cells += [before["sts"]["avg"], before["ndcg@10"]["avg"]]
    row = f"| {title} | {' | '.join(f'{cell:.2f}' for cell in cells)} |"
    assert row in (pages / "backbone.md").read_text("utf-8")


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
