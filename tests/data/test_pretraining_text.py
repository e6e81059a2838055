"""The text of stage 1: its masks, its sequences, its documents and files, and the tokenizer trained on it."""

import hashlib
import json
import subprocess

import datasets
import numpy as np
import pytest
from transformers import AutoTokenizer

from cmlmcse.common.errors import InputError
from cmlmcse.data.augmentation import build_augmentation
from cmlmcse.data.batches import Example
from cmlmcse.data.masking import Masking, continuing_tokens, mask_words
from cmlmcse.data.pretraining_text import (
    MaskedCollator,
    join_sentences,
    load_documents,
    load_sequences,
    split_documents,
    tokenize_documents,
)
from cmlmcse.data.text import load_sentences
from cmlmcse.data.tokenizer_training import train_tokenizer
from support import warm
from support.paths import ROOT
from support.tiny import tiny_tokenizer

FAMILIES = ("bert", "roberta")


def test_masks_are_a_function_of_seed_epoch_and_row():
    """The same (seed, epoch, row) masks the same whatever the batch; another seed, epoch or row does not."""
    tokenizer = tiny_tokenizer("bert")
    masking = Masking.of(tokenizer, 0.5)
    tokens = tokenizer(" ".join(f"w{i}" for i in range(50)))["input_ids"]

    def row(place: int, seed: int, *examples: Example) -> tuple[int, ...]:
        packed = MaskedCollator(seed, masking)(list(examples))["masked"]
        return tuple(packed["input_ids"].split(packed["lengths"].tolist())[place].tolist())

    one = Example(tokens, 0, 7)
    assert row(0, 1, one) == row(1, 1, Example(tokens, 0, 8), one)
    others = {row(0, 2, one), row(0, 1, Example(tokens, 1, 7)), row(0, 1, Example(tokens, 0, 8))}
    assert len(others | {row(0, 1, one)}) == 4


def test_words_are_deleted_and_the_whole_text_is_kept():
    """The batch has the whole sequences for the decoder, and for the encoder what is left in its order, masked; both
    are a function of (seed, epoch, row)."""
    tokenizer = tiny_tokenizer("bert")
    nothing = Masking.of(tokenizer, 1e-12)
    shorten = build_augmentation("delete_tokens", tokenizer, deletion_rate=0.6)
    rows = [tokenizer(" ".join(f"w{i}" for i in range(first, first + 20)))["input_ids"] for first in (0, 20)] * 20
    examples = [Example(tokens, 0, row) for row, tokens in enumerate(rows)]

    def kept(seed: int, probability: float = 1e-12) -> tuple[list, dict]:
        masked = MaskedCollator(seed, nothing._replace(probability=probability), shorten=shorten)(examples)["masked"]
        return [row.tolist() for row in masked["input_ids"].split(masked["lengths"].tolist())], masked

    left, masked = kept(1)
    assert [row.tolist() for row in masked["whole"]["input_ids"].split(masked["whole"]["lengths"].tolist())] == rows
    for short, whole in zip(left, rows, strict=True):
        assert (short[0], short[-1]) == (whole[0], whole[-1])
        rest = iter(whole)
        assert all(token in rest for token in short)
    assert sum(map(len, left)) - 2 * len(rows) == pytest.approx(0.4 * 20 * len(rows), rel=0.15)
    assert kept(1)[0] == left != kept(2)[0]
    hidden, masked = kept(1, 0.5)
    assert list(map(len, hidden)) == list(map(len, left))
    tokens = masked["input_ids"].index_copy(0, masked["mlm_positions"], masked["mlm_labels"])
    assert tokens.tolist() == [token for row in left for token in row]


@pytest.mark.parametrize("kind", FAMILIES)
def test_whole_words_are_never_split(kind):
    """All tokens of a word are masked or none; special tokens never; the rate is that of words; 80/10/10 of tokens."""
    lines = (ROOT / "README.md").read_text().splitlines() * 3
    tokenizer = train_tokenizer(kind, lambda: lines, 400)
    text = " ".join(" ".join(lines).split())
    encoded = tokenizer(text, return_attention_mask=False)
    tokens, words = np.asarray(encoded["input_ids"]), encoded.word_ids()
    masking = Masking.of(tokenizer, 0.3)
    masked = mask_words(tokens, masking, continuing_tokens(tokenizer), np.random.default_rng(0))
    chosen = np.isin(np.arange(len(tokens)), masked.positions)
    assert (tokens[masked.positions] == masked.labels).all()
    assert not np.isin(masked.labels, tokenizer.all_special_ids).any()
    fates: dict[int, set[bool]] = {}
    for token, word, fate in zip(tokens.tolist(), words, chosen.tolist(), strict=True):
        if word is not None and token not in masking.special_token_ids:
            fates.setdefault(word, set()).add(fate)
    assert all(len(fate) == 1 for fate in fates.values())
    assert abs(np.mean([fate == {True} for fate in fates.values()]) - 0.3) < 0.05
    after = masked.tokens[masked.positions]
    assert abs((after == tokenizer.mask_token_id).mean() - 0.8) < 0.05
    assert abs((after == masked.labels).mean() - 0.1) < 0.05


def test_sentences_are_joined_whole_and_none_is_lost():
    """Rows of at most the limit; whole sentences unless longer than a row; all tokens in their order."""
    rng = np.random.default_rng(0)
    sentences = [list(range(100 * i, 100 * i + int(rng.integers(1, 14)))) for i in range(50)]
    sentences.append(list(range(9000, 9050)))
    rows = join_sentences(sentences, 20)
    assert max(map(len, rows)) <= 20
    assert sum(rows, []) == sum(sentences, [])  # noqa: RUF017 (it is short)
    starts = {row[0] for row in rows[:-3]}
    assert starts <= {sentence[0] for sentence in sentences}
    assert join_sentences([], 20) == []


@pytest.mark.parametrize("kind", FAMILIES)
def test_no_sequence_crosses_a_document(kind, tmp_path):
    """Blank lines part documents; each sequence holds words of one document, with its special tokens, at most
    max_seq_length of them; nothing is lost."""
    words = [[[f"w{(7 * d + s) % 60}"] * (3 + s % 5) for s in range(12)] for d in range(5)]
    text = "\n\n\n".join("\n".join(" ".join(sentence) for sentence in document) for document in words)
    (tmp_path / "text.txt").write_text("\n" + text + "\n")
    documents = load_sentences(str(tmp_path / "text.txt"), documents=True)
    assert len(documents) == 5
    tokenizer = tiny_tokenizer(kind)
    for one, expected in zip(range(5), words, strict=True):
        rows = tokenize_documents(documents.select([one]), tokenizer, 16)["input_ids"]
        assert max(map(len, rows)) <= 16
        assert {(row[0], row[-1]) for row in rows} == {(tokenizer.cls_token_id, tokenizer.sep_token_id)}
        inside = tokenizer.convert_ids_to_tokens([token for row in rows for token in row[1:-1]])
        assert inside == [word for sentence in expected for word in sentence]
    together = tokenize_documents(documents, tokenizer, 16)["input_ids"]
    apart = [tokenize_documents(documents.select([one]), tokenizer, 16)["input_ids"] for one in range(5)]
    assert list(together) == [row for rows in apart for row in rows]


def texts(sources: list[datasets.Dataset]) -> list[list[str]]:
    """The documents of each source."""
    return [list(source["text"]) for source in sources]


def test_several_files_are_one_text(tmp_path):
    """Files by comma come one after another; a table's row is a document, its lines are sentences."""
    (tmp_path / "a.txt").write_text("w1 w2\nw3\n\nw4\n")
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": "w5\nw6"}) + "\n")
    files = f"{tmp_path / 'a.txt'}, {tmp_path / 'b.jsonl'}"
    assert texts(load_documents(files, documents=True)) == [["w1 w2\nw3", "w4"], ["w5\nw6"]]
    assert texts(load_documents(files, documents=True, max_rows=2)) == [["w1 w2\nw3", "w4"]]
    assert texts(load_documents(files, documents=True, max_rows=1)) == [["w1 w2\nw3"]]


def test_split_takes_whole_documents_from_the_end():
    """The development documents are the last ones, at least one; one document alone cannot be split."""
    rows = [f"0.{j}" for j in range(28)], ["1.0", "1.1"]
    sources = [datasets.Dataset.from_dict({"text": each}) for each in rows]
    train, dev = split_documents(sources, 10)
    assert texts(train) == [rows[0][:27]]
    assert texts(dev) == [["0.27"], ["1.0", "1.1"]]
    assert split_documents(sources, 0)[1] == []
    with pytest.raises(InputError, match="at least 2 documents or sentences, found 1"):
        split_documents([sources[0].select([0])], 1)


def test_each_source_is_tokenised_by_itself():
    """Several processes share the documents in a row. Long ones before many short ones would all be one process's."""
    sources = [datasets.Dataset.from_dict({"text": [name] * size}) for name, size in (("long", 3), ("short", 97))]
    seen = []

    def tokenize(rows: datasets.Dataset) -> datasets.Dataset:
        seen.append((set(rows["text"]), len(rows)))
        return datasets.Dataset.from_dict({"input_ids": [[len(text)] for text in rows["text"]]})

    train, dev = load_sequences(tokenize, sources, 2)
    assert seen == [({"long"}, 3), ({"short"}, 95), ({"short"}, 2)]
    assert [example.tokens for example in train.__getitems__([2, 3])] == [[4], [5]]
    assert dev is not None
    assert (len(train), len(dev)) == (98, 2)
    assert load_sequences(tokenize, sources, 0)[1] is None


TRAIN_TOKENIZER = """
import hashlib, json, sys
from cmlmcse.data.tokenizer_training import train_tokenizer
lines = open(sys.argv[1], encoding="utf-8").read().splitlines()
for kind in sys.argv[2:]:
    tokenizer = train_tokenizer(kind, lambda: lines, 500)
    print(hashlib.sha256(json.dumps(sorted(tokenizer.get_vocab().items())).encode()).hexdigest())
"""


@pytest.fixture(scope="module")
def other_process() -> dict[str, str]:
    """The hash of the vocabulary that another process learns, for each kind."""
    arguments = [warm.python(), "-c", TRAIN_TOKENIZER, str(ROOT / "README.md"), *FAMILIES]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=True)
    return dict(zip(FAMILIES, done.stdout.split()[-len(FAMILIES) :], strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("kind", FAMILIES)
def test_trained_tokenizer_is_the_same_in_every_process(kind, other_process, tmp_path):
    """Two processes learn the same tokens with the same numbers; it loads again with AutoTokenizer."""
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    tokenizer = train_tokenizer(kind, lambda: lines, 500)
    vocabulary = json.dumps(sorted(tokenizer.get_vocab().items())).encode()
    assert other_process[kind] == hashlib.sha256(vocabulary).hexdigest()
    assert len(tokenizer) == 500
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    sentence = "The Sentence encoder's café, trained."
    assert again(sentence)["input_ids"] == tokenizer(sentence)["input_ids"]
    assert again(sentence)["input_ids"][0] == again.cls_token_id
    assert again.mask_token_id is not None
    with pytest.raises(InputError, match="vocab_size must be at least 300, found 10"):
        train_tokenizer(kind, list, 10)
    with pytest.raises(InputError, match="bert or roberta, found 'electra'"):
        train_tokenizer("electra", list, 500)
