"""The training command from a recipe to its folder, on tiny models."""

import json
import re

import numpy as np
import pytest
import torch
import yaml
from transformers import AutoModel, BertConfig, BertForMaskedLM

from cmlmcse.models.encoders import load_encoder
from cmlmcse.training.finalize import contrast_at_the_end
from cmlmcse.training.trainer import TrainingWindow
from cmlmcse.training.training_losses import TrainingLosses
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding, attention
from modeling_cmlmcse.variable_length import switched_off
from support.docs import files_of
from support.tiny import WORDS, tiny_backbone, tiny_tokenizer
from support.training import history, run


@pytest.mark.slow
@pytest.mark.usefixtures("pictures")
@pytest.mark.parametrize("kind", ("bert", "roberta"))
def test_smoke_run(kind, recipe, backbone_folders, monkeypatch, tmp_path):
    """Both losses fall on both kinds of backbone, and the folder holds what the reference promises."""
    run(monkeypatch, recipe, "--model_name_or_path", backbone_folders[kind], "--max_steps", 40, "--eval_steps", 20,
        "--save_steps", 20, "--logging_steps", 10)  # fmt: skip
    folder = tmp_path / "run"
    for name in ("contrastive_loss", "cmlm_loss", "loss"):
        losses = history(folder, name)
        assert losses[-1] < 0.9 * losses[0], (name, losses)
    assert len(history(folder, "eval_dev_score")) == 3  # the first one before training
    assert len(history(folder, "eval_vector_gain")) == 2
    for name in ("alignment", "uniformity", "tokens_per_second", "cmlm_accuracy"):
        assert len(history(folder, name)) == 4
    for name in ("loss", "dev_score", "cosine_by_gold"):
        assert (folder / "plots" / f"{name}.png").stat().st_size > 5000
    model = AutoModel.from_pretrained(folder / "export", add_pooling_layer=False)
    assert model.config.model_type == kind


@pytest.mark.slow
def test_records(recipe, monkeypatch, tmp_path):
    """results.json and run.json have the promised entries; what did not run is absent; no path leaks."""
    run(monkeypatch, recipe, "--dev_set", "stsb", "--final_evaluation", "stsb_dev,geometry")
    folder = tmp_path / "run"
    results = json.loads((folder / "results.json").read_text())
    assert results["model"] == "tiny"
    assert set(results["stsb_dev"]) >= {"spearman", "pearson", "pairs"}
    assert results["stsb_dev"]["pairs"] == 1500
    assert -100 <= results["stsb_dev"]["spearman"] <= 100
    assert results["dev"]["spearman"] == pytest.approx(results["stsb_dev"]["spearman"], abs=1e-3)
    assert set(results["geometry"]) >= {"alignment", "uniformity"}
    assert "sts" not in results
    names = {re.sub(r"-\d+$", "-N", path.name) for path in folder.iterdir()}
    assert names == files_of("The folder of a run") - {"tokenizer"}  # which stage pretrain writes
    record = json.loads((folder / "run.json").read_text())
    assert record["recipe"] == "tiny"
    assert record["fields"]["cmlm_weight"] == 0.1
    assert record["fields"]["max_steps"] == 12
    assert record["steps"] == 12
    assert record["tokens"] > 12 * 32 * 5
    assert record["train_data"]["file"] == "text.txt"
    assert len(record["train_data"]["sha256"]) == 64
    assert {"torch", "transformers"} <= record["versions"].keys()
    best = max(history(folder, "eval_dev_score")[1:])
    assert results["dev"]["spearman"] == pytest.approx(best, abs=1e-3)  # the best checkpoint is what is exported
    card = (folder / "export" / "README.md").read_text()
    assert f"{results['dev']['spearman']:.2f}" in card
    for file in (folder / "export").rglob("*.*"):
        assert str(tmp_path.parent).encode() not in file.read_bytes(), file


@pytest.mark.slow
def test_lambda_zero_has_no_auxiliary_network(recipe, monkeypatch, tmp_path):
    """λ = 0 trains SimCSE: no auxiliary weights in the checkpoint, no auxiliary loss in the log."""
    run(monkeypatch, recipe, "--cmlm_weight", 0)
    assert not history(tmp_path / "run", "cmlm_loss")
    from safetensors import safe_open

    with safe_open(tmp_path / "run" / "checkpoint-12" / "model.safetensors", "pt") as weights:
        assert not [name for name in weights.keys() if name.startswith("auxiliary")]  # noqa: SIM118


@pytest.mark.slow
def test_auxiliary_learning_rate(recipe, monkeypatch, tmp_path, capsys):
    """At 0 the auxiliary network stays as it was, and everything else learns; a resumed run must have the same."""
    run(monkeypatch, recipe, "--auxiliary_learning_rate", 0, "--dev_set", "none", "--projection", "mlp")
    checkpoint = tmp_path / "run" / "checkpoint-12"
    start = CMLMCSEForSentenceEmbedding.from_backbone(
        str(yaml.safe_load(recipe.read_text())["model_name_or_path"]), cmlm_weight=0.1, pooling="avg", projection="mlp"
    ).state_dict()
    moved = {
        ".".join(name.split(".")[:2])
        for name, weight in CMLMCSEForSentenceEmbedding.from_pretrained(checkpoint).state_dict().items()
        if not torch.equal(weight, start[name])
    }
    assert moved == {"backbone.embeddings", "backbone.encoder", "projection.dense"}
    for message in (
        "expects the auxiliary_learning_rate that the run was started with, one of its own, found none; give the same",
        "expected the optimizer's state of a run with these fields, found another; give the fields of the run",
    ):
        with pytest.raises(SystemExit) as stopped:
            run(monkeypatch, recipe, "--dev_set", "none", "--projection", "mlp", "--max_steps", 14,
                "--resume_from_checkpoint", "auto")  # fmt: skip
        assert stopped.value.code == 2
        assert message in capsys.readouterr().err
        (checkpoint / "run_fields.json").unlink(missing_ok=True)  # as older versions had none


@pytest.mark.slow
def test_gradient_accumulation_averages_batches(recipe, backbone_folders, monkeypatch, tmp_path):
    """Two accumulated batches of 8 give the mean of the two batches' gradients: the first step's gradient norm is
    the norm of that mean, computed here by hand."""
    from cmlmcse.data.batches import EpochSampler, Example
    from cmlmcse.data.collator import ViewCollator
    from cmlmcse.data.masking import Masking

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
    masking = Masking.of(tokenizer, 0.15)
    collator = ViewCollator(tokenizer, 42, masking)
    for part in (keys[:8], keys[8:]):
        examples = [Example(tokenizer(lines[key])["input_ids"], 0, key) for key in part]
        (TrainingLosses(model)(**collator(examples)).loss / 2).backward()
    norm = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()
    assert logged == pytest.approx(norm.item(), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("augmentation", ("repeat_tokens", "drop_one_token"))
def test_augmentations_train(augmentation, recipe, monkeypatch, tmp_path):
    """The augmentations of Table 3 train: they alone set the views apart where there is no dropout."""
    tiny_backbone("bert", dropout=0.0).save_pretrained(tmp_path / "still")
    tiny_tokenizer("bert").save_pretrained(tmp_path / "still")
    plain = ("--dev_set", "none", "--final_evaluation", "none", "--max_steps", 1, "--logging_steps", 1)
    plain += ("--model_name_or_path", tmp_path / "still")
    run(monkeypatch, recipe, *plain, "--output_dir", tmp_path / "none")
    run(monkeypatch, recipe, *plain, "--output_dir", tmp_path / "some", "--augmentation", augmentation)
    first, second = (history(tmp_path / name, "alignment")[0] for name in ("none", "some"))
    assert first < 1e-10 < 1e-4 < second


@pytest.mark.slow
@pytest.mark.parametrize("accumulation", (1, 2))
def test_mini_batches_change_nothing(accumulation, recipe, monkeypatch, tmp_path):
    """Parts of 5 of a batch of 16 give the whole batch's losses, step after step, where there is no dropout."""
    tiny_backbone("bert", dropout=0.0).save_pretrained(tmp_path / "still")
    tiny_tokenizer("bert").save_pretrained(tmp_path / "still")
    plain = ("--dev_set", "none", "--final_evaluation", "none", "--max_steps", 4, "--logging_steps", 1)
    plain += ("--model_name_or_path", tmp_path / "still", "--gradient_accumulation_steps", accumulation)
    run(monkeypatch, recipe, *plain, "--output_dir", tmp_path / "whole")
    run(monkeypatch, recipe, *plain, "--output_dir", tmp_path / "parts", "--mini_batch_size", 5)
    for name in ("loss", "contrastive_loss", "cmlm_loss", "cmlm_accuracy", "grad_norm"):
        whole, parts = (history(tmp_path / kind, name) for kind in ("whole", "parts"))
        assert parts == pytest.approx(whole, rel=1e-4), name


@pytest.mark.slow
def test_gradient_checkpointing_changes_nothing(recipe, monkeypatch, tmp_path):
    """Recomputed activations give the same losses."""
    plain = ("--dev_set", "none", "--final_evaluation", "none", "--max_steps", 3, "--logging_steps", 1)
    run(monkeypatch, recipe, *plain, "--output_dir", tmp_path / "kept")
    run(monkeypatch, recipe, *plain, "--output_dir", tmp_path / "again", "--gradient_checkpointing", True)
    assert history(tmp_path / "kept", "loss") == pytest.approx(history(tmp_path / "again", "loss"), abs=1e-6)


@pytest.mark.slow
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


@pytest.mark.parametrize("words", [(), ("--variable_length_attention", "false")])
def test_attention_pads_if_asked(words, recipe, monkeypatch):
    """In every block that training runs, and not in what the program does afterwards."""
    found = []
    monkeypatch.setattr(attention, "find_kernel", lambda *_, **__: found.append(switched_off()))
    run(monkeypatch, recipe, "--max_steps", 1, "--dev_set", "none", *words)
    assert set(found) == {bool(words)}
    assert not switched_off()


@pytest.mark.slow
@pytest.mark.parametrize("from_scratch", (False, True))
def test_clear(from_scratch, recipe, monkeypatch, tmp_path):
    """CLEAR trains, from a checkpoint and from scratch: both losses fall; checkpoint and export have [DEL], no training
    head, and encode the same."""
    (tmp_path / "synonyms.json").write_text(json.dumps({WORDS[i]: [WORDS[i + 1], WORDS[i + 2]] for i in range(9)}))
    options = ("--augmentation", "substitute+del_span", "--synonyms", tmp_path / "synonyms.json", "--augmented_views",
               "both", "--contrastive_loss", "nt_xent", "--projection", "nonlinear", "--cmlm_weight", 0, "--mlm_weight",
               1, "--masked_views", "first", "--dev_set", "none", "--final_evaluation", "none", "--max_steps", 42,
               "--save_steps", 42, "--logging_steps", 14, "--from_scratch", from_scratch)  # fmt: skip
    run(monkeypatch, recipe, *options)
    folder = tmp_path / "run"
    for name in ("contrastive_loss", "mlm_loss"):
        losses = history(folder, name)
        assert losses[-1] < 0.95 * losses[0], (name, losses)
    checkpoint, exported = load_encoder(str(folder / "checkpoint-42")), load_encoder(str(folder / "export"))
    for encoder in (checkpoint, exported):
        assert encoder.tokenizer.convert_tokens_to_ids("[DEL]") == len(WORDS) + 5
        assert len(encoder.model.get_input_embeddings().weight) == len(WORDS) + 6
    assert [name for name in checkpoint.model.state_dict() if name.startswith("projection")]
    assert not [name for name in exported.model.state_dict() if name.startswith("projection")]
    np.testing.assert_array_equal(checkpoint(["the cat sat", "a [DEL] dog"]), exported(["the cat sat", "a [DEL] dog"]))
    assert "CLEAR" in (folder / "export" / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("cmlm_weight", (0, 0.1))
def test_triplets(cmlm_weight, recipe, monkeypatch, tmp_path):
    """Labelled triplets train, without and with the conditional MLM: the losses fall."""
    draws = np.random.default_rng(0)
    frequency = 1.0 / np.arange(1, len(WORDS) + 1)
    texts = [draws.choice(WORDS, size=6, p=frequency / frequency.sum()) for _ in range(100)]
    rows = [",".join(map(" ".join, (text, text[:4], texts[i - 1]))) for i, text in enumerate(texts)]
    (tmp_path / "nli.csv").write_text("\n".join(["sent0,sent1,hard_neg", *rows]) + "\n")
    run(monkeypatch, recipe, "--train_file", tmp_path / "nli.csv", "--text_column", "sent0", "--positive_column",
        "sent1", "--negative_column", "hard_neg", "--hard_negative_weight", 1, "--cmlm_weight", cmlm_weight,
        "--max_steps", 40, "--logging_steps", 10, "--dev_set", "none", "--final_evaluation", "none")  # fmt: skip
    folder = tmp_path / "run"
    names = ("contrastive_loss", "cmlm_loss") if cmlm_weight else ("contrastive_loss",)
    for name in names:
        losses = history(folder, name)
        assert losses[-1] < 0.95 * losses[0], (name, losses)
    assert bool(history(folder, "cmlm_loss")) == bool(cmlm_weight)
    assert "on labelled pairs" in (folder / "export" / "README.md").read_text()


@pytest.mark.slow
def test_own_text_without_evaluation_data(recipe, monkeypatch, tmp_path, capsys):
    """A local text and no dev set: the run asks the Hub for nothing and says so; STS is scored only on request."""
    fields = yaml.safe_load(recipe.read_text())
    del fields["data_dir"], fields["final_evaluation"]
    recipe.write_text(yaml.safe_dump(fields))
    without = ("--dev_set", "none", "--max_steps", 2, "--eval_steps", 5, "--save_steps", 2)
    run(monkeypatch, recipe, *without)
    said = "final_evaluation is none, because dev_set is none; --final_evaluation sts scores the export on STS\n"
    assert said in capsys.readouterr().err
    assert json.loads((tmp_path / "run" / "results.json").read_text()) == {"model": "tiny"}
    assert json.loads((tmp_path / "run" / "run.json").read_text())["fields"]["final_evaluation"] == "none"
    with pytest.raises(SystemExit) as stop:
        run(monkeypatch, recipe, *without, "--final_evaluation", "sts", "--output_dir", tmp_path / "another")
    assert stop.value.code == 2
    assert "cannot load mteb/sts12-sts from the Hub" in capsys.readouterr().err


@pytest.mark.slow
def test_own_development_set(recipe, monkeypatch, tmp_path, capsys):
    """Pairs in a file of any length choose the checkpoint; a file without any is an error before training."""
    pairs = tmp_path / "mine.tsv"
    pairs.write_text("5\tthe cat sat\tthe cat ran\n0\tthe dog\ta red tree\n2\tbig tree\tsmall tree\n")
    run(monkeypatch, recipe, "--dev_set", pairs, "--final_evaluation", "none", "--report_to", "none")
    found = json.loads((tmp_path / "run" / "results.json").read_text())["dev"]
    assert (found["set"], found["pairs"]) == ("mine.tsv", 3)
    assert len(history(tmp_path / "run", "eval_dev_score")) == 3
    for content, words in ((None, "cannot be read"), ("3\ta\tb\n", "different scores"), ("x\ta\tb\n", "line 1")):
        other = tmp_path / f"other{len(words)}.tsv"
        if content is not None:
            other.write_text(content)
        with pytest.raises(SystemExit) as stop:
            run(monkeypatch, recipe, "--dev_set", other, "--output_dir", tmp_path / "another")
        assert stop.value.code == 2
        assert words in capsys.readouterr().err


@pytest.mark.slow
def test_how_much_text_is_cut_off(recipe, monkeypatch, capsys):
    """Counted in tokens, with the special ones: of ten words and two special tokens 6 of 12 are seen."""
    recipe.with_name("text.txt").write_text("\n".join(f"the cat sat on the mat the dog ran w{i}" for i in range(60)))
    run(monkeypatch, recipe, "--max_seq_length", 6, "--dev_set", "none", "--max_steps", 1)
    said = "text: 95 % have at most 12 tokens; --max_seq_length 6 cuts off 50.0% of all tokens; a larger one reads more"
    assert said in capsys.readouterr().out


def test_a_step_may_overwrite_what_it_logged():
    """As a CUDA graph does, whose outputs are the same memory at every step."""
    window, loss = TrainingWindow(), torch.tensor(2.0)
    for value in (2.0, 5.0, 11.0):
        loss.fill_(value)
        window.add({"loss": loss}, 3)
    assert window.averages()["loss"] == 6.0


@pytest.mark.parametrize(("loss", "lines"), [(0.0009, 2), (0.5, 1)])
def test_what_the_contrast_says_at_the_end(loss, lines):
    """The last values with what they mean, and a warning where the loss has nothing left to teach."""
    rows = [{"contrastive_loss": value, "alignment": 0.1, "uniformity": -2.5} for value in (3.0, loss)]
    found = contrast_at_the_end([*rows, {"eval_dev_score": 60.0}])
    assert len(found) == lines
    assert found[0].startswith(f"at the end: contrastive loss {loss:g}; alignment 0.10 (0: ")
    assert "uniformity -2.50" in found[0]
    assert contrast_at_the_end([]) == []
