"""The other auxiliary objectives: each loss against an independent computation, and where its gradient goes."""

import pytest
import torch

from cmlmcse.training.training_losses import TrainingLosses
from modeling_cmlmcse import CMLMCSEConfig, CMLMCSEForSentenceEmbedding
from modeling_cmlmcse.families import family_of
from modeling_cmlmcse.packing import Packing
from support.batches import from_states, make_batch, padded, reference, restored
from support.tiny import KINDS, OTHER_KINDS, tiny_backbone, tiny_tokenizer

ALL_KINDS = (*KINDS, *OTHER_KINDS)


@pytest.fixture(scope="module")
def generator_folders(tmp_path_factory) -> dict[str, str]:
    """A smaller masked-language model with the same tokens, for each kind."""
    folders = {}
    for kind in ALL_KINDS:
        folder = tmp_path_factory.mktemp(f"generator-{kind}")
        tiny_backbone(kind, hidden_size=16, num_hidden_layers=2).save_pretrained(folder)
        tiny_tokenizer(kind).save_pretrained(folder)
        folders[kind] = str(folder)
    return folders


def load(folder: str, **fields) -> CMLMCSEForSentenceEmbedding:
    """A model with no conditional MLM unless asked for."""
    return CMLMCSEForSentenceEmbedding.from_backbone(folder, **{"cmlm_weight": 0.0, **fields})


@pytest.mark.parametrize("kind", ALL_KINDS)
@pytest.mark.parametrize(("own", "positions"), [(True, "masked"), (False, "masked"), (False, "all")])
def test_rtd_equals_an_independent_computation(kind, own, positions, backbone_folders, generator_folders, sentences):
    """Generator by argmax at the masked positions or at all but the first of a sentence, position 0 after the embedding
    layer replaced, mean over real tokens: on padded transformers layers, with the sentence vector after the training
    head."""
    fields = {} if own else {"rtd_generator": generator_folders[kind]}
    model = load(backbone_folders[kind], rtd_weight=0.5, rtd_positions=positions, **fields).eval()
    batch = make_batch(kind, sentences)
    part = batch["masked"]
    output = TrainingLosses(model)(**batch)

    generator = reference(backbone_folders[kind] if own else generator_folders[kind])
    ids, mask = padded(kind, part)
    with torch.no_grad():
        guesses = generator(input_ids=ids, attention_mask=mask).logits.argmax(-1)
    if positions == "all":
        guesses[:, 0] = ids[:, 0]
        edited = guesses[mask.bool()]
    else:
        edited = part["input_ids"].clone()
        edited[part["mlm_positions"]] = guesses[mask.bool()][part["mlm_positions"]]
    replaced = edited != restored(part)
    assert 0 < replaced.sum() < len(replaced)
    assert output.logs["rtd_replaced"].item() == pytest.approx(replaced.float().mean().item(), abs=1e-6)

    theirs = reference(backbone_folders[kind])
    ids, mask = padded(kind, {**part, "input_ids": edited})
    embedded = theirs.base_model(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states[0]
    vectors = model.projection(TrainingLosses(model).sentence_vectors(batch["views"]).flatten(0, 1))
    states = torch.cat([vectors[:, None], embedded[:, 1:]], dim=1)
    states = from_states(theirs, states).base_model(input_ids=ids, attention_mask=mask).last_hidden_state
    logits = model.objectives["rtd"].classifier(states)[mask.bool()]
    expected = torch.nn.functional.cross_entropy(logits, replaced.long())
    assert output.logs["rtd_loss"].item() == pytest.approx(expected.item(), abs=1e-5)
    total = output.logs["contrastive_loss"] + 0.5 * expected
    assert output.loss.item() == pytest.approx(total.item(), abs=1e-5)


def test_rtd_gradient(backbone_folders, sentences):
    """The encoder learns through the sentence vector alone; discriminator and classifier train; the generator does
    not, stays in eval mode, and is no part of the encoder."""
    model = load(backbone_folders["bert"], rtd_weight=1.0).train()
    objective, batch = model.objectives["rtd"], make_batch("bert", sentences)
    assert not any(module.training for module in objective.generator.modules())
    h = TrainingLosses(model).sentence_vectors(batch["views"]).flatten(0, 1)
    objective(model.backbone, h, batch["masked"]).total.backward()
    names = dict(objective.named_parameters())
    for name, parameter in names.items():
        if name.startswith("generator"):
            assert parameter.grad is None, name
    assert objective.classifier.weight.grad.abs().sum() > 0
    assert objective.discriminator.encoder.layer[0].attention.self.query.weight.grad.abs().sum() > 0
    assert model.backbone.encoder.layer[0].attention.self.query.weight.grad.abs().sum() > 0
    model.zero_grad()
    objective(model.backbone, h.detach(), batch["masked"]).total.backward()
    assert all(p.grad is None for p in model.backbone.parameters())


def test_rtd_fill(backbone_folders, sentences):
    """Only masked tokens are edited; argmax repeats itself, sampling follows the generator's distribution."""
    batch = make_batch("bert", sentences)["masked"]
    packing = Packing.from_lengths(batch["lengths"], len(batch["input_ids"]), batch["width"])
    elsewhere = torch.ones(len(batch["input_ids"]), dtype=torch.bool)
    elsewhere[batch["mlm_positions"]] = False
    models = {fill: load(backbone_folders["bert"], rtd_weight=1.0, rtd_fill=fill) for fill in ("argmax", "sample")}
    drawn = {fill: [m.objectives["rtd"].edit(batch, packing) for _ in range(40)] for fill, m in models.items()}
    for edited in (*drawn["argmax"], *drawn["sample"]):
        assert torch.equal(edited[elsewhere], batch["input_ids"][elsewhere])
    assert all(torch.equal(edited, drawn["argmax"][0]) for edited in drawn["argmax"])
    assert len({tuple(edited.tolist()) for edited in drawn["sample"]}) > 1


@pytest.mark.parametrize("kind", ("bert", "roberta"))
@pytest.mark.parametrize("positions", ("masked", "all"))
def test_a_word_that_the_generator_restores_is_not_replaced(kind, positions, backbone_folders, sentences, monkeypatch):
    """The labels compare the edited sentence with the original: of a generator that restores all but three words,
    three are replaced, whichever positions it fills."""
    model = load(backbone_folders[kind], rtd_weight=1.0, rtd_positions=positions).eval()
    batch = make_batch(kind, sentences)
    part = batch["masked"]
    filled = part["mlm_labels"].clone() if positions == "masked" else restored(part)
    inner = torch.ones(len(filled), dtype=torch.bool)
    if positions == "all":
        inner[torch.cat([torch.zeros(1, dtype=torch.long), part["lengths"].cumsum(0)[:-1]])] = False
    changed = inner.nonzero()[:, 0][[0, 2, 4]]
    filled[changed] = (filled[changed] + 1) % 80
    parts = list(filled.split(1024))
    monkeypatch.setattr(model.objectives["rtd"], "choose", lambda hidden: parts.pop(0))
    logs = TrainingLosses(model)(**batch).logs
    assert logs["rtd_replaced"].item() * len(part["input_ids"]) == pytest.approx(3, abs=1e-4)


def test_rtd_without_masked_tokens(backbone_folders, sentences):
    """Nothing masked: every token is original, and the loss says so."""
    model = load(backbone_folders["bert"], rtd_weight=1.0).train()
    output = TrainingLosses(model)(**make_batch("bert", sentences, probability=1e-12))
    assert output.logs["rtd_replaced"].item() == 0.0
    assert torch.isfinite(output.loss)


def test_generator_with_another_vocabulary(tmp_path, backbone_folders):
    tiny_backbone("bert", vocab_size=99).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="rtd_generator must have the backbone's vocabulary of 80, found 99"):
        load(backbone_folders["bert"], rtd_weight=1.0, rtd_generator=str(tmp_path))


def test_generator_without_head(tmp_path, backbone_folders):
    tiny_backbone("bert").base_model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="rtd_generator expects a model with a trained masked-language-model head"):
        load(backbone_folders["bert"], rtd_weight=1.0, rtd_generator=str(tmp_path))


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_encoder_mlm_equals_transformers(kind, backbone_folders, sentences):
    """The loss is that of transformers' own masked-language model on the same masked sentences, and so is every
    gradient of the encoder."""
    model = load(backbone_folders[kind], mlm_weight=0.1).eval()
    batch = make_batch(kind, sentences)
    part = batch["masked"]
    output = TrainingLosses(model)(**batch)
    theirs = reference(backbone_folders[kind])
    ids, mask = padded(kind, part)
    logits = theirs(input_ids=ids, attention_mask=mask).logits[mask.bool()][part["mlm_positions"]]
    expected = torch.nn.functional.cross_entropy(logits, part["mlm_labels"])
    assert output.logs["mlm_loss"].item() == pytest.approx(expected.item(), abs=1e-5)
    assert output.loss.item() == pytest.approx((output.logs["contrastive_loss"] + 0.1 * expected).item(), abs=1e-5)
    sentence_vectors = torch.zeros(len(part["lengths"]), 32)
    found = model.objectives["mlm"](model.backbone, sentence_vectors, part)
    (found.total / len(part["mlm_labels"])).backward()
    expected.backward()
    ours, others = (dict(encoder.named_parameters()) for encoder in (model.backbone, theirs.base_model))
    for name in others:
        if "embeddings" not in name:  # those of words are their decoder too
            torch.testing.assert_close(ours[name].grad, others[name].grad, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_encoder_mlm_with_the_embeddings_as_decoder(kind, backbone_folders, sentences, tmp_path):
    """mlm_tied: loss and gradients are those of transformers' model with its tied decoder, the embeddings' gradient
    included; a saved model and a larger vocabulary keep the tie."""
    model = load(backbone_folders[kind], mlm_weight=1.0, mlm_tied=True).eval()
    part = make_batch(kind, sentences)["masked"]
    theirs = reference(backbone_folders[kind])
    ids, mask = padded(kind, part)
    logits = theirs(input_ids=ids, attention_mask=mask).logits[mask.bool()][part["mlm_positions"]]
    expected = torch.nn.functional.cross_entropy(logits, part["mlm_labels"])
    vectors = torch.zeros(len(part["lengths"]), 32)

    def loss(of):
        return of.objectives["mlm"](of.backbone, vectors, part).total / len(part["mlm_labels"])

    assert loss(model).item() == pytest.approx(expected.item(), abs=1e-5)
    loss(model).backward()
    expected.backward()
    ours, others = (dict(encoder.named_parameters()) for encoder in (model.backbone, theirs.base_model))
    for name in others:
        torch.testing.assert_close(ours[name].grad, others[name].grad, rtol=1e-4, atol=1e-5, msg=name)
    assert not [name for name in model.objectives["mlm"].state_dict() if "decoder" in name]
    model.save_pretrained(tmp_path)
    again = CMLMCSEForSentenceEmbedding.from_pretrained(tmp_path).eval()
    assert loss(again).item() == pytest.approx(expected.item(), abs=1e-5)
    again.resize_token_embeddings(90)
    assert again.objectives["mlm"].head.bias is None or len(again.objectives["mlm"].head.bias) == 90
    assert torch.isfinite(loss(again))


@pytest.mark.parametrize("kind", [kind for kind in ALL_KINDS if kind != "electra"])
def test_retromae_beside_the_contrast(kind, backbone_folders, sentences):
    """The loss is the mean over all words; the blocks of the encoder get its gradient through the sentence vectors
    alone, the word embeddings besides; with every other word hidden only the vector tells words apart."""
    model = load(backbone_folders[kind], retromae_weight=0.4).double().eval()
    batch = make_batch(kind, sentences)
    part = batch["masked"]
    output = TrainingLosses(model)(**batch)
    objective, words = model.objectives["retromae"], restored(part)
    lengths = part["lengths"].tolist()
    assert objective.terms(part) == sum(lengths) - 2 * len(lengths)
    vectors = torch.zeros(len(lengths), 32, dtype=torch.double, requires_grad=True)
    objective(model.backbone, vectors, part).total.backward()
    assert vectors.grad.abs().sum(dim=1).min() > 0
    of_blocks = [weight.grad for weight in model.backbone.get_submodule(path_of_blocks(model)).parameters()]
    assert all(gradient is None for gradient in of_blocks)
    assert model.get_input_embeddings().weight.grad.abs().sum() > 0
    packing = Packing.from_lengths(part["lengths"], len(words), part["width"])
    own = TrainingLosses(model).sentence_vectors(batch["views"]).flatten(0, 1)[: len(lengths)]
    states, places = objective.decoder(model.backbone, own, words, packing)
    expected = torch.nn.functional.cross_entropy(states_to_logits(model, objective, states), words[places])
    assert output.logs["retromae_loss"].item() == pytest.approx(expected.item(), abs=1e-10)
    total = output.logs["contrastive_loss"] + 0.4 * expected
    assert output.loss.item() == pytest.approx(total.item(), abs=1e-10)


def path_of_blocks(model: CMLMCSEForSentenceEmbedding) -> str:
    """Where the backbone's blocks are."""
    return family_of(model.config.backbone_config).layers


def states_to_logits(model, objective, states: torch.Tensor) -> torch.Tensor:
    """The head by hand: dense, activation, norm, word embeddings, bias."""
    hidden = objective.head.LayerNorm(objective.head.activation(objective.head.dense(states)))
    logits = hidden @ model.get_input_embeddings().weight.T
    return logits if objective.head.bias is None else logits + objective.head.bias


@pytest.mark.parametrize("name", ("retromae", "denosent"))
def test_words_of_the_shortest_rows(name, backbone_folders):
    """A row of one word predicts it, and a row of none predicts nothing."""
    model = load(backbone_folders["bert"], **{f"{name}_weight": 1.0}).eval()
    batch = make_batch("bert", ["cat", "", "the cat sat"])
    objective, part = model.objectives[name], batch["masked"]
    assert objective.terms(part) == 2 * (1 + 0 + 3)  # both views are masked
    packing = Packing.from_lengths(part["lengths"], len(part["input_ids"]), part["width"])
    places = objective.decoder(model.backbone, torch.zeros(6, 32), restored(part), packing)[1]
    assert places.tolist() == [1, 6, 7, 8, 11, 16, 17, 18]
    assert TrainingLosses(model)(**batch).loss.isfinite()


def test_retromae_refuses_narrow_embeddings(backbone_folders):
    """ELECTRA's word embeddings may be narrower than its blocks."""
    with pytest.raises(ValueError, match="word embeddings as wide as the blocks, 32, found 24"):
        load(backbone_folders["electra"], retromae_weight=1.0)


class Times(torch.nn.Module):
    """Noise that is known: (S, H) zeros and factors."""

    def __init__(self, factors: torch.Tensor) -> None:
        super().__init__()
        self.factors = factors

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return words * self.factors


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_denosent_equals_an_independent_computation(kind, backbone_folders, sentences):
    """On padded transformers layers: word embeddings times noise, position 0 replaced by the vector, which has none,
    all words predicted by the head with the word embeddings; and the gradients of vectors, embeddings and decoder. The
    blocks of the encoder get none but through the vectors."""
    model = load(backbone_folders[kind], denosent_weight=1.4, denosent_layers=6).eval()
    part = make_batch(kind, sentences)["masked"]
    objective, words, count = model.objectives["denosent"], restored(part), len(part["lengths"])
    rng = torch.Generator().manual_seed(0)
    objective.decoder.noise = Times(3 * torch.bernoulli(torch.full((len(words), 32), 0.3), generator=rng))
    vectors = torch.randn(count, 32, generator=rng, requires_grad=True)
    assert objective.terms(part) == len(words) - 2 * count
    found = objective(model.backbone, vectors, part)
    found.total.backward()
    found_of = {name: weight.grad for name, weight in objective.decoder.named_parameters()}
    found_of |= {"vectors": vectors.grad, "words": model.get_input_embeddings().weight.grad}
    assert all(weight.grad is None for weight in model.backbone.get_submodule(path_of_blocks(model)).parameters())

    model.zero_grad()
    theirs, again = reference(backbone_folders[kind]), vectors.detach().requires_grad_()
    theirs.base_model.load_state_dict(objective.decoder.blocks.state_dict(), strict=False)
    ids, mask = padded(kind, {**part, "input_ids": words})
    with torch.no_grad():
        embedded = theirs.base_model(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states[0]
    noise = torch.zeros_like(embedded)
    noise[mask.bool()] = objective.decoder.noise.factors
    states = torch.cat([again[:, None], (embedded * noise)[:, 1:]], dim=1)
    decoder = from_states(theirs, states)
    decoded = decoder.base_model(input_ids=ids, attention_mask=mask).last_hidden_state
    inner = mask.bool() & (torch.arange(mask.shape[1]) > 0) & (torch.arange(mask.shape[1]) < mask.sum(1)[:, None] - 1)
    logits = states_to_logits(model, objective, decoded[inner])
    expected = torch.nn.functional.cross_entropy(logits, ids[inner], reduction="sum")
    assert found.total.item() == pytest.approx(expected.item(), rel=1e-5)
    expected.backward()
    theirs_of = dict(decoder.base_model.named_parameters())
    expected_of = {name: theirs_of[name.removeprefix("blocks.")].grad for name in found_of if name in
                   {f"blocks.{other}" for other in theirs_of}}  # fmt: skip
    assert len(expected_of) == len(found_of) - 2
    expected_of |= {"vectors": again.grad, "words": model.get_input_embeddings().weight.grad}
    for name, gradient in expected_of.items():
        torch.testing.assert_close(found_of[name], gradient, rtol=1e-4, atol=1e-4, msg=name)


def test_denosent_noise(backbone_folders, sentences):
    """In training 82.5 % of the numbers are dropped and the others are 1 / 0.175 times as large; the weight counts."""
    model = load(backbone_folders["bert"], denosent_weight=1.4, denosent_layers=1).train()
    noisy = model.objectives["denosent"].decoder.noise(torch.ones(400, 100))
    assert noisy.ne(0).float().mean().item() == pytest.approx(0.175, abs=0.01)
    assert noisy.max().item() == pytest.approx(1 / 0.175, rel=1e-3)
    output = TrainingLosses(model)(**make_batch("bert", sentences))
    total = output.logs["contrastive_loss"] + 1.4 * output.logs["denosent_loss"]
    assert output.loss.item() == pytest.approx(total.item(), rel=1e-6)


def test_objectives_add_up(backbone_folders, sentences, tmp_path):
    """All at once: the loss is the weighted sum of the parts; the model is saved and loaded whole."""
    weights = {"cmlm_weight": 0.3, "rtd_weight": 0.2, "mlm_weight": 0.1, "retromae_weight": 0.4}
    weights |= {"denosent_weight": 0.6, "condenser_weight": 0.7}
    weights["contrastive_weight"] = 0.5
    model = load(backbone_folders["bert"], **weights, denosent_layers=2).eval()
    batch = make_batch("bert", sentences)
    output = TrainingLosses(model)(**batch)
    expected = 0.5 * output.logs["contrastive_loss"]
    names = ("cmlm", "rtd", "mlm", "condenser", "retromae", "denosent")
    expected += sum(weights[f"{name}_weight"] * output.logs[f"{name}_loss"] for name in names)
    assert output.loss.item() == pytest.approx(expected.item(), abs=1e-6)
    model.save_pretrained(tmp_path)
    again = CMLMCSEForSentenceEmbedding.from_pretrained(tmp_path).eval()
    assert TrainingLosses(again)(**batch).loss.item() == pytest.approx(output.loss.item(), abs=1e-6)


def test_without_contrast(backbone_folders, sentences):
    """contrastive_weight 0 leaves the auxiliary loss alone (InfoCSE Table 5)."""
    model = load(backbone_folders["bert"], cmlm_weight=0.3, contrastive_weight=0.0).eval()
    output = TrainingLosses(model)(**make_batch("bert", sentences))
    assert output.loss.item() == pytest.approx(0.3 * output.logs["cmlm_loss"].item(), abs=1e-6)


def test_extractor_that_trains(backbone_folders, sentences):
    """lexical_frozen false is InfoCSE's "w/o gradient detach": the extractor learns, in training mode."""
    model = load(backbone_folders["bert"], cmlm_weight=0.3, lexical_frozen=False).train()
    extractor = model.objectives["cmlm"].extractor
    assert all(module.training for module in extractor.modules())
    TrainingLosses(model)(**make_batch("bert", sentences)).loss.backward()
    assert extractor.embeddings.word_embeddings.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("name", ("contrastive_weight", "rtd_weight", "mlm_weight", "denosent_weight"))
def test_negative_weight(name):
    with pytest.raises(ValueError, match=f"{name} must be a number from 0"):
        CMLMCSEConfig(**{name: -0.1})
