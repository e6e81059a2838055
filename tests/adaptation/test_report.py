"""adapt's report.html in a browser. The results are made up, so nothing is trained."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cmlmcse.adaptation.report import last_line, write_report
from cmlmcse.evaluation.criterion import chance
from support.browser import CHROMIUM, look_at

ARM = {"steps": 160, "score": 33.97, "seconds": 180.0, "tokens": 1_206_613}
CHANGE = {"title": "a title, or a passage, finds another passage of its document", "before": 34.43, "after": 34.43,
          "best_candidate": 35.15, "interval": [-0.37, 1.78]}  # fmt: skip
NASTY = '<img src="http://127.0.0.1:9/picture.png"> & "' + "long" * 60 + " <script>document.body.remove()</script>"
MARKED = "![a picture](http://127.0.0.1:9/picture.png) | *p, or <b>q</b>"


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    """A report with markup and a very long word among its queries."""
    folder = tmp_path_factory.mktemp("a folder with a rather long name, as users have them")
    names = [f"title_body+words, rate {rate:g}" for rate in (3e-5, 1e-4)] + ["search, rate 0.0001"]
    found = {
        **CHANGE, "finished_encoder": True, "chosen": "start", "bm25": 40.0,
        "hybrid": 39.12, "candidates": 1967, "documents": {"choose": 145, "confirm": 144}, "choose_before": 30.5,
        "choose_title": "a passage finds another passage of its document, and a few words of a document find a passage "
                        "of its other half",
        "criterion": "parts", "second_split": None, "settings": {names[0]: {}}, "averaged": names[:1],
        "arms": {
            name: {**ARM, "scores": [[0, 30.5], [20, 32.0 + place], [40, 31.0 - place]]}
            for place, name in enumerate(names)
        },
        "shares": {"0.0": 22.42, "0.75": 23.35, "1.0": 23.51},
    }  # fmt: skip
    text = {"documents": 200_000, "titles": 0, "held_out": 300, "note": "", "percentile_95": 812,
            "training_tokens": 64, "share_beyond_training": 0.63, "model_tokens": 256, "share_cut_off": 0.31,
            "share_overlapping": 0.37}  # fmt: skip
    results = {
        "model": "models/" + "a_name_without_a_place_to_break_" * 3,
        "adapt": found,
        "text": text,
        "seconds": 890.0,
        "precision": "bf16",
    }
    side = {"rank": 1234, "nearest": "a passage of some words that is shown next to its query " * 4}
    answer = "the passage that answers the query, which stands in a column of its own " * 3
    after = {NASTY: side, MARKED: side, "why do cats sleep all day": {"rank": 1, "nearest": answer}}
    rows = [{"query": query, "answer": answer, "before": side, "after": after[query]} for query in after]
    write_report(folder, results, rows)
    (folder / "results.json").write_text(json.dumps(results))
    return folder / "report.html"


def test_what_the_report_warns_of(page):
    """Held-out documents that repeat others; and whose neighbours the second column shows where the start is kept."""
    report = (page.parent / "report.md").read_text()
    assert "37% of the documents that are held out have 13 words or more in a row in common" in report
    assert "nearest with the best that was tried" in report
    assert "63.0% of all tokens come after the first ones" in report
    assert "its interval is rough" not in report
    assert report.startswith("# Not adapted: your own model is kept\n\n**Nothing was better than the start")


def test_what_the_page_shows_of_text(page):
    """Commands are code, markup in a query is text, and a passage that did not change is not shown twice."""
    marked = r"!\[a picture\](http://127.0.0.1:9/picture.png) \| \*p, or \<b>q\</b>"
    assert f"| {marked} " in (page.parent / "report.md").read_text()
    shown = page.read_text()
    assert "<code>cmlmcse evaluate MODEL --tasks retrieval --data_dir DIR</code>" in shown
    assert "`" not in shown
    assert "<script>" not in shown
    assert shown.count("(rank 1234) the same as before") == 2
    assert shown.count("(rank 1) the answer") == 1


def test_few_documents_and_foreign_text(page, tmp_path):
    """The report has both sentences, and the last line the first one, before the verdict."""
    results = json.loads((page.parent / "results.json").read_text())
    results["text"]["note"] = "The model's tokenizer may not fit this text: it cuts the words into pieces."
    results["adapt"]["documents"]["confirm"] = 11
    write_report(tmp_path, results, [])
    report = (tmp_path / "report.md").read_text()
    few = "Only 11 documents confirm this score, so its interval is rough. More documents help."
    assert few in report
    assert results["text"]["note"] in report
    line = last_line(results)
    assert line.index("95 % interval") < line.index(few) < line.index("Nothing was better")


def test_a_score_near_chance(page, tmp_path):
    """A model that ranks 1,967 passages at random has 10.94 on average; report and last line say so up to 1.2 times
    that."""
    ranks = np.random.default_rng(0).integers(1, 1968, 400_000)
    assert chance(1967) == pytest.approx((100 / np.log2(1 + ranks)).mean(), abs=0.1)
    results = json.loads((page.parent / "results.json").read_text())
    assert "near chance" not in last_line(results)
    results["adapt"]["before"] = 13.15
    assert "near chance" not in last_line(results)
    results["adapt"]["before"] = 13.12
    weak = "The start's score of 13.12 is near chance, which gives 10.94 among 1,967 passages: it finds hardly anything"
    said = f"{weak} in this text. The documents may be too similar to each other, or the model does not fit"
    assert said in last_line(results)
    write_report(tmp_path, results, [])
    assert said in (tmp_path / "report.md").read_text()
    results["adapt"]["finished_encoder"] = False
    assert f"{weak} in this text. Choose a model made for the language" in last_line(results)


@pytest.mark.parametrize(("share", "said"), [
    (1.0, "a and b"),
    (0.75, "a and b. The weights in export/ are a mean: 75% trained, 25% those of your own model"),
])  # fmt: skip
def test_the_last_line_says_what_the_weights_are(share, said, page):
    """A mean with the start is said without the report's words."""
    results = json.loads((page.parent / "results.json").read_text())
    results["adapt"] |= {"chosen": "a and b, …", "chosen_arms": ["a", "b"], "share": share}
    assert last_line(results).endswith(f" Better; chosen: {said}")


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (400, True)])
def test_in_a_browser(width, dark, page, tmp_path):
    """All of it is inside the window, text and plot are painted, and nothing but the file is read."""
    found, picture = look_at(page, width, tmp_path, dark=dark)
    assert found["width"] == width
    assert found["scrolled"] <= width
    assert found["wide"] == []
    assert max(found["tables"]) <= width  # even with a long word nothing has to be scrolled
    assert found["images"] == [True]
    assert found["requests"] == found["errors"] == []
    pixels = np.asarray(Image.open(picture).convert("RGB")).astype(int)
    shown = pixels[: found["height"], :width]
    paper = shown[2, 2]
    assert (paper.max() < 50) if dark else (paper.min() == 255)
    assert 0.02 < (abs(shown - paper).sum(axis=2) > 3 * 55).mean() < 0.3  # ink on paper
    assert (np.ptp(shown, axis=2) > 60).sum() > 200  # the curves, which alone are coloured
