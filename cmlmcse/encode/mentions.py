"""Messages before the work begins: which text of the input is not read, and which the model cuts off."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cmlmcse.data.tables import TextFile
    from cmlmcse.models.encoders import Encoder

FIRST = 200  # texts whose length is measured; their share of cut tokens is known to some points
TITLE = "title"  # the column that `cmlmcse adapt` reads titles from


def mention_unread(source: "TextFile") -> None:
    """Say which files of a folder are not read, and where titles are not that `cmlmcse adapt` would read."""
    from cmlmcse.data.folder import unread_files
    from cmlmcse.data.tables import is_text
    from cmlmcse.data.titles import unread_titles
    from cmlmcse.data.unchanged import unchanged

    if said := unread_files(str(source.path)):
        print(said, file=sys.stderr)
    texts = [field.name for field in source.schema if is_text(field.type)]
    if source.title_column is None and TITLE in texts and source.text_column != TITLE:
        print(
            f"{source.path}: the column {TITLE} is not read; --title_column {TITLE} puts each title before its text, "
            "as cmlmcse adapt reads them",
            file=sys.stderr,
        )
    elif source.title_column is None:
        with unchanged(source.path, source.version):
            said = unread_titles(source.path, source.text_column, source.file_column)
        if said:
            print(said, file=sys.stderr)


def mention_cut(source: "TextFile", model: str, encoder: "Encoder") -> None:
    """Say where much of the first rows' text lies beyond what the model reads."""
    from cmlmcse.data.lengths import LARGE_CUT, measure_lengths

    first = next(source.tables(), None)
    texts = [] if first is None else [text for text in source.titled_texts(first.slice(0, FIRST)) if text]
    limit = encoder.max_seq_length
    if texts and (share := measure_lengths(texts, encoder.tokenizer).cut(limit)) > LARGE_CUT:
        advice = (
            "a model of more positions reads more" if source.file_column else "--passages cuts long ones into passages"
        )
        print(
            f"{source.path}: {model} reads the first {limit} tokens of a text, which cuts off {share:.0%} of the first "
            f"{len(texts):,} texts; {advice}",
            file=sys.stderr,
        )
