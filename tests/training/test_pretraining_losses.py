"""Stage 1: its losses and gradients against an independent computation."""

import copy
from functools import partial

import pytest
import torch
from transformers import AutoModelForMaskedLM

from cmlmcse.training.pretraining_decoders import FusionDecoder, RetroMAEDecoder
from cmlmcse.training.pretraining_model import AuxiliaryPretraining
from modeling_cmlmcse.backbone import blocks, load_backbone
from modeling_cmlmcse.enhanced_decoding import inner_tokens
from modeling_cmlmcse.packing import Packing
from support.batches import from_states, make_masked_batch
from support.tiny import tiny_tokenizer

FAMILIES = ("bert", "roberta")


def pretraining(folder: str, weight: float = 1.0, pooling: str = "cls_before_pooler") -> AuxiliaryPretraining:
    """The model of stage 1 on a tiny backbone: 3 of 6 layers below, 2 fusion layers, which start as the last."""
    pretrained, _ = load_backbone(folder)
    build = partial(FusionDecoder, lexical_layers=3, fusion_layers=2) if weight > 0 else None
    model = AuxiliaryPretraining(pretrained.config, build, weight, pooling)
    model.load_backbone_weights(pretrained, "last" if weight > 0 else "random")
    return model.eval()


def reference_losses(
    folder: str, masked: dict, pooling: str = "cls_before_pooler", dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor, torch.nn.Module]:
    """Both losses with transformers' own padded layers, full logits and its tied head; and that model."""
    model = AutoModelForMaskedLM.from_pretrained(folder, dtype=dtype).eval()
    model.set_attn_implementation("sdpa")
    rows = masked["input_ids"].split(masked["lengths"].tolist())
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=model.config.pad_token_id)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    outputs = model.base_model(input_ids=ids, attention_mask=mask, output_hidden_states=True)
    states, last = outputs.hidden_states, outputs.last_hidden_state
    mean = ((states[1] + last) / 2 * mask[..., None]).sum(dim=1, keepdim=True) / mask.sum(dim=1)[:, None, None]
    vectors = mean if pooling == "avg_first_last" else last[:, :1]
    given = torch.cat([vectors, states[3][:, 1:]], dim=1)  # [h ; H_k[1:]]
    fused = from_states(model, given, 4).base_model(input_ids=ids, attention_mask=mask).last_hidden_state
    head = model_head(model, model.config.model_type)
    losses = [
        torch.nn.functional.cross_entropy(
            head(hidden)[mask.bool()][masked["mlm_positions"]], masked["mlm_labels"]
        )
        for hidden in (last, fused)
    ]  # fmt: skip
    return losses[0], losses[1], model


@pytest.mark.parametrize("pooling", ("cls_before_pooler", "avg_first_last"))
@pytest.mark.parametrize("kind", (*FAMILIES, "modernbert"))
def test_losses_and_gradients_equal_an_independent_computation(kind, pooling, backbone_folders, sentences):
    """L = L_mlm + λ L_aux, and the gradient of every backbone weight, on padded reference layers in fp64."""
    near = 1e-7 if kind == "modernbert" else 1e-11  # its rotary embeddings are in fp32
    model = pretraining(backbone_folders[kind], weight=0.7, pooling=pooling).double()
    masked = make_masked_batch(kind, sentences)["masked"]
    output = model(masked)
    mlm, auxiliary, reference = reference_losses(backbone_folders[kind], masked, pooling, torch.float64)
    assert output.logs["mlm_loss"].item() == pytest.approx(mlm.item(), abs=1e-6)  # logs are fp32
    assert output.logs["auxiliary_loss"].item() == pytest.approx(auxiliary.item(), abs=1e-6)
    assert output.loss.item() == pytest.approx((mlm + 0.7 * auxiliary).item(), abs=near)
    output.loss.backward()
    (mlm + 0.7 * auxiliary).backward()
    theirs = dict(reference.named_parameters())
    for name, parameter in model.masked_lm.named_parameters():
        torch.testing.assert_close(parameter.grad, theirs[name].grad, rtol=100 * near, atol=near, msg=name)


@pytest.mark.parametrize("kind", FAMILIES)
def test_where_the_gradients_go(kind, backbone_folders, sentences):
    """The lower layers get a gradient from each loss, the upper ones of the auxiliary loss through [CLS] alone, the
    fusion layers of the auxiliary loss alone; head and embeddings are one tensor."""
    model = pretraining(backbone_folders[kind])
    masked = make_masked_batch(kind, sentences)["masked"]
    assert model.masked_lm.get_output_embeddings().weight is model.get_input_embeddings().weight
    for name in ("mlm", "auxiliary"):
        model.zero_grad()
        model.losses(masked)[name].total.backward()
        for block in blocks(model.backbone):
            assert all(parameter.grad.abs().sum() > 0 for parameter in block.parameters()), name
        fusion = [parameter.grad for parameter in model.decoder.parameters()]
        assert all((gradient is None) == (name == "mlm") for gradient in fusion)
        assert model.get_input_embeddings().weight.grad.abs().sum() > 0


def test_weight_zero_is_plain_masked_language_modelling(backbone_folders, sentences):
    """Without the auxiliary loss: no fusion layers, and the loss is the masked-language model's."""
    model = pretraining(backbone_folders["bert"], weight=0.0)
    masked = make_masked_batch("bert", sentences)["masked"]
    assert model.decoder is None
    output = model(masked)
    assert set(output.logs) == {"mlm_loss", "mlm_accuracy"}
    assert output.loss.item() == pytest.approx(reference_losses(backbone_folders["bert"], masked)[0].item(), abs=1e-5)


def test_no_masked_token_is_exactly_zero(backbone_folders, sentences):
    """A batch without a masked token: a loss of zero, with a gradient of zero for every weight."""
    model = pretraining(backbone_folders["bert"])
    loss = model(make_masked_batch("bert", sentences, probability=1e-12)["masked"]).loss
    loss.backward()
    assert loss.item() == 0.0
    assert all(parameter.grad.abs().max() == 0 for parameter in model.parameters())


def decoder_pretraining(folder: str, share: float = 0.5) -> AuxiliaryPretraining:
    """The model of stage 1 with RetroMAE's decoder."""
    pretrained, _ = load_backbone(folder)
    torch.manual_seed(1)
    model = AuxiliaryPretraining(pretrained.config, partial(RetroMAEDecoder, hidden_share=share), 0.7)
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


@pytest.mark.parametrize("rate", (0.0, 0.6))
@pytest.mark.parametrize("kind", ("bert", "roberta", "modernbert"))
def test_retromae_equals_an_independent_computation(kind, rate, backbone_folders, sentences):
    """One word at a time, in fp64: loss and gradients of all weights. Every word is predicted, also those that were
    deleted from what the encoder reads."""
    model = decoder_pretraining(backbone_folders[kind]).double()
    masked = make_masked_batch(kind, sentences, deletion_rate=rate)["masked"]
    output = model(masked)
    output.loss.backward()
    gradients = {name: weight.grad for name, weight in model.named_parameters()}
    model.zero_grad()

    reference = copy.deepcopy(model.masked_lm)
    reference.base_model.config._attn_implementation = "eager"
    whole = [torch.tensor(tiny_tokenizer(kind)(sentence)["input_ids"]) for sentence in sentences]
    lengths = torch.tensor(list(map(len, whole)))
    assert (len(masked["input_ids"]) < lengths.sum()) == (rate > 0)
    packing = Packing.from_lengths(lengths, int(lengths.sum()), int(lengths.max()))
    visible = model.decoder.enhanced.visible(packing, inner_tokens(packing)[1])
    decoder = copy.deepcopy(model.decoder)
    block = blocks(decoder.enhanced.block)[0]
    total, count, mlm = 0.0, 0, 0.0
    labels = masked["mlm_labels"].split(masked["mlm_counts"].tolist())
    rows = zip(masked["input_ids"].split(masked["lengths"].tolist()), whole, labels, strict=True)
    chosen = masked["mlm_positions"].tolist()
    start = 0
    for row, (given, true, hidden) in enumerate(rows):
        states = reference.base_model(input_ids=given[None]).last_hidden_state[0]
        inside = [place - start for place in chosen if start <= place < start + len(given)]
        logits = model_head(reference, kind)(states[inside])
        mlm = mlm + torch.nn.functional.cross_entropy(logits, hidden, reduction="sum")
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
                state = decoder.enhanced.block.final_norm(state)
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
    model = decoder_pretraining(backbone_folders["bert"]).decoder.enhanced
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
        model = decoder_pretraining(backbone_folders["bert"], share).decoder.enhanced
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


def test_nothing_masked(backbone_folders, sentences):
    """The decoder still restores the words; a backbone without it has a loss of zero, and gradients."""
    masked = make_masked_batch("bert", sentences, probability=1e-12, deletion_rate=0.6)["masked"]
    assert len(masked["mlm_labels"]) == 0
    model = decoder_pretraining(backbone_folders["bert"])
    output = model(masked)
    assert output.logs["mlm_loss"] == 0
    assert output.loss.item() == pytest.approx(0.7 * output.logs["auxiliary_loss"].item())
    assert output.loss > 1
    output.loss.backward()
    assert model.backbone.embeddings.word_embeddings.weight.grad.abs().sum() > 0
