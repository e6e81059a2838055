"""How long the texts are in tokens, and how much of them a limit cuts off; counted on a sample."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

SAMPLE = 2000  # texts that are counted; a share of 10 % is then known to 2 points
LARGE_CUT = 0.1  # share of the tokens that is cut off above which users are warned; less would make it a habit
BLOCK = 10  # texts tokenised at a time: they may be whole books, and a signal is not heard meanwhile


class Lengths(NamedTuple):
    """The lengths (N,) of some texts in tokens, with special tokens."""

    sizes: NDArray[np.int64]

    @property
    def percentile(self) -> int:
        """The number of tokens that 95 % of the texts have at most."""
        return int(np.ceil(np.percentile(self.sizes, 95)))

    def cut(self, limit: int) -> float:
        """The share of all tokens that is cut off beyond `limit` tokens of a text."""
        return float(np.maximum(self.sizes - limit, 0).sum() / max(self.sizes.sum(), 1))


def measure_lengths(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> Lengths:
    """Tokenise the texts and count."""
    blocks = (list(texts[start : start + BLOCK]) for start in range(0, len(texts), BLOCK))
    return Lengths(np.array([len(ids) for block in blocks for ids in tokenizer(block, verbose=False)["input_ids"]]))


def token_counts(pieces: Dataset, column: str) -> NDArray[np.int64]:
    """(N,) how many tokens each row of a tokenised text has in a column. The tokens themselves are not read."""
    whole = pieces if pieces._indices is None else pieces.flatten_indices()  # of a selection `data` has all rows
    return pc.list_value_length(whole.with_format("arrow").data[column]).to_numpy()


def sample_rows(rows: Dataset, seed: int) -> Dataset:
    """At most `SAMPLE` rows, drawn by the seed, in their order."""
    count = min(SAMPLE, len(rows))
    return rows.select(np.sort(np.random.default_rng([seed, 5]).choice(len(rows), count, replace=False, shuffle=False)))


def forget_lengths(tokenizer: Any) -> None:
    """Undo what the last call left in the tokenizer itself: to which length texts are cut and padded. Else it would be
    saved, and what reads tokenizer.json alone would cut texts by it."""
    if (backend := getattr(tokenizer, "backend_tokenizer", None)) is not None:
        backend.no_truncation()
        backend.no_padding()
