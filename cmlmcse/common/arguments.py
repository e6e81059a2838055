"""Parsers of a command line whose errors are one line."""

import argparse
import os
import sys
from typing import NoReturn

from .errors import InputError


class DashedPaths(argparse.ArgumentParser):
    """An argument parser that says what to do where a path begins with a dash."""

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def, override]
        words = sys.argv[1:] if args is None else list(args)
        for word in words[: words.index("--")] if "--" in words else words:
            number = self._negative_number_matcher.match(word)  # a value to argparse, as is a word with a space
            if dashed(word) and not number and word not in self._option_string_actions and os.path.exists(word):
                self.error(f"expected a path that does not begin with a dash, found {word}; write ./{word}")
        return super().parse_known_args(words, namespace)


def dashed(word: str) -> bool:
    """Whether a word without a space begins with one dash. `-` alone is standard input."""
    return word.startswith("-") and not word.startswith("--") and word != "-" and " " not in word


class Parser(DashedPaths):
    """An argument parser that raises usage errors as :class:`InputError`."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see {self.prog} --help")
