"""A study's plan: the runs, the sweeps, wrong input, and that the shipped studies can be read."""

from pathlib import Path

import pytest
import torch

from cmlmcse.study.command import main
from cmlmcse.study.plan import check_fields, load_study
from cmlmcse.study.sweeps import labels, sweeps
from support.paths import ROOT
from support.studies import METHOD_ARMS, write


def test_plan(tmp_path: Path) -> None:
    """All arms of a seed before the next seed; arms above common fields; a folder beside the study's file."""
    study = load_study(write(tmp_path)).with_fields({"max_steps": "7", "data_dir": "d"})
    assert [(run.index, run.arm, run.seed) for run in study.runs[:3]] == [
        (0, "plain", 1),
        (1, "hot", 1),
        (2, "plain", 2),
    ]
    run = study.runs[1]
    assert run.folder == tmp_path / "small" / "runs" / "hot" / "seed-1"
    assert run.arguments == [
        "simcse-bert-base", "--max_steps", "7", "--data_dir", "d", "--temp", "0.6", "--bf16", "False", "--seed", "1",
    ]  # fmt: skip
    assert check_fields(study.runs) == [str(number) for number in range(torch.cuda.device_count())]


def test_null_unsets_a_field(tmp_path: Path) -> None:
    study = load_study(write(tmp_path, common={"warmup_ratio": None}))
    assert study.runs[0].fields["warmup_ratio"] == "null"


@pytest.mark.parametrize("path", sorted((ROOT / "studies").glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_studies(path: Path, tmp_path: Path) -> None:
    """Every study that ships has arms whose fields train.py takes."""
    (tmp_path / "synonyms.json").write_text('{"big": ["large"]}')
    study = load_study(path)
    reads_synonyms = any("substitute" in own.get("augmentation", "") for own in study.arms.values())
    study = study.with_fields({"synonyms": str(tmp_path / "synonyms.json")} if reads_synonyms else {})
    check_fields(study.runs[: len(study.arms)])
    assert len(study.runs) == len(study.arms) * len(study.seeds)


SWEPT = {
    "plain": {"temp": 0.1, "cmlm_weight": 0},
    "weak": {"temp": 0.1, "cmlm_weight": 0.005},
    "strong": {"temp": 0.1, "cmlm_weight": 5},
    "hot": {"temp": 0.5, "cmlm_weight": 5},
    "other": {"temp": 0.1, "cmlm_weight": 0.5, "pooling": "avg"},
}


def test_sweeps(tmp_path: Path) -> None:
    """Three arms that name the same fields and differ in one number are a line, common fields counted; two are none."""
    study = load_study(write(tmp_path, arms=SWEPT))
    assert sweeps(study) == {"cmlm_weight": [{0.0: "plain", 0.005: "weak", 5.0: "strong"}]}
    assert list(sweeps(study)["cmlm_weight"][0]) == [0.0, 0.005, 5.0]
    swept = {f"{arm}-{temp}": {**own, "temp": temp} for arm, own in SWEPT.items() for temp in (0.05, 0.5)}
    study = load_study(write(tmp_path, arms=swept, baseline="plain-0.05", published=None))
    assert labels(study, "cmlm_weight", sweeps(study)["cmlm_weight"]) == ["temp 0.05", "temp 0.5"]
    followed = {arm: {**own, "pooling": "avg" if own["temp"] == 0.5 else "avg_top2"} for arm, own in swept.items()}
    study = load_study(write(tmp_path, arms=followed, baseline="plain-0.05", published=None))  # pooling says no more
    assert labels(study, "cmlm_weight", sweeps(study)["cmlm_weight"]) == ["temp 0.05", "temp 0.5"]
    common = load_study(
        write(tmp_path, arms={"plain": None, "b": {"max_steps": 7}, "c": {"max_steps": 6}}, published=None)
    )
    assert sweeps(common) == {"max_steps": [{5.0: "plain", 6.0: "c", 7.0: "b"}]}
    assert sweeps(load_study(write(tmp_path))) == {}


WRONG = [
    ({"methods": ["hot"]}, [], ["methods must be a mapping of names to lists of arms, found ['hot']"]),
    ({"methods": {"a": ["plain"], "b": ["ht"]}}, [], ["methods must be lists of the arms plain, hot"]),
    ({"methods": {"a": ["plain"]}}, [], ["baseline must be one of the methods a, found 'plain'"]),
    ({"arms": METHOD_ARMS, "methods": {"SimCSE": ["cold"], "CMLM-CSE": ["low", "high"]}, "published": None,
      "baseline": "SimCSE"}, [], ["so that none is tuned more than another (SimCSE has 1, CMLM-CSE has 2)"]),
    ({"methods": {"plain": ["hot"]}, "metrics": ["sts.avg"], "published": None}, [],
     ["metrics must be a list with a score on a development set"]),
    ({"arms": {"plain": {}, "hot": {"tmep": 1}}}, [], ["hot, seed 1: ", "unknown field 'tmep'", "did you mean temp?"]),
    ({"arms": {"plain": {}, "hot": {"temp": "hot"}}}, [], ["hot, seed 1: ", "invalid float value: 'hot'"]),
    ({"arms": {"plain": {"seed": 4}}}, [], ["arm plain", "found seed, which a study sets itself"]),
    ({"arms": {"plain": {"temp": [1]}}}, [], ["temp must be a plain value, found [1]"]),
    ({"arms": {"plain": {}, "w/o": {}}}, [], ["arms must be named by letters", "'w/o'"]),
    ({"baseline": "cold"}, [], ["baseline must be one of the arms plain, hot, found 'cold'"]),
    ({"seeds": [1, 1]}, [], ["seeds must be a list of different whole numbers, found [1, 1]"]),
    ({"metrics": "dev"}, [], ["metrics must be a list", "found 'dev'"]),
    ({"recipe": None}, [], ["found no recipe"]),
    ({"recipe": "simcse-brt-base"}, [], ["did you mean simcse-bert-base?"]),
    ({"colour": "red"}, [], ["found 'colour'"]),
    ({"launch": "no-such-launcher x"}, [], ["found none called 'no-such-launcher'"]),
    ({"published": {"source": "x", "dev.spearman": {"none": 1}}}, [], ["published must map"]),
    ({}, ["--only", "cold"], ["--only must be one of plain, hot, found 'cold'"]),
    ({}, ["--report", "--only", "cold"], ["--only must be one of plain, hot, found 'cold'"]),
    ({}, ["--only", "hot", "--index", "0"], ["--index 0 expects a run of --only, found plain, seed 1; drop one"]),
    ({"launch": 'a "b'}, [], ["launch expects a command, found 'a \"b' (No closing quotation)"]),
    ({}, ["--index", "6"], ["--index must be from 0 to 5, found 6"]),
    ({}, ["--workers", "0"], ["--workers must be at least 1, found 0"]),
    ({}, ["--temp", "1"], ["--temp expects a field that all arms share, found one that plain sets"]),
    ({}, ["--max_steps"], ["expects a value after --max_steps, found none"]),
    ({}, ["--max_stesp", "1"], ["unknown field 'max_stesp'"]),
    ({}, ["extra"], ["expects STUDY.yaml and --field value, found 'extra'"]),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "options", "words"), WRONG, ids=[" ".join(words)[:40] for _, _, words in WRONG])
def test_wrong_input(changes, options, words, tmp_path: Path, stand_in: Path, capsys) -> None:
    """Exit status 2 and one line before anything runs."""
    with pytest.raises(SystemExit) as stop:
        main([str(write(tmp_path, **changes)), *options])
    assert stop.value.code == 2
    error = capsys.readouterr().err.strip()
    assert len(error.splitlines()) == 1
    assert all(word in error for word in words), error
    assert not (tmp_path / "small").exists()
