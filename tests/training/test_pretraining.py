"""Stage 1, the command: its run, its resume, and stage 2 from what it leaves."""

import copy
import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer, TrainerCallback, pipeline
from transformers.utils import logging

from cmlmcse.training import encoder_training, pretraining
from cmlmcse.training.build_pretraining import NO_HEAD, build_pretraining_model
from cmlmcse.training.contrastive_trainer import ContrastiveTrainer
from cmlmcse.training.fields import DataArguments, ModelArguments
from cmlmcse.training.pretraining_decoders import FusionDecoder
from cmlmcse.training.pretraining_export import export_pretrained
from cmlmcse.training.pretraining_model import AuxiliaryPretraining
from cmlmcse.training.pretraining_trainer import PretrainingTrainer
from cmlmcse.training.training_losses import TrainingLosses
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from modeling_cmlmcse.backbone import blocks, load_backbone
from modeling_cmlmcse.pretrained_auxiliary import PretrainedAuxiliary
from support.batches import make_masked_batch
from support.docs import files_of
from support.recorder import RecordsSteps
from support.tiny import KINDS, OTHER_KINDS, WORDS, tiny_backbone, tiny_tokenizer
from support.training import SHORT_RUN, history, run


@pytest.fixture
def recipe(tmp_path) -> Path:
    """A recipe of stage 1 from scratch, on documents of words as unequally frequent as in a language."""
    rng = np.random.default_rng(0)
    frequency = 1.0 / np.arange(1, len(WORDS) + 1) ** 1.5
    lines = []
    for number in range(300):
        lines.append(" ".join(rng.choice(WORDS, size=8, p=frequency / frequency.sum())))
        if number % 10 == 9:
            lines.append("")
    (tmp_path / "text.txt").write_text("\n".join(lines) + "\n")
    fields = {
        "stage": "pretrain",
        "model_type": "bert",
        "config_overrides": "num_hidden_layers=4,hidden_size=32,num_attention_heads=4,intermediate_size=64,"
        "max_position_embeddings=64",
        "vocab_size": 300,
        "train_file": str(tmp_path / "text.txt"),
        "sequences": "documents",
        "validation_split_percentage": 10,
        "max_seq_length": 32,
        "lexical_layers": 2,
        "fusion_layers": 1,
        "learning_rate": "3e-3",
        "per_device_eval_batch_size": 16,
        **SHORT_RUN,
        "output_dir": str(tmp_path / "run"),
    }
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(fields))
    return path


@pytest.mark.slow
@pytest.mark.usefixtures("pictures")
def test_from_scratch_learns_and_exports(recipe, monkeypatch, tmp_path):
    """Both development losses fall; the export is a masked-language model that fills masks, with the fusion layers, a
    card and records; no path leaks."""
    run(monkeypatch, recipe, "--max_steps", 80, "--eval_steps", 20, "--save_steps", 20, "--whole_word_mask", True)
    folder = tmp_path / "run"
    for name in ("eval_mlm_loss", "eval_auxiliary_loss", "mlm_loss", "auxiliary_loss"):
        losses = history(folder, name)
        assert losses[-1] < 0.9 * losses[0], (name, losses)
    results = json.loads((folder / "results.json").read_text())["pretraining"]
    assert results["mlm_loss"] == pytest.approx(min(history(folder, "eval_mlm_loss")), abs=1e-3)  # the best is exported
    assert results["perplexity"] == pytest.approx(np.exp(results["mlm_loss"]), rel=1e-3)
    filled = pipeline("fill-mask", model=str(folder / "export"), device="cpu")("the [MASK] sat")
    assert len(filled) == 5
    names = {re.sub(r"-\d+$", "-N", path.name) for path in folder.iterdir()}
    assert names == files_of("The folder of a run") - {"dev_start.npz"}  # which stage train writes
    record = json.loads((folder / "run.json").read_text())
    assert record["fields"]["stage"] == "pretrain"
    assert record["train_data"][0]["file"] == "text.txt"
    assert f"{results['mlm_loss']:.3f}" in (folder / "export" / "README.md").read_text()
    assert (folder / "plots" / "loss.png").stat().st_size > 5000
    for file in (folder / "export").iterdir():
        assert str(tmp_path.parent).encode() not in file.read_bytes(), file


@pytest.mark.slow
def test_retromae_from_scratch(recipe, monkeypatch, tmp_path):
    """Both development losses fall, measured on the same masks; the export is a
    masked-language model alone, and its card names the decoder."""
    options = ("--auxiliary_decoder", "retromae", "--max_steps", 80, "--eval_steps", 20, "--save_steps", 20)
    run(monkeypatch, recipe, *options)
    folder = tmp_path / "run"
    for name in ("eval_mlm_loss", "eval_auxiliary_loss"):
        losses = history(folder, name)
        assert losses[-1] < 0.9 * losses[0], (name, losses)
    assert not (folder / "export" / "auxiliary_network.safetensors").exists()
    assert "RetroMAE" in (folder / "export" / "README.md").read_text()
    assert AutoModelForMaskedLM.from_pretrained(folder / "export").config.num_hidden_layers == 4


def test_deleted_words(recipe, backbone_folders, monkeypatch, tmp_path):
    """A step on text without most of its words is another one; the card says so; what is measured is whole text."""
    start = ("--model_type", "null", "--config_overrides", "null", "--model_name_or_path", backbone_folders["shallow"],
             "--auxiliary_decoder", "retromae", "--max_steps", 1, "--eval_steps", 1, "--save_steps", 1,
             "--logging_steps", 1)  # fmt: skip
    losses, cards = {}, {}
    for name, options in {"whole": (), "deleted": ("--augmentation", "delete_tokens", "--deletion_rate", 0.6)}.items():
        run(monkeypatch, recipe, *start, *options, "--learning_rate", "1e-12", "--output_dir", tmp_path / name)
        losses[name] = [history(tmp_path / name, each)[-1] for each in ("auxiliary_loss", "eval_auxiliary_loss")]
        cards[name] = (tmp_path / name / "export" / "README.md").read_text()
    assert losses["whole"][0] != losses["deleted"][0]
    assert losses["whole"][1] == pytest.approx(losses["deleted"][1], abs=1e-4)
    assert "deleted before the encoder: 60% of the tokens" in cards["deleted"]
    assert "deleted" not in cards["whole"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ("bert", "roberta"))
def test_goes_on_from_a_backbone(kind, recipe, backbone_folders, monkeypatch, tmp_path, capsys):
    """From a backbone with its tokenizer, on single sentences, in bf16: the export keeps kind and vocabulary."""
    options = ("--model_name_or_path", backbone_folders[kind], "--sequences", "sentences")
    fields = yaml.safe_load(recipe.read_text())
    del fields["model_type"], fields["config_overrides"]
    recipe.write_text(yaml.safe_dump(fields))
    run(monkeypatch, recipe, *options, "--bf16", True, "--max_steps", 6)
    said = capsys.readouterr()
    assert "export/ (a model_name_or_path for stage 2, with --pooling cls_before_pooler)" in said.out
    assert NO_HEAD not in said.err
    exported = AutoModelForMaskedLM.from_pretrained(tmp_path / "run" / "export")
    assert exported.config.model_type == kind
    assert AutoTokenizer.from_pretrained(tmp_path / "run" / "export").get_vocab() == tiny_tokenizer(kind).get_vocab()


@pytest.mark.slow
@pytest.mark.parametrize("workers", (0, 2))
def test_resume_gives_the_uninterrupted_run(workers, recipe, monkeypatch, tmp_path, capsys):
    """A run resumed from its middle ends in bit-identical weights, head, fusion layers and all; it keeps its fields."""
    options = ("--max_steps", 24, "--save_steps", 8, "--eval_steps", 8, "--dataloader_num_workers", workers)
    options += ("--load_best_model_at_end", False, "--save_total_limit", 5)
    run(monkeypatch, recipe, *options, "--output_dir", tmp_path / "whole")
    (tmp_path / "part").mkdir()
    (tmp_path / "whole" / "checkpoint-8").rename(tmp_path / "part" / "checkpoint-8")
    run(monkeypatch, recipe, *options, "--output_dir", tmp_path / "part", "--resume_from_checkpoint", "auto")
    whole, part = tmp_path / "whole" / "export", tmp_path / "part" / "export"
    for file in ("model.safetensors", "tokenizer.json"):
        assert (whole / file).read_bytes() == (part / file).read_bytes(), file
    fusion = [load_file(folder / "auxiliary_network.safetensors") for folder in (whole, part)]
    assert all(torch.equal(tensor, fusion[1][name]) for name, tensor in fusion[0].items())
    assert history(tmp_path / "whole", "eval_mlm_loss")[1:] == history(tmp_path / "part", "eval_mlm_loss")[-2:]
    with pytest.raises(SystemExit) as stop:
        run(monkeypatch, recipe, *options, "--output_dir", tmp_path / "part", "--resume_from_checkpoint", "auto",
            "--mlm_probability", 0.5)  # fmt: skip
    assert stop.value.code == 2
    assert "checkpoint-24 expects the mlm_probability that the run was started with, " in capsys.readouterr().err


def test_a_recipe_of_both_stages(recipe, tmp_path, capsys):
    """It may name what only one stage reads, and the command line may turn that off. Labels given there have a line:
    the same options may serve both stages."""
    both = {**yaml.safe_load(recipe.read_text()), "dev_set": "stsb", "data_dir": "DIR", "cmlm_weight": 0.5, "temp": 0.1}
    (tmp_path / "both.yaml").write_text(yaml.safe_dump(both))
    from cmlmcse.common.errors import InputError
    from cmlmcse.training.parse import parse_recipe

    off = ("--dev_set", "none", "--final_evaluation=none", "--cmlm_weight", "0", "--teacher", "null")
    _, model, data, run_args = parse_recipe([str(tmp_path / "both.yaml"), "--use_cpu", "true", *off])
    assert (run_args.stage, data.dev_set, model.cmlm_weight, model.temp) == ("pretrain", "none", 0.0, 0.1)
    assert parse_recipe([str(tmp_path / "both.yaml"), "--use_cpu", "true"])[2].data_dir == "DIR"
    assert not capsys.readouterr().err
    labelled = ("--dev_set", "stsb", "--data_dir", "DIR", "--final_evaluation", "sts")
    parse_recipe([str(tmp_path / "both.yaml"), "--use_cpu", "true", *labelled])
    said = "stage pretrain scores with no labels: --data_dir, --dev_set, --final_evaluation will not be read\n"
    assert capsys.readouterr().err == said
    nothing = ("--views", "dropout", "--augmented_views", "second", "--mining_margin", "0.1", "--query_prompt", "")
    parse_recipe([str(tmp_path / "both.yaml"), "--use_cpu", "true", *nothing])
    train = [str(tmp_path / "both.yaml"), "--use_cpu", "true", "--stage", "train"]
    assert parse_recipe([*train, "--sequences", "sentences", "--auxiliary_weight=0", "--tokenizer_name", "null"])
    for name, value in {"vocab_size": 400, "auxiliary_decoder": "retromae", "whole_word_mask": True}.items():
        with pytest.raises(
            InputError, match=f"--{name} is for stage pretrain, found {value} with stage train, .* or add"
        ):
            parse_recipe([*train, f"--{name}={value}"])
    for word in ("--lexical_frozen=false", "--no_lexical_frozen"):
        with pytest.raises(InputError, match="--lexical_frozen is for stage train, found False"):
            parse_recipe([str(tmp_path / "both.yaml"), "--use_cpu", "true", word])


def test_recipe_names_its_first_stage(recipe, monkeypatch, tmp_path):
    """`RECIPE --stage pretrain` runs the recipe that RECIPE names in its field `pretrain`."""
    second = tmp_path / "second.yaml"
    second.write_text(yaml.safe_dump({"pretrain": str(recipe), "learning_rate": "1e-5"}))
    from cmlmcse.training.parse import parse_recipe

    name, _, _, first_stage = parse_recipe([str(second), "--stage", "pretrain", "--use_cpu", "true"])
    assert (name, first_stage.learning_rate, first_stage.stage) == (recipe.stem, 3e-3, "pretrain")
    name, _, _, second_stage = parse_recipe([str(second), "--use_cpu", "true"])
    assert (name, second_stage.learning_rate, second_stage.stage) == ("second", 1e-5, "train")


@pytest.fixture(scope="module")
def stage_one(tmp_path_factory, backbone_folders) -> Path:
    """What stage 1 exports, of 3 + 2 layers: the fusion layers unlike any of the backbone's."""
    pretrained, _ = load_backbone(backbone_folders["bert"])
    torch.manual_seed(3)
    model = AuxiliaryPretraining(pretrained.config, partial(FusionDecoder, lexical_layers=3, fusion_layers=2))
    model.load_backbone_weights(pretrained, "random")
    folder = tmp_path_factory.mktemp("stage") / "export"
    export_pretrained(model, tiny_tokenizer("bert"), folder, "")
    return folder


@pytest.mark.parametrize("elsewhere", (False, True))
def test_stage_two_takes_encoder_extractor_fusion_and_head(elsewhere, stage_one, backbone_folders, tmp_path):
    """Every weight of stage 2 is the one of stage 1, bit for bit, and the depths are those of stage 1; with a folder's
    path as `fusion_init` fusion layers and head come from there, the rest from the backbone."""
    if elsewhere:
        tiny_backbone("bert").save_pretrained(tmp_path)
    backbone = tmp_path if elsewhere else stage_one
    model = CMLMCSEForSentenceEmbedding.from_backbone(
        backbone, fusion_init=str(stage_one) if elsewhere else "pretrained"
    )
    assert (model.config.lexical_layers, model.config.fusion_layers) == (3, 2)
    assert model.config.fusion_init == ("checkpoint" if elsewhere else "pretrained")
    masked_lm = AutoModelForMaskedLM.from_pretrained(backbone)
    objective = model.auxiliary["cmlm"]
    encoder = masked_lm.bert.state_dict()
    assert all(torch.equal(tensor, encoder[name]) for name, tensor in model.backbone.state_dict().items())
    extractor = objective.extractor.state_dict()
    assert len(blocks(objective.extractor)) == 3
    assert all(torch.equal(tensor, encoder[name]) for name, tensor in extractor.items())
    fusion = load_file(stage_one / "auxiliary_network.safetensors")
    assert fusion.keys() == objective.fusion.state_dict().keys()
    assert all(torch.equal(tensor, fusion[name]) for name, tensor in objective.fusion.state_dict().items())
    head = AutoModelForMaskedLM.from_pretrained(stage_one).cls.predictions
    assert torch.equal(objective.head.dense.weight, head.transform.dense.weight)
    assert torch.equal(objective.head.LayerNorm.weight, head.transform.LayerNorm.weight)
    assert torch.equal(objective.head.decoder.weight, head.decoder.weight)
    assert torch.equal(objective.head.decoder.bias, head.decoder.bias)


@pytest.mark.parametrize("kind", (*KINDS, *OTHER_KINDS))
def test_every_kind_of_backbone_through_both_stages(kind, backbone_folders, sentences, tmp_path):
    """Stage 1's MLM loss is that of transformers' own padded model; its export has the model's weights; and with the
    masked sentences' own vectors stage 2's loss is stage 1's auxiliary loss."""
    pretrained, _ = load_backbone(backbone_folders[kind])
    first = AuxiliaryPretraining(pretrained.config, partial(FusionDecoder, lexical_layers=3, fusion_layers=2))
    first.load_backbone_weights(pretrained, "random")
    masked = make_masked_batch(kind, sentences)["masked"]
    losses = first.eval().losses(masked)

    rows = masked["input_ids"].split(masked["lengths"].tolist())
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pretrained.config.pad_token_id)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    logits = pretrained.eval()(input_ids=ids, attention_mask=mask).logits[mask.bool()][masked["mlm_positions"]]
    expected = torch.nn.functional.cross_entropy(logits, masked["mlm_labels"], reduction="sum")
    assert losses["mlm"].total.item() == pytest.approx(expected.item(), rel=1e-5)

    folder = tmp_path / "export"
    export_pretrained(first, tiny_tokenizer(kind), folder, "")
    exported = AutoModelForMaskedLM.from_pretrained(folder).state_dict()
    assert all(torch.equal(tensor, exported[name]) for name, tensor in pretrained.state_dict().items())
    second = CMLMCSEForSentenceEmbedding.from_backbone(folder, fusion_init="pretrained").eval()
    vectors = TrainingLosses(second).sentence_vectors({**masked, "num_views": 1})[0]
    found = second.auxiliary["cmlm"](second.backbone, vectors, masked).total
    assert found.item() == pytest.approx(losses["auxiliary"].total.item(), rel=1e-5)


@pytest.mark.parametrize("fields", ({"auxiliary_weight": 0}, {"auxiliary_decoder": "retromae"}))
def test_depths_of_no_fusion_layers_are_not_checked(fields, backbone_folders):
    """Without InfoCSE's or Condenser's decoder a recipe's depths may exceed the backbone's."""
    model = ModelArguments(backbone_folders["shallow"], lexical_layers=8, fusion_layers=6)
    built = build_pretraining_model(model, DataArguments(**fields), tiny_tokenizer("bert"))
    assert len(blocks(built.backbone)) == 3
    assert not isinstance(built.decoder, FusionDecoder)


class KeepsFusion(TrainerCallback):
    """Keeps the weights of the fusion layers before and after training."""

    def __init__(self) -> None:
        self.kept: list[dict[str, torch.Tensor]] = []

    def on_train_begin(self, *args: Any, model: TrainingLosses, **kwargs: Any) -> None:
        self.kept.append(copy.deepcopy(model.model.auxiliary["cmlm"].fusion.state_dict()))

    on_train_end = on_train_begin


@pytest.mark.slow
def test_stage_two_trains(stage_one, recipe, monkeypatch, tmp_path):
    """The command starts from the fusion layers of a stage 1 folder, bit for bit, and trains them."""
    fusion = KeepsFusion()
    monkeypatch.setattr(encoder_training, "ContrastiveTrainer", partial(ContrastiveTrainer, callbacks=[fusion]))
    plain = ("--stage", "train", "--model_name_or_path", stage_one, "--fusion_init", "pretrained", "--max_steps", 2)
    plain += ("--lexical_layers", 3, "--fusion_layers", 2, "--dev_set", "none", "--final_evaluation", "none")
    run(monkeypatch, recipe, *plain)
    begun, ended = fusion.kept
    pretrained = load_file(stage_one / "auxiliary_network.safetensors")
    assert pretrained.keys() == begun.keys()
    assert all(torch.equal(tensor, begun[name]) for name, tensor in pretrained.items())
    still = {name for name, tensor in begun.items() if torch.equal(tensor, ended[name])}
    assert not any(name.endswith("weight") for name in still)  # the softmax leaves a key's bias no gradient
    assert (tmp_path / "run" / "export" / "model.safetensors").exists()


def test_another_pooling_than_the_network_reads_is_told(stage_one, caplog):
    """A warning, for it may be meant; [CLS] is one vector under two names, and a file without the name says nothing."""
    network = PretrainedAuxiliary.find(str(stage_one))
    assert network.pooling == "cls_before_pooler"
    logging.enable_propagation()
    with caplog.at_level("WARNING"):
        for pooling in ("cls", "cls_before_pooler"):
            model = CMLMCSEForSentenceEmbedding.from_backbone(stage_one, fusion_init="pretrained", pooling=pooling)
        network._replace(pooling=None).load_into(model.auxiliary["cmlm"].fusion, "avg")
        assert "was trained with the pooling" not in caplog.text
        CMLMCSEForSentenceEmbedding.from_backbone(stage_one, fusion_init="pretrained", pooling="avg")
    logging.disable_propagation()
    assert "was trained with the pooling cls_before_pooler" in caplog.text
    assert "pre-train with --pooling avg" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("decoder", ("fusion", "retromae"))
def test_a_step_does_not_wait(decoder, recipe, monkeypatch):
    """As in stage train: nothing in a step would make the host wait for a GPU."""
    steps = RecordsSteps()
    monkeypatch.setattr(pretraining, "PretrainingTrainer", partial(PretrainingTrainer, callbacks=[steps]))
    run(monkeypatch, recipe, "--auxiliary_decoder", decoder, "--max_steps", 2)
    assert steps.recorder.names.count("embedding_dense_backward") >= 2
    assert steps.recorder.waits == []


def test_a_finished_encoder_has_no_head(backbone_folders, tmp_path, capsys):
    """It can be pre-trained further, with a fresh head, and a line says so."""
    folder, tokenizer = str(tmp_path / "encoder"), AutoTokenizer.from_pretrained(backbone_folders["bert"])
    AutoModel.from_pretrained(backbone_folders["bert"]).save_pretrained(folder)
    model = build_pretraining_model(ModelArguments(model_name_or_path=folder), DataArguments(), tokenizer)
    assert f"{folder}: {NO_HEAD}" in capsys.readouterr().err
    assert model.masked_lm.get_output_embeddings().weight is model.masked_lm.get_input_embeddings().weight


WRONG = [
    (["--stage", "train", "--model_name_or_path", "{one}", "--fusion_init", "pretrained", "--lexical_layers", "2"],
     ["lexical_layers must be 3", "found 2"]),
    (["--stage", "train", "--model_name_or_path", "{one}", "--fusion_init", "{one}", "--lexical_layers", "3"],
     ["fusion_layers must be 2", "found 1"]),
    (["--stage", "train", "--model_name_or_path", "{bert}", "--fusion_init", "pretrained"],
     ["expects auxiliary_network.safetensors", "found none", "--stage pretrain"]),
    (["--stage", "train", "--model_name_or_path", "{tmp}/no/export", "--fusion_init", "pretrained"],
     ["must be what stage 1 exports", "found no folder", "--stage pretrain first"]),
    (["--stage", "pretrian"], ["stage must be one of train, pretrain, found 'pretrian'"]),
    (["--sequences", "paragraphs"], ["sequences must be one of documents, sentences, found 'paragraphs'"]),
    (["--lexical_layers", "4"], ["lexical_layers must be from 1 to 3", "found 4"]),
    (["--fusion_layers", "5"], ["fusion_layers must be at most 4, the backbone's depth, found 5"]),
    (["--model_type", "null", "--config_overrides", "null", "--model_name_or_path", "{bert}", "--fusion_init", "random",
      "--fusion_layers", "7"], ["fusion_layers must be at most 6, the backbone's depth, found 7"]),
    (["--model_type", "llama9"], ["model_type", "found 'llama9'"]),
    (["--config_overrides", "depth=3"], ["config_overrides expects", "depth"]),
    (["--vocab_size", "20"], ["vocab_size must be at least 300, found 20"]),
    (["--max_seq_length", "65"], ["max_seq_length must be at most 64", "found 65"]),
    (["--validation_split_percentage", "100"], ["validation_split_percentage must be a number from 0 to 99"]),
    (["--auxiliary_decoder", "bow"], ["auxiliary_decoder must be one of fusion, retromae, found 'bow'"]),
    (["--decoder_hidden_share", "1.5"], ["decoder_hidden_share must be a number from 0"]),
    (["--auxiliary_weight", "-1"], ["auxiliary_weight must be a number from 0"]),
    (["--streaming", "true"], ["streaming is for stage train, found True with stage pretrain", "ahead of training"]),
    (["--augmentation", "delete_tokens", "--deletion_rate", "0.6"],
     ["delete_tokens in stage pretrain expects the decoder that restores them, found auxiliary_decoder fusion",
      "or --augmentation none --deletion_rate 0.1"]),
    (["--augmentation", "delete_tokens", "--auxiliary_decoder", "retromae", "--auxiliary_weight", "0"],
     ["auxiliary_decoder retromae with auxiliary_weight 0; set --auxiliary_decoder retromae --auxiliary_weight 1"]),
    (["--augmentation", "reorder", "--auxiliary_decoder", "retromae"],
     ["augmentation in stage pretrain must be none or delete_tokens, found reorder", "set --augmentation none"]),
    (["--deletion_rate", "0.6"], ["deletion_rate expects augmentation delete_tokens, found 0.6 with none"]),
    (["--augmented_views", "both"], ["augmented_views is for stage train, found both with stage pretrain"]),
    (["--contrastive-weight=2"],
     ["--contrastive_weight is for stage train, found 2.0 with stage pretrain", "; drop it here"]),
    (["--positive_column", "answer"],
     ["positive_column is for stage train, found answer with stage pretrain", "set --positive_column null"]),
    (["--mini_batch_size", "4"],
     ["mini_batch_size is for stage train, found 4 with stage pretrain", "gradient_accumulation_steps saves"]),
    (["--lora_r", "4"], ["lora_r is for stage train, found 4 with stage pretrain", "set --lora_r null"]),
    (["--train_file", "{tmp}/absent.txt"], ["absent.txt", "expected a file or a Hub dataset id"]),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "expected"), WRONG, ids=[" ".join(a[-2:])[:40] for a, _ in WRONG])
def test_wrong_input(arguments, expected, recipe, stage_one, backbone_folders, monkeypatch, tmp_path, capsys):
    """Exit status 2 and one line that says what was expected and what was found."""
    places = {"one": stage_one, "bert": backbone_folders["bert"], "tmp": tmp_path}
    plain = ("--dev_set", "none", "--final_evaluation", "none")
    with pytest.raises(SystemExit) as stop:
        run(monkeypatch, recipe, *plain, *(argument.format(**places) for argument in arguments))
    assert stop.value.code == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, errors
    for piece in expected:
        assert piece in errors[0]
    assert not (tmp_path / "run").exists()
