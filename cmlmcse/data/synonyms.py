"""Synonyms for the augmentation `substitute`: a JSON object, word → list of words.

CLEAR (§3.3) takes the counter-fitted list of Jia et al. (2019), data/counterfitted_neighbors.json of the GitHub
repository robinjia/certified-word-sub (MIT licence). To make a list from WordNet (pip install nltk; python -m
nltk.downloader wordnet):

    import json
    from nltk.corpus import wordnet

    def synonyms(word):
        return sorted({name for synset in wordnet.synsets(word) for name in synset.lemma_names()} - {word})

    words = {word: synonyms(word) for word in wordnet.all_lemma_names() if "_" not in word}
    with open("synonyms.json", "w") as file:
        json.dump({word: [name.replace("_", " ") for name in names] for word, names in words.items()}, file)
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from cmlmcse.common.errors import InputError

from .masking import continuing_tokens


class Synonyms(NamedTuple):
    """Synonyms in a tokenizer's ids.

    Attributes:
        table: id of a one-token word → the tokens of each of its synonyms.
        continues: (V,) whether a token continues the preceding word; punctuation never does.
    """

    table: dict[int, list[list[int]]]
    continues: NDArray[np.bool_]

    def whole_words(self, tokens: NDArray[np.int32]) -> NDArray[np.bool_]:
        """(L,) → (L,) whether a token is a whole word: it begins a word, and the next token begins another."""
        begins = ~self.continues[tokens]  # (L,)
        begins[0] = True
        return begins & np.append(begins[1:], True)


def read_synonyms(path: str | None) -> dict[str, list[str]]:
    """Read a JSON file of words with their synonyms.

    Raises:
        InputError: there is no file, or it is not a JSON object of lists of words.
    """
    if path is None:
        raise InputError(
            "augmentation substitute expects synonyms, a JSON file of word → list of words, found none; give "
            "--synonyms FILE (cmlmcse/data/synonyms.py says where to get one)"
        )
    try:
        synonyms = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"synonyms expects a JSON file, found {path} ({error.strerror}); fix the path") from error
    except ValueError as error:
        raise InputError(f"{path}: expected JSON, found something else ({error}); fix it") from error
    if not isinstance(synonyms, dict):
        found = type(synonyms).__name__
        raise InputError(f"{path}: expected a JSON object, word → list of words, found a {found}; fix it")
    for word, names in synonyms.items():
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise InputError(f"{path}: expected a list of words for {word!r}, found {json.dumps(names)}; fix it")
    return synonyms


def load_synonyms(path: str | None, tokenizer: PreTrainedTokenizerBase) -> Synonyms:
    """Read a file of synonyms as ids of a tokenizer. Only words that are one known token get synonyms.

    Raises:
        InputError: there is no file, it is not a JSON object of lists of words, or no word is one token.
    """
    listed = {word: names for word, names in read_synonyms(path).items() if names}
    table: dict[int, list[list[int]]] = {}
    # Some tokenizers encode a word differently at the start of a sentence and after another word.
    for before in ("", " "):
        single = {word: ids for word, ids in tokens_of(listed, before, tokenizer).items() if len(ids) == 1}
        tokens = tokens_of({name for word in single for name in listed[word]}, before, tokenizer)
        for word, own in single.items():
            if found := [tokens[name] for name in listed[word] if tokens.get(name, own) != own]:
                table[own[0]] = found
    if not table:
        raise InputError(f"{path}: expected words that are one token, with synonyms, found none; choose another file")
    pieces = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    letters = np.array([(piece or "").removeprefix("##")[:1].isalnum() for piece in pieces])  # not punctuation
    return Synonyms(table, continuing_tokens(tokenizer) & letters)


def tokens_of(words: Iterable[str], before: str, tokenizer: PreTrainedTokenizerBase) -> dict[str, list[int]]:
    """The tokens of each word when it follows `before`; words that the tokenizer does not know are left out."""
    words = sorted(words)
    fields = {"add_special_tokens": False, "return_attention_mask": False, "return_token_type_ids": False}
    pieces = tokenizer([before + word for word in words], **fields)["input_ids"] if words else []
    known = zip(words, pieces, strict=True)
    return {word: ids for word, ids in known if ids and tokenizer.unk_token_id not in ids}
