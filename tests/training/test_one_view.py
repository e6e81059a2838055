"""Training without a contrast (TSDAE's denoising): one view of a sentence, from which all its words are restored."""

from contextlib import nullcontext
from functools import partial

import pytest
import torch

from cmlmcse.common.errors import InputError
from cmlmcse.data.augmentation import Augmented, delete_tokens
from cmlmcse.training.command import train
from cmlmcse.training.large_batch import backward_in_parts
from cmlmcse.training.training_losses import TrainingLosses
from modeling_cmlmcse import CMLMCSEConfig, CMLMCSEForSentenceEmbedding
from modeling_cmlmcse.contrast_terms import contrasts
from support.batches import make_batch, restored
from support.tiny import tiny_tokenizer
from support.training import build_trainer, history

FIELDS = {"cmlm_weight": 0.0, "contrastive_weight": 0.0, "retromae_weight": 1.0, "masked_views": "first"}
DENOISING = {"contrasts": False, "masked_views": 1, "augmented": Augmented(delete_tokens, both=True)}


def test_what_contrasts():
    """The contrastive loss, or a term beside it, compares views."""
    assert contrasts(CMLMCSEConfig())
    assert not contrasts(CMLMCSEConfig(contrastive_weight=0.0))
    assert contrasts(CMLMCSEConfig(contrastive_weight=0.0, consistency_weight=1.0))


def test_a_batch(sentences):
    """One view, whose words are deleted; the masked sentence beside it is the whole one. A contrast has two."""
    all_deleted = Augmented(partial(delete_tokens, rate=1.0), both=True)
    batch = make_batch("bert", sentences, **{**DENOISING, "augmented": all_deleted})
    whole = [tiny_tokenizer("bert")(sentence)["input_ids"] for sentence in sentences]
    assert batch["views"]["num_views"] == 1
    assert batch["views"]["lengths"].tolist() == [3] * len(sentences)  # a word stays
    assert restored(batch["masked"]).tolist() == [token for row in whole for token in row]
    two = make_batch("bert", sentences, **{**DENOISING, "contrasts": True})
    assert two["views"]["num_views"] == 2


def test_the_loss(backbone_folders, sentences):
    """It is the decoder's alone, and reaches the blocks of the encoder through the vector of the shortened sentence."""
    model = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders["bert"], **FIELDS).eval()
    batch = make_batch("bert", sentences, **DENOISING)
    output = TrainingLosses(model)(**batch)
    assert set(output.logs) == {"retromae_loss", "retromae_accuracy"}
    assert output.loss.item() == output.logs["retromae_loss"].item()
    output.loss.backward()
    assert model.backbone.encoder.layer[0].attention.self.query.weight.grad.abs().sum() > 0
    with torch.no_grad():
        vectors = TrainingLosses(model).sentence_vectors(batch["views"])[0]
        alone = model.objectives["retromae"](model.backbone, vectors, batch["masked"])
    assert output.loss.item() == pytest.approx(alone.total.item() / model.objectives["retromae"].terms(batch["masked"]))


def test_in_parts(backbone_folders, sentences):
    """The whole loss and gradient, where the decoder sees no word, so that nothing is drawn."""
    fields = {**FIELDS, "decoder_hidden_share": 1.0}
    model = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders["bert"], **fields).eval()
    losses = TrainingLosses(model)
    output = losses(**make_batch("bert", sentences, **DENOISING))
    output.loss.backward()
    expected = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    model.zero_grad()
    parts = make_batch("bert", sentences, **DENOISING, mini_batch_size=2)["parts"]
    total, logs = backward_in_parts(losses, parts, torch.Tensor.backward, nullcontext)
    assert total.item() == pytest.approx(output.loss.item(), rel=1e-6)
    assert logs.keys() == output.logs.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(model.get_parameter(name).grad, gradient, rtol=1e-4, atol=1e-6, msg=name)


HEAD = {"pooling": "avg", "projection": "batchnorm", "cmlm_weight": 0.5}  # beside one view of three sentences
ONE_VIEW = {"contrastive_weight": 0.0, "masked_views": "first"}


def test_a_batch_of_one_sentence(backbone_folders, sentences):
    """BatchNorm has no variance of one vector. The head runs only for an objective that reads what comes out; it has a
    gradient of zero all the same, as DDP expects of every weight."""
    model = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders["shallow"], **ONE_VIEW, **HEAD).train()
    output = TrainingLosses(model)(**make_batch("bert", sentences[1:2], contrasts=False, masked_views=1))
    assert output.loss.item() == pytest.approx(0.5 * output.logs["cmlm_loss"].item())
    output.loss.backward()
    assert all(weight.grad.abs().max() == 0 for weight in model.projection.parameters())
    assert model.backbone.encoder.layer[0].attention.self.query.weight.grad.abs().sum() > 0
    fields = {**ONE_VIEW, **HEAD, "cmlm_condition": "after_head"}
    reading = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders["shallow"], **fields).train()
    with pytest.raises(
        ValueError, match="projection batchnorm expects at least 2 vectors in a training batch, found 1"
    ):
        TrainingLosses(reading)(**make_batch("bert", sentences[1:2], contrasts=False, masked_views=1))


@pytest.mark.parametrize(("options", "refused"), [
    ({}, True), ({"cmlm_condition": "before_head"}, False), ({"masked_views": "both"}, False),
    ({"dataloader_drop_last": True}, False), ({"max_train_samples": 11}, False), ({"max_steps": 3}, False),
    ({"max_steps": 4}, True), ({"contrastive_weight": 1.0}, False),
])  # fmt: skip
def test_a_last_batch_of_one_sentence(options, refused, recipe):
    """Ten sentences in batches of three: refused before training where the head would get one vector alone."""
    fields = {
        **ONE_VIEW, **HEAD, "cmlm_condition": "after_head", "max_train_samples": 10, "dev_set": "none",
        "per_device_train_batch_size": 3, "max_steps": 8, **options,
    }  # fmt: skip
    expected = "found 1 in the last one, of 10 sentences with batches of 3; set --dataloader_drop_last true"
    with pytest.raises(InputError, match=expected) if refused else nullcontext():
        build_trainer(recipe, fields)


def test_two_masked_views(sentences):
    """Where both views are masked, both are encoded (InfoCSE's ablation without the contrast)."""
    assert make_batch("bert", sentences, contrasts=False)["views"]["num_views"] == 2


@pytest.mark.slow
def test_a_run(recipe, tmp_path):
    """From a recipe: the loss falls, and no contrast is logged."""
    fields = {**FIELDS, "augmentation": "delete_tokens", "deletion_rate": 0.6, "augmented_views": "both"}
    train(recipe, **fields, dev_set="none")
    losses = history(tmp_path / "run", "retromae_loss")
    assert losses[-1] < losses[0]
    assert history(tmp_path / "run", "contrastive_loss") == []
