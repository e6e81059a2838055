"""The options of commands that read texts."""

from argparse import ArgumentParser

from .folder import PASSAGE_WORDS
from .tables import TEXT


def add_text_options(parser: ArgumentParser, titles: str, passages: str) -> None:
    """Add the options that say what is read of a table.

    Args:
        parser: the parser of the command.
        titles: which titles are read by default, for the help.
        passages: text that is added to the help of `--passages`.
    """
    parser.add_argument("--text_column", help=f"column of the texts (default: {TEXT}, or the only column of strings)")
    parser.add_argument("--title_column", metavar="NAME", help="column of titles: each is put before its text, as "
                        f"adapt reads them (default: {titles})")  # fmt: skip
    parser.add_argument("--passages", action="store_true", help="cut the texts of a table into passages of at most "
                        f"{PASSAGE_WORDS} words, as those of a folder are{passages}")  # fmt: skip
