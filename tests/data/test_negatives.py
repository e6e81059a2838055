"""Mined hard negatives: the search, against known angles and all pairs at once; the draws; what stands in a batch."""

import datasets
import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling, Transformer
from sentence_transformers.util import mine_hard_negatives

from cmlmcse.data import negatives
from cmlmcse.data.augmentation import Augmented, repeat_tokens
from cmlmcse.data.batches import TrainingSentences, tokenize_pieces, tokenize_sentences
from cmlmcse.data.collator import ViewCollator
from cmlmcse.data.negatives import NO_ROW, MinedNegatives, mean_of, nearest_below
from cmlmcse.data.views import DocumentViews
from support.tiny import tiny_tokenizer

CPU = torch.device("cpu")


def search(
    vectors: np.ndarray, most: float, count: int, mean: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """All blocks of a search."""
    vectors = vectors.astype(np.float32)
    mean = np.zeros(vectors.shape[1], np.float32) if mean is None else mean
    rows, nearest = zip(*nearest_below(vectors, mean, most, count, CPU), strict=True)
    return np.concatenate(rows), np.concatenate(nearest)


def test_angles_that_are_known():
    """Directions of 0, 20, 50 and 120 degrees, of any length, and the first one once more. A margin of 0.05 leaves out
    what is nearer than 18.2 degrees, one of 0.1 what is nearer than 25.8."""
    angles = np.radians([0, 20, 50, 120, 0])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1) * np.array([[1], [5], [0.1], [2], [3]])
    rows, nearest = search(vectors, 0.95, 3)
    assert rows[0].tolist() == rows[4].tolist() == [1, 2, 3]
    assert (set(rows[1, :2]), rows[1, 2]) == ({0, 4}, 2)  # the first and the last are equally near
    assert (rows[2, 0], set(rows[2, 1:])) == (1, {0, 4})
    assert rows[3, :2].tolist() == [2, 1]
    apart = np.cos([0, angles[1], angles[2] - angles[1], angles[3] - angles[2], 0])
    assert nearest == pytest.approx(apart, abs=1e-6)
    rows, _ = search(vectors, 0.9, 3)
    assert rows[0].tolist() == [2, 3, NO_ROW]
    assert rows[1].tolist() == [2, 3, NO_ROW]


def test_finds_what_sentence_transformers_finds(backbone_folders, sentences):
    """Without a mean to subtract: the same rows as `mine_hard_negatives` with the same largest cosine."""
    transformer = Transformer(backbone_folders["bert"])
    model = SentenceTransformer(
        modules=[transformer, Pooling(transformer.get_embedding_dimension(), "mean")], device="cpu"
    )
    texts = list(dict.fromkeys(sentences))
    vectors = model.encode(texts)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    most = float(np.median(unit @ unit.T))
    rows, _ = search(vectors, most, 2)
    pairs = datasets.Dataset.from_dict({"anchor": texts, "positive": texts})
    mined = mine_hard_negatives(
        pairs, model, max_score=most, num_negatives=2, output_format="n-tuple", verbose=False
    )  # leaves out texts with fewer negatives
    full = [row for row, found in enumerate(rows) if NO_ROW not in found]
    assert len(full) > len(texts) / 2
    assert mined["anchor"][:] == [texts[row] for row in full]
    for number in (0, 1):
        assert mined[f"negative_{number + 1}"][:] == [texts[rows[row, number]] for row in full]


@pytest.mark.parametrize("blocks", ((3, 5), (7, 2), (100, 100)))
def test_blocks_change_nothing(blocks, monkeypatch):
    """Against one comparison of all pairs; a block of candidates may be smaller than what is looked for."""
    monkeypatch.setattr(negatives, "QUERIES", blocks[0])
    monkeypatch.setattr(negatives, "CANDIDATES", blocks[1])
    vectors = np.random.default_rng(0).normal(size=(23, 4))
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -np.inf)
    rows, nearest = search(vectors, 0.6, 6)
    np.testing.assert_allclose(nearest, cosines.max(axis=1), atol=1e-6)
    for row, found in enumerate(rows):
        allowed = [each for each in np.argsort(-cosines[row]) if cosines[row, each] <= 0.6 and each != row][:6]
        assert found.tolist() == allowed + [NO_ROW] * (6 - len(allowed))
    shifted = vectors - mean_of(vectors.astype(np.float32))  # what all vectors share does not count
    expected, _ = search(shifted, 0.6, 6)
    moved = (vectors + 7).astype(np.float32)
    found, _ = search(moved, 0.6, 6, mean_of(moved))
    assert found.tolist() == expected.tolist()


def mined(folder, candidates: list[list[int]], count: int, seed: int = 1) -> MinedNegatives:
    """Negatives from a table of candidates."""
    np.save(folder / "rows.npy", np.array(candidates, np.int32))
    return MinedNegatives(folder / "rows.npy", count, seed)


def test_draws(tmp_path):
    """A pure function of seed, epoch and row; without replacement, each candidate in its turn; all where there are no
    more, nearest first."""
    table = [[1, 2, 3, 4], [0, 2, 3, NO_ROW], [4, 1, NO_ROW, NO_ROW]]
    found = mined(tmp_path, table, 2)
    places = [(epoch, row) for epoch in range(200) for row in range(3)]
    drawn = found.of(places)
    assert drawn == mined(tmp_path, table, 2).of(places)
    assert drawn != mined(tmp_path, table, 2, seed=2).of(places)
    backwards = [found.of([place]) for place in reversed(places)]
    assert [pair for pairs in reversed(backwards) for pair in pairs] == drawn
    for row, known in enumerate(table):
        pairs = [drawn[2 * i : 2 * i + 2] for i, place in enumerate(places) if place[1] == row]
        assert all(pair[0][0] == pair[1][0] == epoch for epoch, pair in enumerate(pairs))
        assert all(pair[0][1] != pair[1][1] for pair in pairs)
        counts = [sum(each == candidate for pair in pairs for _, each in pair) for candidate in known]
        share = 400 / (4, 3, 2)[row]
        assert all(abs(count - share) < 40 for count, each in zip(counts, known, strict=True) if each != NO_ROW)
    assert drawn[4:6] == [(0, 4), (0, 1)]


@pytest.mark.parametrize("plain_view", (False, True))
def test_sentences_in_a_batch(plain_view, tmp_path):
    """A mined negative is the other sentence itself, never augmented; it is no masked sentence; with SimCSE++'s loss it
    has no dropout. In parts too."""
    tokenizer = tiny_tokenizer("bert")
    lines = ["the cat sat", "a big dog ran", "w1 w2 w3 w4 w5", "red tree", "w6 w7"]
    text = datasets.Dataset.from_dict({"text": lines})
    table = [[(row + 1) % 5, (row + 2) % 5, (row + 3) % 5] for row in range(5)]
    rows = TrainingSentences(tokenize_sentences(text, tokenizer, 32), negatives=mined(tmp_path, table, 2))
    tokens = tokenizer(lines)["input_ids"]
    keys = [3, 5 + 0, 10 + 4]  # three epochs
    wanted = [[row for _, row in rows.negatives.of([divmod(key, 5)])] for key in keys]
    options = {"augmented": Augmented(repeat_tokens, both=True), "plain_view": plain_view}
    batch = ViewCollator(tokenizer, 1, **options)(rows.__getitems__(keys))
    packed = batch["views"]["plain"] if plain_view else batch["views"]
    found = [row.tolist() for row in packed["input_ids"].split(packed["lengths"].tolist())]
    assert batch["views"]["num_views"] == (2 if plain_view else 4)
    start = 3 if plain_view else 6
    assert found[start:] == [tokens[wanted[i][k]] for k in range(2) for i in range(3)]
    if plain_view:
        assert found[:3] == [tokens[key % 5] for key in keys]
    parts = ViewCollator(tokenizer, 1, mini_batch_size=2, **options)(rows.__getitems__(keys))["parts"]
    assert [len(part["views"]["lengths"]) for part in parts] == ([4, 2] if plain_view else [8, 4])


@pytest.mark.parametrize("views", ("title_body", "crops", "sentence", "crops+title_body"))
def test_documents_in_a_batch(views, tmp_path):
    """The negative of a document is a piece of its neighbour: what that one's own second view is in this epoch."""
    tokenizer = tiny_tokenizer("bert")
    rng = np.random.default_rng(0)
    bodies = [" ".join(f"w{i}" for i in rng.integers(60, size=30)) for _ in range(4)]
    documents = datasets.Dataset.from_dict({"title": ["the cat", "a dog", "big tree", "red mat"], "text": bodies})
    table = [[1], [2], [3], [0]]
    pieces = tokenize_pieces(documents, tokenizer)
    rows = TrainingSentences(pieces, negatives=mined(tmp_path, table, 1))
    collator = ViewCollator(tokenizer, 1, documents=DocumentViews(views, 10))
    for epoch in (0, 1):
        packed = collator(rows.__getitems__([4 * epoch + row for row in range(4)]))["views"]
        found = [row.tolist() for row in packed["input_ids"].split(packed["lengths"].tolist())]
        second, negative = found[4:8], found[8:]
        assert negative == [second[row] for (row,) in table]
        assert negative[0] != second[0]
