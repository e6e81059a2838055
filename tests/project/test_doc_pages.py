"""The pages of the documentation: their links lead somewhere, and the page of fields is what the code says."""

import ast
import functools
import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from support.docs import PAGES, name_of
from support.paths import ROOT

LINKED = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "benchmarks" / "HISTORY.md"]


@functools.cache
def committed() -> frozenset[str] | None:
    """The files that git keeps here, by their paths; None outside a clone. A picture that git ignores exists on the
    machine that drew it alone."""
    if shutil.which("git") is None:
        return None
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    return frozenset(listed.stdout.split("\0")) if listed.returncode == 0 and listed.stdout else None


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", LINKED, ids=name_of)
def test_links(page: Path) -> None:
    """Every relative link leads to a file that is committed, and its anchor to a heading."""
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert target.is_dir() or committed() is None or str(target.relative_to(ROOT)) in committed(), link
        assert not anchor or anchor in anchors(target), link


def test_named_pages_exist() -> None:
    """Every docs/….md that code, recipes or build files name is a page."""
    folders = ("assets", "benchmarks", "cmlmcse", "configuration", "demo", "modeling_cmlmcse", "studies", "tests")
    files = [path for name in folders for path in (ROOT / name).rglob("*")] + list(ROOT.iterdir())
    texts = [
        path for path in files if path.suffix in {".py", ".md", ".yaml", ".txt", ".cfg"} or path.name == "Makefile"
    ]
    named = {page for path in texts for page in re.findall(r"\bdocs/[\w/-]+\.md", path.read_text(encoding="utf-8"))}
    assert len(named) >= 20
    assert not [page for page in sorted(named) if not (ROOT / page).is_file()]


def test_every_page_is_in_the_index() -> None:
    """docs/index.md links to every page of docs/."""
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / link).resolve() for link in re.findall(r"\]\(([^)#\s]+)\)", index.read_text())}
    assert set((ROOT / "docs").rglob("*.md")) - {index} <= linked


def test_messages_of_push_are_the_code_s() -> None:
    """Each message that the page of exit statuses quotes: what no placeholder fills stands in the code."""
    table = (ROOT / "docs" / "reference" / "exit-statuses.md").read_text(encoding="utf-8").split("## Publishing")[1]
    lines = re.findall(r"^\| [12] \| (.*?) \|", table, re.MULTILINE)
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "cmlmcse").rglob("*.py")]
    texts = [node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    code = "\n".join(text for text in texts if isinstance(text, str))
    filled = r"…|OWNER/NAME|COMMIT|main|run\.json: |v1\.0|--\w+|public|\(\w+\)|, but "
    quoted = [message for line in lines for message in re.findall(r"`([^`]+)`", line)]
    assert len(quoted) >= 20
    for message in quoted:
        parts = [part.strip(" ,:") for part in re.split(filled, message)]
        assert not [part for part in parts if part not in code], message


def test_readme_is_short() -> None:
    """150 lines at most: the rest is in docs/."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_fields_page() -> None:
    """docs/reference/fields.md is what its script writes."""
    script = ROOT / "docs" / "reference" / "make_fields.py"
    spec = importlib.util.spec_from_file_location("make_fields", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = (script.parent / "fields.md").read_text()
    assert module.page() == page, "run PYTHONPATH=. python docs/reference/make_fields.py"
    assert "| `cmlm_weight` | number | `0.005` |" in page
