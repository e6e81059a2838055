"""Which words of a document tell it apart: those that stand in few other documents of the text, as in BM25."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from datasets import Dataset
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from .masking import continuing_tokens
from .words import is_unspaced

COUNTED = 100_000  # documents at most, spread over the text: more change no weight that matters
LEAST_LETTERS = 3  # of a telling word; shorter ones are mostly articles, numbers and signs
BLOCK = 1000  # documents counted at once, some MB


@dataclass(frozen=True)
class TellingWords:
    """In how many documents of a text each token of the vocabulary stands.

    Attributes:
        documents: how many were counted.
        found: (V,) in how many of them each token stands.
        continuing: (V,) whether a token continues the word before it.
        letters: (V,) letters and digits of a token.
        alone: (V,) whether a token is Chinese or Japanese, and so a word of its own. A tokenizer of bytes has none.
    """

    documents: int
    found: NDArray[np.int64]
    continuing: NDArray[np.bool_]
    letters: NDArray[np.int64]
    alone: NDArray[np.bool_]

    @classmethod
    def count(cls, pieces: Dataset, tokenizer: PreTrainedTokenizerBase) -> "TellingWords":
        """Count the documents of tokenised text, columns "title_ids" and "input_ids"."""
        step = max(-(-len(pieces) // COUNTED), 1)
        chosen = pieces.with_format("arrow").select(range(0, len(pieces), step))
        found = np.zeros(len(tokenizer), dtype=np.int64)
        for table in chosen.iter(batch_size=BLOCK):
            keys = [_keys(table[name], len(tokenizer)) for name in ("title_ids", "input_ids")]
            found += np.bincount(np.unique(np.concatenate(keys)) % len(tokenizer), minlength=len(tokenizer))
        names = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
        letters = np.array([sum(map(str.isalnum, name or "")) for name in names])
        alone = np.array([is_unspaced(name or "") for name in names])
        letters[tokenizer.all_special_ids] = 0
        return cls(len(chosen), found, continuing_tokens(tokenizer), letters, alone)

    def of(self, tokens: list[int]) -> tuple[list[list[int]], NDArray[np.float64]]:
        """The different telling words of a document, in their order, and the weight of each.

        The weight is log(1 + how often) · log((documents + 1) / documents with it): TF-IDF. A word in several pieces is
        as rare as its rarest piece. A word that stands in no other document is left out: nobody else would search for
        it.
        """
        array = np.asarray(tokens, dtype=np.int64)  # also of no tokens at all
        alone = self.alone[array]
        behind = np.concatenate([[True], alone[:-1]])[: len(array)]  # the first token, or one behind such a word
        starts = np.flatnonzero(~self.continuing[array] | alone | behind)
        found = np.minimum.reduceat(self.found[array], starts)
        letters = np.add.reduceat(self.letters[array], starts)
        often: dict[tuple[int, ...], int] = {}
        rare: dict[tuple[int, ...], int] = {}
        for place in np.flatnonzero((found > 1) & ((letters >= LEAST_LETTERS) | alone[starts])):
            end = starts[place + 1] if place + 1 < len(starts) else len(tokens)
            word = tuple(tokens[starts[place] : end])
            often[word] = often.get(word, 0) + 1
            rare[word] = int(found[place])
        among = np.array(list(rare.values()), dtype=np.float64)
        weights = np.log1p(np.array(list(often.values()))) * np.log((self.documents + 1) / among)
        return [list(word) for word in often], weights


def _keys(column: pa.ChunkedArray, vocabulary: int) -> NDArray[np.int64]:
    """(S,) document · vocabulary + token, for each token of a column of lists."""
    rows = column.combine_chunks()
    owners = np.repeat(np.arange(len(rows)), np.asarray(rows.value_lengths()))
    tokens = rows.flatten().cast(pa.int64())  # where no document has a title, the column has no type
    return owners * vocabulary + tokens.to_numpy(zero_copy_only=False)
