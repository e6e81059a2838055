"""The pooling `prompt`: templates in the tokenizer and in training, template denoising, and what an export does."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from cmlmcse.common.errors import InputError
from cmlmcse.data.batches import Example
from cmlmcse.data.collator import ViewCollator
from cmlmcse.data.masking import Masking
from cmlmcse.data.special_tokens import special_tokens
from cmlmcse.data.templates import Templates, longest_template, read_template, with_template, without_template
from cmlmcse.hub.export import export, verify
from cmlmcse.models.encoders import load_encoder
from cmlmcse.training.command import train
from cmlmcse.training.large_batch import backward_in_parts
from cmlmcse.training.parse import parse_recipe
from cmlmcse.training.trainer import count_tokens
from cmlmcse.training.training_losses import TrainingLosses, contrasted
from modeling_cmlmcse import CMLMCSEConfig, CMLMCSEForSentenceEmbedding
from support.tiny import load_reference, tiny_tokenizer
from support.training import history

TEMPLATES = ("the big {sentence} sat on {mask} red", "a {sentence} ran under the {mask}")
NEGATED = "a {sentence} w3 {mask} under the blue {mask}"  # two masks, as CoT-BERT


def templates_of(tokenizer, denoising: str = "position", texts: tuple[str, ...] = TEMPLATES) -> Templates:
    """The templates of the views."""
    read = [read_template(template, tokenizer) for template in texts]
    return Templates(read, special_tokens(tokenizer), denoising, tokenizer.pad_token_id)


def prompted(tokenizer):
    """The tokenizer of a finished model."""
    return with_template(tokenizer, templates_of(tokenizer).templates[0], special_tokens(tokenizer))


def load(folder: str, **fields) -> CMLMCSEForSentenceEmbedding:
    """A model without dropout, in fp64."""
    fields = {"pooling": "prompt", "cmlm_weight": 0.0, "backbone_dropout": 0.0, **fields}
    torch.manual_seed(1)
    return CMLMCSEForSentenceEmbedding.from_backbone(folder, **fields).double()


def filled(tokenizer, sentence: str, view: int) -> list[int]:
    """The tokens of a template with the sentence in it, written as one text."""
    text = (*TEMPLATES, NEGATED)[view].replace("{sentence}", sentence).replace("{mask}", tokenizer.mask_token)
    return tokenizer(text)["input_ids"]


@pytest.mark.parametrize("kind", ("bert", "roberta"))
def test_the_tokenizer_of_a_finished_model(kind, sentences, tmp_path):
    """It gives what the plain one gives for the filled template, cuts the sentence and never the template, survives a
    folder, and can be undone."""
    plain = tiny_tokenizer(kind)
    tokenizer = prompted(plain)
    expected = [filled(plain, sentence, 0) for sentence in sentences]
    assert tokenizer(sentences)["input_ids"] == expected
    cut = tokenizer(sentences, truncation=True, max_length=10)["input_ids"]
    assert cut == [[*row[:3], *row[3:-5][:2], *row[-5:]] for row in expected]
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again(sentences)["input_ids"] == expected
    assert again.mask_token_id == plain.mask_token_id
    assert without_template(again)(sentences)["input_ids"] == plain(sentences)["input_ids"]
    config = CMLMCSEConfig(pooling="prompt", prompt_template=TEMPLATES[1], second_prompt_template=TEMPLATES[0])
    assert (longest_template(config, again), longest_template(CMLMCSEConfig(), plain)) == (6, 0)
    assert plain(sentences[0])["input_ids"] == tiny_tokenizer(kind)(sentences[0])["input_ids"]  # was not changed


@pytest.mark.parametrize(
    "template", ("no place {mask}", "{sentence} no mask", "{mask} {sentence}", "{sentence}{sentence}{mask}")
)
def test_wrong_templates(template):
    with pytest.raises(InputError, match=r"a prompt_template must hold \{sentence\} once and \{mask\} after it, found"):
        read_template(template, tiny_tokenizer("bert"))


@pytest.mark.parametrize("kind", ("bert", "roberta", "mpnet", "modernbert"))
def test_the_vector_is_the_state_of_the_mask(kind, backbone_folders, sentences):
    """That of transformers' own encoder, one sentence at a time; by `encode` and by `forward` on a padded batch."""
    model, tokenizer = load(backbone_folders[kind]).eval(), prompted(tiny_tokenizer(kind))
    reference = load_reference(kind, backbone_folders[kind]).double()
    expected = []
    for sentence in [*sentences, f"w1 {tokenizer.mask_token} w2"]:  # the template's own mask, not the sentence's
        tokens = torch.tensor([tokenizer(sentence)["input_ids"]])
        place = (tokens[0] == tokenizer.mask_token_id).nonzero().max()
        expected.append(reference(tokens).last_hidden_state[0, place])
    expected = torch.stack(expected).detach()
    texts = [*sentences, f"w1 {tokenizer.mask_token} w2"]
    torch.testing.assert_close(model.encode(texts, tokenizer, convert_to_tensor=True), expected.float())
    padded = tokenizer(texts, padding=True, return_tensors="pt")
    torch.testing.assert_close(model(**padded).pooler_output, expected)
    options = {"prompt_template": TEMPLATES[0], "show_progress_bar": False}
    plain = load_encoder(backbone_folders[kind], "prompt", **options)  # as `cmlmcse evaluate --pooling prompt`
    assert plain.settings["prompt_template"] == TEMPLATES[0]
    np.testing.assert_allclose(plain(texts), expected.float(), atol=1e-5)


def test_without_the_template(backbone_folders, sentences):
    """A plain tokenizer would give other vectors in silence: it is refused."""
    model, plain = load(backbone_folders["bert"]), tiny_tokenizer("bert")
    with pytest.raises(ValueError, match="expects the mask token of its template in every sentence, found none"):
        model.encode(sentences, plain)
    with pytest.raises(RuntimeError, match="expects the mask token of its template"):
        model(**plain(sentences, padding=True, return_tensors="pt"))
    with pytest.raises(ValueError, match="pooling prompt expects input_ids, found inputs_embeds"):
        model(inputs_embeds=torch.zeros(1, 3, 32))


def test_a_plain_tokenizer_beside_a_model(backbone_folders, sentences, tmp_path):
    """A model that was made in Python is saved with its backbone's tokenizer. It gets the template that it records."""
    model = load(backbone_folders["shallow"], prompt_template=TEMPLATES[0]).float().eval()
    model.save_pretrained(tmp_path)
    tiny_tokenizer("bert").save_pretrained(tmp_path)
    encoder = load_encoder(str(tmp_path), device="cpu")
    np.testing.assert_allclose(encoder(sentences), model.encode(sentences, prompted(tiny_tokenizer("bert"))), atol=1e-6)
    with pytest.raises(InputError, match="--prompt_template expects a plain backbone"):
        load_encoder(str(tmp_path), device="cpu", prompt_template=TEMPLATES[1])


def examples(tokenizer, sentences: list[str]) -> list[Example]:
    return [Example(tokenizer(text)["input_ids"], 0, row) for row, text in enumerate(sentences)]


def state_of_mask(kind: str, reference, tokens: list[int], places: list[int], mask: int) -> torch.Tensor:
    """transformers' own state of the last mask token of one row, whose tokens stand at these places."""
    row = torch.tensor([tokens])
    given = {"position_ids": torch.tensor([places]) + (2 if kind == "roberta" else 0)}
    if kind == "distilbert":  # takes no positions: its embeddings, then its blocks
        embedded = reference.embeddings.word_embeddings(row)
        embedded = embedded + reference.embeddings.position_embeddings(given["position_ids"])
        hidden = reference.transformer(reference.embeddings.LayerNorm(embedded))[0]
    else:
        hidden = reference(row, **given).last_hidden_state
    return hidden[0, (row[0] == mask).nonzero().max()]


@pytest.mark.parametrize("denoising", ("position", "pad"))
@pytest.mark.parametrize("kind", ("bert", "roberta", "distilbert"))
def test_template_denoising(kind, denoising, backbone_folders, sentences):
    """Each view has its template, and a third one negates the sentence. From a vector that of the empty template is
    subtracted, whose words stand where they stood, alone or with padding between them: against transformers' own
    encoder with positions given, one row at a time, gradients included."""
    model, tokenizer = load(backbone_folders[kind]).train(), tiny_tokenizer(kind)
    reference = load_reference(kind, backbone_folders[kind]).double()
    templates = templates_of(tokenizer, denoising, (*TEMPLATES, NEGATED))
    batch = ViewCollator(tokenizer, 1, templates=templates)(examples(tokenizer, [*sentences, "cat"]))
    assert batch["views"]["num_views"] == 3
    vectors, found = contrasted(TrainingLosses(model).sentence_vectors(batch["views"]), True)  # (3, N, H)
    expected, alone = [], []
    for view, before in ((0, 3), (1, 2), (2, 2)):
        for sentence in [*sentences, "cat"]:
            tokens, inside = filled(tokenizer, sentence, view), range(before, before + len(sentence.split()))
            whole = state_of_mask(kind, reference, tokens, list(range(len(tokens))), tokenizer.mask_token_id)
            empty = [tokenizer.pad_token_id if place in inside else token for place, token in enumerate(tokens)]
            kept = [place for place in range(len(tokens)) if denoising == "pad" or place not in inside]
            row = kind, reference, [empty[place] for place in kept], kept, tokenizer.mask_token_id
            alone.append(whole)
            expected.append(whole - state_of_mask(*row))
    torch.testing.assert_close(vectors, torch.stack(alone).view_as(vectors))
    expected = torch.stack(expected).view_as(found)
    torch.testing.assert_close(found, expected)
    weight = torch.randn(found.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    (gradient,) = torch.autograd.grad((weight * found).sum(), model.get_input_embeddings().weight)
    (wanted,) = torch.autograd.grad((weight * expected).sum(), reference.get_input_embeddings().weight)
    torch.testing.assert_close(gradient, wanted)


def test_an_objective_reads_the_vector_that_is_evaluated(backbone_folders, sentences):
    """Head and contrast read what is left without the template; an auxiliary objective reads the vector itself."""
    model, tokenizer = load(backbone_folders["bert"], projection="mlp").eval(), tiny_tokenizer("bert")
    batch = ViewCollator(tokenizer, 1, templates=templates_of(tokenizer, "position"))(examples(tokenizer, sentences))
    losses = TrainingLosses(model)
    both = losses.sentence_vectors(batch["views"])  # (4, N, H)
    _, (before, after), _ = losses.contrast(both, denoised=True)
    evaluated = torch.as_tensor(model.encode(sentences, prompted(tokenizer)))
    torch.testing.assert_close(before[0], evaluated.to(before), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(after, model.projection(both[:2] - both[2:]))
    assert (both[2:].norm(dim=-1) > 0.1).all()


@pytest.mark.parametrize("denoising", ("position", "pad"))
def test_a_template_is_encoded_once(denoising, sentences):
    """For each length of a sentence and template, whichever rows and views have it; equal templates are one. Nothing is
    encoded without denoising."""
    tokenizer = tiny_tokenizer("bert")
    rows = examples(tokenizer, [*sentences, "cat"])  # two of the five have one length
    for texts, places in ((TEMPLATES, 2 * 4), ((*TEMPLATES, NEGATED), 3 * 4), ((TEMPLATES[0], TEMPLATES[0]), 4)):
        views = ViewCollator(tokenizer, 1, templates=templates_of(tokenizer, denoising, texts))(rows)["views"]
        count = 5 * max(2, len(texts))
        assert len(views["lengths"]) == count + places
        assert len(views["template_of"]) == count
        assert len(set(views["template_of"].tolist())) == places
        assert count_tokens({"views": views}) == len(views["slots"]) == int(views["lengths"].sum())
    plain = ViewCollator(tokenizer, 1, templates=templates_of(tokenizer, "none"))(rows)["views"]
    assert len(plain["lengths"]) == 10
    assert "template_of" not in plain


@pytest.mark.parametrize("contrast", ("extended_info_nce", "off_dropout"))
def test_in_parts_and_beside_the_objectives(contrast, backbone_folders):
    """With CMLM-CSE, the negated template and CoT-BERT's loss, or SimCSE++'s: loss and gradients from parts of 3 are
    those of the whole batch; the masked sentences have no template."""
    sentences = [" ".join(f"w{(7 * i + j * j) % 60}" for j in range(3 + i % 5)) for i in range(8)]
    fields = {"cmlm_weight": 0.5, "temp": 1.0, "contrastive_loss": contrast}
    plain_view = contrast == "off_dropout"
    model, tokenizer = load(backbone_folders["bert"], **fields).train(), tiny_tokenizer("bert")
    masking = Masking.of(tokenizer, 0.4)
    found = []
    for size in (None, 3):
        templates = templates_of(tokenizer, "pad", (*TEMPLATES, NEGATED))
        options = {"templates": templates, "plain_view": plain_view, "mini_batch_size": size}
        batch = ViewCollator(tokenizer, 3, masking, **options)(examples(tokenizer, sentences))
        losses = TrainingLosses(model)
        if size is None:  # the negated sentences are the last view: with dropout, or behind those without
            rows = batch["views"]["plain"] if plain_view else batch["views"]
            texts = rows["input_ids"].split(rows["lengths"].tolist())
            start = 8 if plain_view else 16
            wanted = [filled(tokenizer, sentence, 2) for sentence in sentences]
            assert [text.tolist() for text in texts[start : start + 8]] == wanted
        if size is None:
            assert batch["masked"]["lengths"].tolist() == [len(tokenizer(text)["input_ids"]) for text in sentences] * 2
            loss = losses(**batch).loss
            loss.backward()
        else:
            loss, _ = backward_in_parts(losses, batch["parts"], lambda part: part.backward(), nullcontext)
        found.append(
            (loss.item(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
        )
        model.zero_grad()
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-9)
    for name, gradient in found[0][1].items():
        torch.testing.assert_close(found[1][1][name], gradient, msg=name, rtol=1e-6, atol=1e-10)


@pytest.mark.slow
@pytest.mark.usefixtures("warm_python")
@pytest.mark.parametrize("kind", ("bert", "roberta"))
def test_an_export(kind, backbone_folders, sentences, tmp_path):
    """It gives the same vectors by AutoModel, by this project and by SentenceTransformer with its code; without that
    SentenceTransformer refuses it. There is no export without code."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    tokenizer = prompted(tiny_tokenizer(kind))
    model = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders[kind], cmlm_weight=0.0, pooling="prompt").eval()
    folder = export(model, tokenizer, tmp_path / "export")
    if kind == "bert":  # a fresh process, once
        assert set(verify(model, tokenizer, folder)) == {
            "AutoModel",
            "AutoModel.encode",
            "SentenceTransformer, with code.encode",
        }
    expected = model.encode(sentences, tokenizer)
    np.testing.assert_allclose(load_encoder(str(folder), show_progress_bar=False)(sentences), expected, atol=1e-6)
    with pytest.raises(ValueError, match="trust_remote_code=True"):
        sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    with pytest.raises(InputError, match="pooling prompt expects an export with code"):
        export(model, tokenizer, tmp_path / "free", trust_free=True)


@pytest.mark.slow
def test_a_run_and_a_run_from_its_export(recipe, tmp_path):
    """PromptBERT with CMLM-CSE from a recipe. The development score is that of the exported folder; a run that starts
    from the export keeps pooling and templates, and starts with that score."""
    names = dict(zip(("prompt_template", "second_prompt_template"), TEMPLATES, strict=True))
    results = train(recipe, pooling="prompt", **names, augmentation="delete_tokens").results
    best = max(history(tmp_path / "run", "eval_dev_score")[1:])
    assert results["dev"]["spearman"] == pytest.approx(best, abs=1e-3)
    saved = AutoTokenizer.from_pretrained(tmp_path / "run" / "export")
    assert saved("cat")["input_ids"] == filled(tiny_tokenizer("bert"), "cat", 0)
    card = (tmp_path / "run" / "export" / "README.md").read_text()
    assert "SentenceTransformer(FOLDER_OR_REPO, trust_remote_code=True)" in card

    _, model, _, _ = parse_recipe(["simcse-bert-base", "--model_name_or_path", str(tmp_path / "run" / "export")])
    assert (model.pooling, model.prompt_template, model.second_prompt_template) == ("prompt", *TEMPLATES)
    fields = {"model_name_or_path": tmp_path / "run" / "export", "pooling": "prompt", **names}
    train(recipe, **fields, cmlm_weight=0, output_dir=tmp_path / "next")
    assert history(tmp_path / "next", "eval_dev_score")[0] == pytest.approx(best, abs=1e-3)
