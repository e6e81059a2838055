"""The words of a text, also in Chinese and Japanese, which put no spaces between them.

There two characters stand for a word, as in most search engines. No dictionary is needed.
"""

import re
import unicodedata
from collections.abc import Iterable

# Chinese characters, Hiragana, Katakana and Bopomofo, without their punctuation.
_SIGNS = "\u3005-\u3007\u3041-\u309f\u30a1-\u30fa\u30fc-\u30ff\u3105-\u312f\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
_SIGNS += "\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
_SIGN = re.compile(f"[{_SIGNS}]")
_WORD = re.compile(f"(?:[{_SIGNS}]{{1,2}}|[^\\s{_SIGNS}]+)\\s*")
_RUN = re.compile(f"[{_SIGNS}]+|[^{_SIGNS}]+")


def is_letter(sign: str) -> bool:
    """Whether a sign is a letter, or a mark that belongs to one, such as the vowel signs of Hindi."""
    return unicodedata.category(sign)[0] in "LM"


def is_unspaced(text: str) -> bool:
    """Whether a text has a character of Chinese or Japanese."""
    return _SIGN.search(text) is not None


def split_words(text: str) -> list[str]:
    """The words of a text, each with a space behind it where the text has white space there.

    In Chinese and Japanese two characters are a word. Such words do not overlap.
    """
    if not is_unspaced(text):
        words = text.split()
        return [*(f"{word} " for word in words[:-1]), *words[-1:]]
    return [re.sub(r"\s+", " ", word) for word in _WORD.findall(text.strip())]


def join_words(words: Iterable[str]) -> str:
    """The text of words of :func:`split_words`, without white space at its ends."""
    return "".join(words).strip()


def overlapping_pairs(words: Iterable[str], single: bool = False) -> list[str]:
    """What an index makes of words. It does not know where a word of Chinese or Japanese begins, so each character is
    joined with the next one. All other words stay.

    Args:
        words: the words between white space and punctuation.
        single: keep each character by itself too.
    """
    found: list[str] = []
    for word in words:
        for run in _RUN.findall(word) if is_unspaced(word) else (word,):
            if not is_unspaced(run) or len(run) == 1:
                found.append(run)
                continue
            found += [run[place : place + 2] for place in range(len(run) - 1)]
            found += run if single else ()
    return found
