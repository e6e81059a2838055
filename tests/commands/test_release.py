"""A backbone to give away: half the bytes, the same model, and a card that says what its records say."""

import json
import re
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from transformers import AutoModelForMaskedLM, AutoTokenizer

from cmlmcse.evaluation.encoding import EncodeOnce
from cmlmcse.evaluation.tasks import TASKS
from cmlmcse.models.encoders import load_encoder
from cmlmcse.release import fill_mask, main
from cmlmcse.training.pretraining_export import pretraining_facts
from modeling_cmlmcse.pretrained_auxiliary import PretrainedAuxiliary
from support.paths import DATA, ROOT
from support.text import one_space
from support.tiny import WORDS
from support.training import run, write_data

ASSET = ROOT / "assets" / "bert-mini-en"
FEW = f"{WORDS[0]} {WORDS[1]} [MASK] {WORDS[2]}"


@pytest.fixture
def stage_1(tmp_path, text_file, backbone_folders, monkeypatch) -> Path:
    """The folder of a stage 1 of four steps."""
    fields = {
        "stage": "pretrain",
        "model_name_or_path": backbone_folders["bert"],
        "train_file": str(text_file),
        "lexical_layers": 2,
        "fusion_layers": 1,
        "auxiliary_weight": 1,
        "max_steps": 4,
        "use_cpu": True,
        "disable_tqdm": True,
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(fields))
    run(monkeypatch, tmp_path / "recipe.yaml", "--output_dir", tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.slow
def test_a_release(stage_1, tmp_path, capsys):
    """The weights rounded and nothing else, loaded as float32; the card has the loss, the examples and the scores."""
    data, target = write_data(tmp_path / "data"), tmp_path / "given" / "mini"
    lines = (data / "sts/stsb/dev.tsv").read_text().splitlines(keepends=True)
    (data / "sts/stsb/test.tsv").write_text("".join(lines[:1379]))  # one of the seven sets, of its published size
    curve = tmp_path / "curve.json"
    tokens = json.loads((stage_1 / "run.json").read_text())["tokens"]
    row = {"tokens": tokens, "untrained": {"mean": 50.0, "[CLS]": 40.0}, "simcse": {"letters": {"mean": 56.5}}}
    curve.write_text(json.dumps({"title": "t", "rows": [row]}))
    options = ["--data_dir", str(data), "--license", "cc-by-4.0", "--language", "de", "--about", "Of letters."]
    main([str(stage_1), "--output_dir", str(target), *options, "--fill_mask", FEW, "--gate", str(curve)])

    for name in ("model.safetensors", "auxiliary_network.safetensors"):
        before, after = load_file(stage_1 / "export" / name), load_file(target / name)
        assert before.keys() == after.keys()
        assert all(torch.equal(tensor.half(), after[key]) for key, tensor in before.items())
    assert AutoModelForMaskedLM.from_pretrained(target).dtype == torch.float32
    found, kept = PretrainedAuxiliary.find(target), PretrainedAuxiliary.find(stage_1 / "export")
    assert found is not None
    assert kept is not None
    assert (found.depths, found.pooling) == (kept.depths, kept.pooling)

    card, results = (target / "README.md").read_text(), json.loads((target / "results.json").read_text())
    dev = TASKS["stsb_dev"].run(EncodeOnce(load_encoder(str(target), "avg")), TASKS["stsb_dev"].load(str(data)))
    assert results["poolings"]["avg"]["stsb_dev"]["spearman"] == pytest.approx(dev["stsb_dev"]["spearman"], abs=1e-3)
    assert results["size"]["weights"] == sum(t.numel() for t in load_file(target / "model.safetensors").values())
    for expected in (
        "language: de",
        "license: cc-by-4.0",
        "Of letters.",
        "- started from: `",  # and not from nothing
        f"{results['pretraining']['mlm_loss']:.3f} (perplexity",
        f"| {FEW} | {next(iter(results['fill_mask'][0]['guesses']))} (",
        f"| stsb_dev spearman | {results['poolings']['cls_before_pooler']['stsb_dev']['spearman']:.2f} |",
        "| letters | 56.50 | +6.50 |",
    ):
        assert expected in one_space(card)
    assert "log" not in json.loads((target / "run.json").read_text())
    assert "missing: " in capsys.readouterr().err  # the six other sets
    assert [path.name for path in target.parent.iterdir()] == ["mini"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--fill_mask", "no mask"], "one [MASK] in a sentence, found 0 in 'no mask'"),
        (["--fill_mask", "[MASK] [MASK]"], "found 2"),
        (["--gate", "curve.json"], "with its SimCSE scores, found none; add it"),
        (["--output_dir", "run"], "must not exist yet, found run"),
    ],
)
def test_wrong_options(options, said, stage_1, tmp_path, monkeypatch, capsys):
    """One line, and nothing is left."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "curve.json").write_text('{"title": "t", "rows": [{"tokens": 1, "untrained": {"mean": 50}}]}')
    before = sorted(tmp_path.iterdir())
    with pytest.raises(SystemExit, match="2"):
        main(["run", "--output_dir", "out", *options])
    error = capsys.readouterr().err
    assert said in error
    assert error.splitlines()[-1].startswith("error: ")
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.slow
def test_wrong_runs(stage_1, tmp_path, capsys):
    """No run, a run of stage 2, a weight that fp16 cannot hold."""
    target = ["--output_dir", str(tmp_path / "out")]
    for folder, said in (
        (tmp_path, "expected a run's record"),
        (stage_1, "expected the folder of a --stage pretrain run"),
    ):
        if folder == stage_1:
            (stage_1 / "results.json").write_text('{"sts": {}}')
        with pytest.raises(SystemExit, match="2"):
            main([str(folder), *target])
        assert said in capsys.readouterr().err
    (stage_1 / "results.json").write_text('{"pretraining": {"mlm_loss": 1.0}}')
    weights = load_file(stage_1 / "export" / "model.safetensors")
    next(iter(weights.values()))[0] = 1e6
    save_file(weights, stage_1 / "export" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(SystemExit, match="2"):
        main([str(stage_1), *target])
    assert "expected weights that fp16 can hold" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_asset():
    """fp16 in at most 20 MiB, six layers of width 256, 512 positions that its tokenizer allows, and its head."""
    weights = load_file(ASSET / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.float16}
    assert sum(path.stat().st_size for path in ASSET.iterdir()) <= 20 * 2**20
    model, tokenizer = AutoModelForMaskedLM.from_pretrained(ASSET), AutoTokenizer.from_pretrained(ASSET)
    assert model.dtype == torch.float32
    assert (model.config.num_hidden_layers, model.config.hidden_size, len(tokenizer)) == (6, 256, 16384)
    assert (model.config.max_position_embeddings, tokenizer.model_max_length) == (512, 512)
    assert tokenizer.tokenize("Uncased") == tokenizer.tokenize("uncased")
    assert PretrainedAuxiliary.find(ASSET) is None  # RetroMAE's decoder is thrown away


@pytest.mark.slow
def test_the_asset_does_what_its_card_says():
    """The examples anew; the figures of the card are those of the records."""
    card, results = one_space((ASSET / "README.md").read_text()), json.loads((ASSET / "results.json").read_text())
    anew = fill_mask(ASSET, [one["sentence"] for one in results["fill_mask"]])
    for one, again in zip(results["fill_mask"], anew, strict=True):
        assert list(one["guesses"]) == list(again["guesses"])
        assert list(one["guesses"].values()) == pytest.approx(list(again["guesses"].values()), abs=0.2)
        said = ", ".join(f"{word} ({chance:.1f})" for word, chance in one["guesses"].items())
        assert f"| {one['sentence']} | {said} |" in card
    for pooling, found in results["poolings"].items():
        cells = [f"{value['all']:.2f}" for name, value in found["sts"].items() if name != "avg"]
        assert f"| {pooling} | {' | '.join(cells)} | {found['sts']['avg']:.2f} |" in card
    facts = pretraining_facts(json.loads((ASSET / "run.json").read_text()), results)
    for name in ("auxiliary network", "tokens seen", "development MLM loss"):
        assert f"- {name}: {facts[name]}" in card
    assert not re.search(r"(^|[\s`\"'])/\w+/", card)  # a path of somebody's machine


@pytest.mark.slow
@pytest.mark.skipif(not (DATA / "sts").is_dir(), reason="no evaluation data; set CMLMCSE_DATA to their folder")
def test_the_assets_scores():
    """STS-B dev anew, with the pooling that is best."""
    results = json.loads((ASSET / "results.json").read_text())
    encode = EncodeOnce(load_encoder(str(ASSET), "avg_first_last", show_progress_bar=False))
    found = TASKS["stsb_dev"].run(encode, TASKS["stsb_dev"].load(str(DATA)))["stsb_dev"]["spearman"]
    assert results["poolings"]["avg_first_last"]["stsb_dev"]["spearman"] == pytest.approx(found, abs=0.02)


def test_the_card_names_the_auxiliary_network():
    """As the recipe chose it."""
    records = [json.loads((ASSET / name).read_text()) for name in ("run.json", "results.json")]
    assert pretraining_facts(*records)["auxiliary network"] == "RetroMAE's decoder (Xiao et al. 2022)"
    records[0]["fields"]["auxiliary_decoder"] = "fusion"
    assert pretraining_facts(*records)["auxiliary network"] == "fusion layers"


def test_a_run_without_its_export(tmp_path, capsys):
    """One line, status 2."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    (tmp_path / "run" / "results.json").write_text('{"pretraining": {}}')
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path / "run"), "--output_dir", str(tmp_path / "out")])
    assert "expected the folder of a finished run with its export/, found none" in capsys.readouterr().err
