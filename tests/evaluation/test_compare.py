"""Several models side by side: bootstrap intervals, tables, pictures, and embeddings kept on disk."""

import csv
import errno
import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from cmlmcse.common.errors import InputError
from cmlmcse.evaluation import plots
from cmlmcse.evaluation.cache import CachedEncoder
from cmlmcse.evaluation.command import main
from cmlmcse.evaluation.compare import (
    Scored,
    bootstrap_differences,
    format_differences,
    format_query_differences,
    query_differences,
)
from cmlmcse.evaluation.options import check_models
from cmlmcse.evaluation.published import PUBLISHED
from cmlmcse.evaluation.sts_data import STS_SETS, Pairs
from cmlmcse.evaluation.tables import csv_table, format_all_measures, latex_table
from cmlmcse.hub.export import export
from cmlmcse.models.fingerprint import fingerprint_model
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from support.evaluation import fake_encode
from support.text import one_space
from support.tiny import WORDS, tiny_tokenizer


def correlated(gold: np.ndarray, noise: float, seed: int) -> Scored:
    """Similarities that follow the human scores as closely as the noise lets them."""
    return Scored(gold, gold + noise * np.random.default_rng(seed).normal(size=len(gold)))


@pytest.mark.slow
def test_bootstrap_against_scipy() -> None:
    """The difference and its 95 % interval are those of a plain loop over scipy's Spearman."""
    gold = np.random.default_rng(0).integers(6, size=300).astype(float)  # with ties
    one, other = correlated(gold, 2.0, 1), correlated(gold, 1.5, 2)
    found = bootstrap_differences({"a": one}, {"a": other}, resamples=2000)["a"]
    spearman = stats.spearmanr
    point = 100 * (spearman(other.cosines, gold).statistic - spearman(one.cosines, gold).statistic)
    assert found["difference"] == pytest.approx(point, abs=1e-4)
    rng, samples = np.random.default_rng(5), []
    for _ in range(2000):
        rows = rng.integers(300, size=300)
        pair = (spearman(each.cosines[rows], gold[rows]).statistic for each in (one, other))
        samples.append(100 * -np.subtract(*pair))
    assert [found["low"], found["high"]] == pytest.approx(np.percentile(samples, [2.5, 97.5]), abs=0.6)


def test_bootstrap_of_equal_and_of_unequal_models() -> None:
    """A model against itself differs by exactly 0 everywhere; a much better one has an interval above zero, also on
    average, which needs all seven sets; a constant one has no interval."""
    gold = np.arange(200.0)
    one = {name: correlated(gold, 100, seed) for seed, name in enumerate(STS_SETS)}
    better = {name: correlated(gold, 5, seed) for seed, name in enumerate(STS_SETS)}
    same = bootstrap_differences(one, one, resamples=50)
    assert all(value == {"difference": 0, "low": 0, "high": 0} for value in same.values())
    found = bootstrap_differences(one, better, resamples=200)
    assert list(found) == [*STS_SETS, "avg"]
    assert found["avg"]["difference"] == pytest.approx(np.mean([found[n]["difference"] for n in STS_SETS]), abs=1e-3)
    widths = [found[name]["high"] - found[name]["low"] for name in found]
    assert widths[-1] < min(widths[:-1])
    assert found["avg"]["low"] > 0
    assert "avg" not in bootstrap_differences({"STS12": one["STS12"]}, {"STS12": better["STS12"]}, resamples=20)
    flat = {"STS12": Scored(gold, np.zeros(200))}
    found = bootstrap_differences({"STS12": one["STS12"]}, flat, resamples=20)
    assert found["STS12"] == {"difference": None, "low": None, "high": None}
    assert one_space(format_differences({"flat": found}, "one")).splitlines()[2] == "| flat | – |"


def test_query_differences() -> None:
    """Of searches: the interval of a plain bootstrap over the queries; the mean over the sets only where it is asked
    for, and every set has the measure; exactly 0 against itself."""
    rng = np.random.default_rng(0)
    one, other = ({"a": {"ndcg@10": 100 * rng.random(200), "hybrid ndcg@10": 100 * rng.random(200)},
                   "b": {"ndcg@10": 100 * rng.random(50)}} for _ in range(2))  # fmt: skip
    found = query_differences(one, other, average=True, resamples=4000)
    assert {measure: list(sets) for measure, sets in found.items()} == {
        "ndcg@10": ["a", "b", "avg"],
        "hybrid ndcg@10": ["a"],
    }
    change = other["a"]["ndcg@10"] - one["a"]["ndcg@10"]
    samples = [rng.choice(change, 200).mean() for _ in range(4000)]
    low, high = np.percentile(samples, [2.5, 97.5])
    measured = found["ndcg@10"]["a"]
    assert measured["difference"] == pytest.approx(change.mean(), abs=1e-4)
    assert [measured["low"], measured["high"]] == pytest.approx([low, high], abs=0.4)
    mean = np.mean([found["ndcg@10"][name]["difference"] for name in "ab"])
    assert found["ndcg@10"]["avg"]["difference"] == pytest.approx(mean, abs=1e-3)
    assert "avg" not in query_differences(one, other, average=False, resamples=10)["ndcg@10"]
    few = {name: {measure: each[:9] for measure, each in values.items()} for name, values in one.items()}
    few_found = query_differences(few, few, average=True, resamples=10)["ndcg@10"]
    assert few_found["a"] == few_found["avg"] == {"difference": 0, "low": None, "high": None}
    same = query_differences(one, one, average=True, resamples=10)
    assert all(each == {"difference": 0, "low": 0, "high": 0} for sets in same.values() for each in sets.values())
    lines = one_space(format_query_differences({"second": same}, "first")).splitlines()
    assert lines[0] == "| Difference to first, nDCG@10 × 100 | a | b | avg |"
    assert lines[3] == "| second, with BM25 | +0.00 [+0.00, +0.00] | – | – |"


def test_searches_of_two_models(tmp_path: Path, backbone_folders: dict[str, str], capsys) -> None:
    """The command prints the difference of the searches with its interval, alone and with BM25, and writes it."""
    folder = tmp_path / "beir" / "own"
    (folder / "qrels").mkdir(parents=True)
    words = np.random.default_rng(0).choice(["one", "two", "three", "four", "five", "six"], (12, 5))
    rows = [{"_id": str(place), "title": "", "text": " ".join(row)} for place, row in enumerate(words)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "queries.jsonl").write_text(
        "".join(json.dumps({"_id": f"q{row['_id']}", "text": row["text"][:9]}) + "\n" for row in rows)
    )
    judged = "".join(f"q{row['_id']}\t{row['_id']}\t1\n" for row in rows)
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged)
    models = [backbone_folders["bert"], backbone_folders["roberta"]]
    arguments = ["--pooling", "avg", "--data_dir", str(tmp_path), "--tasks", "retrieval"]
    main([*models, *arguments, "--output", str(tmp_path / "out.json")])
    printed = one_space(capsys.readouterr().out)
    first, second = (Path(model).name for model in models)
    assert f"| Difference to {first}, nDCG@10 × 100 | own |" in printed
    assert f"| {second}, with BM25 | " in printed
    assert f"| Difference to {first} |" not in printed  # no STS set was scored
    held = json.loads((tmp_path / "out.json").read_text())
    found = held["differences"][second]["retrieval"]
    own = [result["retrieval"]["own"] for result in held["results"]]
    assert found["ndcg@10"]["own"]["difference"] == pytest.approx(own[1]["ndcg@10"] - own[0]["ndcg@10"], abs=1e-3)
    both = [each["hybrid"]["ndcg@10"] for each in own]
    assert found["hybrid ndcg@10"]["own"]["difference"] == pytest.approx(both[1] - both[0], abs=1e-3)
    assert found["ndcg@10"]["own"]["low"] <= found["ndcg@10"]["own"]["high"]


def test_own_pairs_of_two_models(tmp_path: Path, backbone_folders: dict[str, str], capsys) -> None:
    """The command prints the difference of each file of own pairs with its interval, and writes it."""
    (tmp_path / "pairs").mkdir()
    words = np.random.default_rng(0).choice(WORDS, (24, 2, 5))
    lines = [f"{place}\t{' '.join(one)}\t{' '.join(other)}\n" for place, (one, other) in enumerate(words)]
    for name, part in (("half", lines[:12]), ("whole", lines)):
        (tmp_path / "pairs" / f"{name}.tsv").write_text("".join(part))
    models = [backbone_folders["bert"], backbone_folders["roberta"]]
    arguments = ["--pooling", "avg", "--data_dir", str(tmp_path), "--tasks", "pairs"]
    main([*models, *arguments, "--output", str(tmp_path / "out.json")])
    first, second = (Path(model).name for model in models)
    assert f"| Difference to {first}, own pairs | half | whole |" in one_space(capsys.readouterr().out)
    held = json.loads((tmp_path / "out.json").read_text())
    for name, found in held["differences"][second]["pairs"].items():
        before, after = (result["pairs"][name]["spearman"] for result in held["results"])
        assert found["difference"] == pytest.approx(after - before, abs=2e-3)
        assert found["low"] < found["difference"] < found["high"]


def test_differences_table() -> None:
    """Bold where zero lies outside the interval."""
    found = {
        "STS12": {"difference": 1.0, "low": 0.5, "high": 1.5},
        "avg": {"difference": -0.25, "low": -1.0, "high": 0.5},
    }
    lines = one_space(format_differences({"b": found}, "a|c")).splitlines()
    assert lines[0] == r"| Difference to a\|c | STS12 | Avg. |"
    assert lines[2] == "| b | **+1.00 [+0.50, +1.50]** | -0.25 [-1.00, +0.50] |"


def test_published_rows() -> None:
    """Every published average is that of its seven figures, and a row says where it is from."""
    for row in PUBLISHED:
        assert np.mean(row.scores) == pytest.approx(row.average, abs=0.006), row
    text = one_space(latex_table({"a_b": {"sts": {"STS12": {"all": 70.0}}}}, PUBLISHED))
    assert r"a\_b & 70.00 & -- &" in text
    assert r"CMLM-CSE-BERT-base (published, CMLM-CSE Table 1) & 70.52 &" in text
    assert text.count(r"\\") == 2 + len(PUBLISHED)


def test_csv_has_every_number() -> None:
    """One row a number; published ones name their source."""
    results = {
        "m, 1": {"sts": {"STS12": {"all": 70.5}}, "retrieval": {"scifact": {"ndcg@10": 64.5}}, "lee50": {"p": 3}}
    }
    rows = list(csv.reader(io.StringIO(csv_table(results, PUBLISHED[:1]))))
    assert rows[:4] == [
        ["model", "measure", "value", "published_in"],
        ["m, 1", "sts STS12", "70.5", ""],
        ["m, 1", "retrieval scifact ndcg@10", "64.5", ""],
        ["m, 1", "lee50 p", "3", ""],
    ]
    assert rows[4] == ["GloVe (avg.)", "sts STS12", "55.14", "CMLM-CSE Table 1"]


def test_measures_side_by_side() -> None:
    """A row for each measure that any model has; a dash where one has not."""
    table = format_all_measures({"a": {"geometry": {"alignment": 0.25, "spectrum": [1]}}, "b": {"lee50": {"pairs": 7}}})
    assert one_space(table).splitlines()[2:] == ["| geometry alignment | 0.250 | – |", "| lee50 pairs | – | 7 |"]


def test_cache(tmp_path: Path) -> None:
    """A text is encoded once for all runs of a model; odd texts, repeated ones and many are kept apart."""
    encoded: list[str] = []

    def counting(sentences: list[str]) -> np.ndarray:
        encoded.extend(sentences)
        return fake_encode(sentences)

    texts = [f"text {i}" for i in range(1200)] + ["", " ", "é", "e\u0301", "a\0b", "text 1"]
    first = CachedEncoder(counting, tmp_path / "new", "model")(texts)
    np.testing.assert_array_equal(first, fake_encode(texts).astype(np.float32))
    assert len(encoded) == len(set(texts))
    again = CachedEncoder(counting, tmp_path / "new", "model")
    np.testing.assert_array_equal(again([*texts[::-1], "more"])[:-1], first[::-1])
    assert encoded[len(set(texts)) :] == ["more"]
    CachedEncoder(counting, tmp_path / "new", "another")(["more"])
    assert encoded[-2:] == ["more", "more"]
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"--cache .*expected a folder"):
        CachedEncoder(counting, tmp_path / "file", "model")
    (tmp_path / "broken.sqlite").write_text("something else " * 100)
    with pytest.raises(InputError, match="not a database"):
        CachedEncoder(counting, tmp_path, "broken")


def test_a_cache_that_cannot_be_written(tmp_path: Path, capsys) -> None:
    """On a full disk a line names the option, and what was kept before stays. What can only be read is read."""
    encoder = CachedEncoder(fake_encode, tmp_path, "model")
    kept = encoder(["a", "b"])
    (pages,) = encoder._database.execute("pragma page_count").fetchone()
    encoder._database.execute(f"pragma max_page_count = {pages}")
    texts = [f"text {number}" for number in range(1200)]
    with pytest.raises(InputError, match=r"--cache .*found database or disk is full; make room, give another folder"):
        encoder(texts)
    asked: list[str] = []
    reader = CachedEncoder(lambda sentences: asked.extend(sentences) or fake_encode(sentences), tmp_path, "model")
    reader._database.execute("pragma query_only = 1")
    np.testing.assert_array_equal(reader(["a", "c", "b"])[::2], kept)
    np.testing.assert_array_equal(reader(["c"]), fake_encode(["c"]).astype(np.float32))
    assert asked == ["c", "c"]
    assert capsys.readouterr().err == f"--cache {tmp_path}: can only be read, so new embeddings are not kept\n"
    with encoder._database:
        encoder._database.execute("drop table vectors")
    with pytest.raises(InputError, match=r"--cache .*found no such table"):
        reader(["a"])


def test_fingerprint(tmp_path: Path) -> None:
    """Other weights, another file, another pooling: another name; another batch size: the same."""
    (tmp_path / "model.safetensors").write_bytes(b"one")
    settings = {"pooling": "avg", "batch_size": 64, "device": "cpu"}
    name = fingerprint_model(str(tmp_path), settings)
    assert fingerprint_model(str(tmp_path), {**settings, "batch_size": 8, "device": "cuda"}) == name
    assert fingerprint_model(str(tmp_path), {**settings, "pooling": "avg_top2"}) != name
    (tmp_path / "model.safetensors").write_bytes(b"two")
    changed = fingerprint_model(str(tmp_path), settings)
    assert changed != name
    for other in ("notes.txt", "results.json", "README.md", "training_args.bin"):
        (tmp_path / other).write_text("not part of the model")
    assert fingerprint_model(str(tmp_path), settings) == changed
    (tmp_path / "pytorch_model.bin").write_bytes(b"weights of an older kind")
    assert fingerprint_model(str(tmp_path), settings) != changed
    with pytest.raises(InputError, match="download it first"):
        fingerprint_model("owner/name", settings)


@pytest.mark.slow
@pytest.mark.usefixtures("pictures")
def test_command(data_dir: Path, tmp_path: Path, backbone_folders: dict[str, str], capsys) -> None:
    """Two models in one call: tables, intervals, results, pictures, and a cache that changes nothing."""
    models = [backbone_folders["bert"], backbone_folders["roberta"]]
    arguments = [*models, "--pooling", "avg", "--data_dir", str(data_dir), "--tasks", "sts,geometry"]
    arguments += ["--output", str(tmp_path / "out.json"), "--published", "--plots", str(tmp_path / "pictures")]
    arguments += ["--cache", str(tmp_path / "cache")]
    main([*arguments, "--table", str(tmp_path / "table.csv")])
    printed = one_space(capsys.readouterr().out)
    names = [Path(model).name for model in models]
    assert all(f"| {name} |" in printed for name in names)
    assert f"| Difference to {names[0]} | STS12 |" in printed
    assert "SimCSE-BERT-base (published, CMLM-CSE Table 1)" in printed
    held = json.loads((tmp_path / "out.json").read_text())
    assert held["model"] == names
    assert held["differences"][names[1]]["avg"]["difference"] == pytest.approx(
        held["results"][1]["sts"]["avg"] - held["results"][0]["sts"]["avg"], abs=1e-3
    )
    assert len((tmp_path / "table.csv").read_text().splitlines()) > 2 * 10 + 8 * len(PUBLISHED)
    drawn = {path.name for path in (tmp_path / "pictures").iterdir()}
    stems = [
        "alignment_uniformity",
        "subsets",
        *(f"{kind}_{name}" for kind in ("map", "cosine_by_gold") for name in names),
    ]
    assert {f"{stem}.{kind}" for stem in stems for kind in ("png", "svg")} <= drawn
    assert len(list((tmp_path / "cache").glob("*.sqlite"))) == 2
    main([*arguments, "--table", str(tmp_path / "table.tex")])
    assert one_space(capsys.readouterr().out) == printed
    assert (tmp_path / "table.tex").read_text().startswith(r"\begin{tabular}")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["--table", "table.html"], "--table must end with one of .md, .tex, .csv, found table.html"),
        (["--table", "nowhere/table.md"], "expected the folder nowhere to exist"),
        (["--plots", "{file}"], "expected a folder for plots"),
        (["--plots", "new", "--tasks", "lee50,pairs"], "draws the tasks geometry, sts, stsb_dev, found none of them"),
        (["{model}"], "expected each MODEL once"),
    ],
)
def test_command_errors(change, words, data_dir: Path, tmp_path: Path, backbone_folders, capsys) -> None:
    """One line and status 2, before any work."""
    (tmp_path / "file").write_text("")
    model = backbone_folders["bert"]
    change = [item.format(file=tmp_path / "file", model=model) for item in change]
    with pytest.raises(SystemExit) as stop:
        main([model, *change, "--pooling", "avg", "--data_dir", str(data_dir)])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert words in error
    assert len(error.splitlines()) == 1


UNWRITABLE = [("--output", f"{'o' * 250}.json"), ("--table", f"{'t' * 250}.md"), ("--table", "folder.md")]
if Path("/proc/self").is_dir():  # no user can write there, not even root
    UNWRITABLE += [("--output", "/proc/self/out.json"), ("--plots", "/proc/self")]


@pytest.mark.parametrize(("option", "name"), UNWRITABLE, ids=[f"{option} {name[:15]}" for option, name in UNWRITABLE])
def test_what_cannot_be_written_is_refused_first(option, name, data_dir: Path, tmp_path, monkeypatch, capsys) -> None:
    """The model is not looked for yet: there is none."""
    (tmp_path / "folder.md").mkdir()
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.iterdir())
    with pytest.raises(SystemExit, match="2"):
        main(["missing", option, name, "--data_dir", str(data_dir)])
    error = capsys.readouterr().err
    assert error.startswith(f"error: {option} {name}")
    assert "cannot be written: " in error
    assert len(error.splitlines()) == 1
    assert set(tmp_path.iterdir()) == before


def test_a_full_disk_at_the_plots_loses_no_score(data_dir, tmp_path, backbone_folders, monkeypatch, capsys) -> None:
    """They are printed and written before anything is drawn."""

    def full(figure: plots.plt.Figure, folder: Path, name: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(plots, "save", full)
    arguments = [backbone_folders["bert"], "--pooling", "avg", "--data_dir", str(data_dir), "--tasks", "stsb_dev"]
    arguments += ["--output", str(tmp_path / "out.json"), "--table", str(tmp_path / "table.md")]
    with pytest.raises(SystemExit, match="2"):
        main([*arguments, "--plots", str(tmp_path / "pictures")])
    said = capsys.readouterr()
    assert "| stsb_dev spearman |" in one_space(said.out)
    (error,) = (line for line in said.err.splitlines() if line.startswith("error: "))
    assert f"--plots {tmp_path / 'pictures'}: cannot be written: No space left on device; " in error
    assert json.loads((tmp_path / "out.json").read_text())["stsb_dev"]["pairs"] == 9
    assert (tmp_path / "table.md").exists()


def test_names_of_models(tmp_path: Path) -> None:
    """The last part of a path, unless two models share it; Hub names as they are."""
    for parent in "ab":
        (tmp_path / parent / "export").mkdir(parents=True)
    alike = [str(tmp_path / parent / "export") for parent in "ab"]
    assert check_models(alike) == alike
    assert check_models([alike[0], "owner/name"]) == ["export", "owner/name"]


def test_map_draws_similar_pairs_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An encoder that knows the meaning: pairs of one meaning lie close together, others far apart."""
    drawn: list[plots.plt.Figure] = []
    monkeypatch.setattr(plots, "save", lambda figure, folder, name: drawn.append(figure))
    count = 40
    pairs = Pairs(
        np.repeat([0.0, 5.0], count),
        [f"{i} a" for i in range(2 * count)],
        [f"{i + 1 if i < count else i} b" for i in range(2 * count)],
    )

    def by_number(texts: list[str]) -> np.ndarray:
        angle = np.array([int(text.split()[0]) for text in texts]) * 2.4
        return np.stack([np.cos(angle), np.sin(angle), angle % 1], axis=1)

    plots.plot_map(plots.map_vectors(by_number, {"stsb_dev": pairs}), tmp_path, "m")
    lines = [line for line in drawn[0].axes[0].lines if line.get_linestyle() == "-" and len(line.get_xdata()) == 2]
    lengths = [float(np.hypot(np.diff(line.get_xdata()), np.diff(line.get_ydata()))[0]) for line in lines]
    assert len(lengths) == plots.MAP_PAIRS
    assert np.median(lengths[plots.MAP_PAIRS // 2 :]) < 0.2 * np.median(lengths[: plots.MAP_PAIRS // 2])


def test_trained_model_beside_its_backbone(data_dir, tmp_path, backbone_folders, capsys) -> None:
    """--pooling is for the models that record none: a trained one beside them keeps its own, and so does one of
    sentence-transformers."""
    trained = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders["bert"], pooling="cls_before_pooler").eval()
    export(trained, tiny_tokenizer("bert"), tmp_path / "trained")
    models = [backbone_folders["bert"], str(tmp_path / "trained")]
    main([*models, "--pooling", "avg", "--data_dir", str(data_dir)])
    printed = capsys.readouterr().out
    assert f"Settings of {Path(models[0]).name}: pooling avg" in printed
    assert "Settings of trained: pooling cls_before_pooler" in printed
    config = json.loads((tmp_path / "trained" / "config.json").read_text())
    del config["cmlmcse"]  # what is left is a folder of sentence-transformers alone
    (tmp_path / "trained" / "config.json").write_text(json.dumps(config))
    main([*models, "--pooling", "avg", "--data_dir", str(data_dir)])
    assert "Settings of trained: pooling cls_before_pooler" in capsys.readouterr().out
    (tmp_path / "trained" / "config.json").write_text(
        json.dumps({**config, "cmlmcse": {"pooling": "cls_before_pooler"}})
    )
    with pytest.raises(SystemExit):
        main([models[1], "--pooling", "avg", "--data_dir", str(data_dir)])
    assert "was trained with the pooling 'cls_before_pooler'" in capsys.readouterr().err
