"""The publishing command's export, and how it answers wrong input; nothing is uploaded here."""

import json
import sys

import pytest
from conftest import ROOT, tiny_tokenizer

from modeling_cmlmcse import CMLMCSEForSentenceEmbedding

sys.path.insert(0, str(ROOT))
import push_to_hub as command


def run(monkeypatch, *arguments: object) -> None:
    """The command in this process."""
    monkeypatch.setattr(sys, "argv", ["push_to_hub.py", *map(str, arguments)])
    command.main()


@pytest.fixture
def checkpoint(backbone_folders, tmp_path):
    """A training checkpoint."""
    folder = tmp_path / "run" / "checkpoint-5"
    CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders["bert"]).save_pretrained(folder)
    tiny_tokenizer("bert").save_pretrained(folder)
    return folder


@pytest.mark.parametrize("trust_free", (False, True))
def test_export_only(trust_free, checkpoint, monkeypatch, tmp_path):
    """The folder is written, with code or without."""
    options = ["--trust_free"] if trust_free else []
    run(monkeypatch, checkpoint, "--export_only", "--output_dir", tmp_path / "out", *options)
    assert (tmp_path / "out" / "modules.json").is_file()
    assert bool(list((tmp_path / "out").glob("*.py"))) != trust_free
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == "bert"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["{checkpoint}"], "expected --repo_id OWNER/NAME or --export_only, found neither"),
        (["{checkpoint}", "--export_only"], "--export_only expects --output_dir FOLDER, found none"),
        (["{checkpoint}", "--export_only", "--output_dir", "{checkpoint}"], "must not exist yet"),
        (["{checkpoint}/nothing", "--export_only", "--output_dir", "{checkpoint}-out"], "expected a model's folder"),
    ],
)
def test_wrong_input(arguments, expected, checkpoint, monkeypatch, capsys):
    """One line, exit status 2."""
    with pytest.raises(SystemExit) as stop:
        run(monkeypatch, *(argument.format(checkpoint=checkpoint) for argument in arguments))
    assert stop.value.code == 2
    assert expected in capsys.readouterr().err
