"""What is particular to the other kinds of backbone: heads, dropout, windows, position biases, saving and export.

That each kind computes what transformers computes is in test_parity.py, test_conditional_mlm.py and test_auxiliary.py.
"""

import json

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForMaskedLM, ElectraForPreTraining, T5Config
from transformers.utils import logging

from cmlmcse.hub.export import export
from cmlmcse.training.training_losses import TrainingLosses
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from modeling_cmlmcse import attention as attention_module
from modeling_cmlmcse.attention import packed_attention
from modeling_cmlmcse.backbone import MaskedLMHead, blocks, build_blocks, build_encoder, dropouts, family_of
from modeling_cmlmcse.packing import Packing, Selection
from support.batches import make_batch
from support.processes import run_fresh
from support.tiny import KINDS, OTHER_KINDS, load_reference, tiny_backbone, tiny_config, tiny_tokenizer

NEW_KINDS = ("electra", "distilbert", "mpnet", "modernbert")
FRESH = """
import sys, json
import numpy as np
from transformers import AutoConfig, AutoModel, AutoTokenizer
folders, out, sentences = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
found = {}
for kind, folder in json.loads(folders).items():
    model = AutoModel.from_pretrained(folder, trust_remote_code=True)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert type(model).__module__.startswith("transformers_modules."), type(model).__module__
    batch = tokenizer(sentences, padding=True, return_tensors="pt")
    batch.pop("token_type_ids", None)
    found[kind] = model(**batch).pooler_output.detach().numpy()
np.savez(out, **found)
"""


def load(folder: str, **fields) -> CMLMCSEForSentenceEmbedding:
    """The model from a tiny backbone."""
    return CMLMCSEForSentenceEmbedding.from_backbone(folder, **fields)


@pytest.mark.parametrize("kind", (*KINDS, *OTHER_KINDS))
def test_head_is_the_pretrained_one(kind, backbone_folders):
    """The head gives the pretrained model's logits, from copies of its own; an untrained one only the decoder."""
    theirs = AutoModelForMaskedLM.from_pretrained(backbone_folders[kind]).eval()
    ids = torch.randint(5, 80, (2, 7))
    with torch.no_grad():
        hidden, expected = theirs.base_model(ids).last_hidden_state, theirs(ids).logits
        head = MaskedLMHead(theirs.config)
        head.copy_from(theirs, trained=True)
        torch.testing.assert_close(head(hidden), expected, rtol=0, atol=1e-5)
    assert not {p.data_ptr() for p in head.parameters()} & {p.data_ptr() for p in theirs.parameters()}
    fresh = MaskedLMHead(theirs.config)
    fresh.copy_from(theirs, trained=False)
    assert torch.equal(fresh.decoder.weight, theirs.get_input_embeddings().weight)
    assert fresh.decoder.bias.abs().max() == 0
    assert not torch.equal(fresh.dense.weight, head.dense.weight)


@pytest.mark.parametrize("bias", (True, False))
def test_modernbert_head_biases(bias):
    """Biases are where the configuration says."""
    config = tiny_config("modernbert", classifier_bias=bias, norm_bias=bias, decoder_bias=bias)
    theirs = AutoModelForMaskedLM.from_config(config).eval()
    head = MaskedLMHead(config)
    head.copy_from(theirs, trained=True)
    hidden = torch.randn(3, 32)
    torch.testing.assert_close(head(hidden), theirs.decoder(theirs.head(hidden)), rtol=0, atol=1e-6)
    head.copy_from(theirs, trained=False)


def test_electra_discriminator(tmp_path, caplog):
    """ELECTRA's usual checkpoint, the discriminator, has no masked-language-model head: a warning, and it trains."""
    torch.manual_seed(0)
    ElectraForPreTraining(tiny_config("electra")).save_pretrained(tmp_path)
    logging.enable_propagation()
    with caplog.at_level("WARNING"):
        model = load(tmp_path)
    logging.disable_propagation()
    assert "has no masked-language-model head" in caplog.text
    decoder = model.auxiliary["cmlm"].head.decoder.weight
    assert torch.equal(decoder, model.backbone.embeddings.word_embeddings.weight)


@pytest.mark.slow
@pytest.mark.parametrize("kind", NEW_KINDS)
def test_training_lowers_the_loss(kind, backbone_folders, sentences):
    """A few steps on one batch lower the loss with all objectives, in training mode, and every trainable weight of the
    auxiliary network gets a gradient; nothing but the frozen parts is left out."""
    torch.manual_seed(0)
    model = load(backbone_folders[kind], cmlm_weight=1.0, mlm_weight=0.5, rtd_weight=0.5).train()
    batch = make_batch(kind, sentences)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    losses = []
    for _ in range(8):
        loss = TrainingLosses(model)(**batch).loss
        loss.backward()
        if not losses:
            missing = [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None]
            assert not missing
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert np.mean(losses[-3:]) < 0.9 * losses[0], losses


@pytest.mark.parametrize("kind", NEW_KINDS)
def test_gradient_checkpointing(kind, backbone_folders, sentences):
    """Checkpointing changes no gradient, where transformers has it at all."""
    model = load(backbone_folders[kind], cmlm_weight=0.5, backbone_dropout=0.0).train()
    batch = make_batch(kind, sentences)
    TrainingLosses(model)(**batch).loss.backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    assert model.supports_gradient_checkpointing == (kind != "mpnet")
    if kind == "mpnet":
        with pytest.raises(ValueError, match=r"does not support .* checkpointing"):
            model.gradient_checkpointing_enable()
        return
    model.gradient_checkpointing_enable()
    TrainingLosses(model)(**batch).loss.backward()
    for name, parameter in model.named_parameters():
        if name in expected:
            torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("training", (False, True))
@pytest.mark.parametrize("kind", ("bert", *NEW_KINDS))
def test_half_precision(kind, training, backbone_folders, sentences):
    """Under autocast the losses are near those in full precision, with and without dropout (here of almost nothing)."""
    model = load(backbone_folders[kind], cmlm_weight=0.5, backbone_dropout=1e-9).train(training)
    batch = make_batch(kind, sentences)
    expected = TrainingLosses(model)(**batch).loss.item()
    with torch.autocast("cpu", torch.bfloat16):
        found = TrainingLosses(model)(**batch).loss
    found.backward()
    assert found.item() == pytest.approx(expected, rel=0.1)
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


# --- dropout


@pytest.mark.parametrize("kind", (*KINDS, *OTHER_KINDS))
def test_backbone_dropout(kind, backbone_folders, sentences, monkeypatch):
    """`backbone_dropout` is the probability of every dropout; at 0 two passes in training mode are the same, above
    they are not; attention has it too."""
    probabilities = []
    attention = attention_module.attention_with_dropout
    monkeypatch.setattr(
        attention_module, "attention_with_dropout", lambda *args: probabilities.append(args[5]) or attention(*args)
    )
    views = make_batch(kind, sentences)["views"]
    for probability, same in ((0.0, True), (0.3, False)):
        model = load(backbone_folders[kind], cmlm_weight=0.0, backbone_dropout=probability).train()
        found = {module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)}
        assert found == {probability} or (kind == "modernbert" and found <= {probability})
        first, second = (TrainingLosses(model).sentence_vectors(views) for _ in range(2))
        assert torch.equal(first, second) is same
        assert probabilities == ([] if same else 2 * 6 * [0.3])
        exported = AutoConfig.for_model(**model.config.to_export_dict())
        assert set(dropouts(exported).values()) == {0.1}  # the backbone's own, for whoever trains it further


def test_backbone_dropout_out_of_range(backbone_folders):
    with pytest.raises(ValueError, match=r"backbone_dropout must be a number from 0 to 1, found 1\.5"):
        load(backbone_folders["bert"], backbone_dropout=1.5)


def test_no_dropout_is_told(tmp_path, caplog):
    """ModernBERT as it comes has no dropout, and two equal views teach nothing: a warning, unless it is meant."""
    tiny_backbone("modernbert", dropout=0.0).save_pretrained(tmp_path)
    logging.enable_propagation()
    with caplog.at_level("WARNING"):
        load(tmp_path, backbone_dropout=0.0)
        load(tmp_path, backbone_dropout=0.1)
        assert "dropout" not in caplog.text
        load(tmp_path)
    logging.disable_propagation()
    assert "will be identical" in caplog.text
    assert "Set backbone_dropout" in caplog.text


@pytest.mark.parametrize("layout", ("GridLayout", "RowLayout"))
@pytest.mark.parametrize("kind", ("bert", "mpnet", "modernbert"))
def test_attention_with_dropout_of_almost_nothing(kind, layout, backbone_folders, sentences, monkeypatch):
    """The attention that drops out sees what the other sees: masks, windows, biases, selections; row by row too."""
    monkeypatch.setattr(attention_module, "has_long_rows", lambda *_: layout == "RowLayout")
    model = load(backbone_folders[kind], cmlm_weight=0.5, backbone_dropout=1e-9)
    batch, losses = make_batch(kind, sentences), TrainingLosses(model)
    expected, found = losses.eval()(**batch), losses.train()(**batch)
    assert found.loss.item() == pytest.approx(expected.loss.item(), abs=1e-5)
    found.loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


# --- windows and biases


def test_window_and_bias_by_a_plain_loop():
    """Packed attention with holes, a window, a bias and selected queries equals a loop over the tokens."""
    torch.manual_seed(0)
    mask = torch.tensor([[0, 1, 1, 0, 1, 1, 1], [1, 0, 0, 0, 0, 1, 0]])
    packing, size, heads, window = Packing.from_mask(mask), 6 + 1, 2, 3
    rows, columns = packing.rows.tolist(), packing.columns.tolist()
    query, key, value = torch.randn(3, 1, heads, len(rows), 4)
    bias = torch.randn(1, heads, size, size)
    index = torch.tensor([1, 3, 6])  # two of the first row's tokens, one of the second's
    selection = Selection(index, Packing.from_lengths(torch.tensor([2, 1]), 3, 2))
    attend = torch.nn.Identity(), query[:, :, index], key, value, None
    for reach, added in ((window, None), (None, bias), (window, bias)):
        found, _ = packed_attention(*attend, packing=packing, selection=selection, sliding_window=reach, bias=added)
        for place, i in enumerate(index.tolist()):
            near = [j for j in range(len(rows)) if rows[j] == rows[i]]
            near = [j for j in near if reach is None or abs(columns[j] - columns[i]) < reach]
            scores = (key[0][:, near] * query[0][:, [i]]).sum(-1) / 2  # (heads, near)
            if added is not None:
                scores = scores + added[0][:, columns[i], [columns[j] for j in near]]
            expected = (scores.softmax(-1)[..., None] * value[0][:, near]).sum(1)
            torch.testing.assert_close(found[0, place], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("lengths", ([3, 1, 4], [4, 4]), ids=("with padding", "full"))
@pytest.mark.parametrize("selected", (False, True), ids=("all tokens", "the first ones"))
def test_one_move_to_the_grid(lengths, selected):
    """What a GPU does in one piece is the same as one by one, gradients included."""
    torch.manual_seed(0)
    packing = Packing.from_lengths(torch.tensor(lengths), sum(lengths), 4)
    grids = Selection.first_tokens(packing).packing if selected else packing, packing
    states = [torch.randn(len(grid.slots), 2, 5, requires_grad=True) for grid in (grids[0], packing, packing)]
    found = []
    alone = attention_module.GridLayout(grids)
    one_by_one = (alone.split(part, side)[0] for part, side in zip(states, (0, 1, 1), strict=True))
    for moved in (tuple(one_by_one), attention_module.on_grids_together(*states, grids)):
        loss = sum((part * (number + part)).sum() for number, part in enumerate(moved))
        found.append((*moved, *torch.autograd.grad(loss, states)))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_modernbert_windows(backbone_folders, sentences, monkeypatch):
    """Beyond its window a local block takes the grid; within it, and without one, a variable-length kernel."""
    calls = []

    def kernel(query, key, value, bounds, longest, dropout):
        calls.append(longest)
        return query

    monkeypatch.setattr(attention_module, "find_kernel", lambda *_, **__: kernel)
    model = load(backbone_folders["modernbert"], cmlm_weight=0.0, pooling="avg").eval()
    model.encode(sentences, tiny_tokenizer("modernbert"))
    assert len(calls) == 2  # of 6 blocks, 0 and 3 are global
    model.encode(["dog"], tiny_tokenizer("modernbert"))
    assert len(calls) == 8


def test_modernbert_parts():
    """Fusion blocks attend like the backbone's blocks whose weights they take; only the very first has no norm."""
    config = tiny_config("modernbert")
    assert config.layer_types == (["full_attention"] + ["sliding_attention"] * 2) * 2
    fusion = build_blocks(config, 2, first=2)
    assert [block.attention_type for block in blocks(fusion)] == ["sliding_attention", "full_attention"]
    assert all(isinstance(block.attn_norm, torch.nn.LayerNorm) for block in blocks(fusion))
    assert not list(fusion.embeddings.parameters())
    assert isinstance(fusion.final_norm, torch.nn.LayerNorm)
    extractor = build_encoder(config, 4)
    assert isinstance(extractor.final_norm, torch.nn.Identity)
    assert isinstance(blocks(extractor)[0].attn_norm, torch.nn.Identity)
    assert len(blocks(extractor)) == 4


def test_modernbert_fusion_of_another_kind(backbone_folders, tmp_path):
    """Weights of global blocks are not put into local ones."""
    fields = {"lexical_layers": 2, "fusion_layers": 2}
    load(backbone_folders["modernbert"], fusion_init="next", **fields).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="whose fusion layers attend like"):
        load(backbone_folders["modernbert"], fusion_init=str(tmp_path), **fields)


# --- saving


@pytest.mark.parametrize("kind", NEW_KINDS)
def test_checkpoint(kind, backbone_folders, sentences, tmp_path):
    """Saved and loaded whole: the same losses, and another attention asked for changes nothing."""
    model = load(backbone_folders[kind], cmlm_weight=0.5, rtd_weight=0.5, mlm_weight=0.5).eval()
    model.save_pretrained(tmp_path)
    expected = TrainingLosses(model)(**make_batch(kind, sentences)).loss.item()
    for options in ({}, {"attn_implementation": "sdpa"}):
        again = CMLMCSEForSentenceEmbedding.from_pretrained(tmp_path, **options).eval()
        assert TrainingLosses(again)(**make_batch(kind, sentences)).loss.item() == pytest.approx(expected, abs=1e-5)
    assert json.loads((tmp_path / "config.json").read_text())["backbone_config"]["model_type"] == kind


@pytest.mark.parametrize("kind", NEW_KINDS)
@pytest.mark.parametrize("pooling", ("cls_before_pooler", "avg", "avg_first_last"))
def test_export(kind, pooling, backbone_folders, sentences, tmp_path):
    """The exported folder is the plain kind's, and a SentenceTransformer, with and without code in it."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    tokenizer, model = tiny_tokenizer(kind), load(backbone_folders[kind], pooling=pooling).eval()
    expected = model.encode(sentences, tokenizer)
    for trust_free in (False, True):
        folder = str(export(model, tokenizer, tmp_path / str(trust_free), trust_free=trust_free))
        loaded = sentence_transformers.SentenceTransformer(folder, device="cpu")
        np.testing.assert_allclose(loaded.encode(sentences), expected, atol=1e-5)
    plain = load_reference(kind, folder)
    assert plain.config.model_type == kind
    weights = model.backbone.state_dict()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in plain.state_dict().items())


@pytest.mark.slow
def test_exports_in_a_fresh_process(backbone_folders, sentences, tmp_path):
    """The exported folders alone, in a new process with an empty module cache, give the same embeddings."""
    folders, expected = {}, {}
    for kind in NEW_KINDS:
        model, tokenizer = load(backbone_folders[kind], pooling="avg").eval(), tiny_tokenizer(kind)
        folders[kind] = str(export(model, tokenizer, tmp_path / kind))
        expected[kind] = model.encode(sentences, tokenizer)
    arguments = json.dumps(folders), str(tmp_path / "out.npz"), json.dumps(sentences)
    run_fresh(FRESH, *arguments, cache=tmp_path / "modules")
    found = np.load(tmp_path / "out.npz")
    for kind in NEW_KINDS:
        np.testing.assert_allclose(found[kind], expected[kind], atol=1e-5)


@pytest.mark.parametrize("kind", (*KINDS, *OTHER_KINDS))
def test_longest_sentence(kind, backbone_folders):
    """The table of 66 positions holds 66 tokens, or 64 behind a padding row; so many are computed."""
    model = load(backbone_folders[kind], cmlm_weight=0.0).eval()
    behind_padding = kind in ("roberta", "xlm-roberta", "camembert", "mpnet")
    assert model.max_positions == (64 if behind_padding else 66)
    ids = torch.full((1, model.max_positions), 7)
    assert model(input_ids=ids).pooler_output.isfinite().all()


def test_unknown_kind():
    with pytest.raises(ValueError, match=r"one of bert, .*distilbert, mpnet, modernbert, found model_type 't5'"):
        family_of(T5Config())
