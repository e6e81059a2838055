"""The training command from a recipe to its folder, on tiny models; and how it answers wrong input."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from conftest import ROOT, WORDS, tiny_tokenizer
from transformers import AutoModel, BertConfig, BertForMaskedLM, DistilBertConfig, DistilBertForMaskedLM

sys.path.insert(0, str(ROOT))
import train as command


def write_data(folder: Path) -> Path:
    """A data folder with an STS-B dev set of the published size, of tiny sentences."""
    rng = np.random.default_rng(0)
    lines = []
    for _ in range(1500):
        words = rng.choice(WORDS, size=6)
        other = np.where(rng.random(6) < rng.random(), words, rng.choice(WORDS, size=6))
        lines.append(f"{5 * (words == other).mean():.2f}\t{' '.join(words)}\t{' '.join(other)}")
    (folder / "sts" / "stsb").mkdir(parents=True)
    (folder / "sts" / "stsb" / "dev.tsv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory) -> Path:
    """The data folder."""
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def recipe(tmp_path, text_file, data_dir, backbone_folders) -> Path:
    """A recipe of a few steps."""
    fields = {
        "model_name_or_path": backbone_folders["bert"],
        "train_file": str(text_file),
        "data_dir": str(data_dir),
        "final_evaluation": "stsb_dev,geometry",
        "cmlm_weight": 0.1,
        "pooling": "avg",
        "learning_rate": "1e-3",
        "per_device_train_batch_size": 16,
        "max_steps": 12,
        "eval_steps": 6,
        "save_steps": 6,
        "logging_steps": 3,
        "use_cpu": True,
        "disable_tqdm": True,
        "output_dir": str(tmp_path / "run"),
    }
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(fields))
    return path


def run(monkeypatch, *arguments: object) -> None:
    """The command in this process."""
    monkeypatch.setattr(sys, "argv", ["train.py", *map(str, arguments)])
    command.main()


def history(folder: Path, name: str) -> list[float]:
    """One logged quantity of a run."""
    log = json.loads((folder / "run.json").read_text())["log"]
    return [row[name] for row in log if name in row]


@pytest.mark.parametrize("kind", ("bert", "roberta"))
def test_smoke_run(kind, recipe, backbone_folders, monkeypatch, tmp_path):
    """Both losses fall on both kinds of backbone, and the folder holds what INTERFACE promises."""
    run(monkeypatch, recipe, "--model_name_or_path", backbone_folders[kind], "--max_steps", 60, "--eval_steps", 30,
        "--save_steps", 30, "--logging_steps", 10)  # fmt: skip
    folder = tmp_path / "run"
    for name in ("contrastive_loss", "cmlm_loss", "loss"):
        losses = history(folder, name)
        assert losses[-1] < 0.9 * losses[0], (name, losses)
    assert len(history(folder, "eval_dev_score")) == 2
    for name in ("alignment", "uniformity", "tokens_per_second", "cmlm_accuracy"):
        assert len(history(folder, name)) == 6
    for name in ("loss", "dev_score", "cosine_by_gold"):
        assert (folder / "plots" / f"{name}.png").stat().st_size > 5000
    model = AutoModel.from_pretrained(folder / "export", add_pooling_layer=False)
    assert model.config.model_type == kind


def test_records(recipe, monkeypatch, tmp_path):
    """results.json and run.json have the promised entries; what did not run is absent; no path leaks."""
    run(monkeypatch, recipe)
    folder = tmp_path / "run"
    results = json.loads((folder / "results.json").read_text())
    assert results["model"] == "tiny"
    assert set(results["stsb_dev"]) >= {"spearman", "pearson", "pairs"}
    assert results["stsb_dev"]["pairs"] == 1500
    assert -100 <= results["stsb_dev"]["spearman"] <= 100
    assert results["dev"]["spearman"] == pytest.approx(results["stsb_dev"]["spearman"], abs=1e-3)
    assert set(results["geometry"]) >= {"alignment", "uniformity"}
    assert "sts" not in results
    record = json.loads((folder / "run.json").read_text())
    assert record["recipe"] == "tiny"
    assert record["fields"]["cmlm_weight"] == 0.1
    assert record["fields"]["max_steps"] == 12
    assert record["steps"] == 12
    assert record["tokens"] > 12 * 32 * 5
    assert record["train_data"]["file"] == "text.txt"
    assert len(record["train_data"]["sha256"]) == 64
    assert {"torch", "transformers"} <= record["versions"].keys()
    best = max(history(folder, "eval_dev_score"))
    assert results["dev"]["spearman"] == pytest.approx(best, abs=1e-3)  # the best checkpoint is what is exported
    card = (folder / "export" / "README.md").read_text()
    assert f"{results['dev']['spearman']:.2f}" in card
    for file in (folder / "export").rglob("*.*"):
        assert str(tmp_path.parent).encode() not in file.read_bytes(), file


def test_lambda_zero_has_no_auxiliary_network(recipe, monkeypatch, tmp_path):
    """λ = 0 trains SimCSE: no auxiliary weights in the checkpoint, no auxiliary loss in the log."""
    run(monkeypatch, recipe, "--cmlm_weight", 0)
    assert not history(tmp_path / "run", "cmlm_loss")
    from safetensors import safe_open

    with safe_open(tmp_path / "run" / "checkpoint-12" / "model.safetensors", "pt") as weights:
        assert not [name for name in weights.keys() if name.startswith("auxiliary")]  # noqa: SIM118


def test_gradient_accumulation_averages_batches(recipe, backbone_folders, monkeypatch, tmp_path):
    """Two accumulated batches of 8 give the mean of the two batches' gradients: the first step's gradient norm is
    the norm of that mean, computed here by hand."""
    from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
    from modeling_cmlmcse.training.data import EpochSampler, Example, ViewCollator
    from modeling_cmlmcse.training.masking import Masking

    config = BertConfig.from_pretrained(backbone_folders["bert"])
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    still = tmp_path / "still"
    BertForMaskedLM.from_pretrained(backbone_folders["bert"], config=config).save_pretrained(still)
    tokenizer = tiny_tokenizer("bert")
    tokenizer.save_pretrained(still)
    run(monkeypatch, recipe, "--model_name_or_path", still, "--per_device_train_batch_size", 8,
        "--gradient_accumulation_steps", 2, "--logging_steps", 1, "--max_steps", 1, "--projection", "none",
        "--dev_set", "none", "--final_evaluation", "none")  # fmt: skip
    logged = history(tmp_path / "run", "grad_norm")[0]

    torch.manual_seed(0)
    model = CMLMCSEForSentenceEmbedding.from_backbone(still, cmlm_weight=0.1, projection="none", pooling="avg").train()
    lines = (tmp_path / "text.txt").read_text().splitlines()
    keys = list(EpochSampler(len(lines), 42))[:16]
    masking = Masking(0.15, tokenizer.mask_token_id, len(tokenizer), frozenset(tokenizer.all_special_ids))
    collator = ViewCollator(tokenizer, 42, masking)
    for part in (keys[:8], keys[8:]):
        examples = [Example(tokenizer(lines[key])["input_ids"], 0, key) for key in part]
        (model(**collator(examples)).loss / 2).backward()
    norm = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()
    assert logged == pytest.approx(norm.item(), rel=1e-4)


@pytest.mark.parametrize("workers", (0, 2))
def test_resume_gives_the_uninterrupted_run(workers, recipe, monkeypatch, tmp_path):
    """A run resumed from its middle ends in bit-identical weights; the extractor is still frozen."""
    options = ("--dev_set", "none", "--final_evaluation", "none", "--dataloader_num_workers", workers)
    options += ("--max_steps", 30, "--save_steps", 18, "--save_total_limit", 5)  # 13 steps an epoch: the second one
    run(monkeypatch, recipe, *options, "--output_dir", tmp_path / "whole")
    checkpoint = tmp_path / "whole" / "checkpoint-18"
    checkpoint.rename(tmp_path / "copy")
    (tmp_path / "part").mkdir()
    (tmp_path / "copy").rename(tmp_path / "part" / "checkpoint-18")
    run(monkeypatch, recipe, *options, "--output_dir", tmp_path / "part", "--resume_from_checkpoint", "auto")
    for file in ("export/model.safetensors", "checkpoint-30/model.safetensors"):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "part" / file).read_bytes(), file


def test_streamed_text(recipe, monkeypatch, tmp_path):
    """A streamed corpus trains, over more than one epoch."""
    run(monkeypatch, recipe, "--streaming", True, "--max_steps", 20, "--dev_set", "none", "--final_evaluation", "none")
    assert history(tmp_path / "run", "epoch")[-1] > 1


@pytest.mark.parametrize("augmentation", ("repeat_tokens", "drop_one_token"))
def test_augmentations_train(augmentation, recipe, monkeypatch, tmp_path):
    """The augmentations of Table 3 train, and change the contrastive loss of the first batch."""
    plain = ("--dev_set", "none", "--final_evaluation", "none", "--max_steps", 1, "--logging_steps", 1)
    run(monkeypatch, recipe, *plain, "--output_dir", tmp_path / "none")
    run(monkeypatch, recipe, *plain, "--output_dir", tmp_path / "some", "--augmentation", augmentation)
    first, second = (history(tmp_path / name, "contrastive_loss")[0] for name in ("none", "some"))
    assert second > first  # the views are further apart


def test_gradient_checkpointing_changes_nothing(recipe, monkeypatch, tmp_path):
    """Recomputed activations give the same losses."""
    plain = ("--dev_set", "none", "--final_evaluation", "none", "--max_steps", 3, "--logging_steps", 1)
    run(monkeypatch, recipe, *plain, "--output_dir", tmp_path / "kept")
    run(monkeypatch, recipe, *plain, "--output_dir", tmp_path / "again", "--gradient_checkpointing", True)
    assert history(tmp_path / "kept", "loss") == pytest.approx(history(tmp_path / "again", "loss"), abs=1e-6)


@pytest.mark.parametrize("projection", ("mlp", "batchnorm"))
def test_bf16_and_projections(projection, recipe, monkeypatch, tmp_path):
    """bf16 autocast trains with [CLS] pooling and every training head, close to fp32's losses."""
    plain = ("--dev_set", "none", "--final_evaluation", "none", "--max_steps", 4, "--logging_steps", 4)
    plain += ("--pooling", "cls_before_pooler", "--projection", projection, "--learning_rate", "1e-5")
    run(monkeypatch, recipe, *plain, "--output_dir", tmp_path / "fp32")
    run(monkeypatch, recipe, *plain, "--output_dir", tmp_path / "bf16", "--bf16", True)
    for name in ("contrastive_loss", "cmlm_loss"):
        full, half = (history(tmp_path / folder, name)[0] for folder in ("fp32", "bf16"))
        assert half == pytest.approx(full, rel=0.03)
        assert half != full


def test_two_processes_and_tensorboard(recipe, tmp_path):
    """`accelerate launch` with 2 processes runs to the end and reports to TensorBoard."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TENSORBOARD_LOGGING_DIR": str(tmp_path),
    }
    config = ROOT / "configuration" / "accelerate" / "multi-cpu.yaml"
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(config)]
    done = subprocess.run(
        [*launch, str(ROOT / "train.py"), str(recipe), "--report_to", "tensorboard"],
        env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["hardware"]["processes"] == 2
    assert record["steps"] == 12
    assert list(tmp_path.rglob("events.out.tfevents.*"))


# --- wrong input: exit status 2, one line, nothing overwritten


def bad_backbones(tmp_path: Path) -> dict[str, str]:
    """Folders of models that cannot be used."""
    tokenizer = tiny_tokenizer("bert")
    folders = {}
    distil = DistilBertConfig(vocab_size=80, dim=32, n_layers=2, n_heads=2, hidden_dim=64, max_position_embeddings=66)
    small = BertConfig(vocab_size=40, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
    for name, model in (("distilbert", DistilBertForMaskedLM(distil)), ("vocabulary", BertForMaskedLM(small))):
        folders[name] = str(tmp_path / name)
        model.save_pretrained(folders[name])
        tokenizer.save_pretrained(folders[name])
    folders["empty"] = str(tmp_path / "empty")
    Path(folders["empty"]).mkdir()
    return folders


WRONG = [
    (["--train_file", "{tmp}/absent.txt"], ["absent.txt", "expected a file or a Hub dataset id"]),
    (["--train_file", "{tmp}/empty.txt"], ["empty.txt", "found an empty file"]),
    (["--train_file", "{tmp}/latin.txt"], ["latin.txt", "expected UTF-8 text, found byte 0xe9 at offset 3"]),
    (["--train_file", "{tmp}/table.csv", "--text_column", "body"], ["expected column 'body'", "title"]),
    (["--train_file", "{tmp}/one.txt"], ["at least 2 sentences", "found 1"]),
    (["--model_name_or_path", "{distilbert}"], ["built like BERT or RoBERTa", "'distilbert'"]),
    (["--model_name_or_path", "{vocabulary}"], ["vocabulary of 40", "found 80 tokens"]),
    (["--model_name_or_path", "{empty}"], ["expected a tokenizer, found none"]),
    (["--model_name_or_path", "package:no_such_package/model"], ["expects the package no_such_package"]),
    (["--model_sha256", "00"], ["model_sha256 00, found"]),
    (["--lexical_layers", "7"], ["lexical_layers must be at most 6", "found 7"]),
    (["--fusion_init", "next", "--lexical_layers", "6"], ["fusion_init 'next' takes", "6"]),
    (["--pooling", "max"], ["pooling must be one of", "found 'max'"]),
    (["--cmlm_wieght", "1"], ["unknown field 'cmlm_wieght'", "did you mean cmlm_weight?"]),
    (["--cmlm_weight", "much"], ["--cmlm_weight", "invalid float value: 'much'"]),
    (["--fp16", "true"], ["fp16 needs a GPU, found none"]),
    (["--per_device_train_batch_size", "1"], ["must be at least 2", "in-batch negatives", "found 1"]),
    (["--mlm_probability", "1.5"], ["mlm_probability must be between 0 and 1, found 1.5"]),
    (["--max_seq_length", "2"], ["max_seq_length must be at least 3", "found 2"]),
    (["--augmentation", "shuffle"], ["augmentation must be one of", "found 'shuffle'"]),
    (["--dev_set", "mine"], ["dev_set must be one of stsb, lee, none, found 'mine'"]),
    (["--data_dir", "{tmp}/nowhere"], ["nowhere"]),
    (["--final_evaluation", "stss"], ["stss", "sts"]),
    (["--output_dir", "{tmp}/taken"], ["found run.json of another run", "--resume_from_checkpoint auto"]),
    (["--output_dir", "{tmp}/fresh", "--resume_from_checkpoint", "auto"], ["expects a checkpoint in output_dir"]),
    (["--resume_from_checkpoint", "{tmp}/taken"], ["expects auto or a checkpoint folder", "taken"]),
    (["--output_dir", "{tmp}/one.txt/run"], ["output_dir must be a folder that can be written"]),
]  # fmt: skip


@pytest.fixture
def wrong_files(tmp_path) -> dict[str, str]:
    """Files that are wrong, by the name that the table uses."""
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "latin.txt").write_bytes("caf\xe9 au lait\n".encode("latin-1"))
    (tmp_path / "one.txt").write_text("a cat\n")
    (tmp_path / "table.csv").write_text("title,number\na cat,1\na dog,2\n")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "run.json").write_text("kept")
    return {"tmp": str(tmp_path), **bad_backbones(tmp_path)}


@pytest.mark.parametrize(("arguments", "expected"), WRONG, ids=[" ".join(a[:2])[:40] for a, _ in WRONG])
def test_wrong_input(arguments, expected, recipe, wrong_files, monkeypatch, tmp_path, capsys):
    """Exit status 2 and one line that says what was expected and what was found; nothing is overwritten."""
    with pytest.raises(SystemExit) as stop:
        run(monkeypatch, recipe, *(a.format(**wrong_files) for a in arguments))
    assert stop.value.code == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, errors
    for piece in expected:
        assert piece in errors[0]
    assert (tmp_path / "taken" / "run.json").read_text() == "kept"
    assert not list(tmp_path.glob("*/checkpoint-*"))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("cmlm_wieght: 1\n", "unknown field 'cmlm_wieght'; did you mean cmlm_weight?"),
        ("- a\n- b\n", "must map field names to values, found list"),
        ("a: [\n", "must be a YAML file"),
        ("temp: !!python/object/apply:os.getcwd []\n", "must be a YAML file"),
        ("temp: hot\n", "invalid float value: 'hot'"),
    ],
)
def test_wrong_recipe(content, expected, tmp_path, monkeypatch, capsys):
    """A recipe that is no mapping, has an unknown field or a wrong value: one line, status 2, no code run."""
    path = tmp_path / "wrong.yaml"
    path.write_text(content)
    with pytest.raises(SystemExit) as stop:
        run(monkeypatch, path)
    assert stop.value.code == 2
    assert expected in capsys.readouterr().err


def test_unknown_recipe_names_the_nearest(monkeypatch, capsys):
    """A misspelt recipe."""
    with pytest.raises(SystemExit) as stop:
        run(monkeypatch, "cmlmcse-bert-bse")
    assert stop.value.code == 2
    assert "did you mean cmlmcse-bert-base?" in capsys.readouterr().err


@pytest.mark.parametrize("path", sorted((ROOT / "configuration").glob("*.yaml")), ids=lambda path: path.stem)
def test_recipes_parse(path):
    """Every recipe that ships is valid, and is named after its method and backbone."""
    from modeling_cmlmcse.training.arguments import parse_recipe

    _, model, _, run_args = parse_recipe([path.stem])
    if path.stem != "quickstart":
        method, backbone = path.stem.split("-", 1)
        assert model.model_name_or_path.startswith(backbone)
        assert (model.cmlm_weight == 0) == (method == "simcse")
        assert run_args.eval_steps == 125
