"""The built wheel in an environment without the checkout: every verb works, from another folder."""

import json
import os
import shutil
import site
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import numpy as np
import pytest
import yaml
from pyarrow import parquet

from cmlmcse.cli import VERBS
from support.paths import ROOT
from support.processes import run_verbs

pytestmark = pytest.mark.slow
SOURCES = ("cmlmcse", "modeling_cmlmcse", "configuration", "setup.cfg", "pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy, so that no build folder is left in the checkout."""
    copy = tmp_path_factory.mktemp("copy")
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy)
    command = [sys.executable, "-m", "pip", "wheel", str(copy), "--no-deps", "--no-build-isolation", "--quiet"]
    subprocess.run([*command, "--wheel-dir", str(copy / "dist")], check=True, cwd=copy)
    (built,) = (copy / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheel, and with this environment's other packages beside it."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    # The folder goes on the path; the .pth files in it, such as that of an editable install, are not read.
    (packages / "others.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    command = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "--quiet"]
    subprocess.run([*command, "--no-deps", "--no-index", str(wheel)], check=True)
    return folder / "bin"


def run(program: Path, *arguments: object, cwd: Path) -> str:
    """A program of that environment, in a folder, without the checkout on the path → what it prints."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(program), *map(str, arguments)], cwd=cwd, env=environment,
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_contents(wheel: Path) -> None:
    """All modules of both packages, all recipes and launchers' files, the card's template and the fields' table."""
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    expected = {path.relative_to(ROOT).as_posix() for folder in ("cmlmcse", "modeling_cmlmcse")
                for path in (ROOT / folder).rglob("*.py")}  # fmt: skip
    expected |= {f"cmlmcse/{path.relative_to(ROOT)}" for path in (ROOT / "configuration").rglob("*.yaml")}
    assert held == expected | {"cmlmcse/hub/card_template.md", "cmlmcse/training/fields.json"}


def test_recipes_and_help(installed: Path, tmp_path: Path) -> None:
    """The recipes are the installed ones, and `python -m cmlmcse` is the same."""
    said = run(installed / "cmlmcse", "recipes", cwd=tmp_path)
    folder = Path(said.split("Their files: ")[1].splitlines()[0])
    assert installed.parent in folder.parents
    names = sorted(path.name for path in (ROOT / "configuration").glob("*.yaml"))
    assert sorted(path.name for path in folder.glob("*.yaml")) == names
    assert run(installed / "python", "-m", "cmlmcse", "recipes", cwd=tmp_path) == said
    for verb in ("", *VERBS):
        assert "usage: cmlmcse" in run(installed / "cmlmcse", *([verb] if verb else []), "--help", cwd=tmp_path)
    run(installed / "python", "-c", "from cmlmcse import train, evaluate", cwd=tmp_path)


def test_every_verb(installed: Path, tmp_path: Path, text_file: Path, data_dir: Path, backbone_folders) -> None:
    """From a text to a model, its scores, embeddings, neighbours, export and a study, from another folder; one process
    of that environment runs all of them."""
    backbone = backbone_folders["bert"]
    fields = ["--model_name_or_path", backbone, "--train_file", text_file, "--data_dir", data_dir, "--max_steps", 2,
              "--eval_steps", 1, "--save_steps", 1, "--final_evaluation", "stsb_dev", "--use_cpu", "true",
              "--pooling", "avg", "--disable_tqdm", "true"]  # fmt: skip
    texts = text_file.read_text().splitlines()
    common = {name.removeprefix("--"): str(value) for name, value in zip(fields[::2], fields[1::2], strict=True)}
    study = {"recipe": "cmlmcse-bert-base", "seeds": [1], "baseline": "a", "metrics": ["stsb_dev.spearman"],
             "common": common, "arms": {"a": {"temp": 0.1}}}  # fmt: skip
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    calls = [
        ["train", "cmlmcse-bert-base", *fields, "--output_dir", "run"],
        ["evaluate", "run", "--tasks", "stsb_dev", "--data_dir", data_dir, "--output", "o.json"],
        ["encode", "run", text_file, "--output", "o.parquet"],
        ["search", "run", "o.parquet", texts[7], "--top_k", 1],
        ["push", "run/checkpoint-2", "--export_only", "--output_dir", "out"],
        ["study", "study.yaml"],
        ["adapt", "run/export", "documents.jsonl", "--output_dir", "adapted", "--max_steps", 2, "--views", "words"],
    ]
    documents = [{"title": texts[i], "text": " ".join(texts[i : i + 8])} for i in range(0, 120)]
    (tmp_path / "documents.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in documents))
    (packages,) = installed.parent.glob("lib/python*/site-packages")
    environment = {**os.environ, "PYTHONPATH": str(packages)}  # of the processes that the verbs start
    trained, _, _, found, pushed, studied, adapted = run_verbs(installed / "python", calls, tmp_path, environment)
    assert "Written to run: export/" in trained
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (record["steps"], record["git_commit"]) == (2, None)
    assert (record["fields"]["lexical_layers"], record["fields"]["fusion_layers"]) == (4, 2)  # of 6
    assert json.loads((tmp_path / "o.json").read_text())["stsb_dev"]["pairs"] > 0
    table = parquet.read_table(tmp_path / "o.parquet")
    assert table["text"].to_pylist() == texts
    assert np.isfinite(np.array(table["embedding"].to_pylist())).all()
    assert found == f"1.0000  row 7  {texts[7]}\n"
    assert "Verified in a fresh process" in pushed
    assert (tmp_path / "out" / "modeling_cmlmcse.py").is_file()
    assert "a, seed 1: done" in studied
    assert "Written to adapted: export/" in adapted
