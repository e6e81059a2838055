"""SimCSE++'s view without dropout: what it is made of, and what a batch and a run do with it."""

import pytest
import torch

from cmlmcse.data.augmentation import Augmented, repeat_tokens
from cmlmcse.data.batches import Example
from cmlmcse.data.collator import ViewCollator
from cmlmcse.training.command import train
from cmlmcse.training.trainer import count_tokens
from cmlmcse.training.training_losses import TrainingLosses
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from modeling_cmlmcse.losses import off_dropout
from support.tiny import tiny_tokenizer
from support.training import history


def test_the_plain_view_has_no_dropout(backbone_folders, sentences):
    """It is what the model in evaluation makes of the sentence, whatever the other views are; dropout is on again after
    it, gradients flow through it, and its tokens count."""
    fields = {"cmlm_weight": 0.0, "contrastive_loss": "off_dropout", "positive_ratio": 0.9, "pooling": "avg"}
    model = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders["bert"], **fields).train()
    tokenizer = tiny_tokenizer("bert")
    options = {"augmented": Augmented(repeat_tokens, both=True), "plain_view": True}
    collator = ViewCollator(tokenizer, 1, **options)
    batch = collator([Example(ids, 0, row) for row, ids in enumerate(tokenizer(sentences)["input_ids"])])
    found = TrainingLosses(model).sentence_vectors(batch["views"])  # (3, N, H)
    assert model.backbone.training
    assert all(part.training for part in model.backbone.modules())
    plain = torch.from_numpy(model.encode(sentences, tokenizer=tokenizer))
    torch.testing.assert_close(found[2], plain, rtol=1e-5, atol=1e-6)
    assert (found[:2] - plain).abs().amax(dim=(1, 2)).min() > 0.01
    assert torch.autograd.grad(found[2].square().sum(), model.get_input_embeddings().weight)[0].abs().sum() > 0
    assert count_tokens(batch) == len(batch["views"]["input_ids"]) + len(batch["views"]["plain"]["input_ids"])

    torch.manual_seed(0)
    output = TrainingLosses(model)(**batch)
    torch.manual_seed(0)
    vectors = TrainingLosses(model).sentence_vectors(batch["views"])
    assert output.loss.item() == off_dropout(vectors, 0.05, 0.9).item()


@pytest.mark.slow
def test_a_run(recipe, tmp_path):
    """SimCSE++ with CMLM-CSE from a recipe: the logs have every part of the loss, which is their weighted sum."""
    fields = {"contrastive_loss": "off_dropout", "positive_ratio": 0.9, "dimension_weight": 0.1, "projection": "mlp"}
    train(recipe, **fields, mini_batch_size=6, augmentation="delete_tokens", dev_set="none")
    names = ("loss", "contrastive_loss", "dimension_loss", "cmlm_loss")
    losses, contrastive, dimension, masked = (history(tmp_path / "run", name) for name in names)
    expected = [c + 0.1 * d + 0.1 * m for c, d, m in zip(contrastive, dimension, masked, strict=True)]
    assert losses == pytest.approx(expected, abs=2e-3)
    assert losses[-1] < losses[0]
