"""Adapters of the PEFT library on this model: train, save, load, merge and encode."""

import copy

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model

from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from support.tiny import tiny_tokenizer


@pytest.mark.parametrize("task", (None, "FEATURE_EXTRACTION"))
@pytest.mark.parametrize(("kind", "pooling"), [("bert", "avg"), ("modernbert", "cls_before_pooler")])
def test_lora(kind, pooling, task, backbone_folders, sentences, tmp_path) -> None:
    """forward, `encode`, a loaded adapter and merged weights agree; before training the adapter changes nothing."""
    tokenizer = tiny_tokenizer(kind)
    plain = CMLMCSEForSentenceEmbedding.from_backbone(
        backbone_folders[kind], cmlm_weight=0.0, projection="none", pooling=pooling
    ).eval()
    start = plain.encode(sentences, tokenizer, convert_to_tensor=True)
    other = copy.deepcopy(plain)
    model = get_peft_model(plain, LoraConfig(r=4, target_modules="all-linear", task_type=task)).eval()
    torch.testing.assert_close(model.encode(sentences, tokenizer, convert_to_tensor=True), start)
    inputs = tokenizer(sentences, padding=True, return_tensors="pt")

    optimizer = torch.optim.SGD([weight for weight in model.parameters() if weight.requires_grad], lr=1.0)
    for _ in range(2):  # the first step moves one matrix of each pair alone, because the other is 0
        optimizer.zero_grad()
        model(**inputs).pooler_output[:, :4].square().sum().backward()
        optimizer.step()
    with torch.no_grad():
        found = model(**inputs).pooler_output
    assert (found - start).abs().max() > 0.05
    encoded = model.encode(sentences, tokenizer, convert_to_tensor=True)
    torch.testing.assert_close(encoded, found, rtol=0, atol=1e-5)
    model.save_pretrained(tmp_path / "adapter")
    loaded = PeftModel.from_pretrained(other, str(tmp_path / "adapter")).eval()
    torch.testing.assert_close(loaded.encode(sentences, tokenizer, convert_to_tensor=True), encoded)
    merged = model.merge_and_unload()
    again = merged.encode(sentences, tokenizer, convert_to_tensor=True)
    torch.testing.assert_close(again, encoded, rtol=0, atol=1e-4)
