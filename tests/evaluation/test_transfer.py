"""The transfer tasks against plain loops of scikit-learn, on tiny data folders; real sets only where they are."""

import io
import json
import tarfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold

from cmlmcse.common.errors import InputError
from cmlmcse.evaluation import transfer_data
from cmlmcse.evaluation.command import main
from cmlmcse.evaluation.encoding import EncodeOnce
from cmlmcse.evaluation.sts_data import MissingData
from cmlmcse.evaluation.transfer import GRID, TRAIN_GRID, Part, classify, first_best, nested_accuracy, transfer
from cmlmcse.evaluation.transfer_data import TRANSFER_SETS, Examples, load_set, load_transfer, missing_transfer
from support.paths import DATA
from support.text import one_space

PUBLISHED_TOTALS = {
    "MR": [10662],
    "CR": [3775],
    "SUBJ": [10000],
    "MPQA": [10606],
    "SST2": [67349, 872, 1821],
    "TREC": [5452, 500],
    "MRPC": [4076, 1725],
}
HEADER = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"


def encode(sentences: list[str]) -> np.ndarray:
    """The sum of a fixed random vector for each word."""
    return np.stack(
        [np.sum([np.random.default_rng(zlib.crc32(word.encode())).normal(size=24) for word in text.split()], axis=0)
         for text in sentences]
    )  # fmt: skip


def line(task: str, label: str, number: int) -> str:
    """A line in the task's format; the label shows in a word, or in whether the sides of a pair are equal."""
    text = f"word{label} word{label} w{number}"
    if task == "SST2":
        return f"{text} \t{label}"
    if task == "TREC":
        return f"{label}:fine {text} ?"
    if task == "MRPC":
        first = f"w{number} x{number}"
        return f"{label}\t1\t2\t{first}\t{first if label == '1' else f'y{number}'}"
    return f"{text} "


def write(folder: Path, name: str) -> None:
    """A task's files with as many rows as `TRANSFER_SETS` says."""
    (folder / name).mkdir(parents=True)
    for files in TRANSFER_SETS[name].parts.values():
        for file, labels in files.items():
            lines = [line(name, label, number) for label, count in labels.items() for number in range(count)]
            lines = [HEADER, *lines] if name == "MRPC" else lines
            (folder / name / file).write_text("".join(f"{one}\n" for one in lines))


@pytest.fixture
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with all tasks, of 12 rows or a few more for each label of a file, and the counts to match."""
    for name, one in list(TRANSFER_SETS.items()):
        parts = {
            part: {file: {label: 12 + i for i, label in enumerate(labels)} for file, labels in files.items()}
            for part, files in one.parts.items()
        }
        monkeypatch.setitem(TRANSFER_SETS, name, one._replace(parts=parts))
        write(tmp_path / "data" / "transfer", name)
    return tmp_path / "data"


@pytest.fixture
def few_folds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three folds instead of ten, a tenth of the work, where a test is about what stands around them."""
    monkeypatch.setattr("cmlmcse.evaluation.transfer.FOLDS", 3)


def noisy(classes: int, count: int, seed: int, width: int = 6) -> Part:
    """Classes that overlap."""
    features = np.random.default_rng(seed).normal(size=(count, width)) * np.geomspace(0.2, 5, width)
    scores = features @ np.random.default_rng(99).normal(size=(width, classes))
    noise = np.random.default_rng(seed + 1).normal(size=(count, classes))
    return Part(features, (scores + 8 * noise).argmax(axis=1))


def plain(train: Part, c: float) -> LogisticRegression:
    """scikit-learn's classifier, carried on to the end."""
    return LogisticRegression(C=c, tol=1e-8, max_iter=100_000, solver="newton-cg").fit(*train)


def plain_choice(train: Part, grid: tuple[float, ...]) -> float:
    """The first C of the best accuracy, in per cent to two decimals, over ten folds: a plain loop."""
    means = []
    for c in grid:
        folds = StratifiedKFold(10, shuffle=True, random_state=1111).split(*train)
        models = [(plain(Part(train.features[a], train.labels[a]), c), b) for a, b in folds]
        means.append(round(100 * np.mean([one.score(train.features[b], train.labels[b]) for one, b in models]), 2))
    return grid[int(np.argmax(means))]


def test_published_counts() -> None:
    """The counts that a folder is checked against are SentEval's."""
    for name, one in TRANSFER_SETS.items():
        totals = [sum(sum(labels.values()) for labels in files.values()) for files in one.parts.values()]
        assert totals == PUBLISHED_TOTALS[name]


def test_grids() -> None:
    """The values of C are SentEval's."""
    assert GRID == (0.25, 0.5, 1, 2, 4, 8)
    assert TRAIN_GRID == (0.5, 1, 2, 4, 8, 16, 32)


@pytest.mark.usefixtures("few_folds")
@pytest.mark.slow
def test_separable(data_dir: Path) -> None:
    """Where labels show in the embeddings every accuracy is 100, and each sentence is encoded once, in one call."""
    calls: list[list[str]] = []

    def counting(sentences: list[str]) -> np.ndarray:
        calls.append(sentences)
        return encode(sentences)

    results = transfer(EncodeOnce(counting), load_transfer(str(data_dir)))
    assert results == {**dict.fromkeys(TRANSFER_SETS, 100.0), "avg": 100.0, "f1": {"MRPC": 100.0}}
    assert len(calls) == 1
    assert len(calls[0]) == len(set(calls[0]))


@pytest.mark.slow
def test_nested_equals_plain_loops() -> None:
    """The nested cross-validation gives what loops over scikit-learn's classifier give."""
    part = noisy(2, 60, seed=3)
    accuracies = []
    for rest, held in StratifiedKFold(10, shuffle=True, random_state=1111).split(*part):
        train = Part(part.features[rest], part.labels[rest])
        chosen = plain(train, plain_choice(train, GRID))
        accuracies.append(chosen.score(part.features[held], part.labels[held]))
    assert 0.6 < np.mean(accuracies) < 0.95
    assert nested_accuracy(part) == pytest.approx(np.mean(accuracies), abs=1e-12)


@pytest.mark.parametrize("classes", (2, 3))
def test_folds_of_train_choose(classes: int) -> None:
    """Without dev, ten folds of the training part choose C, and the whole of it is fitted again."""
    train, test = noisy(classes, 100, seed=5), noisy(classes, 60, seed=7)
    expected = plain(train, plain_choice(train, TRAIN_GRID)).predict(test.features)
    assert np.array_equal(classify(train, test, None), expected)


def test_dev_chooses() -> None:
    """With dev, its accuracy chooses C, here neither the least nor the greatest."""
    train, dev, test = (noisy(2, count, seed) for count, seed in ((40, 13), (200, 15), (100, 17)))
    accuracies = [plain(train, c).score(*dev) for c in GRID]
    best = int(np.argmax(np.round(accuracies, 4)))
    assert 0 < best < len(GRID) - 1
    assert np.array_equal(classify(train, test, dev), plain(train, GRID[best]).predict(test.features))


def test_first_of_equals() -> None:
    """Of values of C that are equally good the first is taken, also where they differ in the third decimal."""
    assert first_best(GRID, [0.5, 0.70001, 0.70002, 0.6, 0.70002, 0.1]) == GRID[1]


def test_features_of_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs are [|u − v|, u · v]; F1 is that of label 1."""
    seen = []

    def remember(train: Part, test: Part, dev: Part | None) -> np.ndarray:
        seen.extend([train, test, dev])
        return np.array([1, 1, 0, 1])

    monkeypatch.setattr("cmlmcse.evaluation.transfer.classify", remember)
    vectors = {"a": [1.0, -2.0], "b": [3.0, 5.0]}
    examples = Examples(np.array([1, 0, 0, 1]), (["a", "b", "a", "b"], ["b", "b", "b", "a"]))
    results = transfer(
        lambda texts: np.array([vectors[text] for text in texts]), {"MRPC": {"train": examples, "test": examples}}
    )
    expected = [[2, 7, 3, -10], [0, 0, 9, 25], [2, 7, 3, -10], [2, 7, 3, -10]]
    assert seen[0].features.tolist() == expected
    assert seen[2] is None
    assert results == {"MRPC": 75.0, "f1": {"MRPC": 80.0}}


def test_readers(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels, texts with one blank between words, and SentEval's order: by words, then by label."""
    counts = {
        "MR": {"all": {"rt-polarity.pos": {"1": 2}, "rt-polarity.neg": {"0": 3}}},
        "TREC": {"train": {"train_5500.label": {"DESC": 1, "NUM": 2}}, "test": {"TREC_10.label": {"NUM": 1}}},
        "MRPC": {
            "train": {"msr_paraphrase_train.txt": {"0": 2, "1": 1}},
            "test": {"msr_paraphrase_test.txt": {"1": 1}},
        },
    }
    for name, parts in counts.items():
        monkeypatch.setitem(TRANSFER_SETS, name, TRANSFER_SETS[name]._replace(parts=parts))
    root = data_dir / "transfer"
    (root / "MR" / "rt-polarity.pos").write_text("one  two\tthree \r\na\u2028b\u2028c d e\n")
    (root / "MR" / "rt-polarity.neg").write_bytes(b"x y z\ncaf\xe9\n\n")
    part = load_set(root, "MR")["all"]
    assert part.sides == (["", "café", "x y z", "one two three", "a b c d e"],)
    assert part.labels.tolist() == [0, 0, 0, 1, 1]
    (root / "TREC" / "train_5500.label").write_text("NUM:dist How far : is it ?\nDESC:x What ?\nNUM:count How many\n")
    (root / "TREC" / "TREC_10.label").write_text("NUM:dist How far ?\n")
    train = load_set(root, "TREC")["train"]
    assert train.sides == (["What ?", "How many", "How far : is it ?"],)
    assert train.labels.tolist() == [0, 1, 1]
    rows = '1\t7\t8\tthe " cat\ta dog\n0\t7\t8\ta b\tc d\n0\t7\t8\ta b\tc\n'
    (root / "MRPC" / "msr_paraphrase_train.txt").write_text("\ufeff" + HEADER + "\r\n" + rows)
    (root / "MRPC" / "msr_paraphrase_test.txt").write_text(HEADER + "\n1\t7\t8\ta\tb")
    parts = load_set(root, "MRPC")
    assert parts["train"].sides == (["a b", "a b", 'the " cat'], ["c", "c d", "a dog"])
    assert parts["train"].labels.tolist() == [0, 0, 1]
    assert parts["test"].sides == (["a"], ["b"])


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("MR/rt-polarity.pos", "a\n", ["rt-polarity.pos: expected 12 rows, as published, found 1 rows"]),
        ("SST2/sentiment-dev", "a\t1\nb\n", ["sentiment-dev, line 2", "expected 2 columns", "found 1"]),
        ("SST2/sentiment-dev", "a\tb\t1\n", ["line 1", "found 3"]),
        ("SST2/sentiment-dev", "a\t2\n", ["line 1", "a label of 0, 1, found '2'"]),
        ("SST2/sentiment-dev", "a\t1\n" * 25, ["expected 25 rows (0 12, 1 13)", "found 25 rows (0 0, 1 25)"]),
        ("TREC/TREC_10.label", "NUM dist How far ?\n", ["TREC_10.label, line 1", "expected COARSE:fine QUESTION"]),
        ("TREC/TREC_10.label", "NUM:dist\n", ["line 1", "found 'NUM:dist'"]),
        ("TREC/TREC_10.label", "NAM:dist How far ?\n", ["line 1", "ABBR, DESC", "found 'NAM'"]),
        ("MRPC/msr_paraphrase_test.txt", "1\t1\t2\ta\tb\n", ["line 1", "header line that starts with 'Quality"]),
        ("MRPC/msr_paraphrase_test.txt", f"{HEADER}\n1\t1\t2\ta\n", ["line 2", "expected 5 columns", "found 4"]),
    ],
)
def test_broken_file(data_dir: Path, file: str, content: str, words: list[str]) -> None:
    """A broken line, an unknown label or a wrong count names the file, what was expected and what was found."""
    (data_dir / "transfer" / file).write_text(content)
    with pytest.raises(InputError) as error:
        load_transfer(str(data_dir))
    assert all(word in str(error.value) for word in words), error.value


@pytest.mark.usefixtures("few_folds")
@pytest.mark.slow
def test_missing(data_dir: Path, tmp_path: Path) -> None:
    """A task that lacks a file is absent and reported, without it there is no average; none at all is said so."""
    (data_dir / "transfer" / "CR" / "custrev.neg").unlink()
    data = load_transfer(str(data_dir))
    (said,) = missing_transfer(str(data_dir), data)
    assert said.startswith("transfer CR: no ")
    assert said.endswith("custrev.neg")
    results = transfer(encode, {name: data[name] for name in data if name != "SST2"})
    assert list(results) == ["MR", "SUBJ", "MPQA", "TREC", "MRPC", "f1"]
    (tmp_path / "none").mkdir()
    with pytest.raises(MissingData, match=r"none of the tasks under .*none.transfer"):
        load_transfer(str(tmp_path / "none"))
    with pytest.raises(InputError, match="expected a folder that holds transfer/, found none"):
        load_transfer(str(tmp_path / "nothing"))


@pytest.mark.usefixtures("few_folds")
@pytest.mark.slow
def test_not_finite(data_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Embeddings that are not finite have no accuracy: null with a warning, and no average."""
    data = load_transfer(str(data_dir))
    data["CR"]["all"].sides[0][0] = "bad"
    results = transfer(lambda texts: encode(texts) * [[np.nan if text == "bad" else 1.0] for text in texts], data)
    assert results["CR"] is None
    assert results["MR"] == 100
    assert "avg" not in results
    assert "CR: no accuracy" in caplog.text


def test_hub(data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the Hub, all tasks come out of SentEval's archive; what lacks there is an input error."""
    with pytest.raises(InputError, match=r"princeton-nlp.* from the Hub .*with a folder that holds transfer/"):
        load_transfer(None)
    path = tmp_path / "senteval.tar"
    with tarfile.open(path, "w") as archive:
        for name, one in TRANSFER_SETS.items():
            archive.add(data_dir / "transfer" / name, f"data/downstream/{one.member}")
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda *args, **kwargs: str(path))
    from_hub, from_folder = load_transfer(None), load_transfer(str(data_dir))
    assert str(from_hub) == str(from_folder)
    assert missing_transfer(None, from_hub) == []
    with tarfile.open(path, "w") as archive:
        archive.addfile(tarfile.TarInfo("MR/rt-polarity.pos"), io.BytesIO(b""))
    with pytest.raises(InputError, match=r"no MR/rt-polarity.neg, CR/custrev.pos, .* in senteval.tar"):
        load_transfer(None)


@pytest.mark.usefixtures("few_folds")
@pytest.mark.slow
def test_command(data_dir: Path, tmp_path: Path, backbone_folders: dict[str, str], capsys) -> None:
    """The command writes the entry of all tasks, and says which are missing."""
    arguments = [backbone_folders["bert"], "--data_dir", str(data_dir), "--pooling", "avg", "--tasks", "transfer"]
    main([*arguments, "--output", str(tmp_path / "results.json")])
    results = json.loads((tmp_path / "results.json").read_text())["transfer"]
    assert list(results) == [*TRANSFER_SETS, "avg", "f1"]
    assert results["avg"] == pytest.approx(np.mean([results[name] for name in TRANSFER_SETS]), abs=1e-4)
    assert f"| transfer avg | {results['avg']:.2f} |" in one_space(capsys.readouterr().out)
    (data_dir / "transfer" / "MPQA" / "mpqa.pos").unlink()
    with pytest.raises(SystemExit, match="1"):
        main([*arguments, "--output", str(tmp_path / "results.json")])
    assert "missing: transfer MPQA: no " in capsys.readouterr().err
    results = json.loads((tmp_path / "results.json").read_text())["transfer"]
    assert list(results) == [*(name for name in TRANSFER_SETS if name != "MPQA"), "f1"]


def test_archive_names() -> None:
    """Folders of SentEval's archive are those of the data folder but for SST2."""
    assert {name: one.member for name, one in TRANSFER_SETS.items() if one.member != name} == {"SST2": "SST/binary"}


def real(name: str) -> dict[str, Examples]:
    """A real task, or skip."""
    if transfer_data.missing_files(DATA / "transfer", name):
        pytest.skip(f"needs transfer/{name} under {DATA}; set CMLMCSE_DATA")
    return load_set(DATA / "transfer", name)


@pytest.mark.parametrize("name", TRANSFER_SETS)
def test_real_counts(name: str) -> None:
    """The real files have the published counts, and no sentence is empty."""
    for part in real(name).values():
        assert all(text for side in part.sides for text in side)


@pytest.mark.usefixtures("few_folds")
@pytest.mark.slow
def test_bag_of_words() -> None:
    """A bag of words, in its 128 strongest directions, scores on TREC about what bags of words do."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    parts = real("TREC")
    vectorizer = TfidfVectorizer(token_pattern=r"\S+", sublinear_tf=True).fit(parts["train"].sides[0])
    reduction = TruncatedSVD(128, random_state=0).fit(vectorizer.transform(parts["train"].sides[0]))
    results = transfer(lambda texts: reduction.transform(vectorizer.transform(texts)), {"TREC": parts})
    assert 77 < results["TREC"] < 84
