"""The notebook of the tutorials runs to its end on a tiny model, and is shown with its outputs.

After changing it: `jupyter execute --inplace docs/tutorials/notebook.ipynb`, in the environment of `make install` with
nbclient and ipykernel.
"""

import json
import re
import shlex
import shutil
import sysconfig
from pathlib import Path

import pytest

from cmlmcse.adaptation.arms import default_arms
from cmlmcse.cli import main
from cmlmcse.hub.export import export
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from support.paths import ROOT
from support.tiny import tiny_backbone, tiny_tokenizer

PAGE = ROOT / "docs" / "tutorials" / "notebook.ipynb"
CELLS = [{**cell, "source": "".join(cell["source"])} for cell in json.loads(PAGE.read_text(encoding="utf-8"))["cells"]]
CODE = [cell for cell in CELLS if cell["cell_type"] == "code"]

# of the standard library; it reads all, which takes seconds
PART = ("asyncio", "email", "http", "importlib", "logging", "multiprocessing", "tkinter", "unittest", "urllib", "xml")


def as_python(source: str) -> str:
    """A cell's code, with `cmlmcse` called where the cell gives the command to a shell."""
    return re.sub(
        r"^(?:said = )?!cmlmcse (.*)$", lambda found: f"main({shlex.split(found[1])!r})", source, flags=re.MULTILINE
    )


@pytest.mark.slow
@pytest.mark.usefixtures("pictures")
def test_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """Every cell, from the documentation to a search in it."""
    tiny_backbone("bert", num_hidden_layers=2).save_pretrained(tmp_path / "backbone")
    model = CMLMCSEForSentenceEmbedding.from_backbone(str(tmp_path / "backbone"), pooling="avg", cmlm_weight=0.0)
    start = export(model.eval(), tiny_tokenizer("bert"), tmp_path / "start")
    monkeypatch.setattr("cmlmcse.hub.export.verify", lambda *_: {"AutoModel": 0.0})  # tests/hub/test_push_to_hub.py
    two = "cmlmcse.adaptation.arms.default_arms"  # all of them: tests/adaptation
    monkeypatch.setattr(two, lambda *given: dict(list(default_arms(*given).items())[:2]))
    monkeypatch.chdir(PAGE.parent)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # put back afterwards
    settings, places, *cells = [as_python(cell["source"]) for cell in CODE]
    names: dict = {"main": main}
    exec(settings + "\n" + places, names)
    assert Path(names["MODEL"]).is_dir()
    names |= {"MODEL": str(start), "STEPS": 3}
    library = Path(sysconfig.get_path("stdlib"))
    for name in PART:
        shutil.copytree(library / name, tmp_path / "library" / name, ignore=shutil.ignore_patterns("test*"))
    with monkeypatch.context() as patch:
        patch.setattr("sysconfig.get_path", lambda _: str(tmp_path / "library"))
        exec(cells.pop(0), names)
    assert len(names["documents"]) == len(Path("corpus.jsonl").read_text().splitlines()) > 1000
    del names["documents"][400:]
    Path("corpus.jsonl").write_text("\n".join(map(json.dumps, names["documents"])))
    for cell in cells:
        capsys.readouterr()
        exec(cell, names)
    scores = [float(score) for score in re.findall(r"^(\d\.\d{4})  ", capsys.readouterr().out, re.MULTILINE)]
    assert scores[:3] == scores[3:]  # the command's own, and those of the file that it wrote
    assert len(scores) == 6
    assert 2 > scores[0] >= scores[1] >= scores[2]
    assert "license: apache-2.0" in names["card"]


def test_is_shown_with_its_outputs() -> None:
    """Of one run from the top, without an error and without a place on the machine that ran it."""
    assert [cell["execution_count"] for cell in CODE] == list(range(1, len(CODE) + 1))
    outputs = [output for cell in CODE for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} == {"stream", "execute_result"}
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not re.search(r"(?<![\w.])/(tmp|home|root|work|usr)/|Traceback|Warning", json.dumps(outputs))
    for cell in CODE:
        assert bool(cell["outputs"]) == bool(re.search(r"^ *(print\(|!|adapted = )", cell["source"], re.MULTILINE))


def test_links() -> None:
    """To pages that are there."""
    text = "\n".join(cell["source"] for cell in CELLS if cell["cell_type"] == "markdown")
    links = re.findall(r"\]\(([^)#]+)", text)
    assert len(links) > 3
    assert [link for link in links if not (PAGE.parent / link).exists()] == []
