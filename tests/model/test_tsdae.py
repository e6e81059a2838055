"""TSDAE-like training, the recipe's own fields: loss and gradients against plain padded torch, in fp64."""

import copy

import pytest
import torch
from torch import Tensor, nn

from cmlmcse.common.recipes import find_recipe, read_recipe
from cmlmcse.training.training_losses import TrainingLosses
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from modeling_cmlmcse.backbone import blocks, head_parts
from support.batches import make_batch, padded, reference
from support.tiny import tiny_tokenizer

RECIPE = read_recipe(find_recipe("tsdae-bert-base"))
FIELDS = {name: RECIPE[name] for name in ("projection", "cmlm_weight", "contrastive_weight", "retromae_weight",
                                          "decoder_hidden_share", "masked_views")}  # fmt: skip
DELETING = {"augmentation": RECIPE["augmentation"], "deletion_rate": RECIPE["deletion_rate"], "augment_both": True,
            "masked_views": 1, "contrasts": False}  # fmt: skip
HEADS = 4


def split_heads(states: Tensor) -> Tensor:
    """(B, T, H) → (B, A, T, H / A)."""
    return states.unflatten(-1, (HEADS, -1)).transpose(1, 2)


def rotated(states: Tensor) -> Tensor:
    """Rotary position embeddings of ModernBERT's first block, (B, A, T, D) → the same."""
    size = states.shape[-1]
    frequencies = 160_000.0 ** (-torch.arange(0, size, 2, dtype=torch.double) / size)
    angles = torch.arange(states.shape[2])[:, None] * torch.cat([frequencies, frequencies])  # (T, D)
    low, high = states.chunk(2, dim=-1)
    return states * angles.cos() + torch.cat([-high, low], dim=-1) * angles.sin()


def run_block(block: nn.Module, kind: str, asking: Tensor, context: Tensor, visible: Tensor) -> Tensor:
    """One block whose queries are not its keys: (B, T, H), (B, T, H) and (B, T, T) what each place sees → (B, T, H)."""
    if kind == "modernbert":
        parts = block.attn.Wqkv.weight.chunk(3)
        query, key, value = (
            split_heads(block.attn_norm(states) @ weight.T)
            for states, weight in zip((asking, context, context), parts, strict=True)
        )
        query, key = rotated(query), rotated(key)
    else:
        own = block.attention.self
        query, key, value = (
            split_heads(own.query(asking)),
            split_heads(own.key(context)),
            split_heads(own.value(context)),
        )
    scores = (query @ key.mT / query.shape[-1] ** 0.5).masked_fill(~visible[:, None], -torch.inf)
    found = (scores.softmax(dim=-1) @ value).transpose(1, 2).flatten(2)
    if kind == "modernbert":
        attended = asking + block.attn.Wo(found)
        return attended + block.mlp(block.mlp_norm(attended))
    attended = block.attention.output.LayerNorm(block.attention.output.dense(found) + asking)
    return block.output.LayerNorm(block.output.dense(block.intermediate(attended)) + attended)


@pytest.mark.parametrize("kind", ("bert", "roberta", "modernbert"))
@pytest.mark.parametrize("pooling", ("cls_before_pooler", "avg"))
@pytest.mark.parametrize("hidden_share", (RECIPE["decoder_hidden_share"], 0.0))
def test_it_equals_an_independent_computation(kind, pooling, hidden_share, backbone_folders, sentences):
    """The vector of the sentence without 60 % of its words, by transformers' own padded model; a block that asks with
    it and each place, and sees it alone (the recipe) or every other word too (share 0); transformers' own head scores
    all words of the whole sentence. The loss, and the gradient of every weight."""
    fields = {**FIELDS, "decoder_hidden_share": hidden_share, "pooling": pooling}
    model = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders[kind], **fields).double().eval()
    batch = make_batch(kind, sentences, **DELETING)
    output = TrainingLosses(model)(**batch)
    output.loss.backward()

    tokenizer = tiny_tokenizer(kind)
    ids, mask = padded(kind, batch["views"])
    whole = tokenizer(sentences, padding=True, return_tensors="pt")
    whole, kept = whole["input_ids"], whole["attention_mask"].bool()
    assert mask.sum() < kept.sum()  # words are gone, and the others are in their order
    for short, row in zip(ids, whole.tolist(), strict=True):
        rest = iter(row)
        assert all(token in rest for token in short.tolist() if token != tokenizer.pad_token_id)

    theirs, block = (
        reference(backbone_folders[kind]).double(),
        copy.deepcopy(model.objectives["retromae"].decoder.block),
    )
    block.zero_grad()
    theirs.set_attn_implementation("sdpa")  # eager makes no number of a padding token that sees nothing, in fp64
    last = theirs.base_model(input_ids=ids, attention_mask=mask).last_hidden_state
    vectors = last[:, 0] if pooling != "avg" else (last * mask[..., None]).sum(dim=1) / mask.sum(dim=1)[:, None]
    embed, size = theirs.base_model.embeddings, whole.shape[1]
    asking = embed(inputs_embeds=vectors[:, None].expand(-1, size, -1))
    context = torch.cat([vectors[:, None], embed(input_ids=whole)[:, 1:]], dim=1)
    first = torch.arange(size) == 0
    visible = (
        (kept[:, None, :] & ~torch.eye(size, dtype=torch.bool)) if hidden_share == 0 else torch.zeros(1, size, size)
    )
    states = run_block(blocks(block)[0], kind, asking, context, visible.bool() | first)
    if kind == "modernbert":
        states = theirs.head(block.final_norm(states))
        logits = theirs.decoder(states)
    else:
        logits = (theirs.cls if kind == "bert" else theirs.lm_head)(states)
    special = torch.tensor(tokenizer.all_special_ids)
    labels = whole.masked_fill(torch.isin(whole, special), -100)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    loss.backward()

    near = 1e-7 if kind == "modernbert" and hidden_share == 0 else 1e-10  # the model's rotary angles are in fp32
    assert output.loss.item() == pytest.approx(loss.item(), rel=near)
    assert output.logs["retromae_loss"].item() == pytest.approx(loss.item(), rel=near)
    objective = model.objectives["retromae"]
    pairs = [(model.backbone, theirs.base_model), (objective.decoder.block, block)]
    for ours, expected in pairs:
        wanted = dict(expected.named_parameters())
        for name, weight in ours.named_parameters():
            of, right = (
                torch.zeros_like(weight) if grad is None else grad for grad in (weight.grad, wanted[name].grad)
            )
            torch.testing.assert_close(of, right, rtol=1e3 * near, atol=near, msg=f"{kind} {name}")
    dense, norm = head_parts(theirs)
    for ours, expected in ((objective.head.dense, dense), (objective.head.LayerNorm, norm)):
        torch.testing.assert_close(ours.weight.grad, expected.weight.grad, rtol=1e3 * near, atol=near)
    torch.testing.assert_close(
        objective.head.bias.grad, theirs.get_output_embeddings().bias.grad, rtol=1e3 * near, atol=near
    )
    assert all(weight.grad.abs().sum() > 0 for weight in blocks(model.backbone)[0].parameters())
