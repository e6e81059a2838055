"""Tables in Markdown and LaTeX. Texts are aligned left, numbers right."""

from collections.abc import Iterable, Sequence

from tabulate import SEPARATING_LINE, tabulate

DASH = "–"  # shown for a figure that was not measured


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1) -> str:
    """A Markdown table.

    Args:
        headings: K cells. A cell may hold any text; its line breaks become spaces.
        rows: K cells each.
        texts: number of columns that hold texts, counted from the left. The remaining columns hold numbers.
    """
    head, *body = [[" ".join(cell.split()).replace("|", r"\|") for cell in row] for row in (headings, *rows)]
    return _table(head, body, "pipe", texts)


def booktabs_table(headings: Sequence[str], *blocks: Iterable[Sequence[str]]) -> str:
    """A LaTeX table (package booktabs): texts in the first column, numbers in the other columns.

    Args:
        headings: K cells.
        blocks: rows of K cells; a rule separates the blocks.
    """
    rows: list[Sequence[str]] = []
    for block in map(list, blocks):
        rows += [[SEPARATING_LINE]] if rows and block else []
        rows += [[" ".join(cell.split()).replace(DASH, "--") for cell in row] for row in block]
    return _table(headings, rows, "latex_booktabs", 1)


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]], form: str, texts: int) -> str:
    """A table in one of tabulate's formats. Cells that look like numbers are not reformatted."""
    alignment = ["left"] * texts + ["right"] * (len(headings) - texts)
    return tabulate(rows, headings, tablefmt=form, disable_numparse=True, colalign=alignment)
