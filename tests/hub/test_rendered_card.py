"""A card as a reader of the Hub gets it: rendered as Markdown, its code run, its links followed."""

import contextlib
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt

from cmlmcse.hub import push
from cmlmcse.hub.card import model_card
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from support.records import ADAPTED, FIELDS, RECORD, RESULTS
from support.tiny import tiny_tokenizer

MATRYOSHKA = {"16": {"sts": RESULTS["sts"], "stsb_dev": RESULTS["stsb_dev"]}}
SENTENCES = ["the cat sat", "a dog sat on the mat", "w1 w2"]
PLACEHOLDER = re.compile(r"\{\{|\}\}|\{%|\{[a-z_]*\}|\bNone\b|\bnan\b")


class Page(HTMLParser):
    """What a rendered card holds.

    Attributes:
        links: addresses of pictures and links.
        tables: for each table the number of cells of each row.
        code: the text of each block of code.
        text: the text outside of them.
        unknown: tags that Markdown does not make, as a mask token that looks like one.
    """

    TAGS = ("h1", "h2", "p", "pre", "code", "ul", "li", "img", "table", "thead", "tbody", "tr", "th", "td")

    def __init__(self, card: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.tables: list[list[int]] = []
        self.code: list[str] = []
        self.unknown: list[str] = []
        self.text, self.inside = "", False
        self.feed(MarkdownIt("commonmark").enable("table").render(card))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Count cells, note links, begin code."""
        self.links += [value for name, value in attrs if name in ("href", "src") and value]
        self.unknown += [tag] if tag not in self.TAGS else []
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append(0)
        elif tag in ("td", "th"):
            self.tables[-1][-1] += 1
        elif tag == "pre":
            self.inside = True
            self.code.append("")

    def handle_endtag(self, tag: str) -> None:
        """End code."""
        self.inside = self.inside and tag != "pre"

    def handle_data(self, data: str) -> None:
        """Collect text."""
        if self.inside:
            self.code[-1] += data
        else:
            self.text += data


def export_with_card(backbone: str, run: Path, pooling: str, options: list[str], adapted: bool) -> Path:
    """An export of a tiny model by `cmlmcse push`, with the records of a run, or of adapt, beside its checkpoint."""
    model = CMLMCSEForSentenceEmbedding.from_backbone(backbone, pooling=pooling, cmlm_weight=0.0).eval()
    for weight in model.backbone.parameters():
        weight.data *= 4 if weight.ndim == 2 else 1  # [CLS] of tiny random blocks is the same for all texts
    checkpoint = run / "checkpoint-5"
    model.save_pretrained(checkpoint)
    tiny_tokenizer("bert").save_pretrained(checkpoint)
    (run / "plots").mkdir()
    for name in ("loss", "dev_score"):
        (run / "plots" / f"{name}.png").write_bytes(b"png")
    vectors = model.encode(SENTENCES, tiny_tokenizer("bert"))  # (3, H)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    own = {
        "encoder": {"dimension": 32, "max_tokens": 64, "pooling": pooling},
        "example": {"sentences": SENTENCES, "cosines": (vectors @ vectors.T).round(2).tolist()},
    }
    if adapted:
        (run / "arms").mkdir()
        (run / "results.json").write_text(json.dumps({**ADAPTED, **own}))
    else:
        record = {**RECORD, **own, "fields": {**FIELDS, "pooling": pooling, "matryoshka_dims": "16,32"}}
        (run / "run.json").write_text(json.dumps(record))
        (run / "results.json").write_text(json.dumps({**RESULTS, "truncated": MATRYOSHKA}))
    push.main([str(checkpoint), "--export_only", "--output_dir", str(run / "out"), *options])
    return run / "out"


def page_of(card: str) -> Page:
    """A card without its metadata."""
    return Page(ModelCard(card).content.split("---\n", 2)[2])


def test_a_mask_token_is_no_tag() -> None:
    """`<mask>` in a template would vanish as HTML."""
    fields = {**FIELDS, "pooling": "prompt", "prompt_template": 'This "{sentence}" means <mask>.'}
    page = page_of(model_card({**RECORD, "fields": fields}, RESULTS))
    assert not page.unknown
    assert "means <mask>." in page.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pooling", "adapted", "options", "needs"),
    [
        ("cls_before_pooler", False, ["--license", "mit"], "transformers 4.51 or newer. For ONNX or OpenVINO"),
        ("cls", False, [], "transformers 4.52 or newer"),
        ("cls", False, ["--trust_free"], "For ONNX or OpenVINO"),
        ("avg_first_last", True, ["--query_prompt", "query: "], "Do not use the ONNX"),
    ],
)
def test_card(pooling, adapted, options, needs, backbone_folders, tmp_path, monkeypatch) -> None:
    """Tables are whole, no placeholder is left, links lead to files, code runs and prints the numbers below it."""
    monkeypatch.setattr("cmlmcse.hub.export.verify", lambda *_: {"AutoModel": 0.0})
    folder = export_with_card(backbone_folders["bert"], tmp_path, pooling, options, adapted)
    card = (folder / "README.md").read_text()
    page = page_of(card)
    assert page.tables
    assert all(len(rows) > 1 and len(set(rows)) == 1 for rows in page.tables), page.tables
    assert not PLACEHOLDER.search(page.text), page.text
    assert not page.unknown
    assert needs in " ".join(page.text.split())
    assert ("code needs" in page.text) == ("--trust_free" not in options)
    assert sorted(page.links) == ["plots/dev_score.png", "plots/loss.png"]
    assert all((folder / link).is_file() for link in page.links)
    examples = [code for code in page.code if code.startswith("from ")]
    assert len(examples) == (1 if "--trust_free" in options else 2)
    for code in examples:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "card", "exec"), {"FOLDER_OR_REPO": str(folder)})
        shown = np.array(re.findall(r"[-\d.]+(?=\s|\])", "".join(re.findall(r"^# (.*)$", code, re.M))), float)
        found = np.array(re.findall(r"-?\d+\.(?:\d+)?(?:e-?\d+)?", printed.getvalue()), float)
        assert shown.shape == (9,)
        np.testing.assert_allclose(found, shown, atol=0.0051)
        assert shown.min() < 0.995
