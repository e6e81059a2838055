"""The benchmark for GPUs, on a CPU with tiny models: that it runs and what it writes. It shows no speed. The one
command of the frontier's study: the text and what it runs. And the scripts' names."""

import ast
import importlib
import importlib.util
import json
import lzma
import sys
from functools import partial
from importlib.metadata import packages_distributions
from types import ModuleType, SimpleNamespace

import pytest
import torch
from pandas.compat._optional import VERSIONS
from torch.autograd import DeviceType
from transformers import BertConfig

from cmlmcse.hub.adapted_card import on_practice
from cmlmcse.study.plan import load_study
from support.paths import DATA, ROOT


def test_no_script_has_the_name_of_a_module():
    """A script's folder is the first where Python looks. `bottleneck.py` was what pandas imported, though no package of
    that name was installed, and three scripts failed."""
    names = {path.stem for path in (ROOT / "benchmarks").glob("*.py")}
    assert "gpu" in names
    assert not names & {*sys.stdlib_module_names, *packages_distributions(), *VERSIONS}


def test_scripts_find_what_they_import():
    """Two scripts asked for a function of an older name. Nothing runs all scripts, so nothing had failed."""
    missing = []
    for path in [*(ROOT / "benchmarks").glob("*.py"), *(ROOT / "docs").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] in ("cmlmcse", "modeling_cmlmcse"):
                module = importlib.import_module(str(node.module))
                names = [name.name for name in node.names if not has(module, name.name)]
                missing += [f"{path.name}: {node.module}.{name}" for name in names]
    assert missing == []


def has(module: ModuleType, name: str) -> bool:
    """Whether it has that name, or a module of that name, imported or not."""
    if hasattr(module, name) or not hasattr(module, "__path__"):
        return hasattr(module, name)
    return importlib.util.find_spec(f"{module.__name__}.{name}") is not None


@pytest.fixture
def gpu(monkeypatch, tmp_path) -> ModuleType:
    """The script as a module, without any data beside the checkout: it makes its own batches."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    script = importlib.import_module("gpu")
    monkeypatch.setattr("common.DATA", tmp_path / "none")
    return script


@pytest.mark.slow
def test_toy_run(gpu, tmp_path, monkeypatch, capsys):
    """Every arm at every size has a time, and the epoch is that of CMLM-CSE's smallest step."""
    path = tmp_path / "toy.json"
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--toy", "--repetitions", "1", "--output", str(path)])
    gpu.main()
    record = json.loads(path.read_text())
    assert (record["title"], record["toy"], record["precision"]) == ("Tiny models: no speed", True, "float32")
    assert list(record["steps"]) == ["4 × 8", "8 × 16"]
    assert all(set(arms) == set(gpu.ARMS) for arms in record["steps"].values())
    assert all(arm["step"] > 0 for arms in record["steps"].values() for arm in arms.values())
    step = record["steps"]["4 × 8"]["CMLM-CSE, ours"]["step"]
    assert record["epoch_hours"] == pytest.approx(1_000_000 / 4 * step / 1000 / 3600)
    assert set(record["sentences_per_second"]) == {"ours", "ours, batches of its own choice", "sentence-transformers"}
    assert "A step, batch × tokens: 8 × 16" in capsys.readouterr().out


@pytest.mark.slow
def test_compiled_arms(gpu, tmp_path, monkeypatch):
    """Every step is one graph in every arm: no arm uses up the versions of the code that PyTorch compiles, after which
    it would measure a step that is not compiled."""
    path, compile_ = tmp_path / "toy.json", torch.compile
    words = ["--toy", "--compiled", "--backend", "eager", "--repetitions", "1", "--output", str(path)]
    monkeypatch.setattr(sys, "argv", ["gpu.py", *words])
    monkeypatch.setattr(gpu, "BertConfig", lambda **sizes: BertConfig(**{**sizes, "num_hidden_layers": 1}))
    monkeypatch.setattr(gpu, "ARMS", {"SimCSE, ours": gpu.ARMS["SimCSE, ours"]})
    monkeypatch.setattr(gpu, "BATCHES", 2)
    monkeypatch.setattr(gpu, "COMPILING", 2)
    monkeypatch.setattr("torch._dynamo.config.cache_size_limit", 2)  # a version for each batch
    monkeypatch.setattr(torch, "compile", partial(compile_, fullgraph=True))
    gpu.main()
    torch.compiler.reset()
    record = json.loads(path.read_text())
    assert (record["backend"], list(record["steps"])) == ("eager", ["4 × 8"])
    arms = record["steps"]["4 × 8"]
    assert list(arms) == ["SimCSE, ours", *gpu.COMPILED]
    assert {title: list(arm) for title, arm in arms.items()} == {title: ["step"] for title in arms}


def test_it_expects_a_gpu(gpu, monkeypatch, capsys):
    """Without one it says how to try it."""
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    monkeypatch.setattr(gpu.torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as stopped:
        gpu.main()
    assert stopped.value.code == 2
    assert "expected a GPU, found none; --toy runs tiny models on the CPU" in capsys.readouterr().err


def test_work_of_a_gpu(gpu):
    """Kernels and copies count, the calls of the host and a user's own marks do not; all by step."""
    kinds = [(DeviceType.CUDA, False, 3000.0, 30), (DeviceType.CUDA, False, 600.0, 6), (DeviceType.CPU, False, 9.0, 9),
             (DeviceType.CUDA, True, 9000.0, 3)]  # fmt: skip
    names = "device_type", "is_user_annotation", "self_device_time_total", "count"
    events = [SimpleNamespace(**dict(zip(names, kind, strict=True))) for kind in kinds]
    assert gpu.gpu_work(events, 3) == {"busy": 1.2, "launches": 12.0}


def test_what_adapt_says_of_its_score(monkeypatch):
    """The correlations that each report and card names are those of the records."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    criteria = importlib.import_module("criteria")
    records = ROOT / "benchmarks" / "records"
    plain, finished = (
        [row for row in json.loads((records / name).read_text()) if row["step"]]
        for name in ("criteria.json", "criteria-finished.json")
    )

    def within(rows, measure, *keys):
        groups = {tuple(row[key] for key in keys): [] for row in rows}
        for row in rows:
            groups[tuple(row[key] for key in keys)].append(row)
        return criteria.mean([criteria.agreement(group, measure) for group in groups.values()])

    run, unseen = ("collection", "setting"), [row for row in plain if row["collection"] == "cacm"]
    over, inside, in_unseen = (
        within(plain, "parts", "collection"),
        within(plain, "parts", *run),
        within(unseen, "parts", *run),
    )
    said = on_practice({"finished_encoder": False})
    assert f"{over} over the settings of a collection, but only {inside} within a run ({in_unseen} on the one" in said
    both = [row | {"both": (row["halves"] + row["words"]) / 2} for row in finished]
    assert f"within a run was {within(both, 'both', *run)} on average" in on_practice({"finished_encoder": True})


@pytest.fixture
def frontier(monkeypatch) -> ModuleType:
    """The script as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("frontier")


@pytest.mark.skipif(not (DATA / "transfer").is_dir(), reason="no evaluation data")
def test_mixed_text(frontier):
    """As many sentences as the page on the mixed text says, each once within its kind, and none of a scored set."""
    found = frontier.mixed_text(DATA)
    assert len(found) == 29_023
    assert found[:1] == [found[0].lower()]
    scored = {text for path in DATA.glob("sts/sts1*/*.tsv") for text in frontier.columns(path, (1, 2))}
    assert not scored & set(found)


def test_one_command(frontier, tmp_path, monkeypatch):
    """It makes text and teachers once, and the study gets their absolute names and the fields of the command line."""
    (tmp_path / "backbone").mkdir()
    trained, studied = [], []

    def train(recipe, **fields):
        folder = tmp_path / "work" / fields["output_dir"]
        folder.mkdir(parents=True)
        (folder / "results.json").write_text("{}")
        trained.append(fields)

    monkeypatch.setattr(frontier, "mixed_text", lambda data: ["a", "b"])
    monkeypatch.setattr(frontier, "train", train)
    monkeypatch.setattr(frontier, "study", studied.append)
    monkeypatch.chdir(tmp_path)
    words = ["--data_dir", ".", "--work", "work", "--model", "backbone", "--workers", "2", "--max_steps", "7"]
    monkeypatch.setattr(sys, "argv", ["frontier.py", *words])
    for _ in range(2):
        frontier.main()
        monkeypatch.chdir(tmp_path)
    assert (tmp_path / "work" / "mixed.txt").read_text() == "a\nb\n"
    assert [(own["cmlm_weight"], own["output_dir"], own["max_steps"]) for own in trained] == [
        (0, "runs/teacher-simcse", "7"), (0.5, "runs/teacher-cmlm", "7")]  # fmt: skip
    assert studied[0] == studied[1] == [
        str(frontier.STUDY), "--workers", "2", "--model_name_or_path", str(tmp_path / "backbone"), "--train_file",
        str(tmp_path / "work" / "mixed.txt"), "--data_dir", str(tmp_path), "--max_steps", "7"]  # fmt: skip
    arms = load_study(frontier.STUDY).arms.values()
    teachers = {fields["teacher"] for fields in arms if "teacher" in fields}
    assert teachers == {f"{own['output_dir']}/export" for own in trained}


def test_passages(tmp_path, monkeypatch):
    """They are whole, apart from each other, and as many of each article as were asked for."""
    articles = [
        [f"sentence {row} of {name}." for row in range(count)] for name, count in (("a", 7), ("b", 3), ("c", 1))
    ]
    text = "\n\n\n".join("\n".join(article) for article in articles) + "\n"
    (tmp_path / "articles.xz").write_bytes(lzma.compress(text.encode()))
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    words = ["articles.xz", "--output", "passages.txt", "--sentences", "2", "--each", "2"]
    monkeypatch.setattr(sys, "argv", ["passages.py", *words])
    monkeypatch.chdir(tmp_path)
    importlib.import_module("passages").main()
    passages = [passage.splitlines() for passage in (tmp_path / "passages.txt").read_text().strip().split("\n\n")]
    starts = {tuple(article[row : row + 2]) for article in articles for row in range(0, len(article) - 1, 2)}
    assert len(passages) == len(set(map(tuple, passages))) == 3  # two of a, one of b, none of c
    assert set(map(tuple, passages)) <= starts
