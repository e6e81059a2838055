"""Stage 1: its losses against an independent computation, its command, its resume, and stage 2 from what it leaves."""

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM, AutoTokenizer, pipeline
from transformers.utils import logging

from cmlmcse.data.batches import Example
from cmlmcse.data.masking import Masking
from cmlmcse.data.pretraining_text import MaskedCollator
from cmlmcse.training.pretraining_export import export_pretrained
from cmlmcse.training.pretraining_model import AuxiliaryPretraining
from cmlmcse.training.training_losses import TrainingLosses
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from modeling_cmlmcse.backbone import blocks, load_backbone
from modeling_cmlmcse.enhanced_decoding import inner_tokens
from modeling_cmlmcse.packing import Packing
from modeling_cmlmcse.pretrained_auxiliary import PretrainedAuxiliary
from support.tiny import KINDS, OTHER_KINDS, WORDS, tiny_backbone, tiny_tokenizer
from support.training import history, run

FAMILIES = ("bert", "roberta")


def pretraining(folder: str, weight: float = 1.0, pooling: str = "cls_before_pooler") -> AuxiliaryPretraining:
    """The model of stage 1 on a tiny backbone: 3 of 6 layers below, 2 fusion layers, which start as the last."""
    pretrained, _ = load_backbone(folder)
    model = AuxiliaryPretraining(pretrained.config, 3, 2, weight, pooling)
    model.load_backbone_weights(pretrained, "last" if weight > 0 else "random")
    return model.eval()


def make_batch(kind: str, sentences: list[str], probability: float = 0.4, seed: int = 5) -> dict:
    """A masked batch of these sentences."""
    tokenizer = tiny_tokenizer(kind)
    masking = Masking(probability, tokenizer.mask_token_id, len(tokenizer), frozenset(tokenizer.all_special_ids))
    collator = MaskedCollator(seed, masking)
    return collator([Example(tokenizer(s)["input_ids"], 0, row) for row, s in enumerate(sentences)])


def reference_losses(
    folder: str, masked: dict, pooling: str = "cls_before_pooler"
) -> tuple[torch.Tensor, torch.Tensor, torch.nn.Module]:
    """Both losses with transformers' own padded layers, full logits and its tied head; and that model."""
    model = AutoModelForMaskedLM.from_pretrained(folder).eval()
    model.set_attn_implementation("eager")
    rows = masked["input_ids"].split(masked["lengths"].tolist())
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=model.config.pad_token_id)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    states = model.base_model(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states
    mean = ((states[1] + states[6]) / 2 * mask[..., None]).sum(dim=1, keepdim=True) / mask.sum(dim=1)[:, None, None]
    vectors = mean if pooling == "avg_first_last" else states[6][:, :1]
    fused = torch.cat([vectors, states[3][:, 1:]], dim=1)  # [h ; H_k[1:]]
    allowed = (1.0 - mask[:, None, None, :].float()) * torch.finfo(torch.float32).min
    for block in copy.deepcopy(model.base_model.encoder.layer[4:]):
        fused = block(fused, attention_mask=allowed)
    head = model.cls if hasattr(model, "cls") else model.lm_head
    losses = [
        torch.nn.functional.cross_entropy(
            head(hidden)[mask.bool()][masked["mlm_positions"]], masked["mlm_labels"]
        )
        for hidden in (states[6], fused)
    ]  # fmt: skip
    return losses[0], losses[1], model


@pytest.mark.parametrize("pooling", ("cls_before_pooler", "avg_first_last"))
@pytest.mark.parametrize("kind", FAMILIES)
def test_losses_and_gradients_equal_an_independent_computation(kind, pooling, backbone_folders, sentences):
    """L = L_mlm + λ L_aux, and the gradient of every backbone weight, on padded reference layers at 1e-5."""
    model = pretraining(backbone_folders[kind], weight=0.7, pooling=pooling)
    masked = make_batch(kind, sentences)["masked"]
    output = model(masked)
    mlm, auxiliary, reference = reference_losses(backbone_folders[kind], masked, pooling)
    assert output.logs["mlm_loss"].item() == pytest.approx(mlm.item(), abs=1e-5)
    assert output.logs["auxiliary_loss"].item() == pytest.approx(auxiliary.item(), abs=1e-5)
    assert output.loss.item() == pytest.approx((mlm + 0.7 * auxiliary).item(), abs=1e-5)
    output.loss.backward()
    (mlm + 0.7 * auxiliary).backward()
    theirs = dict(reference.named_parameters())
    for name, parameter in model.masked_lm.named_parameters():
        torch.testing.assert_close(parameter.grad, theirs[name].grad, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("kind", FAMILIES)
def test_where_the_gradients_go(kind, backbone_folders, sentences):
    """The lower layers get a gradient from each loss, the upper ones of the auxiliary loss through [CLS] alone, the
    fusion layers of the auxiliary loss alone; head and embeddings are one tensor."""
    model = pretraining(backbone_folders[kind])
    masked = make_batch(kind, sentences)["masked"]
    assert model.masked_lm.get_output_embeddings().weight is model.get_input_embeddings().weight
    for name in ("mlm", "auxiliary"):
        model.zero_grad()
        model.losses(masked)[name].total.backward()
        for block in blocks(model.backbone):
            assert all(parameter.grad.abs().sum() > 0 for parameter in block.parameters()), name
        fusion = [parameter.grad for parameter in model.fusion.parameters()]
        assert all((gradient is None) == (name == "mlm") for gradient in fusion)
        assert model.get_input_embeddings().weight.grad.abs().sum() > 0


def test_weight_zero_is_plain_masked_language_modelling(backbone_folders, sentences):
    """Without the auxiliary loss: no fusion layers, and the loss is the masked-language model's."""
    model = pretraining(backbone_folders["bert"], weight=0.0)
    masked = make_batch("bert", sentences)["masked"]
    assert model.fusion is None
    output = model(masked)
    assert set(output.logs) == {"mlm_loss", "mlm_accuracy"}
    assert output.loss.item() == pytest.approx(reference_losses(backbone_folders["bert"], masked)[0].item(), abs=1e-5)


def test_no_masked_token_is_exactly_zero(backbone_folders, sentences):
    """A batch without a masked token: a loss of zero, with a gradient of zero for every weight."""
    model = pretraining(backbone_folders["bert"])
    loss = model(make_batch("bert", sentences, probability=1e-12)["masked"]).loss
    loss.backward()
    assert loss.item() == 0.0
    assert all(parameter.grad.abs().max() == 0 for parameter in model.parameters())


# --- RetroMAE's decoder


def decoder_pretraining(folder: str, share: float = 0.5) -> AuxiliaryPretraining:
    """The model of stage 1 with RetroMAE's decoder."""
    pretrained, _ = load_backbone(folder)
    torch.manual_seed(1)
    model = AuxiliaryPretraining(pretrained.config, 3, 2, 0.7, decoder="retromae", hidden_share=share)
    model.load_backbone_weights(pretrained, "random")
    return model.eval()


def attended(block: torch.nn.Module, kind: str, asking: torch.Tensor, seen: torch.Tensor, column: int, columns: list):
    """What one word's state (H,) finds in the states (K, H) at these columns, and the rest of the block, in plain
    operations."""
    if kind == "modernbert":
        heads, size = block.attn.num_heads if hasattr(block.attn, "num_heads") else 4, block.attn.head_dim
        weights = block.attn.Wqkv.weight.chunk(3)
        normed = [block.attn_norm(states) for states in (asking[None], seen)]
        query, key, value = normed[0] @ weights[0].T, normed[1] @ weights[1].T, normed[1] @ weights[2].T
        frequencies = 160000.0 ** (-torch.arange(0, size, 2).double() / size)

        def turned(states, places):
            angles = torch.tensor(places).double()[:, None] * torch.cat([frequencies, frequencies])
            parts = states.unflatten(1, (heads, size))
            half = torch.cat([-parts[..., size // 2 :], parts[..., : size // 2]], dim=-1)
            return (parts * angles.cos()[:, None] + half * angles.sin()[:, None]).flatten(1)

        query, key = turned(query, [column]), turned(key, columns)
    else:
        own = block.attention.self
        heads, size = own.num_attention_heads, own.attention_head_size
        query, key, value = own.query(asking[None]), own.key(seen), own.value(seen)
    found = []
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        weights = (query[:, part] @ key[:, part].T / size**0.5).softmax(dim=-1)
        found.append(weights @ value[:, part])
    context = torch.cat(found, dim=1)
    if kind == "modernbert":
        attended = asking[None] + block.attn.Wo(context)
        return (attended + block.mlp(block.mlp_norm(attended)))[0]
    attended = block.attention.output.LayerNorm(block.attention.output.dense(context) + asking[None])
    return block.output.LayerNorm(block.output.dense(block.intermediate(attended)) + attended)[0]


@pytest.mark.parametrize("kind", ("bert", "roberta", "modernbert"))
def test_retromae_equals_an_independent_computation(kind, backbone_folders, sentences):
    """One word at a time, in fp64: loss and gradients of all weights. Every word is predicted."""
    model = decoder_pretraining(backbone_folders[kind]).double()
    masked = make_batch(kind, sentences)["masked"]
    output = model(masked)
    output.loss.backward()
    gradients = {name: weight.grad for name, weight in model.named_parameters()}
    model.zero_grad()

    reference, words = copy.deepcopy(model.masked_lm), masked["input_ids"].clone()
    words[masked["mlm_positions"]] = masked["mlm_labels"]
    reference.base_model.config._attn_implementation = "eager"
    packing = Packing.from_lengths(masked["lengths"], len(words), masked["width"])
    visible = model.decoder.visible(packing, inner_tokens(packing)[1])
    decoder = copy.deepcopy(model.decoder)
    block = blocks(decoder.block)[0]
    total, count, mlm = 0.0, 0, 0.0
    rows = zip(masked["input_ids"].split(masked["lengths"].tolist()), words.split(masked["lengths"].tolist()),
               strict=True)  # fmt: skip
    chosen = masked["mlm_positions"].tolist()
    start = 0
    for row, (given, true) in enumerate(rows):
        states = reference.base_model(input_ids=given[None]).last_hidden_state[0]
        inside = [place - start for place in chosen if start <= place < start + len(given)]
        logits = model_head(reference, kind)(states[inside])
        mlm = mlm + torch.nn.functional.cross_entropy(logits, true[inside], reduction="sum")
        embeddings = reference.base_model.embeddings
        context = embeddings(input_ids=true[None])[0]
        context = torch.cat([states[:1], context[1:]])
        asking = embeddings(inputs_embeds=states[:1].expand(len(true), -1)[None])[0]
        for place in range(1, len(true) - 1):
            columns = [column for column in range(len(true)) if visible[row, place - 1, column]]
            assert 0 in columns
            assert place not in columns
            state = attended(block, kind, asking[place], context[columns], place, columns)
            if kind == "modernbert":
                state = decoder.block.final_norm(state)
            logits = model_head(reference, kind)(state[None])
            total = total + torch.nn.functional.cross_entropy(logits, true[place : place + 1], reduction="sum")
            count += 1
        start += len(given)
    near = 1e-7 if kind == "modernbert" else 1e-10  # its rotary embeddings are in fp32
    assert output.logs["auxiliary_loss"].item() == pytest.approx(float(total.detach()) / count, abs=near)
    loss = mlm / len(chosen) + 0.7 * total / count
    assert output.loss.item() == pytest.approx(loss.item(), abs=near)
    loss.backward()
    for name, weight in (*reference.named_parameters(prefix="masked_lm"), *decoder.named_parameters(prefix="decoder")):
        torch.testing.assert_close(gradients[name], weight.grad, rtol=100 * near, atol=near, msg=name)


def model_head(model: torch.nn.Module, kind: str) -> torch.nn.Module:
    """The masked-language-model head."""
    if kind == "modernbert":
        return lambda states: model.decoder(model.head(states))
    return model.cls if kind == "bert" else model.lm_head


def test_what_a_word_sees(backbone_folders, sentences):
    """Half of the others by chance, another half for each word and, in training, each time; all with share 0."""
    model = decoder_pretraining(backbone_folders["bert"]).decoder
    packing = Packing.from_lengths(torch.full((40,), 40), 1600, 40)
    layout = inner_tokens(packing)[1]
    seen = model.visible(packing, layout)
    assert torch.equal(seen, model.visible(packing, layout))
    assert not torch.equal(model.train().visible(packing, layout), model.visible(packing, layout))
    assert seen[:, :, 0].all()
    assert not seen[:, torch.arange(38), torch.arange(38) + 1].any()
    assert seen.float().mean().item() == pytest.approx((1 + 0.5 * 38) / 40, abs=0.01)
    assert seen[0, 0].tolist() != seen[0, 1].tolist()
    model.hidden_share = 0.0
    assert model.visible(packing, layout).float().mean().item() == pytest.approx(39 / 40)


def test_the_words_that_a_position_does_not_see_do_not_matter(backbone_folders, sentences):
    """With everything hidden, another word elsewhere changes nothing; with everything visible it does."""
    for share, changes in ((1.0, False), (0.0, True)):
        model = decoder_pretraining(backbone_folders["bert"], share).decoder
        backbone = decoder_pretraining(backbone_folders["bert"]).backbone
        tokens = torch.tensor([2, 10, 11, 12, 3])
        packing = Packing.from_lengths(torch.tensor([5]), 5, 5)
        vector = torch.ones(1, backbone.config.hidden_size)
        first, places = model(backbone, vector, tokens, packing)
        tokens[2] = 20
        second, _ = model(backbone, vector, tokens, packing)
        assert places.tolist() == [1, 2, 3]
        assert torch.allclose(first[1], second[1])  # its own word is never seen
        assert torch.allclose(first[0], second[0]) != changes


# --- the command


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
        "per_device_train_batch_size": 16,
        "per_device_eval_batch_size": 16,
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


@pytest.mark.slow
@pytest.mark.parametrize("kind", FAMILIES)
def test_goes_on_from_a_backbone(kind, recipe, backbone_folders, monkeypatch, tmp_path):
    """From a backbone with its tokenizer, on single sentences, in bf16: the export keeps kind and vocabulary."""
    options = ("--model_name_or_path", backbone_folders[kind], "--sequences", "sentences")
    fields = yaml.safe_load(recipe.read_text())
    del fields["model_type"], fields["config_overrides"]
    recipe.write_text(yaml.safe_dump(fields))
    run(monkeypatch, recipe, *options, "--bf16", True, "--max_steps", 6)
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


def test_recipe_names_its_first_stage(recipe, monkeypatch, tmp_path):
    """`RECIPE --stage pretrain` runs the recipe that RECIPE names in its field `pretrain`."""
    second = tmp_path / "second.yaml"
    second.write_text(yaml.safe_dump({"pretrain": str(recipe), "learning_rate": "1e-5"}))
    from cmlmcse.training.parse import parse_recipe

    path, _, _, first_stage = parse_recipe([str(second), "--stage", "pretrain", "--use_cpu", "true"])
    assert (path, first_stage.learning_rate, first_stage.stage) == (recipe, 3e-3, "pretrain")
    path, _, _, second_stage = parse_recipe([str(second), "--use_cpu", "true"])
    assert (path, second_stage.learning_rate, second_stage.stage) == (second, 1e-5, "train")


# --- stage 2


@pytest.fixture(scope="module")
def stage_one(tmp_path_factory, backbone_folders) -> Path:
    """What stage 1 exports, of 3 + 2 layers: the fusion layers unlike any of the backbone's."""
    pretrained, _ = load_backbone(backbone_folders["bert"])
    torch.manual_seed(3)
    model = AuxiliaryPretraining(pretrained.config, 3, 2)
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
    first = AuxiliaryPretraining(pretrained.config, 3, 2)
    first.load_backbone_weights(pretrained, "random")
    masked = make_batch(kind, sentences)["masked"]
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


@pytest.mark.slow
def test_stage_two_trains(stage_one, recipe, monkeypatch, tmp_path):
    """The command goes on from a stage 1 folder."""
    plain = ("--stage", "train", "--model_name_or_path", stage_one, "--fusion_init", "pretrained", "--max_steps", 2)
    plain += ("--lexical_layers", 3, "--fusion_layers", 2, "--dev_set", "none", "--final_evaluation", "none")
    run(monkeypatch, recipe, *plain)
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
    (["--model_type", "llama9"], ["model_type", "found 'llama9'"]),
    (["--config_overrides", "depth=3"], ["config_overrides expects", "depth"]),
    (["--vocab_size", "20"], ["vocab_size must be at least 300, found 20"]),
    (["--max_seq_length", "65"], ["max_seq_length must be at most 64", "found 65"]),
    (["--validation_split_percentage", "100"], ["validation_split_percentage must be a number from 0 to 99"]),
    (["--auxiliary_decoder", "bow"], ["auxiliary_decoder must be one of fusion, retromae, found 'bow'"]),
    (["--decoder_hidden_share", "1.5"], ["decoder_hidden_share must be a number from 0"]),
    (["--auxiliary_weight", "-1"], ["auxiliary_weight must be a number from 0"]),
    (["--streaming", "true"], ["found streaming"]),
    (["--mini_batch_size", "4"], ["mini_batch_size is for the contrast", "gradient_accumulation_steps"]),
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
