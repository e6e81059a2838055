"""Wrong fields of a training run: exit status 2, and one line that says what was expected and found."""

import pytest
from tokenizers import processors
from transformers import AlbertConfig, AlbertForMaskedLM, BertConfig, BertForMaskedLM

from cmlmcse.common.errors import InputError
from cmlmcse.training import dev_set
from support.tiny import tiny_backbone, tiny_tokenizer
from support.training import run


@pytest.fixture(scope="module")
def bad_backbones(tmp_path_factory) -> dict[str, str]:
    """Folders of models that cannot be used."""
    tokenizer = tiny_tokenizer("bert")
    folder = tmp_path_factory.mktemp("backbones")
    folders = {}
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    models = {
        "albert": AlbertForMaskedLM(AlbertConfig(vocab_size=80, embedding_size=16, **sizes)),
        "vocabulary": BertForMaskedLM(BertConfig(vocab_size=40, **sizes)),
        "mpnet": tiny_backbone("mpnet", num_hidden_layers=2),
    }
    for name, model in models.items():
        folders[name] = str(folder / name)
        model.save_pretrained(folders[name])
        tokenizer.save_pretrained(folders[name])
    bare = folders["bare"] = str(folder / "bare")  # its tokenizer adds no special tokens
    tiny_backbone("bert", num_hidden_layers=2).save_pretrained(bare)
    tokenizer.backend_tokenizer.post_processor = processors.Sequence([])
    tokenizer.save_pretrained(bare)
    return folders


WRONG = [
    (["--train_file", "{tmp}/one.txt"], ["at least 2 sentences", "found 1"]),
    (["--model_name_or_path", "{albert}"], ["one of bert, roberta", "modernbert, found model_type 'albert'"]),
    (["--backbone_dropout", "1.5"], ["backbone_dropout must be a number from 0 to 1, found 1.5"]),
    (["--model_name_or_path", "{vocabulary}"], ["vocabulary of 40", "found 80 tokens"]),
    (["--model_name_or_path", "package:no_such_package/model"], ["expects the package no_such_package"]),
    (["--lexical_layers", "7"], ["lexical_layers must be at most 3", "found 7"]),
    (["--fusion_init", "next", "--lexical_layers", "3"], ["fusion_init 'next' takes", "3"]),
    (["--per_device_train_batch_size", "1"], ["must be at least 2", "in-batch negatives", "found 1"]),
    (["--augmentation", "del_span+shuffle"], ["augmentation must be one of", "found 'shuffle'"]),
    (["--augmented_views", "first"], ["augmented_views must be one of second, both", "found 'first'"]),
    (["--positive_column", "sent1"], ["text.txt: expected a column sent1", "the columns text", "positive_column"]),
    (["--negative_column", "hard_neg"], ["negative_column expects a positive_column", "found none"]),
    (["--hard_negative_weight", "1"], ["hard_negative_weight 1.0 expects hard negatives", "found none"]),
    (["--contrastive_loss", "extended_info_nce"], ["extended_info_nce expects hard negatives", "found none"]),
    (["--positive_ratio", "2"], ["positive_ratio is for contrastive_loss off_dropout, found 2.0 with info_nce"]),
    (["--negative_prompt_template", "x"], ["negative_prompt_template expects pooling prompt, found avg"]),
    (["--prompt_denoising", "true"], ["prompt_denoising must be one of position, pad, none, found 'true'"]),
    (["--model_name_or_path", "{vocabulary}", "--augmentation", "del_word"], ["vocabulary of 40", "found 81 tokens"]),
    (["--output_dir", "{tmp}/one.txt/run"], ["output_dir must be a folder that can be written"]),
    (["--streaming", "true", "--max_train_samples", "1"], ["at least 2 sentences", "found 1"]),
    (["--max_train_samples", "-1"], ["max_train_samples must be at least 1, found -1"]),
    (["--contrastive_weight", "0", "--cmlm_weight", "0"], ["stage train expects a loss", "--contrastive_weight 1"]),
    (["--learning_rate", "-1"], ["learning_rate must be at least 0, found -1.0"]),
    (["--learning_rate", "nan"], ["learning_rate must be a finite number, found nan"]),
    (["--learning_rate", "inf"], ["learning_rate must be a finite number, found inf"]),
    (["--logging_steps", "inf"], ["logging_steps must be a finite number, found inf"]),
    (["--eval_delay", "nan"], ["eval_delay must be a finite number, found nan"]),
    (["--lr_scheduler_kwargs", "x"], ["lr_scheduler_kwargs expects a JSON object, found 'x'"]),
    (["--seed", "-1"], ["seed must be from 0 to 4294967295, found -1"]),
    (["--data_seed", "-1"], ["data_seed must be from 0 to 4294967295, found -1"]),
    (["--seed", "5000000000"], ["seed must be from 0 to 4294967295, found 5000000000"]),
    (["--adam_beta1", "2"], ["adam_beta1 must be from 0 to 0.999999, found 2.0"]),
    (["--gradient_accumulation_steps", "0"], ["gradient_accumulation_steps must be at least 1, found 0"]),
    (["--per_device_eval_batch_size", "0"], ["per_device_eval_batch_size must be at least 1, found 0"]),
    (["--eval_strategy", "no", "--load_best_model_at_end", "false", "--early_stopping_patience", "2"],
     ["early_stopping_patience expects development scores, found eval_strategy no"]),
    (["--dataloader_num_workers", "-1"], ["dataloader_num_workers must be at least 0, found -1"]),
    (["--dataloader_num_workers", "1", "--dataloader_prefetch_factor", "0"], ["must be at least 1, found 0"]),
    (["--weight_decay", "-1"], ["weight_decay must be at least 0, found -1.0"]),
    (["--num_train_epochs", "-1"], ["num_train_epochs must be above 0, found -1.0"]),
    (["--logging_steps", "-1"], ["logging_steps must be above 0, found -1.0"]),
    (["--save_steps", "-1"], ["save_steps"]),
    (["--eval_steps", "3", "--save_steps", "500"],
     ["save_steps must be a multiple of eval_steps", "found 500 and 3; add --save_steps 3, or a multiple of it"]),
    (["--metric_for_best_model", "accuracy"],
     ["metric_for_best_model must be one of dev_score, vector_gain, found 'accuracy'; leave it out for dev_score"]),
    (["--metric_for_best_model", "loss", "--stage", "pretrain"],
     ["metric_for_best_model must be one of mlm_loss, mlm_accuracy, auxiliary_loss", "found 'loss'"]),
    (["--eval_steps", "0"], ["eval_steps must be above 0, found 0.0"]),
    (["--gradient_checkpointing_kwargs", "x"], ["expects a JSON object", "found 'x' and False"]),
    (["--model_name_or_path", "{mpnet}", "--gradient_checkpointing", "true", "--train_file", "{tmp}/one.txt"],
     ["gradient_checkpointing", "found mpnet; leave it out"]),  # before the text is read
    (["--model_name_or_path", "{mpnet}", "--gradient_checkpointing", "true", "--stage", "pretrain"],
     ["gradient_checkpointing", "found mpnet; leave it out"]),
    (["--model_name_or_path", "{bare}", "--retromae_weight", "0.1"],
     ["retromae_weight 0.1 expects a tokenizer that puts special tokens", "found 0 before and 0 after in"]),
    (["--model_name_or_path", "{bare}", "--denosent_weight", "0.1"], ["denosent_weight 0.1 expects a tokenizer that"]),
    (["--model_name_or_path", "{bare}", "--stage", "pretrain", "--auxiliary_decoder", "retromae"],
     ["auxiliary_decoder retromae expects a tokenizer that puts special tokens"]),
    (["--optim_target_modules", "x"], ["expects an optimizer galore_… or apollo_…, found optim adamw"]),
    (["--max_steps", "0"], ["max_steps must be at least 1, or -1 for num_train_epochs, found 0"]),
    (["--report_to", "foo"], ["expects options that fit", "foo is not supported"]),
    (["--optim", "adamw_bnb_8bit"], ["optim adamw_bnb_8bit expects its package", "bitsandbytes"]),
    (["--optim_args", "x"], ["expects its package and options", "found: not enough values"]),
    (["--fsdp", "full_shard"], ["expects options that fit", "fsdp only works in distributed training"]),
    (["--deepspeed", "x.json"], ["expects fields that fit", "deepspeed"]),
    (["--accelerator_config", "x"], ["expects fields that fit", "No such file or directory: 'x'"]),
    (["--accelerator_config", '{{"foo": 1}}'], ["expects fields that fit", "'foo'"]),
    (["--torch_compile", "true", "--torch_compile_backend", "foo"], ["expects options that fit", "FOO"]),
    (["--mini_batch_size", "4", "--torch_compile", "true"],
     ["torch_compile expects whole batches", "found mini_batch_size 4", "leave one of them out"]),
    (["--save_strategy", "best", "--dev_set", "none"], ["save_strategy best expects development scores"]),
    (["--label_smoothing_factor", "0.1"], ["does not use label_smoothing_factor", "leave it out"]),
    (["--neftune_noise_alpha", "5"], ["does not use neftune_noise_alpha", "leave it out"]),
    (["--dataloader_num_workers", "1", "--dataloader_persistent_workers", "true"],
     ["does not use dataloader_persistent_workers", "leave it out"]),
    (["--auto_find_batch_size", "true"], ["does not use auto_find_batch_size", "set mini_batch_size"]),
    (["--train_sampling_strategy", "group_by_length"], ["does not use train_sampling_strategy", "leave it out"]),
    (["--push_to_hub", "true"], ["does not use push_to_hub", "train first, then publish with `cmlmcse push`"]),
    (["--hub_model_id", "a/b"], ["does not use hub_model_id", "`cmlmcse push`"]),
    (["--hub_strategy", "end"], ["does not use hub_strategy", "`cmlmcse push`"]),
]  # fmt: skip


@pytest.fixture
def wrong_files(tmp_path, bad_backbones) -> dict[str, str]:
    """Files that are wrong, by the name that the table uses."""
    (tmp_path / "one.txt").write_text("a cat\n")
    return {"tmp": str(tmp_path), **bad_backbones}


@pytest.mark.parametrize(("arguments", "expected"), WRONG, ids=[" ".join(a[:2])[:40] for a, _ in WRONG])
def test_wrong_input(arguments, expected, recipe, wrong_files, monkeypatch, tmp_path, capsys):
    """Exit status 2 and one line that says what was expected and what was found; no checkpoint is written."""
    with pytest.raises(SystemExit) as stop:
        run(monkeypatch, recipe, *(a.format(**wrong_files) for a in arguments))
    assert stop.value.code == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, errors
    for piece in expected:
        assert piece in errors[0]
    assert not list(tmp_path.glob("*/checkpoint-*"))


def test_a_token_is_refused_and_never_written(recipe, monkeypatch, tmp_path, capsys):
    """Trainer would pickle it into training_args.bin; neither the message nor any file has it."""
    with pytest.raises(SystemExit) as stop:
        run(monkeypatch, recipe, "--hub_token", "hf_secret")
    assert stop.value.code == 2
    said = capsys.readouterr()
    assert "does not use hub_token, found it set; leave it out" in said.err
    assert "hf_secret" not in said.err + said.out
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("cmlm_wieght: 1\n", "unknown field 'cmlm_wieght'; did you mean cmlm_weight?"),
        ("recipe: cmlmcse-bert-base\n", "unknown field 'recipe'; cmlmcse train --help lists the fields"),
        ("help: true\n", "unknown field 'help'; "),
        ("- a\n- b\n", "must map field names to values, found list"),
        ("a: [\n", "must be a YAML file"),
        ("temp: 0.1\nseed: 1\ntemp: 0.2\n", "must be a YAML file, found the key 'temp' twice"),
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
    errors = [line for line in capsys.readouterr().err.splitlines() if "error" in line.lower() or "Traceback" in line]
    assert len(errors) == 1, errors
    assert errors[0].startswith("error: ")
    assert expected in errors[0]
    assert list(tmp_path.iterdir()) == [path]


def test_unknown_recipe_names_the_nearest(monkeypatch, capsys):
    """A misspelt recipe."""
    with pytest.raises(SystemExit) as stop:
        run(monkeypatch, "cmlmcse-bert-bse")
    assert stop.value.code == 2
    assert "did you mean cmlmcse-bert-base?" in capsys.readouterr().err


def test_a_development_set_that_cannot_be_loaded(monkeypatch):
    """Without a network a line says how to train without STS-B. With --data_dir its own message is enough."""

    def unreachable(data_dir: str | None) -> None:
        raise InputError("cannot load STS-B; pass --data_dir with a folder that holds sts/")

    monkeypatch.setattr(dev_set, "load_stsb_dev", unreachable)
    with pytest.raises(
        InputError, match=r"holds sts/, or --dev_set none, or --dev_set with a \.tsv of your own pairs$"
    ):
        dev_set.load_dev_set("stsb", None)
    with pytest.raises(InputError, match=r"holds sts/$"):
        dev_set.load_dev_set("stsb", "data")
