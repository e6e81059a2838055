"""The publishing command's export, its verification, and how it answers wrong input; nothing is uploaded here."""

import json
import os
import signal
import subprocess
import sys
from threading import Timer
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, BertModel

import cmlmcse.hub.export as export_module
from cmlmcse.common.errors import InputError
from cmlmcse.hub import push as command
from cmlmcse.hub.card import bare_card
from cmlmcse.hub.card_usage import Loading
from cmlmcse.hub.export import export, verify
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from support.paths import ROOT
from support.records import ADAPTED
from support.tiny import tiny_backbone, tiny_config, tiny_tokenizer

pytestmark = pytest.mark.usefixtures("warm_python")  # test_publish.py verifies in a process that is really new


def run(monkeypatch, *arguments: object) -> None:
    """The command in this process."""
    monkeypatch.setattr(sys, "argv", ["push_to_hub.py", *map(str, arguments)])
    command.main()


@pytest.mark.slow
@pytest.mark.parametrize("trust_free", (False, True))
def test_export_only(trust_free, checkpoint, monkeypatch, tmp_path, capsys):
    """The folder is written, with code or without, and verified, given prompts or fp16 too; its card says how to load
    it."""
    options = ["--trust_free", "--fp16"] if trust_free else ["--query_prompt", "the cat "]
    run(monkeypatch, checkpoint, "--export_only", "--output_dir", tmp_path / "out", *options)
    assert (tmp_path / "out" / "modules.json").is_file()
    assert bool(list((tmp_path / "out").glob("*.py"))) != trust_free
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == "bert"
    assert ("trust_remote_code" in (tmp_path / "out" / "README.md").read_text()) != trust_free
    printed = capsys.readouterr().out
    assert "Verified in a fresh process: largest difference" in printed
    assert "AutoModel" in printed
    assert "is not installed here" not in printed
    stored = {tensor.dtype for tensor in load_file(tmp_path / "out" / "model.safetensors").values()}
    assert stored == {torch.float16 if trust_free else torch.float32}
    modes = {path.stat().st_mode for path in (tmp_path / "out").rglob("*") if path.is_file() and path.suffix != ".py"}
    assert len(modes) == 1  # who may read one file may read all
    plain = AutoModel.from_pretrained(tmp_path / "out", trust_remote_code=False)
    assert {tensor.dtype for tensor in plain.parameters()} == {torch.float32}
    assert ("SentenceTransformer.encode_query" in printed) != trust_free
    assert ("Prompts: `the cat ` (query)." in (tmp_path / "out" / "README.md").read_text()) != trust_free


@pytest.mark.slow
def test_verify_without_sentence_transformers(backbone_folders, monkeypatch, tmp_path):
    """Where it is not installed and the folder has no code, the token vectors of AutoModel are compared."""
    monkeypatch.setattr(export_module, "find_spec", lambda name: None)
    model = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders["bert"], pooling="avg").eval()
    folder = export(model, tiny_tokenizer("bert"), tmp_path / "export", trust_free=True)
    differences = verify(model, tiny_tokenizer("bert"), folder)
    assert set(differences) == {"AutoModel, tokens"}
    assert max(differences.values()) <= 1e-5


def test_the_last_call_leaves_nothing_in_the_tokenizer(backbone_folders, tmp_path):
    """Training cuts texts to its own length. Programs that read tokenizer.json alone would cut by it too."""
    model = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders["bert"])
    tokenizer = tiny_tokenizer("bert")
    tokenizer(["the cat sat on a mat", "the cat"], truncation=True, max_length=4, padding=True)
    folder = export(model, tokenizer, tmp_path / "export")
    written = json.loads((folder / "tokenizer.json").read_text())
    assert (written["truncation"], written["padding"]) == (None, None)


def test_the_fresh_process_is_a_stranger(monkeypatch, tmp_path):
    """It gets no token, no network and not this checkout, but the rest of the environment."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.setenv(name, "hf_secret")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(tmp_path)]))
    found = export_module.clean_environment(str(tmp_path))
    assert "hf_secret" not in found.values()
    assert (found["PYTHONPATH"], found["HF_HUB_OFFLINE"]) == (str(tmp_path), "1")
    assert found["PATH"] == os.environ["PATH"]


def test_export_only_without_sentence_transformers_says_so(checkpoint, monkeypatch, tmp_path, capsys):
    """One line, and on."""
    monkeypatch.setattr(export_module, "verify", lambda *arguments: {"AutoModel": 0.0})
    run(monkeypatch, checkpoint, "--export_only", "--output_dir", tmp_path / "out")
    assert "sentence-transformers is not installed here: loading with it was not verified\n" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("damage", ("weights", "import"))
def test_verify_refuses(damage, backbone_folders, monkeypatch, tmp_path):
    """One weight that is another; a file that needs this checkout."""
    monkeypatch.setattr(export_module, "find_spec", lambda name: None)
    model = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders["bert"]).eval()
    folder = export(model, tiny_tokenizer("bert"), tmp_path / "export")
    if damage == "weights":
        weights = load_file(folder / "model.safetensors")
        weights["encoder.layer.3.output.dense.bias"][0] += 1e-3
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        expected = "AutoModel.* gives other embeddings than the exported model: expected .* found"
    else:
        with (folder / "pooling.py").open("a") as file:
            file.write("\nfrom cmlmcse.common.errors import InputError\n")
        expected = "does not load in a fresh process, nothing was published: .*cmlmcse"
    with pytest.raises(InputError, match=expected):
        verify(model, tiny_tokenizer("bert"), folder)


@pytest.mark.slow
def test_verify_in_float32(backbone_folders, monkeypatch, tmp_path):
    """A bfloat16 checkpoint is compared in float32, and stays bfloat16."""
    monkeypatch.setattr(export_module, "find_spec", lambda name: None)
    model = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders["bert"]).eval().to(torch.bfloat16)
    folder = export(model, tiny_tokenizer("bert"), tmp_path / "export")
    differences = verify(model, tiny_tokenizer("bert"), folder)
    assert set(differences) == {"AutoModel", "AutoModel.encode"}
    assert max(differences.values()) <= 1e-5
    assert model.dtype == torch.bfloat16


def test_export_that_fails_verification_does_not_stay(checkpoint, monkeypatch, tmp_path, capsys):
    """Refused, with status 2, and no folder is left."""

    def refuse(*arguments: object) -> None:
        raise InputError("another embedding")

    monkeypatch.setattr(export_module, "verify", refuse)
    with pytest.raises(SystemExit) as stop:
        run(monkeypatch, checkpoint, "--export_only", "--output_dir", tmp_path / "out")
    assert stop.value.code == 2
    assert "error: another embedding" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_sigterm_leaves_no_unverified_export(checkpoint, monkeypatch, tmp_path, capsys):
    """Nor the process that verifies it: it is stopped as by Ctrl-C."""
    started = []

    def wait(*arguments: object) -> None:
        Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
        with (tmp_path / "run" / "pid").open("w") as file:
            started.append(subprocess.run(["sh", "-c", "echo $$; exec sleep 20"], stdout=file, check=False))

    monkeypatch.setattr(export_module, "verify", wait)
    with pytest.raises(SystemExit) as stop:
        run(monkeypatch, checkpoint, "--export_only", "--output_dir", tmp_path / "out")
    assert stop.value.code == 143
    assert "stopped: by SIGTERM; " in (said := capsys.readouterr().err)
    assert f"{tmp_path / 'out'} was not verified and is removed" in said
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert not started  # it did not end by itself
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "run" / "pid").read_text()), 0)


def test_card_of_a_run(checkpoint, monkeypatch, tmp_path):
    """Where the run's records lie beside the checkpoint, the card is theirs, with the repository in its usage lines."""
    fields = {"contrastive_loss": "info_nce", "cmlm_weight": 0.005, "positive_column": None, "temp": 0.05}
    fields |= {"model_name_or_path": "bert-base-uncased", "train_file": "wiki.txt", "pooling": "cls_before_pooler"}
    fields |= {"mlm_probability": 0.3, "load_best_model_at_end": True}
    record = {"recipe": "cmlmcse-bert-base", "fields": fields, "hardware": {"device": "CPU", "processes": 1}}
    record |= {"steps": 5, "seed": 0, "train_seconds": 1.0, "versions": {"torch": "2", "transformers": "5"}}
    (checkpoint.parent / "run.json").write_text(json.dumps(record))
    (checkpoint.parent / "results.json").write_text("{}")
    monkeypatch.setattr(export_module, "verify", lambda *arguments: {"AutoModel": 0.0})
    options = ["--repo_id", "o/n", "--revision", "trial"]
    run(monkeypatch, checkpoint, "--export_only", "--output_dir", tmp_path / "out", *options)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "# n\n" in card
    assert 'AutoModel.from_pretrained("o/n", revision="trial", trust_remote_code=True)' in card


def test_usage():
    """The lines that load an export: pinned where a revision is known, without code where there is none."""
    assert 'AutoModel.from_pretrained("o/n", revision="v1", trust_remote_code=True)' in Loading("o/n", "v1").code()
    assert 'SentenceTransformer("o/n")' in Loading("o/n", trust_free=True).code()
    assert "transformers import AutoModel" not in Loading("o/n", trust_free=True).code()
    assert "FOLDER_OR_REPO, trust_remote_code=True" in bare_card()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["{checkpoint}"], "expected --repo_id OWNER/NAME or --export_only, found neither"),
        (["{checkpoint}", "--export_only"], "--export_only expects --output_dir FOLDER, found none"),
        (["{checkpoint}", "--export_only", "--output_dir", "{checkpoint}"], "must not exist yet"),
        (["{checkpoint}", "--repo_id", "o/n", "--output_dir", "out"], "--output_dir expects --export_only"),
        (["{checkpoint}", "--repo_id", "o/n", "--private", "--public"], "not allowed with argument --p"),
        (["nothing", "--repo_id", "o/n/m"], "--repo_id expects OWNER/NAME"),
        (["{checkpoint}", "--repo_id", "o/n", "--create_pr", "--tag", "v1"], "found --tag too"),
        (["{checkpoint}/nothing", "--export_only", "--output_dir", "{checkpoint}-out"], "expected a model's folder"),
    ],
)
def test_wrong_input(arguments, expected, checkpoint, monkeypatch, capsys):
    """One line, exit status 2."""
    with pytest.raises(SystemExit) as stop:
        run(monkeypatch, *(argument.format(checkpoint=checkpoint) for argument in arguments))
    assert stop.value.code == 2
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "chosen", "said"),
    [
        (
            None,
            "crops, rate 3e-05",
            "the card names no licence; say what others may do: --license ID (the model that it",
        ),
        ("mit", "crops, rate 3e-05", ""),
        (None, "start", ""),
        ("cc-by-4.0", "start", ""),
        ("mit", "start", "these are the weights of the start, which has cc-by-4.0; the card says mit"),
    ],
)
def test_licence_of_an_adapted_model(given, chosen, said, checkpoint, tmp_path, capsys):
    """Unchanged weights keep the licence that they have; who says another is told."""
    (checkpoint.parent / "arms").mkdir()
    results = {**ADAPTED, "start": {"license": "cc-by-4.0"}, "adapt": {**ADAPTED["adapt"], "chosen": chosen}}
    (checkpoint.parent / "results.json").write_text(json.dumps(results))
    command.ask_for_licence(checkpoint, SimpleNamespace(license=given, card_template=None))
    error = capsys.readouterr().err
    assert error.startswith(said) if said else not error


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        ("tokenizer", "expected a tokenizer, found none of"),
        ("model type", "expects a sentence encoder of cmlmcse, found the model type 'bert'; give a run of"),
        ("json", "expected JSON"),
        ("weights", "the model cannot be loaded"),
        ("record", "run.json: expected JSON: Expecting property name"),
        (
            "plain export",
            "found a model for sentence-transformers (BertModel) without this project's code, which needs no export; "
            "publish it as it is with hf upload OWNER/NAME ",
        ),
        (
            "backbone",
            "found a backbone (BertForMaskedLM); train an encoder from it, or publish it as it is with hf upload",
        ),
    ],
)
def test_wrong_checkpoint(damage, expected, checkpoint, monkeypatch, tmp_path, capsys):
    """One line, exit status 2, and no folder."""
    if damage == "tokenizer":
        (checkpoint / "tokenizer.json").unlink()
    elif damage == "model type":
        tiny_config("bert").save_pretrained(checkpoint)
    elif damage == "plain export":
        BertModel(tiny_config("bert")).save_pretrained(checkpoint)
        (checkpoint / "modules.json").write_text("[]")
    elif damage == "backbone":
        tiny_backbone("bert").save_pretrained(checkpoint)
    elif damage == "json":
        (checkpoint / "config.json").write_text("{")
    elif damage == "weights":
        (checkpoint / "model.safetensors").write_bytes(b"cut")
    else:
        for name in ("run.json", "results.json"):
            (checkpoint.parent / name).write_text("{")
    with pytest.raises(SystemExit) as stop:
        run(monkeypatch, checkpoint, "--export_only", "--output_dir", tmp_path / "out")
    assert stop.value.code == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert expected in errors[0]
    assert not (tmp_path / "out").exists()
