"""Masking statistics, augmentations, and randomness that is a pure function of (seed, epoch, row)."""

import itertools
import pickle
import tracemalloc

import datasets
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from cmlmcse.common.errors import InputError
from cmlmcse.data.augmentation import Augmented, build_augmentation, drop_one_token, repeat_tokens
from cmlmcse.data.batch_transfer import Batch
from cmlmcse.data.batches import EpochSampler, Example, StreamedSentences, TrainingSentences
from cmlmcse.data.collator import ViewCollator, augment_inside
from cmlmcse.data.columns import BLOCK_ROWS
from cmlmcse.data.masking import Masking, mask_tokens
from cmlmcse.data.shuffle import BLOCK, TABLE_ROWS, permuted, permuted_without_table
from cmlmcse.data.special_tokens import special_tokens
from cmlmcse.data.templates import Templates, read_template
from support.tiny import tiny_tokenizer

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
    masking = Masking.of(tokenizer, 0.5)
    tokens = tokenizer("the cat sat on the mat")["input_ids"]
    examples = [Example(tokens, 0, row) for row in range(3)]
    batch = ViewCollator(tokenizer, 1, masking, augmented=Augmented(drop_one_token))(examples)
    assert batch["views"]["lengths"].tolist() == [8] * 3 + [7] * 3
    assert batch["masked"]["lengths"].tolist() == [8] * 6
    with pytest.raises(InputError, match=r"must be one of none, repeat_tokens, drop_one_token, .*found 'shuffle'"):
        build_augmentation("shuffle", tokenizer)


def test_an_augmented_sentence_keeps_its_special_tokens_at_the_limit():
    """Repetition makes 64 tokens longer than 66 positions. What is cut off is the end of the sentence: [SEP] and a
    template stay whole."""
    tokenizer = tiny_tokenizer("bert")
    tokens = tokenizer(" ".join(["cat"] * 62))["input_ids"]
    around = special_tokens(tokenizer)
    template = read_template("the {sentence} on {mask}", tokenizer)
    for templates, limit in ((None, 66), (Templates([template] * 2, around, "none"), 66 - len(template))):
        augmented = Augmented(repeat_tokens, limit=limit)
        views = ViewCollator(tokenizer, 1, augmented=augmented, templates=templates)([Example(tokens, 0, 0)])["views"]
        before, after = ([], []) if templates is None else template
        body = [tokenizer.vocab["cat"]] * (66 - 2 - len(before) - len(after))
        second = views["input_ids"].split(views["lengths"].tolist())[1].tolist()
        assert second == [*around[0], *before, *body, *after, *around[1]]


def test_randomness_is_a_function_of_seed_epoch_and_row():
    """The same (seed, epoch, row) masks the same whatever the batch; another seed, epoch, row or view does not."""
    tokenizer = tiny_tokenizer("bert")
    masking = Masking.of(tokenizer, 0.5)
    tokens = tokenizer(" ".join(f"w{i}" for i in range(50)))["input_ids"]

    def masked_rows(seed, examples):
        packed = ViewCollator(tokenizer, seed, masking)(examples)["masked"]
        return [row.tolist() for row in packed["input_ids"].split(packed["lengths"].tolist())]

    one, other = Example(tokens, 0, 7), Example(tokens, 0, 8)
    alone, together = masked_rows(1, [one]), masked_rows(1, [other, one])
    assert alone == [together[1], together[3]]
    different = [alone[0], alone[1], together[0], masked_rows(2, [one])[0], masked_rows(1, [Example(tokens, 1, 7)])[0]]
    assert len({tuple(row) for row in different}) == len(different)


@pytest.mark.parametrize("mini_batch_size", (None, 3))
def test_a_batch_crosses_to_another_process_as_one_tensor(mini_batch_size):
    """Whole or in parts; what arrives is what was sent."""
    sentences = ["the cat sat on the mat", "a dog", "the bird sang", "rain", "wind and rain"]
    tokenizer = tiny_tokenizer("bert")
    collator = ViewCollator(tokenizer, 0, MASKING, mini_batch_size=mini_batch_size)
    batch = collator([Example(tokenizer(text)["input_ids"], 0, row) for row, text in enumerate(sentences)])
    _, arguments = batch.__reduce__()
    assert sum(isinstance(argument, torch.Tensor) for argument in arguments) == 1
    found = pickle.loads(pickle.dumps(batch))
    assert type(found) is Batch
    assert str(found) == str(batch)  # all numbers, dictionaries and lists
    assert len(batch.get("parts", [batch])) == (2 if mini_batch_size else 1)


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


def test_a_stream_has_no_end():
    """Every pass has each sentence once, under its own row and epoch, in an order of its own that the seed decides; the
    buffer mixes near ones only. Without a sentence there is no pass."""
    rows = datasets.Dataset.from_dict({"input_ids": [[row] for row in range(100)]}).to_iterable_dataset()

    def passes(seed: int) -> list[list[Example]]:
        stream = iter(StreamedSentences(rows, seed, buffer_size=10))
        return [list(itertools.islice(stream, 100)) for _ in range(3)]

    found = passes(seed=1)
    for epoch, examples in enumerate(found):
        assert sorted(example.row for example in examples) == list(range(100))
        assert all(example.tokens == [example.row] and example.epoch == epoch for example in examples)
    orders = [[example.row for example in examples] for examples in found]
    assert len({tuple(order) for order in orders}) == 3
    assert max(row - place for order in orders for place, row in enumerate(order)) < 10
    assert passes(seed=1) == found != passes(seed=2)
    assert list(StreamedSentences(rows.take(0), seed=1)) == []


@pytest.mark.parametrize("workers", (0, 2))
def test_a_stream_of_several_files_numbers_each_sentence_once(workers):
    """No two sentences of a pass share a number, and so their masks, whoever reads them; read again, all have the same
    numbers."""
    rows = datasets.Dataset.from_dict({"input_ids": [[row] for row in range(120)]}).to_iterable_dataset(num_shards=4)

    def read() -> list[Example]:
        stream = StreamedSentences(rows, seed=1, buffer_size=10)
        batches = DataLoader(stream, batch_size=10, num_workers=workers, collate_fn=list)
        return [example for batch in itertools.islice(batches, 24) for example in batch]

    found = read()
    for epoch in range(2):
        examples = [example for example in found if example.epoch == epoch]
        assert sorted(example.tokens[0] for example in examples) == list(range(120))
        assert sorted(example.row for example in examples) == list(range(120))
    assert read() == found


@pytest.mark.parametrize("order", (permuted, permuted_without_table))
@pytest.mark.parametrize("rows", (1, 2, 3, 10, 99, 100, 101, BLOCK, BLOCK + 1, 200_003))
def test_an_order_is_an_exact_permutation(order, rows):
    """Each row exactly once, in another order for another epoch or seed, and in the same for the same."""
    first, again, epoch, seed = (
        np.concatenate(list(order(rows, *key))) for key in ((1, 0), (1, 0), (1, 1), (2, 0))
    )  # fmt: skip
    for found in (first, again, epoch, seed):
        assert (np.sort(found) == np.arange(rows)).all()
    assert (first == again).all()
    if rows > 10:
        for other in (epoch, seed, np.arange(rows)):
            assert (first == other).mean() < 0.1


def test_small_corpora_keep_numpys_order():
    """A table's order is numpy's permutation, of which runs of old are records; beyond it there is no table."""
    for rows in (1, 7, 1000, BLOCK + 5):
        expected = np.random.default_rng([42, 3]).permutation(rows)
        assert (np.concatenate(list(permuted(rows, 42, 3))) == expected).all()
    for rows, order in ((TABLE_ROWS + 1, permuted_without_table), (10**9, permuted_without_table)):
        assert (next(permuted(rows, 42, 3)) == next(order(rows, 42, 3))).all()


def test_an_order_without_a_table_looks_random():
    """Small corpora: all 24 orders of 4 rows alike; a large one: where a row goes tells nothing of where it or its
    neighbour stands; each statistic within 4.5 standard errors."""
    counts = dict.fromkeys(itertools.permutations(range(4)), 0)
    for epoch in range(4800):
        counts[tuple(next(permuted_without_table(4, 0, epoch)).tolist())] += 1
    excess = sum((count - 200) ** 2 / 200 for count in counts.values()) - 23  # χ², 23 degrees of freedom
    assert abs(excess) < 4.5 * 46**0.5
    order = np.concatenate(list(permuted_without_table(200_003, 5, 0)))
    for one, other in ((order, np.arange(len(order))), (order[1:], order[:-1]), (order[1:] % 2, order[:-1] % 2)):
        assert abs(np.corrcoef(one, other)[0, 1]) < 4.5 / len(order) ** 0.5
    places = np.bincount((order - np.arange(len(order))) % len(order) * 50 // len(order), minlength=50)
    assert abs(((places - len(order) / 50) ** 2).sum() / (len(order) / 50) - 49) < 4.5 * 98**0.5


def test_a_billion_rows_take_no_more_memory_than_a_million():
    """The sampler holds a few blocks whatever the corpus, and hands out distinct keys of its epoch at once."""
    peaks = []
    for rows in (TABLE_ROWS + 1, 10**9):
        sampler = EpochSampler(rows, seed=0)
        sampler.set_epoch(2)
        tracemalloc.start()
        keys = list(itertools.islice(sampler, 3 * BLOCK))[-1000:]
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert len(set(keys)) == 1000
        assert min(keys) >= 2 * rows
        assert max(keys) < 3 * rows
    assert peaks[1] < 1.2 * peaks[0] < 40e6


def test_the_generator_is_that_of_seed_epoch_row_view_and_purpose():
    """The generator that is set back draws what one made anew draws, whatever was drawn before."""
    collator = ViewCollator(tiny_tokenizer("bert"), 42)
    for epoch, row, view, purpose in ((0, 0, 0, "mask"), (3, 10**9, 1, "augment"), (3, 10**9, 1, "mask")):
        found = collator._rng(Example([], epoch, row), view, purpose)
        new = np.random.Generator(np.random.Philox(key=42, counter=[0, epoch, row, 2 * view + (purpose == "mask")]))
        assert (found.random(7) == new.random(7)).all()
        assert (found.integers(1000, size=3) == new.integers(1000, size=3)).all()  # leaves half a draw in the buffer


def test_tokens_are_cached_wherever_the_tokenizer_lies(tmp_path):
    """A run that goes on from another checkpoint tokenises nothing again; another tokenizer does."""
    from cmlmcse.data.batches import tokenize_sentences
    from cmlmcse.models.encoders import load_tokenizer

    text = datasets.Dataset.from_dict({"text": ["the cat sat", "a dog"]})
    for name, kind in (("checkpoint-1", "bert"), ("checkpoint-2", "bert"), ("other", "roberta")):
        tiny_tokenizer(kind).save_pretrained(tmp_path / name)
    first, second, other = (
        tokenize_sentences(text, load_tokenizer(str(tmp_path / name)), 8)._fingerprint
        for name in ("checkpoint-1", "checkpoint-2", "other")
    )
    assert first == second != other


def test_the_cache_has_few_blocks(tmp_path):
    """Text and tokens lie in blocks of BLOCK_ROWS, for a start visits every block."""
    from cmlmcse.data.batches import tokenize_sentences
    from cmlmcse.data.text import load_sentences

    path = tmp_path / "text.txt"
    path.write_text("the cat sat\n" * (2 * BLOCK_ROWS + 5))
    text = load_sentences(str(path))
    tokens = tokenize_sentences(text, tiny_tokenizer("bert"), 8)
    for table in (text, tokens):
        assert [len(block) for block in table.data.to_batches()] == [BLOCK_ROWS, BLOCK_ROWS, 5]
