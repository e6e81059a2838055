"""Names separated by commas, as one line of CSV: a name that has a comma itself stands in double quotes."""

import csv
import io
from collections.abc import Iterable


def split_names(text: str | None) -> list[str]:
    """The names without the spaces around them; empty ones are left out."""
    found = next(csv.reader([text or ""], skipinitialspace=True), [])
    return [name.strip() for name in found if name.strip()]


def join_names(names: Iterable[str]) -> str:
    """The text that :func:`split_names` splits into these names."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(names)
    return line.getvalue()
