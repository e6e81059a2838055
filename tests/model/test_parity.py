"""The encoder gives what transformers' own backbone of each kind gives, padded and unpadded, in all poolings."""

from itertools import pairwise

import pytest
import torch

from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from modeling_cmlmcse import attention as attention_module
from modeling_cmlmcse.packing import Packing
from support.tiny import BERT_TOKENS, KINDS, OTHER_KINDS, load_reference, tiny_tokenizer

POOLINGS = ("cls_before_pooler", "avg", "avg_top2", "avg_first_last")
ALL_KINDS = (*KINDS, *OTHER_KINDS)


def reference_pooling(outputs, mask: torch.Tensor, pooling: str) -> torch.Tensor:
    """The poolings of SimCSE's paper, written anew on padded hidden states."""
    hidden = outputs.hidden_states  # embeddings, then one a layer
    chosen = {
        "avg": hidden[-1],
        "avg_top2": (hidden[-1] + hidden[-2]) / 2,
        "avg_first_last": (hidden[1] + hidden[-1]) / 2,
    }
    if pooling == "cls_before_pooler":
        return hidden[-1][:, 0]
    weights = mask.unsqueeze(-1).float()
    return (chosen[pooling] * weights).sum(1) / weights.sum(1)


@pytest.mark.parametrize("kind", ALL_KINDS)
@pytest.mark.parametrize("pooling", POOLINGS)
def test_padded_batch(kind, pooling, backbone_folders, sentences):
    """A padded batch: tokens, embedding, and encode() without padding agree with the reference at 1e-5."""
    tokenizer = tiny_tokenizer(kind)
    model = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders[kind], pooling=pooling).eval()
    reference = load_reference(kind, backbone_folders[kind])
    batch = tokenizer(sentences, padding=True, return_tensors="pt")
    with torch.no_grad():
        ours = model(**batch, output_hidden_states=True)
        theirs = reference(**batch, output_hidden_states=True)
    mask = batch["attention_mask"]
    expected = reference_pooling(theirs, mask, pooling)
    real = mask.bool()
    for found, wanted in zip(ours.hidden_states, theirs.hidden_states, strict=True):
        torch.testing.assert_close(found[real], wanted[real], rtol=0, atol=1e-5)
    torch.testing.assert_close(ours.last_hidden_state[real], theirs.last_hidden_state[real], rtol=0, atol=1e-5)
    torch.testing.assert_close(ours.pooler_output, expected, rtol=0, atol=1e-5)
    encoded = model.encode(sentences, tokenizer, batch_size=3)
    torch.testing.assert_close(torch.from_numpy(encoded), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_random_masks_and_token_types(kind, backbone_folders):
    """Holes and left padding in the mask, and token types, give the reference's tokens at 1e-5."""
    model = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders[kind]).eval()
    reference = load_reference(kind, backbone_folders[kind])
    torch.manual_seed(3)
    ids = torch.randint(5, 60, (4, 11))
    mask = (torch.rand(4, 11) < 0.6).long()
    mask[:, 4] = 1
    ids[mask == 0] = 0 if kind in BERT_TOKENS else 1  # what a tokenizer puts there; RoBERTa counts its positions by it
    batch = {"input_ids": ids, "attention_mask": mask}
    if kind in ("bert", "electra"):
        batch["token_type_ids"] = torch.randint(0, 2, (4, 11))
    with torch.no_grad():
        ours, theirs = model(**batch).last_hidden_state, reference(**batch).last_hidden_state
    torch.testing.assert_close(ours[mask.bool()], theirs[mask.bool()], rtol=0, atol=1e-5)
    assert ours[mask == 0].abs().max() == 0


@pytest.mark.parametrize(
    ("kind", "compiled"),
    [
        ("roberta", False),
        ("mpnet", False),
        ("distilbert", False),
        pytest.param("roberta", True, marks=pytest.mark.slow),
    ],
)
def test_a_mask_that_hides_words(kind, compiled, backbone_folders):
    """Words that the mask hides count for the positions of those behind them, as in transformers: in the middle of a
    row, at its start, and behind left padding."""
    model = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders[kind], cmlm_weight=0.0).eval()
    reference = load_reference(kind, backbone_folders[kind])
    torch.manual_seed(4)
    ids, mask = torch.randint(5, 60, (3, 9)), torch.ones(3, 9, dtype=torch.long)
    mask[0, 3] = mask[1, :2] = mask[2, :3] = mask[2, 5] = 0
    ids[2, :3] = 0 if kind in BERT_TOKENS else 1  # padding
    run = torch.compile(model, backend="eager") if compiled else model
    with torch.no_grad():
        ours, theirs = (each(input_ids=ids, attention_mask=mask).last_hidden_state for each in (run, reference))
    torch.testing.assert_close(ours[mask.bool()], theirs[mask.bool()], rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_gradients(kind, backbone_folders, sentences):
    """The packed path's gradients equal the padded reference's at 1e-5, the trimmed last layer included."""
    tokenizer = tiny_tokenizer(kind)
    model = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders[kind], cmlm_weight=0.0).eval().double()
    reference = load_reference(kind, backbone_folders[kind]).double()
    batch = tokenizer(sentences, padding=True, return_tensors="pt")
    weights = torch.randn(len(sentences), 32, dtype=torch.float64)
    packing = Packing.from_mask(batch["attention_mask"])
    (model.pooled(packing.pack(batch["input_ids"]), packing) * weights).sum().backward()
    (reference(**batch).last_hidden_state[:, 0] * weights).sum().backward()
    for (name, ours), (_, theirs) in zip(model.backbone.named_parameters(), reference.named_parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5, msg=name)


def test_other_attention_is_ignored(backbone_folders, sentences, tmp_path):
    """Asking for another attention changes nothing: it would attend across sentences."""
    tokenizer = tiny_tokenizer("bert")
    model = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders["bert"]).eval()
    expected = model.encode(sentences, tokenizer)
    model.set_attn_implementation("sdpa")
    assert (model.encode(sentences, tokenizer) == expected).all()
    model.save_pretrained(tmp_path)
    for name in ("eager", "sdpa"):
        loaded = CMLMCSEForSentenceEmbedding.from_pretrained(tmp_path, attn_implementation=name).eval()
        torch.testing.assert_close(torch.from_numpy(loaded.encode(sentences, tokenizer)), torch.from_numpy(expected))


def test_empty_row_is_refused(backbone_folders):
    """A row without a token has no embedding."""
    model = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders["bert"])
    with pytest.raises(ValueError, match="found none in row 1"):
        model(input_ids=torch.tensor([[2, 6, 3], [0, 0, 0]]), attention_mask=torch.tensor([[1, 1, 1], [0, 0, 0]]))


@pytest.mark.parametrize("pooling", POOLINGS)
def test_variable_length_kernel(pooling, backbone_folders, sentences, monkeypatch):
    """What the padding path hands over to a GPU's variable-length kernel gives the same embeddings: here a plain
    loop over the rows stands for the kernel, which no CPU has."""
    calls = []

    def loop(query, key, value, bounds, longest, dropout):
        (query_bounds, key_bounds), (longest_query, longest_key) = bounds, longest
        assert dropout == 0.0
        assert query_bounds.dtype == key_bounds.dtype == torch.int32
        assert (longest_query, longest_key) == (query_bounds.diff().max(), key_bounds.diff().max())
        calls.append(longest_query)
        rows = []
        for (a, b), (c, d) in zip(pairwise(query_bounds), pairwise(key_bounds), strict=True):
            states = (part.transpose(0, 1) for part in (query[a:b], key[c:d], value[c:d]))
            rows.append(torch.nn.functional.scaled_dot_product_attention(*states).transpose(0, 1))
        return torch.cat(rows)

    tokenizer = tiny_tokenizer("bert")
    model = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders["bert"], pooling=pooling).eval()
    expected = model.encode(sentences, tokenizer)
    monkeypatch.setattr(attention_module, "find_kernel", lambda *_, **__: loop)
    assert abs(model.encode(sentences, tokenizer) - expected).max() < 1e-6
    assert len(calls) == 6
    assert calls[-1] == (1 if pooling == "cls_before_pooler" else max(calls))
