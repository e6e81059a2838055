"""The demo's command line and its running page, over its API, and in a browser where there is one."""

import html
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cmlmcse.hub.export import export
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from support import warm
from support.browser import CHROMIUM
from support.demo import HOSTILE, write
from support.paths import ROOT
from support.tiny import WORDS, tiny_tokenizer

import app  # isort: skip
from corpus import SPACE, read_corpus  # isort: skip


def test_texts_of_its_own() -> None:
    """About 200 different sentences."""
    lines = read_corpus(app.HERE / "texts.txt", SPACE).lines
    assert 200 <= len(lines) <= 250
    assert len(set(lines)) == len(lines)


def test_versions_agree() -> None:
    """A Space runs the versions that the tests passed with, and nothing of this package."""
    pins = dict(re.findall(r"^([\w-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE))
    card = (app.HERE / "README.md").read_text()
    assert f"sdk_version: {pins['gradio']}\n" in card
    for requirement in (app.HERE / "requirements.txt").read_text().split():
        name, _, version = requirement.partition("==")
        assert pins[name] == version
    assert not any("modeling_cmlmcse" in file.read_text() for file in app.HERE.glob("*.py"))


@pytest.fixture(scope="module")
def encoder_folder(backbone_folders, tmp_path_factory) -> Path:
    """An export of ours."""
    model = CMLMCSEForSentenceEmbedding.from_backbone(
        backbone_folders["bert"], cmlm_weight=0.0, projection="none", pooling="avg"
    ).eval()
    return export(model, tiny_tokenizer("bert"), tmp_path_factory.mktemp("demo") / "tiny_*encoder*")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected MODEL, a folder or OWNER/NAME on the Hub, as an argument or a variable, found none"),
        (["./missing"], "MODEL ./missing: ./missing: expected a model's folder, found none"),
        (["BACKBONE"], "records no pooling: expected --pooling with one of cls_before_pooler, prompt, avg"),
        (["BROKEN"], "expected a model's folder, found no config.json in it"),
        (["owner/name"], "MODEL owner/name: owner/name: expected a model's folder or Hub name, found no config.json"),
        (["MODEL"] * 5, "expected at most 4 models side by side, found 5"),
        (["MODEL", "--pooling", "avg", "--revision", "v1"], "--pooling expects cmlmcse installed and no --revision"),
        (["MODEL", "--texts", "missing.txt"], "--texts expects a file with one text a line, found none at missing.txt"),
        (["MODEL", "--texts", "EMPTY"], "found an empty file"),
        (["MODEL", "--texts", "EMPTY", "--text_column", "x"], "found an empty file"),
        (["MODEL", "--wrong"], "unrecognized arguments: --wrong"),
    ],
)
def test_wrong_start(arguments, message, encoder_folder, backbone_folders, tmp_path, monkeypatch, capsys) -> None:
    """One line, status 2, no traceback."""
    broken = tmp_path / "broken"
    broken.mkdir()
    write(broken / "modules.json", b"[]")
    empty = write(tmp_path / "empty.txt", b"")
    names = {"MODEL": encoder_folder, "BACKBONE": backbone_folders["bert"], "BROKEN": broken, "EMPTY": empty}
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MODEL", raising=False)
    monkeypatch.setattr(sys, "argv", ["app.py", *(str(names.get(word, word)) for word in arguments)])
    with pytest.raises(SystemExit) as stop:
        app.main()
    lines = capsys.readouterr().err.strip().splitlines()
    assert stop.value.code == 2
    assert lines[-1].startswith("error: ")
    assert message in lines[-1]
    assert not any("Traceback" in line for line in lines)


def test_environment(monkeypatch) -> None:
    """A Space's variables; empty ones are none."""
    for name, value in {"MODEL": "owner/name", "MODEL_REVISION": "", "TEXTS": "mine.txt"}.items():
        monkeypatch.setenv(name, value)
    args = app.parse([])
    assert (args.models, args.revision, args.texts) == (["owner/name"], None, "mine.txt")
    assert app.parse(["other/name", "--revision", "v1", "third/one"]).models == ["other/name", "third/one"]


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> Path:
    """60 lines to search."""
    rng = np.random.default_rng(0)
    lines = sorted({" ".join(rng.choice(WORDS, rng.integers(3, 9))) for _ in range(60)})
    return write(tmp_path_factory.mktemp("texts") / "texts.txt", "\n".join(lines).encode())


@pytest.fixture(scope="module")
def address(encoder_folder, texts, tmp_path_factory) -> Iterator[str]:
    """The page, started as on a Space: by variables, in a process of its own, away from this checkout."""
    pytest.importorskip("gradio")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    for package in ("cmlmcse", "modeling_cmlmcse"):  # a Space does not have them
        write(elsewhere / f"{package}.py", b"raise ImportError(__name__)")
    environment = os.environ | {
        "MODEL": str(encoder_folder), "TEXTS": str(texts), "GRADIO_SERVER_PORT": str(port),
        "GRADIO_TEMP_DIR": str(elsewhere / "uploads"), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(elsewhere),
        "SPACE_ID": "owner/space",
    }  # fmt: skip
    url, log = f"http://127.0.0.1:{port}/", elsewhere / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [warm.python(), app.HERE / "app.py"], cwd=elsewhere, env=environment, stdout=output, stderr=output
        )
    try:
        wait_for(url, process, log)
        yield url
        assert process.poll() is None
        lines = log.read_text()  # Gradio logs its own refusals, never shown to the user, with a traceback
        assert lines.count("Traceback") == len(re.findall(r"^gradio\.exceptions\.\w+:", lines, re.MULTILINE)), lines
    finally:
        process.terminate()
        process.wait()


def wait_for(url: str, process: subprocess.Popen, log: Path) -> None:
    """Until the page answers."""
    for _ in range(600):
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(log.read_text())


@pytest.fixture
def client(address):
    """The API of the page."""
    from gradio_client import Client

    return Client(address, verbose=False)


@pytest.fixture(scope="module")
def reference(encoder_folder):
    """Unit vectors by sentence-transformers itself, one text at a time."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(encoder_folder), device="cpu")
    return lambda texts: np.stack([model.encode(text, normalize_embeddings=True) for text in texts])


@pytest.mark.slow
def test_api_offers(client) -> None:
    """Search and similarity, nothing else."""
    assert set(client.view_api(return_format="dict")["named_endpoints"]) == {"/search", "/similarity"}


@pytest.mark.slow
def test_api_as_documented(client, address) -> None:
    """The page's block of Python runs as it stands."""
    block = re.search(r"^```py\n(.*?)^```", (ROOT / "docs/how-to/demo.md").read_text(), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(block[1].replace("http://127.0.0.1:7860", address), names)
    ((_, hits),) = names["hits"].items()
    assert [set(hit) for hit in hits] == [{"cosine", "text"}] * 5
    assert [np.shape(cosines) for cosines in names["cosines"].values()] == [(1, 2)]


@pytest.mark.slow
def test_api_search(client, reference, texts, tmp_path) -> None:
    """The nearest lines with their cosines; of an uploaded file if there is one."""
    from gradio_client import handle_file

    uploaded = write(tmp_path / "mine.txt", "\n".join(HOSTILE).encode())
    for lines, file in ((texts.read_text().split("\n"), None), (list(HOSTILE), handle_file(str(uploaded)))):
        table, found = client.predict("the big cat", 3, file, api_name="/search")
        ((_, hits),) = found.items()
        cosines = reference(lines) @ reference(["the big cat"])[0]
        best = np.argsort(-cosines)[:3]
        assert [hit["text"] for hit in hits] == [lines[index] for index in best]
        np.testing.assert_allclose([hit["cosine"] for hit in hits], cosines[best], atol=1e-4)
        assert all(html.escape(hit["text"]) in table for hit in hits)


@pytest.mark.slow
def test_api_similarity(client, reference) -> None:
    """Every pair; one pair is one number."""
    left, right = ["the cat sat", "a dog ran"], ["the cat sat", "big tree", "w1"]
    table, found = client.predict("\n".join(left), "\n".join(right), api_name="/similarity")
    ((_, cosines),) = found.items()
    np.testing.assert_allclose(cosines, reference(left) @ reference(right).T, atol=1e-4)
    assert table.count('class="number"') == 6
    assert 'class="pair"' in client.predict("a cat", "a dog", api_name="/similarity")[0]


@pytest.mark.slow
def test_api_refuses_in_words(client, tmp_path) -> None:
    """What is not taken is said in words."""
    from gradio_client import handle_file

    wrong = handle_file(str(write(tmp_path / "latin.txt", "Müller".encode("latin-1"))))
    for arguments, message in (
        (("", 3, None), "Expected a query, found none"),
        (("cat", 3, wrong), "Expected UTF-8 text"),
        (("cat", 99, None), "greater than maximum value 20"),
    ):
        with pytest.raises(Exception, match=message) as error:
            client.predict(*arguments, api_name="/search")
        assert "Traceback" not in str(error.value)
        assert "cmlmcse" not in str(error.value)
    with pytest.raises(Exception, match="1 to 20 sentences in the second box, one a line, found 0"):
        client.predict("cat", "", api_name="/similarity")
    large = write(tmp_path / "large.txt", b"a\n" * (SPACE.size // 2 + 1))
    with pytest.raises(Exception, match="exceed"):
        client.predict("cat", 3, handle_file(str(large)), api_name="/search")


@pytest.mark.slow
def test_api_reads_uploads_only(address, texts) -> None:
    """A path of the server is refused, whatever lies there."""
    for path in (texts, app.HERE / "texts.txt", app.HERE / "requirements.txt"):
        event, found = call(address, "cat", 3, {"path": str(path), "meta": {"_type": "gradio.FileData"}})
        assert event == "error"
        assert "cosine" not in str(found)


@pytest.mark.slow
def test_api_50_parallel_requests(address, reference, texts) -> None:
    """All are answered, each with its own answer; a wrong one among them fails alone. Fifty visitors, without Gradio's
    client, which threads cannot share."""
    lines = texts.read_text().split("\n")
    queries = [f"{WORDS[index]} {WORDS[-1 - index % 15]} cat" for index in range(50)]
    best = np.argmax(reference(queries) @ reference(lines).T, axis=1)

    def ask(index: int) -> str:
        """The first hit, or the whole answer."""
        event, data = call(address, "" if index == 25 else queries[index], 1 + index % 5, None)
        return next(iter(data[1].values()))[0]["text"] if event == "complete" else f"{event}: {data}"

    with ThreadPoolExecutor(50) as pool:
        found = list(pool.map(ask, range(50)))
    assert "Expected a query" in found.pop(25)
    assert found == [lines[best[index]] for index in range(50) if index != 25]


def call(address: str, *data: object) -> tuple[str, Any]:
    """The last event of a search, and its data, over HTTP alone."""
    where = f"{address}gradio_api/call/search"
    kind = {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(where, json.dumps({"data": data}).encode(), kind)) as answer:
        event = json.load(answer)["event_id"]
    with urllib.request.urlopen(f"{where}/{event}") as answer:
        last = answer.read().decode().strip().split("\n\n")[-1]
    name, content = last.split("\n", 1)
    return name.removeprefix("event: "), json.loads(content.removeprefix("data: "))


@pytest.fixture(scope="module")
def browser():
    """Chromium without a screen."""
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "dark")])
def test_in_a_browser(width, scheme, browser, address, reference, texts, tmp_path) -> None:
    """Search by Enter, an example, a file with markup in it, a file that is not taken; then the other tab."""
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page.set_default_timeout(20_000)
    requests, alarms = [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("dialog", lambda dialog: (alarms.append(dialog.message), dialog.dismiss()))
    page.on("pageerror", lambda error: alarms.append(str(error)))
    page.goto(address)
    lines = texts.read_text().split("\n")
    hits = page.locator("table.hits tbody tr")

    query = page.get_by_label("Query")
    query.press("Enter")
    page.get_by_text("Expected a query, found none").wait_for()
    assert query.evaluate("element => element === document.activeElement")
    page.get_by_test_id("toast-close").click()
    query.fill("the big cat")
    query.press("Enter")
    hits.nth(4).wait_for()
    cosines = reference(lines) @ reference(["the big cat"])[0]
    assert hits.nth(0).locator("td").all_inner_texts() == [f"{cosines.max():.2f}", lines[cosines.argmax()]]
    page.get_by_text("stars and planets").first.click()
    best = lines[(reference(lines) @ reference(["stars and planets"])[0]).argmax()]
    page.wait_for_function("text => document.querySelector('table.hits td:last-child').innerText == text", arg=best)
    assert query.input_value() == "stars and planets"

    page.get_by_text("Search your own texts").click()
    upload = page.locator("input[type=file]")
    upload.set_input_files(write(tmp_path / "ma{{r}}k<b>up.txt", "\n".join(HOSTILE).encode()))
    page.get_by_text("Searching 5 texts of markbup.txt.").wait_for()
    query.fill("the small cat")
    page.get_by_role("button", name="Search", exact=True).click()
    page.get_by_text(HOSTILE[0], exact=True).wait_for()
    assert set(hits.locator("td:last-child").all_inner_texts()) == set(HOSTILE)
    assert hits.locator("script, b, strong, a, img, code").count() == 0
    page.get_by_label("Clear").last.click()
    page.get_by_text(f"Searching {len(lines)} texts of texts.txt.").wait_for()
    upload.set_input_files(write(tmp_path / "latin.txt", "Müller".encode("latin-1")))
    page.get_by_text("Expected UTF-8 text, found something else at byte 1").wait_for()

    page.get_by_role("tab", name="Similarity").click()
    page.get_by_label("First sentences").fill("\n".join(HOSTILE[:2]))
    page.get_by_label("Second sentences").fill("the cat\nthe dog")
    page.get_by_label("Second sentences").press("Shift+Enter")
    cells = page.locator("table.matrix td.number")
    cells.nth(3).wait_for()
    expected = (reference(HOSTILE[:2]) @ reference(["the cat", "the dog"]).T).ravel()
    assert cells.all_inner_texts() == [f"{cosine:.2f}" for cosine in expected]
    assert page.locator("table.matrix tbody th").all_inner_texts() == list(HOSTILE[:2])
    page.get_by_label("First sentences").fill("the cat")
    page.get_by_label("Second sentences").fill("the cat")
    page.get_by_role("button", name="Compare").click()
    page.get_by_text("1.00").wait_for()

    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert alarms == []
    assert [url for url in requests if not url.startswith((address, "data:", "blob:"))] == []
    page.close()
