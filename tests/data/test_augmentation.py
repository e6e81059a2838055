"""CLEAR's augmentations: what they do to a sentence, the token [DEL], synonyms, and how they answer wrong input."""

import itertools
import json
import pickle
from collections import Counter

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModel, AutoTokenizer, PreTrainedTokenizerFast

from cmlmcse.common.errors import InputError
from cmlmcse.data.augmentation import (
    DEL_TOKEN,
    Augmented,
    add_deletion_token,
    build_augmentation,
    delete_spans,
    delete_words,
    draw_spans,
    reorder_spans,
)
from cmlmcse.data.batches import Example
from cmlmcse.data.collator import ViewCollator
from cmlmcse.data.masking import Masking
from cmlmcse.data.synonyms import load_synonyms
from cmlmcse.hub.export import export
from cmlmcse.training.build_model import build_model
from cmlmcse.training.fields import ModelArguments
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from support.tiny import tiny_backbone, tiny_tokenizer

DELETED = 9
SYNONYMS = {"cat": ["dog", "tree"], "dog": ["cat"], "big": ["red", "unheard"], "mat": [], "small": ["small", "unheard"]}
CLEAR_COMBINATIONS = ("substitute+del_word", "substitute+del_span", "del_word+reorder", "del_span+reorder")


def rng(seed: int = 0) -> np.random.Generator:
    """A seeded generator."""
    return np.random.default_rng(seed)


@pytest.fixture
def synonyms(tmp_path) -> str:
    """A file of synonyms, of which some words are unknown, empty or the word itself."""
    path = tmp_path / "synonyms.json"
    path.write_text(json.dumps(SYNONYMS))
    return str(path)


def del_tokenizer(kind: str = "bert") -> PreTrainedTokenizerFast:
    """The tiny tokenizer with [DEL]."""
    tokenizer = tiny_tokenizer(kind)
    add_deletion_token("del_word", tokenizer)
    return tokenizer


def test_del_word():
    """⌊0.7 L⌋ tokens become [DEL], neighbours one; the others stay in order, and at least one stays."""
    for length in range(1, 80):
        tokens = np.arange(10, 10 + length, dtype=np.int32)
        out = delete_words(tokens, rng(length), DELETED)
        kept = out[out != DELETED]
        assert len(kept) == length - 7 * length // 10 >= 1
        assert (np.diff(kept) > 0).all()
        assert np.isin(kept, tokens).all()
        marks = out == DELETED
        assert not (marks[1:] & marks[:-1]).any()
        for before, after in itertools.pairwise(kept):  # one [DEL] exactly where something is missing
            between = out[np.flatnonzero(out == before)[0] + 1 : np.flatnonzero(out == after)[0]]
            assert len(between) == (after > before + 1)


def test_del_span():
    """5 spans of ⌊5 %⌋ are gone; of a sentence below 20 tokens a quarter, at least one token but never the last."""
    for length in range(1, 120):
        tokens = np.arange(10, 10 + length, dtype=np.int32)
        out = delete_spans(tokens, rng(length), DELETED)
        lost = length - (out != DELETED).sum()
        assert lost == (5 * (length // 20) if length >= 20 else 0 if length == 1 else max(1, length // 4))
        assert (out == DELETED).sum() <= 5
        assert (np.diff(out[out != DELETED]) > 0).all()


def test_reorder():
    """5 pairs of spans of ⌊5 %⌋ change places, fewer in a short sentence; done twice it undoes itself."""
    for length in range(1, 120):
        tokens = np.arange(length, dtype=np.int32)
        out = reorder_spans(tokens, rng(length))
        assert (np.sort(out) == tokens).all()
        assert (out[out] == tokens).all()
        pairs, size = min(5, max(1, length // 4)), max(1, length // 20)
        assert (out != tokens).sum() == (2 * pairs * size if length > 1 else 0)


def test_spans_are_drawn_evenly():
    """Of 5 places for two spans of 2 there are three choices, each drawn a third of the time; no spans overlap."""
    draws = rng()
    found = Counter(tuple(draw_spans(5, 2, 2, draws).ravel().tolist()) for _ in range(3000))
    assert set(found) == {(0, 1, 2, 3), (0, 1, 3, 4), (1, 2, 3, 4)}
    assert all(abs(count - 1000) < 4 * (3000 * 2 / 9) ** 0.5 for count in found.values())


@pytest.mark.parametrize("name", ("del_word+del_word", "del_span+del_word", "del_word+reorder+del_span"))
@pytest.mark.parametrize("length", (1, 2, 3, 5))
def test_a_word_always_stays(name, length):
    """Whatever follows on a deletion, [DEL] never stands alone."""
    tokenizer = del_tokenizer()
    augment = build_augmentation(name, tokenizer)
    tokens = np.arange(10, 10 + length, dtype=np.int32)
    for seed in range(100):
        assert (augment(tokens, rng(seed)) != tokenizer.convert_tokens_to_ids(DEL_TOKEN)).any()


def test_substitution(synonyms):
    """30 % of the tokens become one of their synonyms, each as likely; words without any known one stay."""
    tokenizer = tiny_tokenizer("bert")
    ids = {word: tokenizer.convert_tokens_to_ids(word) for word in ("cat", "dog", "tree", "big", "red", "mat", "small")}
    augment = build_augmentation("substitute", tokenizer, synonyms)
    tokens = np.array([ids["mat"]] * 5 + [ids["cat"]] * 5, dtype=np.int32)
    outs = [augment(tokens, rng(seed)) for seed in range(600)]
    assert all((out != tokens).sum() == 3 and len(out) == 10 for out in outs)
    counts = Counter(np.concatenate(outs).tolist())
    assert set(counts) == {ids["mat"], ids["cat"], ids["dog"], ids["tree"]}
    assert abs(counts[ids["dog"]] - 900) < 4 * (1800 / 4) ** 0.5
    few = np.array([ids["small"]] * 9 + [ids["big"]], dtype=np.int32)  # of 30 % = 3 tokens only one has a synonym
    assert augment(few, rng()).tolist() == [ids["small"]] * 9 + [ids["red"]]
    none = np.array([ids["mat"]], dtype=np.int32)
    assert augment(none, rng()).tolist() == none.tolist()


def word_pieces() -> PreTrainedTokenizerFast:
    """A WordPiece vocabulary."""
    pieces = ["[UNK]", "cat", "##s", "dog", "sat", "hot", "##dog", ",", "puppy"]
    tokenizer = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")


def byte_pairs() -> PreTrainedTokenizerFast:
    """A byte-level BPE vocabulary, as RoBERTa's, in which cat and dog are one token, cats and hotdog two."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(special_tokens=["<unk>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(["cat dog cat dog sat puppy hot", "dog cat hot puppy sat"] * 9, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


def sentence_pieces() -> PreTrainedTokenizerFast:
    """A SentencePiece vocabulary, as XLM-RoBERTa's."""
    pieces = ["<unk>", "▁cat", "s", "▁dog", "▁sat", "▁hot", "dog", ",", "▁puppy"]
    model = models.Unigram([(piece, -1.0 if i else -50.0) for i, piece in enumerate(pieces)], unk_id=0)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


@pytest.mark.parametrize("make", (word_pieces, byte_pairs, sentence_pieces))
def test_only_whole_words_are_substituted(make, tmp_path):
    """A piece of a longer word is no word, in each way of writing pieces; a synonym may be several pieces."""
    path = tmp_path / "synonyms.json"
    path.write_text(json.dumps({"cat": ["hotdog"], "dog": ["puppy"], "s": ["sat"], "hot": ["sat"]}))
    tokenizer = make()
    found = load_synonyms(str(path), tokenizer)

    def whole(text: str) -> list[str]:
        tokens = np.array(tokenizer(text)["input_ids"])
        return [
            tokenizer.decode(int(t)).strip()
            for t, is_whole in zip(tokens, found.whole_words(tokens), strict=True)
            if is_whole
        ]

    assert whole("cat sat, dog") == ["cat", "sat", ",", "dog"]
    assert whole("cats sat hotdog cat") == ["sat", "cat"]
    augment = build_augmentation("substitute", tokenizer, str(path))
    tokens = np.array(tokenizer("cats hotdog dog cats hotdog sat cats")["input_ids"], dtype=np.int32)
    assert tokenizer.decode(augment(tokens, rng())) == "cats hotdog puppy cats hotdog sat cats"
    tokens = np.array(tokenizer("sat cat sat sat")["input_ids"], dtype=np.int32)
    assert tokenizer.decode(augment(tokens, rng())) == "sat hotdog sat sat"
    tokens = np.array(tokenizer("cat sat sat sat")["input_ids"], dtype=np.int32)  # pieces may differ at the beginning
    assert tokenizer.decode(augment(tokens, rng())) == "hotdog sat sat sat"


@pytest.mark.parametrize("name", CLEAR_COMBINATIONS)
def test_combinations(name, synonyms):
    """a+b is b of what a gives, with the same generator; it is a pure function, and can be sent to a worker."""
    tokenizer = del_tokenizer()
    first, second = (build_augmentation(part, tokenizer, synonyms) for part in name.split("+"))
    both = build_augmentation(name, tokenizer, synonyms)
    tokens = np.array(tokenizer("a big cat and a small dog ran on the mat under the tree")["input_ids"][1:-1])
    one = rng(5)
    expected = second(first(tokens, one), one)
    assert both(tokens, rng(5)).tolist() == expected.tolist()
    assert pickle.loads(pickle.dumps(both))(tokens, rng(5)).tolist() == expected.tolist()
    assert len({tuple(both(tokens, rng(seed)).tolist()) for seed in range(10)}) > 5


def test_both_views():
    """CLEAR augments both views, each with draws of its own that depend on (seed, epoch, row); what is masked is the
    sentence itself."""
    tokenizer = del_tokenizer()
    masking = Masking.of(tokenizer, 0.15)
    tokens = tokenizer(" ".join(f"w{i}" for i in range(40)))["input_ids"]
    augment = build_augmentation("del_span+reorder", tokenizer)
    options = {"masked_views": 1, "augmented": Augmented(augment, both=True)}

    def rows(examples: list[Example]) -> list[list[int]]:
        views = ViewCollator(tokenizer, 1, masking, **options)(examples)["views"]
        assert views["num_views"] == 2
        return [row.tolist() for row in views["input_ids"].split(views["lengths"].tolist())]

    examples = [Example(tokens, 0, 3), Example(tokens, 0, 4)]
    found = rows(examples)
    assert len({tuple(row) for row in [*found, tokens, rows([Example(tokens, 1, 3)])[0]]}) == 6
    assert rows(examples[1:]) == [found[1], found[3]]
    assert all(row[0] == tokens[0] and row[-1] == tokens[-1] for row in found)
    batch = ViewCollator(tokenizer, 1, masking, **options)(examples)["masked"]
    original = batch["input_ids"].index_copy(0, batch["mlm_positions"], batch["mlm_labels"])
    assert original.tolist() == tokens * 2


# --- the token [DEL]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ("bert", "roberta"))
def test_del_has_an_embedding_of_its_own(kind, tmp_path):
    """The tokenizer gets [DEL] once and keeps it; every vocabulary of the model grows by it and is otherwise as before;
    the export loads with it, in this project's class and as a plain backbone, and encodes the same."""
    folder = tmp_path / "backbone"
    tiny_backbone(kind).save_pretrained(folder)
    tiny_tokenizer(kind).save_pretrained(folder)
    tokenizer = del_tokenizer(kind)
    add_deletion_token("del_word+reorder", tokenizer)
    assert len(tokenizer) == len(tiny_tokenizer(kind)) + 1
    weights = {"cmlm_weight": 0.1, "rtd_weight": 0.1, "mlm_weight": 1.0}
    fields = ModelArguments(model_name_or_path=str(folder), **weights)
    torch.manual_seed(0)
    plain = CMLMCSEForSentenceEmbedding.from_backbone(folder, **weights)
    grown = build_model(fields, tokenizer).eval()
    assert grown.config.backbone_config.vocab_size == grown.config.generator_config.vocab_size == len(tokenizer)
    for name, before in plain.state_dict().items():
        after = grown.state_dict()[name]
        if before.shape != after.shape:
            assert len(after) == len(before) + 1 == len(tokenizer), name
        if "classifier" not in name and "projection" not in name:
            torch.testing.assert_close(after[: len(before)], before, msg=name)
    assert len(grown.auxiliary.mlm.head.decoder.weight) == len(grown.auxiliary.cmlm.head.decoder.bias) == len(tokenizer)

    texts = ["the cat sat", f"a {DEL_TOKEN} dog"]
    assert tokenizer.unk_token_id not in tokenizer(texts[1])["input_ids"]
    exported = export(grown, tokenizer, tmp_path / "export")
    loaded, again = CMLMCSEForSentenceEmbedding.from_pretrained(exported), AutoTokenizer.from_pretrained(exported)
    assert again(texts)["input_ids"] == tokenizer(texts)["input_ids"]
    np.testing.assert_allclose(loaded.encode(texts, again), grown.encode(texts, tokenizer), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(plain.encode(texts[:1], again), grown.encode(texts[:1], again), rtol=1e-5, atol=1e-6)
    assert AutoModel.from_pretrained(exported, add_pooling_layer=False).config.vocab_size == len(tokenizer)
    rows = len(build_model(ModelArguments(model_name_or_path=str(exported)), again).get_input_embeddings().weight)
    assert rows == len(tokenizer)  # going on from the export adds nothing


def test_from_scratch(tmp_path):
    """From scratch: the backbone's configuration with weights that depend on the seed alone; auxiliary heads too."""
    folder = tmp_path / "backbone"
    pretrained = tiny_backbone("bert")
    pretrained.save_pretrained(folder)
    fields = {"from_scratch": True, "mlm_weight": 1.0, "cmlm_weight": 0.0}
    models = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        models.append(CMLMCSEForSentenceEmbedding.from_backbone(folder, **fields))
    first, same, other = (model.backbone.encoder.layer[0].output.dense.weight for model in models)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert first.std().item() == pytest.approx(pretrained.config.initializer_range, rel=0.1)
    assert models[0].config.backbone_config.num_hidden_layers == pretrained.config.num_hidden_layers


# --- wrong input


@pytest.mark.parametrize(
    ("name", "found"), [("shuffle", "shuffle"), ("del_word+", ""), ("reorder+del-span", "del-span")]
)
def test_unknown_augmentation(name, found):
    """The message lists the known names."""
    known = "none, repeat_tokens, drop_one_token, delete_tokens, del_word, del_span, reorder, substitute"
    with pytest.raises(InputError, match=rf"augmentation must be one of {known}, .*found '{found}'"):
        build_augmentation(name, tiny_tokenizer("bert"))


def test_no_deletion_token():
    """A tokenizer without [DEL]."""
    with pytest.raises(InputError, match=r"expects the token \[DEL\], found none"):
        build_augmentation("del_word", tiny_tokenizer("bert"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "expects a JSON file, found .*wrong.json"),
        ("{", "wrong.json: expected JSON, found something else"),
        ("café".encode("latin-1"), "wrong.json: expected JSON, found something else"),
        ('["cat"]', "wrong.json: expected a JSON object, word → list of words, found a list"),
        ('{"cat": "dog"}', "wrong.json: expected a list of words for 'cat', found \"dog\""),
        ('{"cat": ["dog", 1]}', r"wrong.json: expected a list of words for 'cat', found \[\"dog\", 1\]"),
        ('{"unheard": ["dog"]}', "wrong.json: expected words that are one token, with synonyms, found none"),
        ("{}", "wrong.json: expected words that are one token, with synonyms, found none"),
    ],
)
def test_wrong_synonyms(content, message, tmp_path):
    """The message names the file, what was expected and what was found."""
    path = tmp_path / "wrong.json"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=message):
        build_augmentation("substitute", tiny_tokenizer("bert"), str(path))
