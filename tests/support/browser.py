"""A page as Chromium shows it, without a screen."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
# The page is read from a file. Chromium itself asks for updates and the like, and tests touch no network.
QUIET = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"]
# What may be scrolled sideways by itself may be wider than the window.
SCRIPT = """<script>const errors = []
addEventListener("error", e => errors.push(e.message))
addEventListener("load", () => {
  const scrolls = e => e.parentElement && e.parentElement.closest(".wide, pre")
  parent.document.documentElement.dataset.found = JSON.stringify({
    width: innerWidth,
    height: document.documentElement.scrollHeight,
    scrolled: document.documentElement.scrollWidth,
    tables: [...document.querySelectorAll("table")].map(e => e.getBoundingClientRect().right),
    wide: [...document.body.querySelectorAll("*")]
      .filter(e => !scrolls(e) && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80)),
    errors,
    images: [...document.images].map(e => e.complete && e.naturalWidth > 0),
    requests: performance.getEntriesByType("resource").map(e => e.name).filter(e => !e.startsWith("data:")),
  })
})</script>"""


def look_at(
    page: Path, width: int, folder: Path, height: int = 2400, dark: bool = False
) -> tuple[dict[str, Any], Path]:
    """Open a page in a frame, because Chromium's own window is 500 pixels wide at least.

    Args:
        page: an HTML file.
        width, height: of the frame, in pixels.
        folder: for what is written.
        dark: whether the reader prefers dark pages.

    Returns:
        What is measured: the frame's `width`; the page's `height`, and its width `scrolled`; where its `tables` end;
        the elements that are too `wide`; the `errors` of scripts; for each of the `images` whether it is shown; and
        the `requests` that it makes. And the screenshot.
    """
    measured, picture = folder / f"measured-{width}.html", folder / f"picture-{width}.png"
    content = html.escape(page.read_text(encoding="utf-8").replace("</head>", f"{SCRIPT}</head>"))
    frame = f'<iframe srcdoc="{content}" style="width:{width}px;height:{height}px;border:0"></iframe>'
    measured.write_text(f'<!doctype html><meta charset="utf-8"><body style="margin:0">{frame}', encoding="utf-8")
    profile = f"--user-data-dir={folder / 'profile'}"
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    words = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", *QUIET, profile, scheme, "--dump-dom",
             f"--window-size={width},{height}", f"--screenshot={picture}", measured.as_uri()]  # fmt: skip
    done = subprocess.run([str(CHROMIUM), *words], capture_output=True, text=True, timeout=60, check=True)
    found = re.search('data-found="(.*?)"', done.stdout)
    assert found, done.stderr
    return json.loads(html.unescape(found[1])), picture
