"""The words of a text, also in scripts that put no spaces between them.

There two characters stand for a word, as in most search engines for Chinese and Japanese. No dictionary is needed.
"""

import re
from collections.abc import Iterable

# Thai, Lao, Burmese, Khmer, Chinese and Japanese. Korean has spaces.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u312f\u3190-\ua4cf\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
_SIGN = re.compile(f"[{_UNSPACED}]")
_PAIR_OR_REST = re.compile(f"[{_UNSPACED}]{{1,2}}|[^{_UNSPACED}]+")
_RUN_OR_REST = re.compile(f"[{_UNSPACED}]+|[^{_UNSPACED}]+")


def is_unspaced(text: str) -> bool:
    """Whether a text has a character of a script without spaces."""
    return _SIGN.search(text) is not None


def split_words(text: str) -> list[str]:
    """The words between white space, and of a script without spaces pairs of characters, which do not overlap."""
    words = text.split()
    if not is_unspaced(text):
        return words
    return [piece for word in words for piece in _PAIR_OR_REST.findall(word)]


def join_words(words: list[str]) -> str:
    """Words with spaces between them, where their script has some."""
    text = " ".join(words)
    return re.sub(f"(?<=[{_UNSPACED}]) (?=[{_UNSPACED}])", "", text) if is_unspaced(text) else text


def overlapping_pairs(words: Iterable[str]) -> list[str]:
    """Words, and in place of characters of a script without spaces each with the one that follows: for an index, which
    does not know where words begin."""
    found: list[str] = []
    for word in words:
        for run in _RUN_OR_REST.findall(word) if is_unspaced(word) else (word,):
            pairs = is_unspaced(run) and len(run) > 2
            found += [run[place : place + 2] for place in range(len(run) - 1)] if pairs else [run]
    return found
