"""Condenser beside the contrast: its loss on transformers' own layers, and what it starts from."""

import pytest
import torch

from cmlmcse.training.training_losses import TrainingLosses
from modeling_cmlmcse import CMLMCSEConfig, CMLMCSEForSentenceEmbedding
from support.batches import from_states, make_batch, padded, reference
from support.tiny import KINDS, OTHER_KINDS

FIELDS = {"cmlm_weight": 0.0, "condenser_weight": 0.7, "lexical_layers": 3, "fusion_layers": 2}


@pytest.mark.parametrize("kind", (*KINDS, *OTHER_KINDS))
@pytest.mark.parametrize("pooling", ("cls_before_pooler", "avg"))
def test_it_equals_an_independent_computation(kind, pooling, backbone_folders, sentences):
    """On padded transformers layers in fp64: the masked words are predicted from the last layer, and from layer 3 of 6
    with the vector of the masked sentence at position 0 and two blocks more, by the model's own head each time. Loss
    and the gradient of every weight of the encoder."""
    model = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders[kind], pooling=pooling, **FIELDS).double().eval()
    part = make_batch(kind, sentences)["masked"]
    objective, labels = model.objectives["condenser"], part["mlm_labels"]
    found = objective(model.backbone, torch.zeros(len(part["lengths"]), 32, dtype=torch.double), part)
    found.total.backward()

    theirs = reference(backbone_folders[kind]).double()
    theirs.set_attn_implementation("sdpa")  # eager makes no number of a padding token that sees nothing, in fp64
    words = theirs.get_input_embeddings().weight
    ids, mask = padded(kind, part)
    output = theirs.base_model(input_ids=ids, attention_mask=mask, output_hidden_states=True)
    last, lower = output.last_hidden_state, output.hidden_states[3]
    vectors = last[:, :1] if pooling != "avg" else (last * mask[..., None]).sum(1, True) / mask.sum(1)[:, None, None]
    short = from_states(theirs, torch.cat([vectors, lower[:, 1:]], dim=1), first=4)
    fused = short.base_model(input_ids=ids, attention_mask=mask).last_hidden_state
    losses = []
    for hidden in (last, fused):
        masked = hidden[mask.bool()][part["mlm_positions"]]
        logits = objective.head(masked, words)
        losses.append(torch.nn.functional.cross_entropy(logits, labels, reduction="sum"))
    assert found.total.item() == pytest.approx(sum(losses).item(), rel=1e-10)
    assert found.sums["accuracy"] == (logits.argmax(-1) == labels).sum()
    sum(losses).backward()
    expected = dict(theirs.base_model.named_parameters())
    for name, weight in model.backbone.named_parameters():
        gradient = expected[name].grad
        if weight.grad is None:
            assert gradient is None or not gradient.any(), name
        else:
            torch.testing.assert_close(weight.grad, gradient, rtol=1e-7, atol=1e-9, msg=name)


def test_its_head_is_the_backbones(backbone_folders, sentences):
    """With the backbone's trained head: transformers' own masked-language model has the same loss at the last layer."""
    model = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders["bert"], **FIELDS).eval()
    part = make_batch("bert", sentences)["masked"]
    ids, mask = padded("bert", part)
    logits = reference(backbone_folders["bert"])(input_ids=ids, attention_mask=mask).logits
    expected = logits[mask.bool()][part["mlm_positions"]]
    hidden = reference(backbone_folders["bert"]).base_model(input_ids=ids, attention_mask=mask).last_hidden_state
    masked = hidden[mask.bool()][part["mlm_positions"]]
    words = model.get_input_embeddings().weight
    torch.testing.assert_close(model.objectives["condenser"].head(masked, words), expected, rtol=1e-4, atol=1e-5)


def test_it_stands_beside_the_contrast(backbone_folders, sentences, tmp_path):
    """The loss is the weighted sum; a saved model starts another one's blocks; CMLM-CSE's blocks are its own."""
    model = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders["bert"], **FIELDS).train()
    output = TrainingLosses(model)(**make_batch("bert", sentences))
    total = output.logs["contrastive_loss"] + 0.7 * output.logs["condenser_loss"]
    assert output.loss.item() == pytest.approx(total.item(), rel=1e-6)
    with torch.no_grad():
        for weight in model.objectives["condenser"].parameters():
            weight.add_(0.25)
    model.save_pretrained(tmp_path)
    other = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders["bert"], **FIELDS, fusion_init=str(tmp_path))
    theirs = dict(model.objectives["condenser"].named_parameters())
    for name, weight in other.objectives["condenser"].named_parameters():
        assert torch.equal(weight, theirs[name]), name
    with pytest.raises(ValueError, match="expects a checkpoint with an auxiliary network, found none"):
        CMLMCSEForSentenceEmbedding.from_backbone(
            backbone_folders["bert"], cmlm_weight=0.1, lexical_layers=3, fusion_layers=2, fusion_init=str(tmp_path)
        )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lexical_layers": 0}, "condenser_weight expects lexical_layers from 1 to 11"),
        ({"lexical_layers": 12}, "condenser_weight expects lexical_layers from 1 to 11"),
        (
            {"pooling": "prompt"},
            "masked sentence, which has no template, and so expects another pooling, found prompt",
        ),
        ({"condenser_weight": -1}, "condenser_weight must be a number from 0"),
    ],
)
def test_wrong_fields(fields, message):
    """What its network cannot read."""
    with pytest.raises(ValueError, match=message):
        CMLMCSEConfig(**{"cmlm_weight": 0.0, "condenser_weight": 1.0, **fields})
