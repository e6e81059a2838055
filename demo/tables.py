"""Answers as HTML tables. Every text is escaped: nothing of it becomes markup."""

import html
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

SHOWN = 400  # characters of a text in a table of hits; the rest is in the data


def shade(cosine: float) -> str:
    """The style attribute that colours a cell by its cosine."""
    return f'style="--cosine: {max(0.0, cosine):.2f}"'


def number(cosine: float) -> str:
    """A cosine with two decimals; never -0.00."""
    return f"{round(float(cosine), 2) + 0.0:.2f}"


def hits_tables(found: Mapping[str, Sequence[dict[str, Any]]]) -> str:
    """The hits of a query: model → hits, best first. Several models stand side by side; a text that only one of them
    found is marked."""
    if len(found) == 1:
        return hits_table(next(iter(found.values())))
    count = Counter(text for hits in found.values() for text in {hit["text"] for hit in hits})
    alone = {text for text, models in count.items() if models == 1}
    tables = "".join(f"<section>{heading(name)}{hits_table(hits, alone)}</section>" for name, hits in found.items())
    note = '<p class="note"><span class="alone">Marked</span>: among the hits of one model only.</p>'
    return f'<div class="models">{tables}</div>{note}'


def heading(name: str) -> str:
    """The name of a model above its table."""
    return f'<h2 dir="auto">{html.escape(name)}</h2>'


def hits_table(hits: Sequence[dict[str, Any]], alone: Collection[str] = ()) -> str:
    """The hits of one model; texts in `alone` are marked."""
    rows = []
    for hit in hits:
        mark = ' class="alone"' if hit["text"] in alone else ""
        cosine = f'<td class="number" {shade(hit["cosine"])}>{number(hit["cosine"])}</td>'
        rows.append(f'<tr>{cosine}<td dir="auto"{mark}>{shown(hit["text"])}</td></tr>')
    head = '<thead><tr><th scope="col">Cosine</th><th scope="col">Text</th></tr></thead>'
    return f'<table class="answer hits">{head}<tbody>{"".join(rows)}</tbody></table>'


def shown(text: str) -> str:
    """The start of a text, escaped."""
    return html.escape(text if len(text) <= SHOWN else text[: SHOWN - 1] + "…")


def similarity_tables(left: Sequence[str], right: Sequence[str], found: Mapping[str, NDArray[np.float32]]) -> str:
    """The cosines (N, M) of each model, with its name above if there are several."""
    if len(found) == 1:
        return similarity_table(left, right, next(iter(found.values())))
    return "".join(heading(name) + similarity_table(left, right, cosines) for name, cosines in found.items())


def similarity_table(left: Sequence[str], right: Sequence[str], cosines: NDArray[np.float32]) -> str:
    """One number for one pair, else an HTML table. On a narrow screen each cell shows the name of its column."""
    if cosines.shape == (1, 1):
        return f'<p class="pair" {shade(cosines[0, 0])}>{number(cosines[0, 0])} <span>cosine</span></p>'
    head = "".join(f'<th scope="col" dir="auto">{html.escape(sentence)}</th>' for sentence in right)
    rows = []
    for sentence, row in zip(left, cosines, strict=True):
        cells = [
            f'<td class="number" data-column="{html.escape(column)}" {shade(cosine)}>{number(cosine)}</td>'
            for column, cosine in zip(right, row, strict=True)
        ]
        rows.append(f'<tr><th scope="row" dir="auto">{html.escape(sentence)}</th>{"".join(cells)}</tr>')
    table = f"<thead><tr><td></td>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return f'<div class="wide"><table class="answer matrix" style="--columns: {len(right)}">{table}</table></div>'
