"""Pages of headings, paragraphs, tables and pictures: as Markdown, and as one HTML file with its pictures inside."""

import base64
import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cmlmcse.common.tables import markdown_table

STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222;"
    "overflow-wrap:break-word}.wide{overflow-x:auto;margin:1rem 0}table{border-collapse:collapse}"
    "td,th{border-bottom:1px solid #ccc;padding:.3rem .8rem;text-align:left;vertical-align:top}"
    ".whole{white-space:nowrap}.text{min-width:6rem;overflow-wrap:anywhere}img{max-width:100%}"
    "pre{background:#f4f4f4;padding:.8rem;overflow-x:auto}"
    "@media(max-width:40rem){table{font-size:.85rem}td,th{padding:.3rem .4rem}.whole{white-space:normal}}"
)
WHOLE = 20  # characters of a cell that stays on one line where there is room: a number, an interval

Block = tuple[str, Any]
"""A piece of a page: ("h1" | "h2" | "p" | "code" | "list" | "table" | "image", its content)."""


def write_pages(blocks: Sequence[Block], folder: Path, name: str, title: str) -> None:
    """Write `name`.md and `name`.html.

    Args:
        blocks: their pieces, in order.
        folder: where they are written; the pictures are in it.
        name: without a suffix.
        title: of the HTML page.
    """
    (folder / f"{name}.md").write_text("\n\n".join(map(as_markdown, blocks)) + "\n", encoding="utf-8")
    body = "\n".join(as_html(block, folder) for block in blocks)
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width,initial-scale=1"><title>{html.escape(title)}</title><style>{STYLE}</style>'
        f"</head><body>\n{body}\n</body></html>\n"
    )
    (folder / f"{name}.html").write_text(page, encoding="utf-8")


def as_markdown(block: Block) -> str:
    """A piece of a page as Markdown."""
    kind, content = block
    if kind == "table":
        header, rows = content
        return markdown_table(header, rows, texts=len(header))
    forms = {"h1": "# {}", "h2": "## {}", "p": "{}", "code": "```python\n{}\n```"}
    if kind == "list":
        return "\n".join(f"- {item}" for item in content)
    return f"![{content[1]}]({content[0]})" if kind == "image" else forms[kind].format(content)


def as_html(block: Block, folder: Path) -> str:
    """A piece of a page as HTML, a picture as data inside."""
    kind, content = block
    escape = html.escape
    if kind == "table":
        header, rows = content
        head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
        body = "".join("<tr>" + "".join(map(as_cell, row)) + "</tr>" for row in rows)
        return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'
    if kind == "list":
        return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in content) + "</ul>"
    if kind == "image":
        data = base64.b64encode((folder / content[0]).read_bytes()).decode()
        return f'<img alt="{escape(content[1])}" src="data:image/png;base64,{data}">'
    return f"<pre>{escape(content)}</pre>" if kind == "code" else f"<{kind}>{escape(content)}</{kind}>"


def as_cell(text: str) -> str:
    """A cell of a table as HTML."""
    return f'<td class="{"whole" if len(text) <= WHOLE else "text"}">{html.escape(text)}</td>'
