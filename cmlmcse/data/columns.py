"""The columns of a table that training reads: which they are, and the rows that have text in all of them."""

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from datasets import Dataset, Features, IterableDataset, Value

from cmlmcse.common.errors import InputError

from .tables import no_column

STRING = Value("string")
SCORE = "score"  # the only column that is no text
HEAD_ROWS = 1000  # rows that are read to find the types of a table's columns
BLOCK_ROWS = 10_000  # rows in a block of the cache, some MB; opening the cache visits each block

Sentences: TypeAlias = Dataset | IterableDataset
Columns: TypeAlias = Mapping[str, str | None]  # our column, such as "text" → its name in the source


def choose_columns(source: str, names: list[str], strings: list[str], columns: Columns) -> dict[str, str]:
    """Return the source's columns to use. If no text column is named: "text", else the only column of strings."""
    chosen = {}
    for use, wanted in columns.items():
        if wanted is None and "text" not in names and len(strings) != 1:
            raise no_column(source, "text", names, f"--{use}_column")
        if wanted is not None and wanted not in names:
            raise no_column(source, wanted, names, f"--{use}_column")
        chosen[use] = wanted or ("text" if "text" in names else strings[0])
    return chosen


def check_texts(source: str, chosen: Mapping[str, str], strings: list[str]) -> None:
    """Check that the chosen columns hold strings, all but that of scores.

    Raises:
        InputError: one does not.
    """
    for use, column in chosen.items():
        if column not in strings and use != SCORE:
            raise InputError(
                f"{source}: expected text in the column {column}, found another type; give another --{use}_column"
            )


def only_columns(rows: Sentences, source: str, columns: Columns) -> Sentences:
    """Keep only the wanted columns, and drop the rows that are null or blank in one of them."""
    features = rows.features
    if features is None:  # a stream whose columns are not known yet
        head = list(rows.take(HEAD_ROWS // 10))
        names = list(dict.fromkeys(name for row in head for name in row))
        strings = [name for name in names if any(isinstance(row.get(name), str) for row in head)]
    else:
        names, strings = list(features), [name for name in features if is_string(features[name])]
    chosen = choose_columns(source, names, strings, columns)
    check_texts(source, chosen, strings)
    features = Features({use: Value("float64") if use == SCORE else STRING for use in chosen})
    arguments = {"columns": chosen, "source": source}
    options: dict[str, Any] = {"remove_columns": names, "features": features, "fn_kwargs": arguments}
    if isinstance(rows, Dataset):
        options |= {"batch_size": BLOCK_ROWS, "writer_batch_size": BLOCK_ROWS, "desc": "Dropping blank rows"}
    return rows.map(_drop_blank_rows, batched=True, with_indices=SCORE in chosen, **options)


def _drop_blank_rows(
    batch: dict[str, list[Any]], numbers: Sequence[int] = (), *, columns: dict[str, str], source: str
) -> dict[str, list[Any]]:
    """Keep the rows of a batch that have text in every column, and strip line breaks from the ends of texts. With
    scores, `numbers` are the rows' places in the source."""
    texts = [column for use, column in columns.items() if use != SCORE]
    rows = list(zip(*(batch[column] for column in texts), strict=True))
    kept = [place for place, row in enumerate(rows) if all(text and text.strip() for text in row)]
    found: dict[str, list[Any]] = {
        use: [batch[column][place].rstrip("\r\n") for place in kept] for use, column in columns.items() if use != SCORE
    }
    if SCORE in columns:
        scores = batch[columns[SCORE]]
        found[SCORE] = [_as_score(scores[place], source, columns[SCORE], numbers[place]) for place in kept]
    return found


def _as_score(value: Any, source: str, column: str, row: int) -> float:
    """The score of the pair in a row, counted from 0.

    Raises:
        InputError: it is missing, no number, NaN or infinite.
    """
    score = math.nan
    if not isinstance(value, bool):
        with contextlib.suppress(TypeError, ValueError):
            score = float(value)
    if not math.isfinite(score):
        raise InputError(
            f"{source}: expected a finite number in the column {column} of row {row + 1}, found {value!r}; fix the "
            "row, or give another --score_column"
        )
    return score


def check_scores(rows: Dataset, source: str) -> None:
    """Check that the scores have an order, if there are any.

    Raises:
        InputError: all are equal, which teaches nothing.
    """
    if SCORE in rows.column_names and len(found := rows.unique(SCORE)) == 1:
        raise InputError(f"{source}: expected at least two different scores, found {found[0]:g} alone; fix the scores")


def is_string(feature: object) -> bool:
    """Tell whether a column's type is text."""
    return isinstance(feature, Value) and feature.dtype in ("string", "large_string", "string_view")
