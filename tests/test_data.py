"""Masking statistics, augmentations, and randomness that is a pure function of (seed, epoch, row)."""

import datasets
import numpy as np
import pytest
from conftest import tiny_tokenizer

from modeling_cmlmcse.errors import InputError
from modeling_cmlmcse.training.augmentation import drop_one_token, repeat_tokens
from modeling_cmlmcse.training.data import EpochSampler, Example, TrainingSentences, ViewCollator, augment_inside
from modeling_cmlmcse.training.masking import Masking, mask_tokens

MASKING = Masking(0.15, mask_token_id=4, vocab_size=1000, special_token_ids=frozenset(range(5)))


def test_masking_statistics():
    """15 % of ordinary tokens chosen; 80 % [MASK], 10 % random, 10 % kept, each within 4 standard errors; special
    tokens never; labels are the originals."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(5, 1000, size=200_000)
    tokens[::10] = 2
    masked = mask_tokens(tokens, MASKING, rng)
    ordinary, chosen = 180_000, len(masked.positions)
    assert abs(chosen / ordinary - 0.15) < 4 * (0.15 * 0.85 / ordinary) ** 0.5
    assert (tokens[masked.positions] == masked.labels).all()
    assert (masked.labels >= 5).all()
    untouched = np.setdiff1d(np.arange(len(tokens)), masked.positions)
    assert (masked.tokens[untouched] == tokens[untouched]).all()
    after = masked.tokens[masked.positions]
    tolerance = 4 * (0.8 * 0.2 / chosen) ** 0.5
    assert abs((after == 4).mean() - 0.8 - 0.1 / 1000) < tolerance
    assert abs((after == masked.labels).mean() - 0.1 - 0.1 / 1000) < tolerance
    assert len(np.unique(after)) > 990


@pytest.mark.parametrize("length", range(1, 40))
def test_augmentations(length):
    """Repetition adds ⌊0.32 L⌋ tokens beside their originals; dropping removes one but never the last."""
    tokens = np.arange(10, 10 + length, dtype=np.int32)
    rng = np.random.default_rng(length)
    repeated = repeat_tokens(tokens, rng)
    assert len(repeated) == length + int(0.32 * length)
    assert (np.unique(repeated) == tokens).all()
    assert (np.diff(repeated) >= 0).all()
    dropped = drop_one_token(tokens, rng)
    assert len(dropped) == max(1, length - 1)
    assert np.isin(dropped, tokens).all()


def test_special_tokens_are_never_augmented():
    """Only what stands between the leading and trailing special tokens changes."""
    out = augment_inside([0, 7, 8, 9, 2], frozenset({0, 2}), lambda body: body[::-1])
    assert out == [0, 9, 8, 7, 2]
    assert augment_inside([0, 2], frozenset({0, 2}), lambda body: body[:0]) == [0, 2]


def test_views_differ_only_by_the_augmentation():
    """The first view is the sentence itself, the second the augmented one, the masked one always the sentence."""
    tokenizer = tiny_tokenizer("bert")
    masking = Masking(0.5, tokenizer.mask_token_id, len(tokenizer), frozenset(tokenizer.all_special_ids))
    tokens = tokenizer("the cat sat on the mat")["input_ids"]
    examples = [Example(tokens, 0, row) for row in range(3)]
    batch = ViewCollator(tokenizer, 1, masking, augmentation="drop_one_token")(examples)
    assert batch["views"]["lengths"].tolist() == [8] * 3 + [7] * 3
    assert batch["masked"]["lengths"].tolist() == [8] * 6
    with pytest.raises(InputError, match="must be one of none, repeat_tokens, drop_one_token, found 'reorder'"):
        ViewCollator(tokenizer, 1, augmentation="reorder")


def test_randomness_is_a_function_of_seed_epoch_and_row():
    """The same (seed, epoch, row) masks the same whatever the batch; another seed, epoch, row or view does not."""
    tokenizer = tiny_tokenizer("bert")
    masking = Masking(0.5, tokenizer.mask_token_id, len(tokenizer), frozenset(tokenizer.all_special_ids))
    tokens = tokenizer(" ".join(f"w{i}" for i in range(50)))["input_ids"]

    def masked_rows(seed, examples):
        packed = ViewCollator(tokenizer, seed, masking)(examples)["masked"]
        return [row.tolist() for row in packed["input_ids"].split(packed["lengths"].tolist())]

    one, other = Example(tokens, 0, 7), Example(tokens, 0, 8)
    alone, together = masked_rows(1, [one]), masked_rows(1, [other, one])
    assert alone == [together[1], together[3]]
    different = [alone[0], alone[1], together[0], masked_rows(2, [one])[0], masked_rows(1, [Example(tokens, 1, 7)])[0]]
    assert len({tuple(row) for row in different}) == len(different)


def test_sampler_carries_the_epoch():
    """Each epoch is another permutation, known from (seed, epoch) alone, and its keys lead to (epoch, row)."""
    rows = TrainingSentences(datasets.Dataset.from_dict({"input_ids": [[i, i] for i in range(20)]}))
    sampler = EpochSampler(20, seed=3)
    seen = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        examples = rows.__getitems__(list(sampler))
        assert {example.epoch for example in examples} == {epoch}
        assert sorted(example.row for example in examples) == list(range(20))
        assert all(example.tokens == [example.row] * 2 for example in examples)
        seen.append([example.row for example in examples])
    assert seen[0] != seen[1] != seen[2]
    again = EpochSampler(20, seed=3)
    again.set_epoch(2)
    assert [key % 20 for key in again] == seen[2]
