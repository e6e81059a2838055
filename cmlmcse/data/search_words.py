"""The words by which BM25 finds a text: without endings, and without the words that every question in English has.

A word of letters alone loses a final s (Harman 1991, "How effective is suffixing?") and is cut to its first letters
(McNamee, Nicholas & Mayfield 2009, "Addressing morphological variation in alphabetic languages"). So "run" and "runs"
are one word, and so are "computer" and "computing". That needs no rules of a language, and finds about as much as
Porter's stemmer does in English (docs/results/search-words.md). A word with a digit or an underscore is a name or a
number, and stays whole.
"""

import re
import unicodedata
from collections.abc import Callable
from typing import NamedTuple

from .words import is_letter, is_unspaced, overlapping_pairs

STEM = 6  # letters; 5 and 7 find as much (docs/results/search-words.md)
SHORT = 3  # letters of a word that keeps its s, such as "gas"
# They say nothing about what is searched, and in a text that explains things they are rare enough to mislead: "how do I
# resume a run?" would find the passages with "how do I". A query that has no other words asks for them.
_OF_QUESTIONS = """
a about above after again against all am an and any are as at be because been before being below between both
but by can could did do does doing down during each few for from further had has have having he her here hers
herself him himself his how i if in into is it its itself just may me might more most must my myself no nor not
of off on once only or other our ours out over own same shall she should so some such than that the their theirs
them themselves then there these they this those through to too under until up us very was we were what when
where which while who whom whose why will with would you your yours yourself
"""
FUNCTION_WORDS = frozenset(_OF_QUESTIONS.split())

_WORD = re.compile(r"\w+")
# Marks that most texts leave out, and which are no part of a word here: the soft hyphen, the dot that İ leaves in small
# letters, the vowels of Arabic and Hebrew, the line that stretches an Arabic word, and signs that choose the look of an
# emoji.
_HEBREW_POINTS = {*range(0x0591, 0x05C8)} - {0x05BE, 0x05C0, 0x05C3, 0x05C6}  # without the hyphen and other punctuation
_LEFT_OUT = {0x00AD, 0x0307, 0x0640, 0x0670, *range(0x064B, 0x0660), *_HEBREW_POINTS, *range(0xFE00, 0xFE10), 0x20E3}
# Thai, Lao, Tibetan, Burmese and Khmer: scripts without spaces, whose marks are all that separates.
_UNKNOWN = (*range(0x0E00, 0x10A0), *range(0x1780, 0x1800))


class _Signs(dict[int, str | None]):
    """What each sign becomes before a text is split at white space, worked out when it is first met."""

    def __missing__(self, code: int) -> str | None:
        sign = chr(code)
        inside = sign.isalnum() or sign == "_" or (is_letter(sign) and code not in _UNKNOWN)
        self[code] = None if code in _LEFT_OUT else sign if inside else " "
        return self[code]


_SIGNS = _Signs()


def stem(word: str, letters: int = STEM) -> str:
    """The first letters of a word, without a final s, if it has letters alone."""
    if not word.isalpha() and (word.isascii() or not all(map(is_letter, word))):
        return word
    if len(word) > SHORT and word.endswith("s") and not word.endswith("ss"):
        word = word[:-1]
    return word[:letters]


def _split(text: str) -> list[str]:
    """The words of a text in small letters. Two spellings of one character are equal, as é and e with an accent, or ﬁ
    and fi. A soft hyphen joins, and so do the vowel signs of Hindi."""
    if text.isascii():
        return _WORD.findall(text.lower())
    return unicodedata.normalize("NFKC", text).lower().translate(_SIGNS).split()


class SearchWords(NamedTuple):
    """How texts and queries become words.

    Attributes:
        stem: what a word becomes, in small letters.
        left_out: words that a query does not ask for, unless it has no others.
    """

    stem: Callable[[str], str] = stem
    left_out: frozenset[str] = FUNCTION_WORDS

    def of_text(self, text: str) -> list[str]:
        """The words by which a text is found. In Chinese and Japanese two neighbouring characters are a word, and each
        character by itself is one too."""
        return self._stemmed(_split(text), single=True)

    def of_query(self, query: str) -> list[str]:
        """The words that a query asks for. In Chinese and Japanese they are two neighbouring characters each."""
        words = _split(query)
        return self._stemmed([word for word in words if word not in self.left_out] or words, single=False)

    def _stemmed(self, words: list[str], single: bool) -> list[str]:
        if any(map(is_unspaced, words)):
            words = overlapping_pairs(words, single)
        return list(map(self.stem, words))


SEARCH_WORDS = SearchWords()
