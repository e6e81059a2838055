"""Pages of headings, paragraphs, tables and pictures: as Markdown, and as one HTML file with its pictures inside."""

import base64
import html
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cmlmcse.common.tables import markdown_table

STYLE = """
:root{color-scheme:light dark;--ink:#222;--paper:#fff;--line:#ccc;--code:#f2f2f2;--lead:#eaf3fa;--edge:#0072b2}
@media(prefers-color-scheme:dark){:root{--ink:#ddd;--paper:#181818;--line:#555;--code:#2a2a2a;--lead:#16303f;--edge:#56b4e9}}
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:var(--ink);
background:var(--paper);overflow-wrap:break-word}
h1{line-height:1.2}h2{margin-top:2rem}
.lead{font-size:1.15rem;padding:.6rem 1rem;background:var(--lead);border-left:.3rem solid var(--edge)}
.wide{overflow-x:auto;margin:1rem 0}table{border-collapse:collapse}
td,th{border-bottom:1px solid var(--line);padding:.3rem .8rem;text-align:left;vertical-align:top}
.whole{white-space:nowrap}.text{min-width:6rem;overflow-wrap:anywhere}
img{max-width:100%}pre,code{background:var(--code)}pre{padding:.8rem;overflow-x:auto}
code{padding:0 .2rem;display:inline-block;overflow-wrap:anywhere}
@media(max-width:40rem){table{font-size:.85rem}td,th{padding:.3rem .25rem}.whole{white-space:normal}
.text{min-width:4rem}.stacked th{display:none}.stacked td{display:block;border:0}
.stacked tr{display:block;padding:.3rem 0;border-bottom:1px solid var(--line)}
.stacked td::before{content:attr(data-head) ": ";font-weight:bold}}
"""
WHOLE = 20  # characters of a cell that stays on one line where there is room: a number, an interval
# Columns, and characters of a cell other than a row's first, from which a phone shows the cells below each other.
MANY, LONG = 7, 80

Block = tuple[str, Any]
"""A piece of a page: ("h1" | "h2" | "lead" | "p" | "code" | "list" | "table" | "image", its content). In "lead",
"p" and "list" `text` between backticks is code. The lead is the answer in a sentence or two."""


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
        return markdown_table(header, [list(map(as_plain, row)) for row in rows], texts=len(header))
    forms = {"h1": "# {}", "h2": "## {}", "p": "{}", "lead": "**{}**", "code": "```python\n{}\n```"}
    if kind == "list":
        return "\n".join(f"- {item}" for item in content)
    return f"![{content[1]}]({content[0]})" if kind == "image" else forms[kind].format(content)


def as_plain(text: str) -> str:
    """A text as Markdown that shows it as it is: no tag, picture, link, code or emphasis."""
    return re.sub(r"([\\`*\[\]<])", r"\\\1", text)


def as_html(block: Block, folder: Path) -> str:
    """A piece of a page as HTML, a picture as data inside."""
    kind, content = block
    escape = html.escape
    if kind == "table":
        header, rows = content
        head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
        body = "".join("<tr>" + "".join(map(as_cell, row, header)) + "</tr>" for row in rows)
        wide = len(header) >= MANY or any(len(cell) >= LONG for row in rows for cell in row[1:])
        return f'<div class="wide"><table class="{"stacked" if wide else "plain"}"><tr>{head}</tr>{body}</table></div>'
    if kind == "list":
        return "<ul>" + "".join(f"<li>{with_code(item)}</li>" for item in content) + "</ul>"
    if kind == "image":
        data = base64.b64encode((folder / content[0]).read_bytes()).decode()
        return f'<img alt="{escape(content[1])}" src="data:image/png;base64,{data}">'
    if kind == "code":
        return f"<pre>{escape(content)}</pre>"
    return f'<p class="lead">{with_code(content)}</p>' if kind == "lead" else f"<{kind}>{with_code(content)}</{kind}>"


def with_code(text: str) -> str:
    """A line as HTML, what is between backticks as code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", html.escape(text))


def as_cell(text: str, head: str) -> str:
    """A cell of a table as HTML, with the head of its column, which a narrow window shows before it."""
    kind = "whole" if len(text) <= WHOLE else "text"
    return f'<td class="{kind}" data-head="{html.escape(head)}">{html.escape(text)}</td>'
