"""The shape of the project: which files ship, and which room and test may import which."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name

import pytest

import cmlmcse
import modeling_cmlmcse
from cmlmcse.hub.export import export
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from support import warm
from support.combinations import LEFT_OUT
from support.paths import ROOT
from support.tiny import tiny_tokenizer

MODEL, TOOL = (Path(package.__file__).parent for package in (modeling_cmlmcse, cmlmcse))
HARMLESS = {  # of the standard library: no process, no network, no other code
    "collections", "contextlib", "copy", "dataclasses", "difflib", "functools", "inspect", "json", "math", "os",
    "pathlib", "threading", "time", "types", "typing", "zlib",
}  # fmt: skip
# Each room of the tool may import those before it. The last one is the files of the folder itself: the commands.
ROOMS = ("common", "data", "models", "evaluation", "hub", "training", "study", "adaptation", "encode", "search", "")


def imports(file: Path, package: str) -> Iterator[str]:
    """The absolute names of all modules that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def test_an_export_holds_exactly_the_model_folder(backbone_folders, tmp_path):
    """The same Python files with the same content, in both directions."""
    model = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders["bert"], cmlm_weight=0.0)
    folder = export(model, tiny_tokenizer("bert"), tmp_path / "export")
    shipped = {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*.py")}
    assert shipped == {path.relative_to(MODEL).as_posix(): path.read_text() for path in MODEL.rglob("*.py")}


@pytest.mark.parametrize("file", sorted(MODEL.glob("*.py")), ids=lambda path: path.name)
def test_the_model_imports_torch_and_transformers_alone(file):
    """What ships needs no package that a user of transformers has not, and nothing of the tool."""
    allowed = {"torch", "transformers", "safetensors", "modeling_cmlmcse", *HARMLESS}
    assert {name.split(".")[0] for name in imports(file, "modeling_cmlmcse")} <= allowed


@pytest.mark.parametrize("file", sorted(MODEL.glob("*.py")), ids=lambda path: path.name)
def test_the_model_does_what_its_first_lines_say(file):
    """Of `os` it takes paths alone; it evaluates no text, opens no file by itself, and writes in `save` and
    `save_pretrained`'s files alone."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert not names & {"eval", "exec", "compile", "open", "__import__"}
    taken = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    of_os = {node.attr for node in taken if isinstance(node.value, ast.Name) and node.value.id == "os"}
    assert of_os <= {"PathLike", "fspath", "path", "register_at_fork"}
    used = names | {node.attr for node in taken}
    writes = used & {"write_text", "write_bytes", "mkdir", "unlink", "rename", "rmdir", "touch", "save_file"}
    assert not writes or file.name in ("mask_pooling.py", "sentence_transformers_files.py"), writes


@pytest.mark.parametrize("room", ROOMS)
def test_imports_go_one_way(room):
    """A room of the tool imports itself and the rooms before it."""
    files = sorted((TOOL / room).glob("*.py"))
    assert files
    allowed = ROOMS[: ROOMS.index(room) + 1]
    package = f"cmlmcse.{room}".rstrip(".")
    for file in files:
        for name in imports(file, package):
            if name.startswith("cmlmcse.") and room:
                assert name.split(".")[1] in allowed, f"{file.relative_to(TOOL)} imports {name}"


def test_the_map_names_every_room_and_only_what_exists():
    """CONTRIBUTING.md lists the rooms in the order of their imports, and what its walks name is in the code."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert tuple(re.findall(r"^\| `(\w+)` \|", text, flags=re.MULTILINE)) == ROOMS[:-1]
    assert {path.parent.name for path in TOOL.glob("*/__init__.py")} == set(ROOMS[:-1])
    names = re.findall(r"`((?:modeling_)?cmlmcse\.\w[\w.]*)`", text)
    assert len(names) > 15
    assert all(callable(resolve_name(name)) for name in names)  # an AttributeError or ImportError says which is wrong


def test_no_test_file_imports_another():
    """What two of them need is in tests/support, or a fixture of a conftest.py."""
    folder = ROOT / "tests"
    files = sorted(path for path in folder.rglob("*.py") if path.name == "conftest.py" or path.name.startswith("test_"))
    assert len(files) > 50
    names = {path.stem for path in files}
    assert len(names) == len(files) - len(list(folder.rglob("conftest.py"))) + 1  # pytest needs a name for each
    for file in files:
        found = {part for name in imports(file, "") for part in name.split(".")} & names
        assert not found, f"{file.relative_to(folder)} imports {found}"


@pytest.mark.slow
def test_importing_the_model_changes_nothing():
    """No environment variable, no method of PyTorch or transformers is another one afterwards."""
    code = """
import os, torch, transformers
from transformers.models.bert import modeling_bert
def state():
    watched = (torch.nn.Linear, torch.nn.Dropout, modeling_bert.BertLayer, torch.nn.functional)
    return dict(os.environ), [dict(vars(each)) for each in watched]
before = state()
import modeling_cmlmcse
assert state() == before
"""
    subprocess.run([warm.python(), "-c", code], cwd=ROOT, check=True)


def test_what_is_left_out_exists() -> None:
    """Each test of the table of combinations is in its file."""
    for name in LEFT_OUT:
        file, _, test = name.partition("::")
        assert re.search(rf"^def {test}\(", (ROOT / file).read_text(), re.MULTILINE), name
