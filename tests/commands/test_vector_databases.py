"""The snippets of docs/how-to/vector-databases.md, on the real engines, against `cmlmcse search`."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cmlmcse.encode import command as encode
from cmlmcse.hub.export import export
from cmlmcse.search import command as search
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from support.paths import ROOT
from support.tiny import WORDS, tiny_tokenizer

PAGE = ROOT / "docs" / "how-to" / "vector-databases.md"
QUERY = "people who make music"


@pytest.fixture
def place(backbone_folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model with prompts, a table of texts, and what `cmlmcse encode` makes of it."""
    monkeypatch.chdir(tmp_path)
    tokenizer = tiny_tokenizer("bert")
    prompts = {"query": "w1 w2 ", "document": "w3 "}
    model = CMLMCSEForSentenceEmbedding.from_backbone(
        backbone_folders["bert"], pooling="avg", cmlm_weight=0.0, prompts=prompts
    )
    export(model.eval(), tokenizer, "MODEL")
    rng = np.random.default_rng(0)
    rows = [{"text": " ".join(rng.choice(WORDS, rng.integers(2, 9))), "id": f"d{i}"} for i in range(50)]
    Path("corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (command,) = re.findall(r"^cmlmcse encode (.*)$", PAGE.read_text(), re.MULTILINE)
    encode.main(command.split())
    return tmp_path


def snippet_of(section: str) -> str:
    """The first Python block of a section of the page."""
    text = PAGE.read_text().split(f"## {section}\n")[1]
    (snippet, *_) = re.findall(r"^```py\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return snippet


def test_in_python(place) -> None:
    """Without BM25 the scores are those of `cmlmcse search`; the words of a query add at most the weight."""
    names: dict[str, Any] = {}
    exec(snippet_of("In Python"), names)
    query = json.loads(Path("corpus.jsonl").read_text().splitlines()[7])["text"]
    search.main(["MODEL", "out.parquet", query, "--top_k", "50", "--output", "found.jsonl"])
    cosines = {row["columns"]["text"]: row["score"] for row in json.loads(Path("found.jsonl").read_text())["results"]}
    assert dict(names["search"](query, top_k=50, weight=0)) == pytest.approx(cosines, abs=1e-5)
    added = {text: score - cosines[text] for text, score in names["search"](query, top_k=50)}
    assert max(added, key=added.__getitem__) == query
    assert added[query] == pytest.approx(0.3, abs=1e-5)
    assert min(added.values()) >= -1e-5
    assert len(names["search"]("?!")) == len(names["nearest"]) == 5  # no word


@pytest.mark.parametrize("engine", ["DuckDB", "LanceDB"])
def test_same_as_search(engine, place) -> None:
    """The five nearest texts, in order, with their cosines."""
    pytest.importorskip(engine.lower())
    names: dict[str, list[tuple[str, float]]] = {}
    exec(snippet_of(engine), names)
    search.main(["MODEL", "out.parquet", QUERY, "--top_k", "5", "--output", "found.jsonl"])
    expected = json.loads(Path("found.jsonl").read_text())["results"]
    assert [text for text, _ in names["nearest"]] == [row["columns"]["text"] for row in expected]
    np.testing.assert_allclose([score for _, score in names["nearest"]], [row["score"] for row in expected], atol=1e-5)
