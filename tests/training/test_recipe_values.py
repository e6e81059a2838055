"""What a recipe and the command line become: the fields of a run, and what the model and the machine add."""

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml

from cmlmcse.common.errors import InputError
from cmlmcse.study.plan import load_study
from cmlmcse.training.build_model import build_tokenizer
from cmlmcse.training.command import field_arguments
from cmlmcse.training.dev_start import start_values
from cmlmcse.training.fields import RunArguments
from cmlmcse.training.fit_fields import use_one_gpu
from cmlmcse.training.parse import parse_recipe
from support.paths import ROOT


@pytest.mark.parametrize("path", sorted((ROOT / "configuration").glob("*.yaml")), ids=lambda path: path.stem)
def test_recipes_parse(path):
    """Every recipe that ships is valid, and is named after its method and backbone."""
    _, model, data, run_args = parse_recipe([path.stem])
    if not path.stem.startswith(("quickstart", "adapt")):
        method, *_, kind, size = path.stem.split("-")
        name = model.model_name_or_path
        if model.fusion_init == "pretrained":  # from the folder of the recipe's own first stage
            first_stage, first_model, first_data, _ = parse_recipe([path.stem, "--stage", "pretrain"])
            assert name == f"runs/{first_stage}/export"
            for depth in ("lexical_layers", "fusion_layers"):
                assert getattr(model, depth) == getattr(first_model, depth)
            assert first_data.auxiliary_weight == 1.0
            name = first_model.model_name_or_path
        assert data.model_type == kind if data.model_type else f"-{kind}-{size}" in f"-{Path(name).name.lower()}"
        if run_args.stage == "train":
            assert (model.cmlm_weight > 0) == (method in ("cmlmcse", "infocse", "rtd"))
        steps = {"tsdae": 1000, "denosent": 50, "cosent": 100}.get(method, {"mini": 100, "l6": 60}.get(size, 125))
        assert run_args.eval_steps == (1000 if run_args.stage == "pretrain" else steps)


def test_no_other_file_gives_fields(monkeypatch, tmp_path):
    """transformers' parser reads a file beside the script, train.args of train.py; ours reads the command line."""
    (tmp_path / "train.args").write_text("--learning_rate 1")
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "train.py")])
    assert parse_recipe(["simcse-bert-base", "--use_cpu", "true"]).run.learning_rate == 3e-5


def test_the_recipe_from_a_ready_model_is_what_was_measured():
    """Its figures are those of a study: the two differ in where model and text come from."""
    study = yaml.safe_load((ROOT / "studies" / "frontier-minilm-2.yaml").read_text())
    fields = {**study["common"], **study["arms"]["mined"]}
    measured = parse_recipe([study["recipe"], *field_arguments(fields)])
    recipe = parse_recipe(["mined-negatives-minilm-l6", "--use_cpu", "true"])
    found = [
        {name for name, value in vars(measured[group]).items() if value != getattr(recipe[group], name)}
        for group in (1, 2)
    ]
    layers = {"lexical_layers", "fusion_layers"}  # without the conditional MLM nothing reads them
    assert found == [{"model_name_or_path", "model_sha256", *layers}, {"train_file", "train_data_files"}]
    names = ("max_steps", "learning_rate", "per_device_train_batch_size", "eval_steps", "lr_scheduler_type", "seed")
    assert [getattr(measured.run, name) for name in names] == [getattr(recipe.run, name) for name in names]


def test_null_on_the_command_line_unsets_a_field_of_the_recipe(tmp_path):
    """Without it the random model of a pre-training recipe could not give way to a trained one."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("model_type: bert\nmax_train_samples: 9\ndev_set: none\nuse_cpu: true\n")
    assert parse_recipe([str(recipe)])[2].model_type == "bert"
    data = parse_recipe([str(recipe), "--model_type", "null", "--max_train_samples=null"])[2]
    assert (data.model_type, data.max_train_samples) == (None, None)


def test_an_unset_output_dir_is_the_default(tmp_path):
    """In the recipe and on the command line: null is as if nobody had named a folder."""
    recipe = tmp_path / "own.yaml"
    for field, words in (("null", []), ("elsewhere", ["--output_dir", "null"])):
        recipe.write_text(f"dev_set: none\nuse_cpu: true\noutput_dir: {field}\n")
        assert parse_recipe([str(recipe), *words])[3].output_dir == "runs/own"
    assert parse_recipe([str(recipe)])[3].output_dir == "elsewhere"


def test_a_strategy_may_be_a_plain_no(tmp_path):
    """YAML reads `no` without quotes as false, which is no strategy."""
    recipe = tmp_path / "recipe.yaml"
    strategies = ("save_strategy", "eval_strategy", "logging_strategy")
    recipe.write_text("dev_set: none\nuse_cpu: true\n" + "".join(f"{name}: no\n" for name in strategies))
    run_args = parse_recipe([str(recipe)])[3]
    assert [getattr(run_args, name).value for name in strategies] == ["no"] * 3


def test_a_plain_no_is_none(tmp_path):
    """Of a field that may be none, of the teacher, and in a study's file. Of one that is true or false it is false."""
    recipe, names = tmp_path / "recipe.yaml", ("dev_set", "final_evaluation", "report_to", "augmentation", "projection")
    recipe.write_text("use_cpu: true\nteacher: no\nbf16: no\n" + "".join(f"{name}: no\n" for name in names))
    _, model, data, run_args = parse_recipe([str(recipe)])
    assert (model.projection, data.augmentation, data.dev_set, data.final_evaluation) == ("none",) * 4
    assert (model.teacher, run_args.report_to, run_args.bf16) == (None, [], False)
    study = tmp_path / "study.yaml"
    fields = "{save_strategy: no, report_to: no, teacher: no, mlm_tied: no}"
    study.write_text(
        f"name: one\nrecipe: simcse-bert-base\nseeds: [1]\nbaseline: a\nmetrics: [dev.score]\narms: {{a: {fields}}}\n"
    )
    assert load_study(study).arms == {
        "a": {"save_strategy": "no", "report_to": "none", "teacher": "null", "mlm_tied": "False"}
    }


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({"train_file": ["a.txt", "b.txt"]}, "train_file expects one value, found a list; give several names with"),
        ({"views": ["crops", "words"]}, "views expects one value, found a list"),
        ({"learning_rate": None}, "learning_rate expects a value, found null; leave it out for the default"),
        ({"train_file": None}, "train_file expects a value, found null"),
    ],
)
def test_kinds_of_values_in_a_recipe(field, message, tmp_path):
    """A list or null where a field has no such value is named, with the field."""
    recipe = tmp_path / "own.yaml"
    recipe.write_text(yaml.safe_dump(field))
    with pytest.raises(InputError, match=message):
        parse_recipe([str(recipe)])
    recipe.write_text(yaml.safe_dump({"report_to": ["none"], "max_train_samples": None, "model_type": None}))
    assert parse_recipe([str(recipe)])[2].max_train_samples is None


def test_values_that_begin_with_a_dash():
    """A function's argument is a value whatever it looks like."""
    words = field_arguments({"query_prompt": "-q: ", "seed": 3, "report_to": ["none"], "dev_set": None})
    assert words == ["--query_prompt=-q: ", "--seed=3", "--report_to", "none"]
    assert field_arguments({"report_to": []}) == ["--report_to", "none"]
    assert parse_recipe(["simcse-bert-base", *words[:2]])[0] == "simcse-bert-base"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"),
        (["--model_name_or_path", "my/model"], None),
        (["--model-name-or-path=my/model", "--model_sha256", "00"], "00"),
    ],
)
def test_expected_weights_are_those_of_the_recipes_own_model(given, expected):
    """Another model on the command line leaves the recipe's hash behind."""
    _, model, _, _ = parse_recipe(["quickstart", *given])
    assert model.model_sha256 == expected


@pytest.mark.parametrize(
    "given",
    [
        ["--dev_set", "none", "--eval_steps", 10],
        ["--dev_set", "none", "--save_steps", 4],
        ["--dev_set", "none", "--eval_strategy", "steps", "--load_best_model_at_end", "true", "--eval_steps", 5],
        ["--stage", "pretrain", "--validation_split_percentage", 0, "--eval_steps", 10],
    ],
)
def test_without_dev_scores_any_save_steps_fit(given, recipe):
    """Nothing is scored, so `save_steps` need not be a multiple of `eval_steps`."""
    _, _, _, fields = parse_recipe([str(recipe), *map(str, given)])
    assert (fields.eval_strategy, fields.load_best_model_at_end, fields.metric_for_best_model) == ("no", False, None)


def test_the_start_of_another_development_set_does_not_count(tmp_path):
    """A run resumed with another development set has no score at its start."""
    path = tmp_path / "dev_start.npz"
    assert start_values(path, "mine.tsv", 3) is None
    np.savez(path, values=np.arange(3.0), title=np.array("mine.tsv"))
    assert start_values(path, "mine.tsv", 3).tolist() == [0, 1, 2]
    assert start_values(path, "STS-B dev", 3) is None
    assert start_values(path, "mine.tsv", 4) is None


@pytest.mark.parametrize(
    "given, expected",
    [
        ((), "avg"),
        (("--pooling", "cls_before_pooler"), "cls_before_pooler"),
        (("--text_column", "pooling", "--run_name=x"), "avg"),  # a value is no field, whatever its name
    ],
)
def test_a_backbone_keeps_its_pooling(given, expected, backbone_folders, tmp_path, capsys):
    """modules.json says how a backbone's vectors were trained; the recipe says something else; the user decides."""
    shutil.copytree(backbone_folders["bert"], tmp_path / "own")
    folder = tmp_path / "own" / "1_Pooling"
    folder.mkdir()
    (folder / "config.json").write_text('{"pooling_mode_mean_tokens": true, "word_embedding_dimension": 32}')
    kinds = (("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize"))
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in kinds]
    (tmp_path / "own" / "modules.json").write_text(json.dumps(modules))
    model = parse_recipe(["simcse-bert-base", "--model_name_or_path", str(tmp_path / "own"), *given])[1]
    kept = expected == "avg"
    assert (model.pooling, model.normalize) == (expected, kept)
    said = capsys.readouterr().err
    assert ("pooling is avg, as" in said) == kept
    assert "normalize is" not in said  # the recipe does not name it
    recipe = tmp_path / "own.yaml"
    recipe.write_text("model_name_or_path: bert-base-uncased\npooling: avg\nnormalize: false\n")
    parse_recipe([str(recipe), "--model_name_or_path", str(tmp_path / "own"), *given])
    said = capsys.readouterr().err
    assert ("normalize is True, as" in said) == kept
    assert ("and not False as the recipe says; --normalize False changes that" in said) == kept


@pytest.mark.parametrize(("trained", "expected"), [(None, 40), (8, 40), (48, 48)])
def test_a_backbone_keeps_its_length(trained, expected, backbone_folders, tmp_path):
    """The export cuts texts where sentence-transformers cut those of the start, or where training did if that is
    later: before and after are comparable."""
    shutil.copytree(backbone_folders["bert"], tmp_path / "own")
    (tmp_path / "own" / "sentence_bert_config.json").write_text('{"max_seq_length": 40}')
    arguments = parse_recipe(["simcse-bert-base", "--model_name_or_path", str(tmp_path / "own")])[1]
    assert build_tokenizer(arguments, "none", trained or 0).model_max_length == expected
    plain = parse_recipe(["simcse-bert-base", "--model_name_or_path", backbone_folders["bert"]])[1]
    assert build_tokenizer(plain).model_max_length > 48


def test_one_process_uses_one_gpu(capsys):
    """Of several: Trainer's DataParallel would contrast each GPU's part of a batch by itself."""
    run_args = SimpleNamespace(n_gpu=8, _n_gpu=8)
    use_one_gpu(run_args)
    assert run_args._n_gpu == 1
    assert "found 8 GPUs" in capsys.readouterr().out


def test_the_recipe_of_the_shipped_backbone():
    """The recipe has the fields of the run that made the asset, but for the text, its tokenizer, what RetroMAE does not
    read, and how often the run logged, scored and saved."""
    arguments = parse_recipe(["retromae-pretrain-bert-mini"])[1:]
    made = json.loads((ROOT / "assets" / "bert-mini-en" / "run.json").read_text())["fields"]
    ours = {name: getattr(part, name) for part in arguments for name in made if hasattr(part, name)}
    assert ours.keys() == made.keys()
    assert {name for name, value in made.items() if getattr(ours[name], "value", ours[name]) != value} == {
        "train_file", "tokenizer_name", "preprocessing_num_workers", "lexical_layers", "fusion_layers", "fusion_init",
        "logging_steps", "eval_steps", "save_steps", "save_total_limit", "save_minutes", "disable_tqdm",
    }  # fmt: skip


def test_a_gpu_is_fed(monkeypatch, capsys):
    """Copies do not block, two processes collate and checkpoints are five minutes apart unless the recipe or the user
    says otherwise; bf16 that a GPU only emulates is refused, whoever asks for it. The GPU is pretended."""
    monkeypatch.setattr(RunArguments, "device", torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla V100")
    words = ["simcse-bert-base", "--dev_set", "none", "--bf16", "false"]
    for more, workers in (([], 2), (["--dataloader_num_workers", "0"], 0)):
        found = parse_recipe([*words, *more])[3]
        assert (found.accelerator_config.non_blocking, found.dataloader_num_workers) == (True, workers)
        assert found.save_minutes == 5
    assert parse_recipe([*words, "--save_minutes", "0"])[3].save_minutes == 0
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    with pytest.raises(InputError, match="bf16 expects a GPU of the Ampere generation or newer, found Tesla V100"):
        parse_recipe(words)
