"""The auxiliary network: its loss against an independent computation, and where its gradient goes."""

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoModelForMaskedLM

from cmlmcse.training.training_losses import TrainingLosses
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from support.batches import from_states, make_batch, unpack
from support.tiny import KINDS, OTHER_KINDS, tiny_backbone


def reference_losses(folder: str, model, batch) -> tuple[torch.Tensor, torch.Tensor, torch.nn.Module]:
    """Contrastive and conditional MLM loss with transformers' own padded layers and full logits; and its encoder."""
    pretrained = AutoModelForMaskedLM.from_pretrained(folder, dtype=model.dtype).eval()
    pretrained.set_attn_implementation("sdpa")
    base = pretrained.base_model
    ids, mask = unpack(batch["views"])
    ids = ids.masked_fill(mask == 0, pretrained.config.pad_token_id)
    h = base(input_ids=ids, attention_mask=mask).last_hidden_state[:, 0]
    z = torch.tanh(model.projection.dense(h))
    first, second = z.chunk(2)
    cosines = torch.cosine_similarity(first[:, None], second[None], dim=-1) / model.config.temp
    contrastive = torch.nn.functional.cross_entropy(cosines, torch.arange(len(first)))

    masked_ids, mask = unpack(batch["masked"])
    masked_ids = masked_ids.masked_fill(mask == 0, pretrained.config.pad_token_id)
    with torch.no_grad():
        states = base(input_ids=masked_ids, attention_mask=mask, output_hidden_states=True).hidden_states
    lexical = states[model.config.lexical_layers]
    fused = torch.cat([h[:, None], lexical[:, 1:]], dim=1)
    first = pretrained.config.num_hidden_layers - model.config.fusion_layers
    logits = from_states(pretrained, fused, first)(input_ids=masked_ids, attention_mask=mask).logits  # (B, T, V)
    flat = logits[mask.bool()][batch["masked"]["mlm_positions"]]
    return contrastive, torch.nn.functional.cross_entropy(flat, batch["masked"]["mlm_labels"]), base


@pytest.mark.parametrize("kind", (*KINDS, *OTHER_KINDS))
@pytest.mark.parametrize("lexical_layers", (None, 0))
def test_losses_equal_an_independent_computation(kind, lexical_layers, backbone_folders, sentences, tmp_path):
    """Loss = contrastive + λ · MLM, masked-only logits equal full logits, on padded reference layers in fp64, and so do
    the gradients of the encoder; also where the lexical features are the embeddings alone. A saved model gives the same
    loss."""
    fields = {"cmlm_weight": 0.5, "lexical_layers": lexical_layers}
    model = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders[kind], **fields).eval().double()
    batch = make_batch(kind, sentences)
    output = TrainingLosses(model)(**batch)
    contrastive, mlm, encoder = reference_losses(backbone_folders[kind], model, batch)
    assert output.logs["contrastive_loss"].item() == pytest.approx(contrastive.item(), abs=1e-6)  # logs are fp32
    assert output.logs["cmlm_loss"].item() == pytest.approx(mlm.item(), abs=1e-6)
    near = 1e-7 if kind == "modernbert" else 1e-11  # its rotary embeddings are in fp32
    assert output.loss.item() == pytest.approx((contrastive + 0.5 * mlm).item(), abs=near)
    output.loss.backward()
    (contrastive + 0.5 * mlm).backward()
    theirs = dict(encoder.named_parameters())
    for name, parameter in model.backbone.named_parameters():
        torch.testing.assert_close(parameter.grad, theirs[name].grad, rtol=100 * near, atol=near, msg=name)
    if lexical_layers == 0:
        model.save_pretrained(tmp_path)
        again = CMLMCSEForSentenceEmbedding.from_pretrained(tmp_path, dtype=torch.float64).eval()
        assert TrainingLosses(again)(**batch).loss.item() == pytest.approx(output.loss.item(), abs=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_lambda_zero_is_simcse(kind, backbone_folders, sentences):
    """λ = 0 builds no auxiliary network, and loss and every gradient are an independent SimCSE's at 1e-5."""
    model = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders[kind], cmlm_weight=0.0).eval()
    assert len(model.auxiliary) == 0
    batch = make_batch(kind, sentences)
    output = TrainingLosses(model)(views=batch["views"])
    output.loss.backward()
    reference = AutoModel.from_pretrained(backbone_folders[kind], add_pooling_layer=False).eval()
    ids, mask = unpack(batch["views"])
    if kind != "bert":
        ids = ids.masked_fill(mask == 0, 1)
    head = torch.nn.Linear(32, 32)
    head.load_state_dict(model.projection.dense.state_dict())
    z = torch.tanh(head(reference(input_ids=ids, attention_mask=mask).last_hidden_state[:, 0]))
    unit = z / z.norm(dim=1, keepdim=True)
    first, second = unit.chunk(2)
    loss = torch.nn.functional.cross_entropy(first @ second.T / 0.05, torch.arange(len(first)))
    loss.backward()
    assert output.loss.item() == pytest.approx(loss.item(), abs=1e-5)
    ours = {**dict(model.backbone.named_parameters()), "head": model.projection.dense.weight}
    theirs = {**dict(reference.named_parameters()), "head": head.weight}
    assert ours.keys() == theirs.keys()
    for name in theirs:
        torch.testing.assert_close(ours[name].grad, theirs[name].grad, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("kind", ("bert", "roberta"))
def test_mlm_gradient_flows_through_the_sentence_vector_alone(kind, backbone_folders, sentences):
    """The encoder's gradient from the MLM loss is exactly what arrives at h; with h detached it is zero; the
    extractor never gets any; fusion layers and head do."""
    model = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders[kind]).train()
    objective = model.auxiliary["cmlm"]
    batch = make_batch(kind, sentences)
    views = batch["views"]
    h = TrainingLosses(model).sentence_vectors(views).flatten(0, 1)
    objective(model.backbone, h, batch["masked"]).total.backward()
    assert all(p.grad is None for p in objective.extractor.parameters())
    trainable = [p for n, p in objective.named_parameters() if not n.startswith("extractor.")]
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for n, p in objective.head.named_parameters())
    assert sum(p.grad is not None for p in trainable) == len(trainable)
    assert model.backbone.embeddings.word_embeddings.weight.grad.abs().sum() > 0
    model.zero_grad()
    objective(model.backbone, h.detach(), batch["masked"]).total.backward()
    assert all(p.grad is None or p.grad.abs().max() == 0 for p in model.backbone.parameters())


def test_head_is_not_tied(backbone_folders):
    """No parameter of the auxiliary network is shared with the encoder."""
    model = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders["bert"])
    encoder = {p.data_ptr() for p in model.backbone.parameters()}
    assert not encoder & {p.data_ptr() for p in model.auxiliary.parameters()}


def test_no_masked_token_is_exactly_zero(backbone_folders, sentences):
    """A batch without a masked token adds exactly zero, with a gradient of exactly zero."""
    model = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders["bert"], cmlm_weight=0.5).eval()
    batch = make_batch("bert", sentences, probability=1e-12)
    assert len(batch["masked"]["mlm_labels"]) == 0
    output = TrainingLosses(model)(**batch)
    assert output.logs["cmlm_loss"].item() == 0.0
    assert output.loss.item() == output.logs["contrastive_loss"].item()
    output.loss.backward()
    assert all(p.grad.abs().max() == 0 for p in model.auxiliary["cmlm"].head.parameters())


@pytest.mark.parametrize("dropout", (False, True))
def test_extractor_stays_frozen_and_in_eval_mode(dropout, backbone_folders, sentences, tmp_path):
    """After train(), after a round trip and after a step, the extractor is frozen, and in eval mode unless asked."""
    model = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders["bert"], lexical_dropout=dropout)
    model.save_pretrained(tmp_path)
    for candidate in (model, CMLMCSEForSentenceEmbedding.from_pretrained(tmp_path)):
        candidate.train()
        extractor = candidate.auxiliary["cmlm"].extractor
        before = {n: t.clone() for n, t in extractor.state_dict().items()}
        assert not any(p.requires_grad for p in extractor.parameters())
        assert all(m.training is dropout for m in extractor.modules())
        assert candidate.auxiliary["cmlm"].fusion.training
        optimizer = torch.optim.AdamW(candidate.parameters(), lr=0.1)
        TrainingLosses(candidate)(**make_batch("bert", sentences)).loss.backward()
        optimizer.step()
        assert all(torch.equal(before[n], t) for n, t in extractor.state_dict().items())


def test_fusion_init(backbone_folders, tmp_path):
    """The fusion layers start from the last layers, the next ones, a checkpoint's, or afresh."""

    def load(**fields):
        return CMLMCSEForSentenceEmbedding.from_backbone(
            backbone_folders["bert"], lexical_layers=3, fusion_layers=2, **fields
        )

    def weights(encoder, index):
        return encoder.encoder.layer[index].attention.self.query.weight

    for init, first in (("last", 4), ("next", 3)):
        model = load(fusion_init=init)
        for i in range(2):
            assert torch.equal(weights(model.auxiliary["cmlm"].fusion, i), weights(model.backbone, first + i))
    fresh = load(fusion_init="random")
    assert all(
        not torch.equal(weights(fresh.auxiliary["cmlm"].fusion, 0), weights(fresh.backbone, i)) for i in range(6)
    )
    fresh.save_pretrained(tmp_path)
    taken = load(fusion_init=str(tmp_path))
    assert torch.equal(weights(taken.auxiliary["cmlm"].fusion, 1), weights(fresh.auxiliary["cmlm"].fusion, 1))
    assert taken.config.fusion_init == "checkpoint"
    with pytest.raises(ValueError, match="expects a checkpoint with 1 fusion layers, found 2"):
        CMLMCSEForSentenceEmbedding.from_backbone(
            backbone_folders["bert"], lexical_layers=3, fusion_layers=1, fusion_init=str(tmp_path)
        )


def test_missing_head_warns_and_starts_from_the_embeddings(tmp_path, caplog):
    """A checkpoint without an MLM head: a warning, and a decoder that starts as the word embeddings, then its own."""
    backbone = tiny_backbone("bert").base_model
    backbone.save_pretrained(tmp_path)
    from transformers.utils import logging

    logging.enable_propagation()
    with caplog.at_level("WARNING"):
        model = CMLMCSEForSentenceEmbedding.from_backbone(tmp_path)
    logging.disable_propagation()
    assert "has no masked-language-model head" in caplog.text
    decoder, words = model.auxiliary["cmlm"].head.decoder.weight, model.backbone.embeddings.word_embeddings.weight
    assert torch.equal(decoder, words)
    assert decoder.data_ptr() != words.data_ptr()


@pytest.mark.parametrize(("views", "rows"), (("both", 8), ("first", 4)))
def test_conditioning_choices(views, rows, backbone_folders, sentences):
    """One or both views condition a masked sentence, each view with a mask of its own; h before or after the head."""
    batch = make_batch("bert", sentences, masked_views=rows // 4)
    assert len(batch["masked"]["lengths"]) == rows
    if views == "both":
        halves = batch["masked"]["input_ids"].chunk(2)
        assert not torch.equal(*halves)
    losses = {}
    for condition in ("before_head", "after_head"):
        torch.manual_seed(0)
        model = CMLMCSEForSentenceEmbedding.from_backbone(
            backbone_folders["bert"], masked_views=views, cmlm_condition=condition
        ).eval()
        losses[condition] = TrainingLosses(model)(**batch).logs["cmlm_loss"].item()
    assert np.isfinite(list(losses.values())).all()
    assert losses["before_head"] != losses["after_head"]


def test_depth_keeps_the_proportions(backbone_folders):
    """8/12 and 3/12 of other depths: 6 layers give 4 + 2 (1.5 rounds to even), 12 give 8 + 3."""
    from transformers import BertConfig

    from modeling_cmlmcse import CMLMCSEConfig

    expected = {12: (8, 3), 6: (4, 2), 4: (3, 1), 24: (16, 6), 1: (1, 1)}
    for depth, layers in expected.items():
        config = CMLMCSEConfig(backbone_config=BertConfig(num_hidden_layers=depth))
        assert (config.lexical_layers, config.fusion_layers) == layers


@pytest.mark.slow
@pytest.mark.parametrize("fields", [{}, {"cmlm_condition": "after_head", "projection": "batchnorm"}])
def test_vector_gain(fields, backbone_folders):
    """Trained to predict all words of a few sentences from their vectors, it is what the vectors of the sentences in
    another order cost; measuring changes nothing; and where all vectors are the same it is 0."""
    torch.manual_seed(0)
    lines = [f"w{number} w{number + 10} w{number + 20}" for number in range(8)]
    batch, rotated = make_batch("bert", lines, 1.0), make_batch("bert", [lines[-1], *lines[:-1]], 1.0)
    model = CMLMCSEForSentenceEmbedding.from_backbone(
        backbone_folders["bert"], pooling="avg", cmlm_weight=1.0, lexical_layers=1, fusion_layers=1, **fields
    ).train()
    assert TrainingLosses(model).vector_gain(**batch) < 0.1
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(60):
        optimizer.zero_grad()
        TrainingLosses(model)(**batch).loss.backward()
        optimizer.step()
    state = torch.get_rng_state()
    gain = TrainingLosses(model).vector_gain(**batch).item()
    assert model.training
    assert model.objectives["cmlm"].fusion.training
    assert torch.equal(state, torch.get_rng_state())
    model.eval()
    own, others = (
        TrainingLosses(model)(views=part["views"], masked=batch["masked"]).logs["cmlm_loss"]
        for part in (batch, rotated)
    )
    assert gain == pytest.approx((others - own).item(), rel=1e-4)
    assert gain > 1.0
    model.backbone.encoder.layer[-1].output.LayerNorm.weight.data.zero_()
    assert TrainingLosses(model).vector_gain(**batch).item() == pytest.approx(0.0, abs=1e-5)
