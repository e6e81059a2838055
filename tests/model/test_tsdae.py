"""TSDAE-like training, the recipe's own fields: loss and gradients against plain padded torch, in fp64."""

import copy

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from cmlmcse.common.recipes import find_recipe, read_recipe
from cmlmcse.data.augmentation import Augmented, build_augmentation
from cmlmcse.training.training_losses import TrainingLosses
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from modeling_cmlmcse.backbone import blocks, head_parts
from support.batches import make_batch, padded, reference
from support.tiny import tiny_tokenizer

RECIPE = read_recipe(find_recipe("tsdae-bert-base"))
FIELDS = {name: RECIPE[name] for name in ("projection", "cmlm_weight", "contrastive_weight", "retromae_weight",
                                          "decoder_hidden_share", "masked_views")}  # fmt: skip
DELETED = build_augmentation(RECIPE["augmentation"], tiny_tokenizer("bert"), deletion_rate=RECIPE["deletion_rate"])
DELETING = {"augmented": Augmented(DELETED, both=True), "masked_views": 1, "contrasts": False}
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


def padded_loss(
    theirs: PreTrainedModel, block: nn.Module, views: tuple, whole: tuple, pooling: str, share: float
) -> Tensor:
    """The mean cross-entropy of all words of the whole sentences.

    Args:
        theirs: transformers' own masked-language model.
        block: the decoder.
        views: (B, T) tokens and mask of the shortened sentences.
        whole: (B, T) tokens and mask of the whole ones, and (B, T) labels, -100 where nothing is predicted.
        pooling: `cls_before_pooler` or `avg`.
        share: 1, and a word sees the vector alone; 0, and it sees all other words too.
    """
    kind, embed = theirs.config.model_type, theirs.base_model.embeddings
    (ids, mask), (tokens, kept, labels) = views, whole
    last = theirs.base_model(input_ids=ids, attention_mask=mask).last_hidden_state
    vectors = last[:, 0] if pooling != "avg" else (last * mask[..., None]).sum(dim=1) / mask.sum(dim=1)[:, None]
    size = tokens.shape[1]
    asking = embed(inputs_embeds=vectors[:, None].expand(-1, size, -1))
    context = torch.cat([vectors[:, None], embed(input_ids=tokens)[:, 1:]], dim=1)
    others = kept[:, None, :].bool() & ~torch.eye(size, dtype=torch.bool)
    visible = (others if share == 0 else torch.zeros_like(others)) | (torch.arange(size) == 0)
    states = run_block(blocks(block)[0], kind, asking, context, visible)
    if kind == "modernbert":
        logits = theirs.decoder(theirs.head(block.final_norm(states)))
    else:
        logits = (theirs.cls if kind == "bert" else theirs.lm_head)(states)
    return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


@pytest.mark.parametrize("kind", ("bert", "roberta", "modernbert"))
@pytest.mark.parametrize("pooling", ("cls_before_pooler", "avg"))
@pytest.mark.parametrize("share", (RECIPE["decoder_hidden_share"], 0.0))
def test_it_equals_an_independent_computation(kind, pooling, share, backbone_folders, sentences):
    """The vector of the sentence without 60 % of its words, by transformers' own padded model; a block that asks with
    it and each place; transformers' own head. The loss, and the gradient of every weight."""
    fields = {**FIELDS, "decoder_hidden_share": share, "pooling": pooling}
    model = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders[kind], **fields).double().eval()
    batch = make_batch(kind, sentences, **DELETING)
    output = TrainingLosses(model)(**batch)
    output.loss.backward()

    objective, theirs = model.objectives["retromae"], reference(backbone_folders[kind]).double()
    theirs.set_attn_implementation("sdpa")  # eager makes no number of a padding token that sees nothing, in fp64
    block = copy.deepcopy(objective.decoder.block)
    block.zero_grad()
    tokenizer = tiny_tokenizer(kind)
    whole = tokenizer(sentences, padding=True, return_tensors="pt")
    tokens, kept = whole["input_ids"], whole["attention_mask"]
    labels = tokens.masked_fill(torch.isin(tokens, torch.tensor(tokenizer.all_special_ids)), -100)
    loss = padded_loss(theirs, block, padded(kind, batch["views"]), (tokens, kept, labels), pooling, share)
    loss.backward()

    near = 1e-7 if kind == "modernbert" and share == 0 else 1e-10  # the model's rotary angles are in fp32
    assert output.loss.item() == pytest.approx(loss.item(), rel=near)
    assert output.logs["retromae_loss"].item() == pytest.approx(loss.item(), rel=near)
    dense, norm = head_parts(theirs)
    head = objective.head
    torch.testing.assert_close(head.bias.grad, theirs.get_output_embeddings().bias.grad, rtol=1e3 * near, atol=near)
    pairs = ((model.backbone, theirs.base_model), (objective.decoder.block, block))
    for ours, expected in (*pairs, (head.dense, dense), (head.LayerNorm, norm)):
        wanted = dict(expected.named_parameters())
        for name, weight in ours.named_parameters():
            found, right = (torch.zeros_like(weight) if g is None else g for g in (weight.grad, wanted[name].grad))
            torch.testing.assert_close(found, right, rtol=1e3 * near, atol=near, msg=name)
    assert all(weight.grad.abs().sum() > 0 for weight in blocks(model.backbone)[0].parameters())


@pytest.mark.parametrize("kind", ("bert", "roberta", "modernbert"))
def test_words_are_deleted_and_the_others_keep_their_order(kind, sentences):
    tokenizer = tiny_tokenizer(kind)
    ids, mask = padded(kind, make_batch(kind, sentences, **DELETING)["views"])
    whole = [tokenizer(sentence)["input_ids"] for sentence in sentences]
    assert mask.sum() < sum(map(len, whole))
    for short, kept, row in zip(ids, mask.bool(), whole, strict=True):
        rest = iter(row)
        assert all(token in rest for token in short[kept].tolist())
