"""Views of documents beside the decoders and replaced-token detection, and beside every augmentation."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset

from cmlmcse.data.augmentation import AUGMENTATIONS, Augmented, add_deletion_token, build_augmentation
from cmlmcse.data.batches import Example, TrainingSentences, tokenize_pieces
from cmlmcse.data.collator import ViewCollator, pack_masked
from cmlmcse.data.masking import MaskedTokens, Masking
from cmlmcse.data.telling_words import TellingWords
from cmlmcse.data.views import VIEWS, DocumentViews
from cmlmcse.training.training_losses import TrainingLosses
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from modeling_cmlmcse.backbone import blocks
from support.batches import rows_of
from support.tiny import WORDS, tiny_tokenizer

LIMIT = 20  # tokens of a view, without the two special ones
DOCUMENT_VIEWS = [name for name in VIEWS if name != "dropout"]
OBJECTIVES = {
    "retromae": {"decoder_hidden_share": 1.0},
    "denosent": {"denosent_layers": 1, "denosent_noise": 0.0},
    "rtd": {},
}


class Documents:
    """Six documents of 60 words with titles, and batches of them.

    Args:
        name: the views.
        augmentation: of both views.
        synonyms: a file of them.
    """

    def __init__(self, name: str, augmentation: str = "none", synonyms: str | None = None) -> None:
        self.tokenizer = tiny_tokenizer("bert")
        add_deletion_token(augmentation, self.tokenizer)
        rng = np.random.default_rng(3)
        own = [rng.choice(WORDS, size=30, replace=False) for _ in range(6)]
        columns = {"title": [" ".join(words[:6]) for words in own],
                   "text": [" ".join(rng.permutation([*words, *words])) for words in own]}  # fmt: skip
        pieces = tokenize_pieces(Dataset.from_dict(columns), self.tokenizer)
        self.rows = TrainingSentences(pieces)
        views = DocumentViews(name, LIMIT, TellingWords.count(pieces, self.tokenizer))
        augment = build_augmentation(augmentation, self.tokenizer, synonyms, 0.3)
        masking = Masking.of(self.tokenizer, 0.4)
        how = None if augmentation == "none" else Augmented(augment, both=True, limit=64)
        self.made = {"masking": masking, "augmented": how, "documents": views}

    def batch(self, rows: list[int], epoch: int = 0, seed: int = 7) -> dict:
        """The documents of these rows, made by a collator of its own."""
        examples: list[Example] = self.rows.__getitems__([epoch * len(self.rows) + row for row in rows])
        return ViewCollator(self.tokenizer, seed, **self.made)(examples)


def unmasked(masked: dict) -> list[list[int]]:
    """The tokens of each masked row before masking."""
    tokens = masked["input_ids"].index_copy(0, masked["mlm_positions"], masked["mlm_labels"])
    return rows_of({**masked, "input_ids": tokens})


def apart(masked: dict) -> list[dict]:
    """Each row of a masked batch as a batch of its own."""
    starts = np.cumsum([0, *masked["lengths"].tolist()])
    counts = masked["mlm_counts"].tolist()
    parts = zip(masked["input_ids"].split(masked["lengths"].tolist()), masked["mlm_positions"].split(counts),
                masked["mlm_labels"].split(counts), starts[:-1], strict=True)  # fmt: skip
    return [
        pack_masked([MaskedTokens(tokens.numpy(), positions.numpy() - start, labels.numpy())])
        for tokens, positions, labels, start in parts
    ]


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("name", DOCUMENT_VIEWS)
def test_an_objective_reads_each_view_and_its_own_vector(name: str, objective: str, backbone_folders) -> None:
    """The masked text of a row is that view's. The auxiliary loss is the sum over the views of each document, each with
    its own vector, and reaches the first block of the encoder through these."""
    folder = backbone_folders["shallow"]
    torch.manual_seed(0)
    fields = {"cmlm_weight": 0.0, f"{objective}_weight": 0.5, "projection": "none", **OBJECTIVES[objective]}
    generator = {"rtd_generator": folder} if objective == "rtd" else {}
    model = CMLMCSEForSentenceEmbedding.from_backbone(folder, **fields, **generator).double().eval()
    losses, batch = TrainingLosses(model), Documents(name).batch([0, 1, 2, 3])
    assert unmasked(batch["masked"]) == rows_of(batch["views"])
    output = losses(**batch)
    contrast, auxiliary = output.logs["contrastive_loss"], output.logs[f"{objective}_loss"]
    assert output.loss.item() == pytest.approx((contrast + 0.5 * auxiliary).item(), rel=1e-5)
    assert torch.isfinite(output.loss)
    assert auxiliary > 0

    vectors, masked = losses.sentence_vectors(batch["views"]), batch["masked"]  # (2, 4, H)
    whole = losses.auxiliary_loss(torch.stack([vectors, vectors]), masked, losses.auxiliary_terms([masked]))[0]
    read = model.objectives[objective]
    pairs = zip(vectors.flatten(0, 1), apart(masked), strict=True)
    rows = [read(model.backbone, vector[None], row).total for vector, row in pairs]
    assert whole.item() == pytest.approx(0.5 * sum(rows).item() / read.terms(masked), rel=1e-10)
    swapped = read(model.backbone, vectors.flip(0).flatten(0, 1), masked).total
    assert swapped.item() != pytest.approx(sum(rows).item(), rel=1e-10)
    through = torch.autograd.grad(whole, vectors, retain_graph=True)[0]
    assert (through.abs().sum(dim=-1) > 0).all()
    first = list(blocks(model.backbone)[0].parameters())
    assert all(gradient.abs().sum() > 0 for gradient in torch.autograd.grad(vectors, first, through))


@pytest.mark.parametrize("augmentation", AUGMENTATIONS)
@pytest.mark.parametrize("name", DOCUMENT_VIEWS)
def test_augmented_views(name: str, augmentation: str, tmp_path: Path) -> None:
    """A function of seed, epoch, row and view alone; the two views differ; the masked text is not augmented."""
    (tmp_path / "synonyms.json").write_text(json.dumps({word: [WORDS[-1 - i]] for i, word in enumerate(WORDS)}))
    documents = Documents(name, augmentation, str(tmp_path / "synonyms.json"))
    batch = documents.batch([0, 1, 2, 3, 4, 5])
    views, masked = rows_of(batch["views"]), rows_of(batch["masked"])
    again = documents.batch([4, 2])
    assert rows_of(again["views"]) == [views[4], views[2], views[10], views[8]]
    assert rows_of(again["masked"]) == [masked[4], masked[2], masked[10], masked[8]]
    fixed = name == "title_body" and augmentation == "none"  # title and start of the body, in every epoch
    for other in (documents.batch([0, 1, 2, 3, 4, 5], epoch=1), documents.batch([0, 1, 2, 3, 4, 5], seed=8)):
        changed = [one != new for one, new in zip(views, rows_of(other["views"]), strict=True)]
        assert sum(changed) == 0 if fixed else sum(changed) >= 6
    assert all(one != other for one, other in zip(views[:6], views[6:], strict=True))
    plain = rows_of(Documents(name).batch([0, 1, 2, 3, 4, 5])["views"])
    assert unmasked(batch["masked"]) == plain
    assert (views == plain) == (augmentation == "none")
    cls, sep = documents.tokenizer.cls_token_id, documents.tokenizer.sep_token_id
    assert all((row[0], row[-1], len(row) > 2) == (cls, sep, True) for row in views)
