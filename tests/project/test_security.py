"""Nobody is let in: what comes from others is read as data, what is exported touches nothing, tokens stay secret."""

import ast
import importlib
import json
import pickle
import re
import shutil
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import numpy as np
import pytest
import torch
from packaging.requirements import Requirement
from packaging.version import Version
from transformers.trainer_pt_utils import safe_globals

from cmlmcse.hub.export import export
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from support import warm
from support.commands import MODULES
from support.paths import ROOT
from support.tiny import WORDS, tiny_tokenizer
from support.training import write_pairs

SECRET = "hf_aVerySecretTokenOfSomebodys"
CODE = "from pathlib import Path\nPath({marker!r}).touch()\n"


class Opens:
    """What runs code when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple:
        return open, (str(self.marker), "w")


@pytest.fixture
def place(tmp_path, backbone_folders, data_dir, monkeypatch):
    """The current folder: a backbone, an export, text, development sets. `ran` is what poison would make."""
    shutil.copytree(backbone_folders["bert"], tmp_path / "backbone")
    model = CMLMCSEForSentenceEmbedding.from_backbone(str(tmp_path / "backbone")).eval()
    export(model, tiny_tokenizer("bert"), tmp_path / "export")
    (tmp_path / "text.txt").write_text("\n".join(" ".join(WORDS[i : i + 6]) for i in range(50)) + "\n")
    shutil.copytree(data_dir, tmp_path / "data")
    write_pairs(tmp_path / "dev.tsv")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(monkeypatch, command: str, arguments: str) -> int:
    """The exit status of a command in this process."""
    monkeypatch.setattr(sys, "argv", [MODULES[command], *arguments.split()])
    try:
        importlib.import_module(MODULES[command]).main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


TRAIN = (
    "quickstart --model_name_or_path {model} --train_file {text} --dev_set dev.tsv --output_dir out --use_cpu true "
    "--final_evaluation none --max_steps 2 --eval_strategy steps --eval_steps 2 --save_strategy steps "
    "--save_steps 2 --lexical_layers 2 --fusion_layers 1 "
    "--disable_tqdm true"
)
COMMANDS = [
    ("train", TRAIN.format(model="poisoned", text="text.txt")),
    ("train", TRAIN.format(model="poisoned", text="text.txt") + " --stage pretrain --dev_set none"),
    ("train", TRAIN.format(model="backbone", text="text.txt") + " --rtd_weight 1 --rtd_generator poisoned"),
    ("train", TRAIN.format(model="backbone", text="text.txt") + " --fusion_init poisoned"),
    ("evaluation", "poisoned --data_dir data --tasks stsb_dev --pooling avg --output results.json"),
    ("encode", "poisoned text.txt --output out.npy"),
    ("push", "poisoned --export_only --output_dir pushed"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("command", "arguments"), COMMANDS, ids=lambda value: value.split()[0])
@pytest.mark.parametrize("kind", ("bert", "of its own"))
def test_code_of_a_model_never_runs(kind, command, arguments, place, monkeypatch, capsys):
    """A folder that brings code for its configuration, model and tokenizer: under a known kind the library's code is
    used, another kind is refused with one line; nobody is asked."""
    poisoned = place / "poisoned"
    shutil.copytree(place / "backbone", poisoned)
    (poisoned / "evil.py").write_text(CODE.format(marker=str(place / "ran")))
    classes = ("AutoConfig", "AutoModel", "AutoModelForMaskedLM")
    config = json.loads((poisoned / "config.json").read_text())
    config |= {"model_type": "bert" if kind == "bert" else "evil", "auto_map": dict.fromkeys(classes, "evil.Evil")}
    (poisoned / "config.json").write_text(json.dumps(config))
    fields = json.loads((poisoned / "tokenizer_config.json").read_text())
    fields["auto_map"] = {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}
    (poisoned / "tokenizer_config.json").write_text(json.dumps(fields))
    modules = [{"idx": 0, "name": "0", "path": "", "type": "evil.Evil"}]
    (poisoned / "modules.json").write_text(json.dumps(modules))
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked"))
    assert call(monkeypatch, command, arguments) in ((0, 2) if kind == "bert" else (2,))
    assert not (place / "ran").exists()
    if kind != "bert":
        assert len([line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("command", "arguments"), COMMANDS, ids=lambda value: value.split()[0])
def test_pickled_weights_never_run(command, arguments, place, monkeypatch, capsys):
    """Weights as a pickle that would run code: one line."""
    poisoned = place / "poisoned"
    shutil.copytree(place / "backbone", poisoned)
    (poisoned / "model.safetensors").unlink()
    (poisoned / "pytorch_model.bin").write_bytes(pickle.dumps({"weight": Opens(place / "ran")}))
    assert call(monkeypatch, command, arguments) == 2
    assert not (place / "ran").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ("optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json",
                                  "model-00002-of-00002.safetensors"))  # fmt: skip
@pytest.mark.parametrize("how", ("poisoned", "truncated"))
def test_a_checkpoint_is_read_as_data(how, name, place, monkeypatch, capsys):
    """A file that would run code, or that is cut off: one line that names it."""
    assert call(monkeypatch, "train", TRAIN.format(model="backbone", text="text.txt")) == 0
    path = place / "out" / "checkpoint-2" / name
    if how == "truncated":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif path.suffix in (".pt", ".pth"):
        torch.save({"state": Opens(place / "ran")}, path)
    else:
        path.write_bytes(pickle.dumps(Opens(place / "ran")))
    arguments = TRAIN.format(model="backbone", text="text.txt") + " --resume_from_checkpoint auto"
    assert call(monkeypatch, "train", arguments) == 2
    assert f"checkpoint-2/{name}: expected tensors and plain values" in capsys.readouterr().err
    assert not (place / "ran").exists()


@pytest.mark.slow
def test_no_pickle_is_written(place, monkeypatch):
    """Weights are safetensors; what Trainer writes beside them holds tensors and plain values alone."""
    assert call(monkeypatch, "train", TRAIN.format(model="backbone", text="text.txt")) == 0
    files = {path.name: path for path in (place / "out").rglob("*") if path.is_file()}
    pickled = {
        name for name in files if name.endswith((".pt", ".pth", ".bin", ".pkl", ".pickle", ".joblib", ".npy", ".npz"))
    }
    assert pickled == {"optimizer.pt", "scheduler.pt", "rng_state.pth", "dev_start.npz"}
    pickled.remove("dev_start.npz")
    assert len(np.load(files["dev_start.npz"], allow_pickle=False)["values"]) == 60
    with safe_globals():
        for name in pickled:
            assert torch.load(files[name], weights_only=True)


@pytest.mark.parametrize("command", ("train", "study"))
def test_yaml_is_read_as_data(command, place, monkeypatch, capsys):
    """A recipe and a study with a tag that would call a function: one line."""
    (place / "evil.yaml").write_text(f"temp: !!python/object/apply:builtins.open ['{place / 'ran'}', w]\n")
    assert call(monkeypatch, command, "evil.yaml") == 2
    assert "evil.yaml must be a YAML file" in capsys.readouterr().err
    assert not (place / "ran").exists()


@pytest.mark.parametrize("name", ("../../escaped", "/escaped", "a/b"))
def test_a_study_stays_in_its_folder(name, place, monkeypatch, capsys):
    """Names of studies and arms are no paths."""
    plain = "recipe: quickstart\nseeds: [1]\nbaseline: a\nmetrics: [dev.spearman]\n"
    (place / "arm.yaml").write_text(f"{plain}arms: {{a: {{}}, {name}: {{temp: 0.1}}}}\n")
    (place / "name.yaml").write_text(f"name: {name}\n{plain}arms: {{a: {{}}}}\n")
    for file in ("arm.yaml", "name.yaml"):
        assert call(monkeypatch, "study", file) == 2
        assert name in capsys.readouterr().err


ROWS = {
    "rows.jsonl": '{"text": "../../escaped"}\n{"text": "$(touch ran) `touch ran` {{ 7 * 7 }}"}\n',
    "rows.csv": "text\n\"=cmd|'/c touch ran'!A0\"\n\"';open('ran','w')#\"\n",
    "rows.txt": "__import__('os').system('touch ran')\n<script>alert(1)</script> ${jndi:ldap://localhost/a}\n\x00\x1b]0;ran\x07\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_rows_are_text(name, place, monkeypatch):
    """Whatever a row looks like, it is trained on, and nothing appears beside the output folder."""
    (place / name).write_text(ROWS[name] * 8)
    before = {path.name for path in place.iterdir()}
    assert call(monkeypatch, "train", TRAIN.format(model="backbone", text=name)) == 0
    assert {path.name for path in place.iterdir()} == before | {"out"}


def test_a_folder_with_a_script_is_no_dataset(place, monkeypatch, capsys):
    """The loading scripts that `datasets` once ran."""
    (place / "corpus").mkdir()
    (place / "corpus" / "corpus.py").write_text(CODE.format(marker=str(place / "ran")))
    for text in ("corpus", "corpus/corpus.py"):
        assert call(monkeypatch, "train", TRAIN.format(model="backbone", text=text)) == 2
    assert not (place / "ran").exists()


@pytest.mark.slow
def test_templates_of_a_chat_are_left_out(place, monkeypatch):
    """A tokenizer's chat templates are files by their names; a sentence encoder has none."""
    path = place / "backbone" / "tokenizer_config.json"
    fields = json.loads(path.read_text())
    fields["chat_template"] = [{"name": f"../../{name}", "template": "x"} for name in ("one", "two")]
    path.write_text(json.dumps(fields))
    assert call(monkeypatch, "train", TRAIN.format(model="backbone", text="text.txt")) == 0
    assert not list(place.rglob("*.jinja"))


@pytest.mark.slow
@pytest.mark.usefixtures("warm_python")
def test_tokens_stay_secret(place, monkeypatch, capfd):
    """In the environment: in no file, no log and no card. On the command line it is refused, and no message has it."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY"):
        monkeypatch.setenv(name, SECRET)
    arguments = TRAIN.format(model="backbone", text="text.txt")
    assert call(monkeypatch, "train", f"{arguments} --hub_token {SECRET}") == 2
    assert not (place / "out").exists()
    assert call(monkeypatch, "train", arguments) == 0
    assert call(monkeypatch, "push", "out/checkpoint-2 --export_only --output_dir pushed") == 0
    assert call(monkeypatch, "train", f"{arguments} --hub_token {SECRET} --temp hot") == 2
    files = [path for path in place.rglob("*") if path.is_file()]
    assert {"run.json", "README.md", "trainer_state.json"} <= {path.name for path in files}
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]
    assert SECRET not in "".join(capfd.readouterr())


ALLOWED = {"torch", "transformers", "safetensors"}  # the last is what transformers reads weights with
HARMLESS = {"collections", "contextlib", "copy", "dataclasses", "functools", "os", "time", "types", "typing", "zlib"}
HARMLESS |= {"difflib", "inspect"}  # a signature that names the configuration's fields, and the nearest one
HARMLESS |= {"threading"}  # a lock, so that one thread at a time sets the length that a tokenizer cuts at
HARMLESS |= {"json", "pathlib"}  # save_pretrained writes modules.json
FORBIDDEN = {"open", "eval", "exec", "compile", "__import__", "input", "breakpoint"}
QUIET = """
import sys
folder = sys.argv[1]
import torch
from transformers import AutoModel, AutoTokenizer
model = AutoModel.from_pretrained(folder, trust_remote_code=True).eval()
tokenizer = AutoTokenizer.from_pretrained(folder)
model.encode(["a sentence"], tokenizer=tokenizer)  # what torch loads when it is first used
seen = []
watched = ("open", "exec", "compile", "os.system", "subprocess.Popen", "os.posix_spawn", "shutil.rmtree")
sys.addaudithook(lambda name, _: seen.append(name) if name in watched or name.startswith("socket.") else None)
model.encode(["the cat sat", "a big red dog"] * 20, tokenizer=tokenizer, batch_size=8)
model(**tokenizer(["the cat", "a big red dog"], padding=True, return_tensors="pt"))
print(sorted(set(seen)))
"""


@pytest.mark.slow
def test_exported_code_asks_for_nothing(place):
    """It imports PyTorch, transformers and the standard library, calls nothing that runs text, and opens no file to
    embed."""
    files = sorted((place / "export").rglob("*.py"))
    assert len(files) > 5
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            for name in names:
                top = name.split(".")[0]
                assert top in ALLOWED | HARMLESS, f"{file.name} imports {name}"
            called = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
            assert called not in FORBIDDEN, f"{file.name} calls {called}"
    done = subprocess.run(
        [warm.python(), "-c", QUIET, str(place / "export")], capture_output=True, text=True, check=False, cwd=place
    )
    assert done.stdout.strip().splitlines()[-1] == "[]", done.stdout + done.stderr


def test_tested_versions_are_exact_and_allowed():
    """constraints.txt pins each direct dependency to one release within its range in setup.cfg, constraints-min.txt
    those that are needed at run time to the lower ends; no range admits a torch whose `weights_only` can be got around
    (CVE-2025-32434, before 2.6)."""
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    needed = requirements(setup["options"]["install_requires"])
    declared = needed | requirements("\n".join(setup["options.extras_require"].values()))
    newest, lowest = pins("constraints.txt"), pins("constraints-min.txt")
    assert declared.keys() <= newest.keys()
    assert needed.keys() <= lowest.keys()
    for name, requirement in declared.items():
        assert newest[name] in requirement.specifier, f"{requirement}, constraints.txt has {newest[name]}"
        if name in lowest:
            (least,) = (Version(one.version) for one in requirement.specifier if one.operator == ">=")
            assert lowest[name] == least, f"{requirement}, constraints-min.txt has {lowest[name]}"
    assert "2.5.1" not in needed["torch"].specifier


def requirements(lines: str) -> dict[str, Requirement]:
    """The requirements of a block of setup.cfg, by name."""
    found = [Requirement(line) for line in lines.splitlines() if line and "%" not in line]
    return {canonical(requirement.name): requirement for requirement in found}


def pins(file: str) -> dict[str, Version]:
    """Name → version, of which each line has one, exact."""
    lines = [line for line in (ROOT / file).read_text().splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines), file
    return {canonical(line.split("==")[0]): Version(line.split("==")[1]) for line in lines}


def canonical(name: str) -> str:
    """A package's name as the registry compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()
