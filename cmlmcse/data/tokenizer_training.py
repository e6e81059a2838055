"""Train a tokenizer on text: WordPiece for BERT, byte-level BPE for RoBERTa. Every run gives the same tokenizer.

The `tokenizers` library does the work. By default it numbers single characters in the order of a hash table, which
differs between processes, and breaks ties by these numbers. Here the characters are numbered in advance.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import BertTokenizer, PreTrainedTokenizerBase, RobertaTokenizer

from cmlmcse.common.errors import InputError

BERT_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTA_SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
MAX_ALPHABET = 1000  # the most frequent characters are kept; the library's own limit
MIN_VOCAB_SIZE = 300  # enough for 256 bytes and the special tokens


def train_word_piece(lines: Callable[[], Iterable[str]], vocab_size: int, lower_case: bool) -> PreTrainedTokenizerBase:
    """BERT's WordPiece tokenizer of `vocab_size` tokens."""
    learner = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    learner.normalizer = normalizers.BertNormalizer(lowercase=lower_case)
    learner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    alphabet, inside = characters(learner, lines(), min(MAX_ALPHABET, vocab_size // 4))
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=[*BERT_SPECIAL, *(f"##{character}" for character in alphabet if character in inside)],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    learner.train_from_iterator(lines(), trainer)
    # Only the vocabulary is kept, because the learner holds the `##` characters as special tokens.
    return BertTokenizer(vocab=learner.get_vocab(), do_lower_case=lower_case)


def characters(learner: Tokenizer, lines: Iterable[str], limit: int) -> tuple[list[str], set[str]]:
    """The `limit` most frequent characters, sorted, and all characters that occur after the start of a word."""
    chunks = Counter(chunk for line in lines for chunk in line.split())
    counts: Counter[str] = Counter()
    inside: set[str] = set()
    for chunk, count in chunks.items():
        for word, _ in learner.pre_tokenizer.pre_tokenize_str(learner.normalizer.normalize_str(chunk)):
            counts.update(dict.fromkeys(word, count))
            inside.update(word[1:])
    frequent = sorted(counts, key=lambda character: (-counts[character], character))
    return sorted(frequent[:limit]), inside


def train_byte_bpe(lines: Callable[[], Iterable[str]], vocab_size: int, lower_case: bool) -> PreTrainedTokenizerBase:
    """RoBERTa's byte-level BPE tokenizer of `vocab_size` tokens, which is always cased."""
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=ROBERTA_SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    learner.train_from_iterator(lines(), trainer)
    learned = json.loads(learner.to_str())["model"]
    merges: Any = [tuple(merge) for merge in learned["merges"]]
    return RobertaTokenizer(vocab=learned["vocab"], merges=merges)


TRAINERS = {"bert": train_word_piece, "roberta": train_byte_bpe}


def train_tokenizer(
    model_type: str, lines: Callable[[], Iterable[str]], vocab_size: int, lower_case: bool = True
) -> PreTrainedTokenizerBase:
    """Train the tokenizer of a type of model on text.

    Args:
        model_type: `bert` or `roberta`.
        lines: returns the text, line by line; it may be called twice.
        vocab_size: number of tokens, with the special tokens.
        lower_case: whether a WordPiece tokenizer lower-cases and drops accents ("uncased").

    Raises:
        InputError: the type of model is not supported, or the vocabulary is too small.
    """
    if model_type not in TRAINERS:
        raise InputError(
            f"training a tokenizer expects model_type {' or '.join(TRAINERS)}, found {model_type!r}; set "
            "tokenizer_name to an existing one"
        )
    if vocab_size < MIN_VOCAB_SIZE:
        raise InputError(f"vocab_size must be at least {MIN_VOCAB_SIZE}, found {vocab_size}; raise it")
    return TRAINERS[model_type](lines, vocab_size, lower_case)
