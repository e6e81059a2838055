"""Views of documents: what each takes from a document, and what its random numbers depend on."""

import numpy as np
import pytest

from cmlmcse.common.errors import InputError
from cmlmcse.data.batches import Example, ViewCollator
from cmlmcse.data.masking import Masking
from cmlmcse.data.views import MIN_PIECE, VIEWS, WINDOW, DocumentViews, Pieces, check_views
from support.tiny import tiny_tokenizer

BODY = list(range(1000, 1600))
DOCUMENT = Pieces([1, 2, 3], BODY)


def drawn(name, view, seed, document=DOCUMENT, limit=40):
    """One view; the two views of a document share the first generator."""
    return VIEWS[name](document, view, limit, np.random.default_rng(seed), np.random.default_rng([seed, 1 + view]))


def test_crops():
    """Two crops of one window: 10 to 50 % of it, at most the limit, at independent places."""
    first, second = ([drawn("crops", view, seed, limit=WINDOW) for seed in range(300)] for view in (0, 1))
    for one, other in zip(first, second, strict=True):
        for crop in (one, other):
            assert crop == BODY[crop[0] - 1000 : crop[0] - 1000 + len(crop)]
        assert max(one[-1], other[-1]) - min(one[0], other[0]) < WINDOW
    sizes = [len(crop) for crop in first]
    assert (min(sizes), max(sizes)) == pytest.approx((25.6, 128), abs=3)
    assert np.mean(sizes) == pytest.approx(0.3 * WINDOW, rel=0.05)
    assert abs(np.corrcoef(sizes, [len(crop) for crop in second])[0, 1]) < 0.15
    assert max(len(drawn("crops", 0, seed)) for seed in range(50)) == 40


def test_neighbours():
    """The two views touch, and do not overlap."""
    for seed in range(100):
        before, after = (drawn("neighbours", view, seed) for view in (0, 1))
        assert before[-1] + 1 == after[0]
        assert MIN_PIECE <= min(len(before), len(after)) <= max(len(before), len(after)) <= 40
    short = Pieces([], BODY[: 2 * MIN_PIECE])
    assert [drawn("neighbours", view, 0, short) for view in (0, 1)] == [
        BODY[:MIN_PIECE],
        BODY[MIN_PIECE : 2 * MIN_PIECE],
    ]


def test_title_body():
    assert [drawn("title_body", view, 0) for view in (0, 1)] == [[1, 2, 3], BODY[:40]]


def test_a_document_that_cannot_give_a_view():
    """It gives crops instead, and a very short one gives its text twice."""
    rng = np.random.default_rng
    untitled, tiny = Pieces([], BODY), Pieces([], BODY[:4])
    views = DocumentViews("title_body", 40)
    assert views(untitled, 0, rng(0), rng(1)) == VIEWS["crops"](untitled, 0, 40, rng(0), rng(1))
    assert [views(tiny, view, rng(0), rng(view)) for view in (0, 1)] == [BODY[:4], BODY[:4]]


def test_a_mixture_draws_one_view_for_both_sides():
    rng = np.random.default_rng
    views = DocumentViews("title_body+neighbours", 40)
    kinds = []
    for seed in range(200):
        first, second = (views(DOCUMENT, view, rng(seed), rng([seed, view])) for view in (0, 1))
        assert (first == [1, 2, 3]) == (second == BODY[:40])
        kinds.append(first == [1, 2, 3])
    assert 0.4 < np.mean(kinds) < 0.6


def test_batches_depend_on_seed_epoch_and_row_alone():
    """The same document gives the same views in any batch, and others in another epoch; its masks are of its views."""
    tokenizer = tiny_tokenizer("bert")
    masking = Masking(0.5, tokenizer.mask_token_id, len(tokenizer), frozenset(tokenizer.all_special_ids))
    body = [5 + row % 60 for row in range(300)]

    def rows(epoch, order, part="views"):
        collator = ViewCollator(tokenizer, 7, masking, documents=DocumentViews("crops+title_body", 30))
        batch = collator([Example(body, epoch, row, (), [9, 8, 7]) for row in order])[part]
        split = np.split(batch["input_ids"].numpy(), np.cumsum(batch["lengths"].numpy())[:-1])
        return [tuple(row) for row in split], batch

    views, _ = rows(0, (4, 5))
    again, _ = rows(0, (5, 6, 4))
    assert [*views[:2], views[2]] == [again[2], again[0], again[5]]
    assert views != rows(1, (4, 5))[0]
    assert all(view[0] == tokenizer.cls_token_id and view[-1] == tokenizer.sep_token_id for view in views)
    masked, batch = rows(0, (4, 5), "masked")
    restored = batch["input_ids"].clone()
    restored[batch["mlm_positions"]] = batch["mlm_labels"]
    assert restored.tolist() == [token for view in views for token in view]
    assert masked != views


@pytest.mark.parametrize(
    "views, titles, longest, message",
    [
        ("title_body", 0, 50, "views title_body expects documents with a title and another text, found none among 7"),
        ("crops", 7, 9, "views crops expects documents of at least 10 tokens, found none among 7"),
        ("dropout+halves", 7, 50, "views must be one of dropout, crops, neighbours, title_body"),
    ],
)
def test_text_that_cannot_give_the_views(views, titles, longest, message):
    with pytest.raises(InputError) as error:
        check_views(views, 7, titles, longest)
    assert message in str(error.value)
