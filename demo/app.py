"""Semantic search and pairwise similarity with a sentence encoder: python app.py MODEL [--texts FILE].

A Space passes no arguments: the environment variables MODEL, MODEL_REVISION and TEXTS are read instead. The demo needs
no code of the project that trained the model.
"""

import argparse
import functools
import hashlib
import html
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NoReturn

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")

import numpy as np

if TYPE_CHECKING:
    import gradio as gr
    from sentence_transformers import SentenceTransformer

HERE = Path(__file__).resolve().parent
MAX_BYTES = 2**20  # in a text file
MAX_LINES = 2_000  # in a text file; a Space without a GPU encodes them while the user waits
MAX_CHARACTERS = 1_000  # in a line; encoders cut after 128 to 512 tokens
MAX_SENTENCES = 20  # on each side of the similarity table
MAX_HITS = 20
BATCH = 64  # texts in one pass through the model
CORPORA = 16  # number of text files whose embeddings are kept; at most 15 MB each at BERT-base size
QUERIES = ("people who make music", "travel plans ruined by bad weather", "stars and planets", "keeping food fresh")
LEFT = "A dog runs across the beach.\nThe bank raised its interest rates.\nShe is learning to play the violin."
RIGHT = "A puppy is playing in the sand.\nLoans have become more expensive.\nHe practises the piano every day."


class Refused(ValueError):
    """Refused input; the message says what was expected, what was found and what to do."""


class Parser(argparse.ArgumentParser):
    """An argument parser that prints usage errors as one line."""

    def error(self, message: str) -> NoReturn:
        raise Refused(f"{message}; see {self.prog} --help")


def read_lines(path: str | Path) -> list[str]:
    """The texts of a UTF-8 file, one per line; empty lines are skipped.

    Raises:
        Refused: the file was deleted, is too large, is not UTF-8, or holds no text.
    """
    try:
        size = os.path.getsize(path)
        if size > MAX_BYTES:
            raise Refused(f"Expected a file of at most {MAX_BYTES:,} bytes, found {size:,}; shorten it.")
        text = Path(path).read_bytes().decode("utf-8-sig")
    except OSError:
        raise Refused("Expected a file, found none (uploads are deleted after a day); upload it again.") from None
    except UnicodeDecodeError as error:
        raise Refused(f"Expected UTF-8 text, found something else at byte {error.start:,}; save it as UTF-8.") from None
    lines = split_lines(text)
    if not lines:
        raise Refused("Expected one text a line, found an empty file; choose another.")
    if len(lines) > MAX_LINES:
        raise Refused(f"Expected at most {MAX_LINES:,} lines, found {len(lines):,}; shorten the file.")
    return lines


def split_lines(text: str) -> list[str]:
    """The lines that are not blank, without surrounding white space.

    Raises:
        Refused: a line is too long.
    """
    lines = [line.strip() for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n")]
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_CHARACTERS:
            found = f"found {len(line):,} in line {number:,}"
            raise Refused(f"Expected at most {MAX_CHARACTERS:,} characters a line, {found}; break it up.")
    return [line for line in lines if line]


def check_query(query: str | None) -> str:
    """The query without surrounding white space.

    Raises:
        Refused: it is empty, or too long.
    """
    lines = split_lines(query or "")
    if not lines:
        raise Refused("Expected a query, found none; type a few words.")
    return " ".join(lines)


def check_sentences(text: str | None, name: str) -> list[str]:
    """The sentences in one of the two boxes.

    Raises:
        Refused: no sentence, too many, or a sentence that is too long.
    """
    sentences = split_lines(text or "")
    if not 1 <= len(sentences) <= MAX_SENTENCES:
        raise Refused(f"Expected 1 to {MAX_SENTENCES} sentences in {name}, one a line, found {len(sentences)}.")
    return sentences


class Encoder:
    """Texts → vectors of length 1. Requests of several threads are joined into one batch. A long list is split into
    batches, so a query never waits for a whole file."""

    def __init__(self, model: "SentenceTransformer") -> None:
        self.model = model
        self.waiting: SimpleQueue[tuple[Sequence[str], Future[np.ndarray]]] = SimpleQueue()
        self.corpora: OrderedDict[bytes, Future[np.ndarray]] = OrderedDict()
        self.lock = threading.Lock()
        threading.Thread(target=self.run_batches, daemon=True).start()

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """N texts → (N, H), in the same order."""
        parts = []
        for start in range(0, len(texts), BATCH):
            future: Future[np.ndarray] = Future()
            self.waiting.put((texts[start : start + BATCH], future))
            parts.append(future.result())
        return np.concatenate(parts)

    def run_batches(self) -> NoReturn:
        """Loop of the only thread that runs the model: take waiting requests, up to a batch, and answer them."""
        while True:
            requests = [self.waiting.get()]
            while not self.waiting.empty() and sum(len(texts) for texts, _ in requests) < BATCH:
                requests.append(self.waiting.get())
            try:
                batch = [text for texts, _ in requests for text in texts]
                vectors = self.model.encode(batch, batch_size=BATCH, normalize_embeddings=True, show_progress_bar=False)
                ends = np.cumsum([len(texts) for texts, _ in requests])
                for (_, future), part in zip(requests, np.split(vectors, ends[:-1]), strict=True):
                    future.set_result(part)
            except Exception as error:
                for _, future in requests:
                    future.set_exception(error)

    def encode_corpus(self, lines: Sequence[str]) -> np.ndarray:
        """N lines → (N, H). The same lines are encoded once, even if two threads ask at the same time."""
        key = hashlib.sha256("\n".join(lines).encode()).digest()
        with self.lock:
            future = self.corpora.pop(key, None)
            is_new = future is None
            self.corpora[key] = future = future or Future()  # now the most recently used
            if len(self.corpora) > CORPORA:
                self.corpora.popitem(last=False)
        if is_new:
            try:
                future.set_result(self.encode(lines))
            except Exception as error:
                with self.lock:
                    self.corpora.pop(key, None)
                future.set_exception(error)
        return future.result()


def nearest(encoder: Encoder, query: str, lines: Sequence[str], hits: int) -> list[dict[str, Any]]:
    """The `hits` lines with the largest cosine to the query, best first."""
    cosines = encoder.encode_corpus(lines) @ encoder.encode([query])[0]  # (N,)
    best = np.argsort(-cosines, kind="stable")[:hits]
    return [{"cosine": round(float(cosines[index]), 4), "text": lines[index]} for index in best]


def similarity(encoder: Encoder, left: Sequence[str], right: Sequence[str]) -> np.ndarray:
    """The cosines (N, M) of N left and M right sentences."""
    vectors = encoder.encode([*left, *right])
    return vectors[: len(left)] @ vectors[len(left) :].T


def shade(cosine: float) -> str:
    """The style attribute that colours a cell by its cosine."""
    return f'style="--cosine: {max(0.0, cosine):.2f}"'


def number(cosine: float) -> str:
    """A cosine with two decimals; never -0.00."""
    return f"{round(float(cosine), 2) + 0.0:.2f}"


def hits_table(hits: Sequence[dict[str, Any]]) -> str:
    """The hits of a query as an HTML table."""
    rows = [
        f'<tr><td class="number" {shade(hit["cosine"])}>{number(hit["cosine"])}</td>'
        f'<td dir="auto">{html.escape(hit["text"])}</td></tr>'
        for hit in hits
    ]
    head = '<thead><tr><th scope="col">Cosine</th><th scope="col">Text</th></tr></thead>'
    return f'<table class="answer hits">{head}<tbody>{"".join(rows)}</tbody></table>'


def similarity_table(left: Sequence[str], right: Sequence[str], cosines: np.ndarray) -> str:
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


def refusals_as_messages(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator for event handlers: refused input becomes a message on the page."""
    import gradio as gr

    @functools.wraps(function)
    def wrapped(*args: Any) -> Any:
        try:
            return function(*args)
        except Refused as error:
            raise gr.Error(html.escape(str(error)), print_exception=False) from None

    return wrapped


def build(encoder: Encoder, name: str, link: str | None, texts: Path) -> "gr.Blocks":
    """The page. It shows `name`, as a link if `link` is given. It searches `texts` until a user uploads a file."""
    import gradio as gr

    own = read_lines(texts)
    shown = f'<a href="{html.escape(link)}">{html.escape(name)}</a>' if link else html.escape(name)

    @refusals_as_messages
    def search(query: str, hits: int, file: str | None) -> tuple[str, list[dict[str, Any]]]:
        """The lines of a text file nearest to a query, as a table and as data."""
        found = nearest(encoder, check_query(query), read_lines(file) if file else own, int(hits))
        return hits_table(found), found

    @refusals_as_messages
    def compare(left: str, right: str) -> tuple[str, list[list[float]]]:
        """The cosines of every sentence on the left with every one on the right, as a table and as data."""
        rows, columns = check_sentences(left, "the first box"), check_sentences(right, "the second box")
        cosines = similarity(encoder, rows, columns)
        return similarity_table(rows, columns, cosines), cosines.astype(float).round(4).tolist()

    def search_status(file: str | None = None, count: int = len(own)) -> tuple[str | None, str, str]:
        """The file, the note that names the searched file, and an empty table of hits."""
        return file, f'<p class="note">Searching {count:,} texts of {html.escape(Path(file or texts).name)}.</p>', ""

    def upload(file: str) -> tuple[str | None, str, str]:
        """Encode an uploaded file; a refused file is dropped, with a warning on the page."""
        try:
            lines = read_lines(file)
        except Refused as error:
            gr.Warning(html.escape(str(error)))
            return search_status()
        encoder.encode_corpus(lines)
        return search_status(file, len(lines))

    with gr.Blocks(title=f"Sentence embeddings: {name}", analytics_enabled=False, delete_cache=(3600, 86_400)) as page:
        about = f"A larger cosine means a more similar meaning. Model: {shown}"
        gr.HTML(f'<h1>Sentence embeddings</h1><p class="note">{about}</p>')
        with gr.Tab("Semantic search"):
            with gr.Row(equal_height=True):
                query = gr.Textbox(label="Query", placeholder="A few words, then Enter", scale=4, autofocus=True)
                hits = gr.Slider(1, MAX_HITS, 5, step=1, precision=0, label="Results", scale=1, min_width=200)
            button = gr.Button("Search", variant="primary")
            examples = gr.Examples(list(QUERIES), query, label="Examples", api_visibility="private")
            table, data = gr.HTML(), gr.JSON(visible=False)
            note = gr.HTML(search_status()[1])
            with gr.Accordion("Search your own texts", open=False):
                limits = f"UTF-8, one text per line, at most {MAX_LINES:,} lines and {MAX_BYTES // 2**20} MB"
                file = gr.File(label=f".txt: {limits}", file_types=[".txt"], height=140)
            request = {"fn": search, "inputs": [query, hits, file], "outputs": [table, data]}
            gr.on([button.click, query.submit], api_name="search", **request)
            examples.load_input_event.success(api_visibility="private", **request)
            file.upload(upload, file, [file, note, table], api_visibility="private")
            file.clear(search_status, None, [file, note, table], api_visibility="private")
        with gr.Tab("Similarity"):
            box: dict[str, Any] = {"lines": 4, "max_lines": MAX_SENTENCES, "min_width": 300}
            with gr.Row():
                left = gr.Textbox(LEFT, label="First sentences, one per line", **box)
                right = gr.Textbox(RIGHT, label="Second sentences, one per line", **box)
            button = gr.Button("Compare", variant="primary")
            table, data = gr.HTML(), gr.JSON(visible=False)
            gr.HTML('<p class="note">Shift+Enter compares. One sentence in each box gives one number.</p>')
            request = {"fn": compare, "inputs": [left, right], "outputs": [table, data]}
            gr.on([button.click, left.submit, right.submit], api_name="similarity", **request)
    return page.queue(default_concurrency_limit=32, max_size=500)


def launch_options() -> dict[str, Any]:
    """Launch options: no fonts from other hosts, a limit on uploads, no stored queries."""
    import gradio as gr

    fonts, mono = ["system-ui", "sans-serif"], ["ui-monospace", "monospace"]
    theme = gr.themes.Default(primary_hue="indigo", neutral_hue="slate", font=fonts, font_mono=mono)
    return {
        "theme": theme,
        "css_paths": HERE / "style.css",
        "max_file_size": MAX_BYTES,
        "run_history": False,
        "footer_links": ["api", "settings"],
    }


def load_model(model: str, revision: str | None) -> "SentenceTransformer":
    """Load a sentence encoder from a folder or a Hub repository.

    Raises:
        Refused: it is not a sentence encoder, or does not load.
    """
    if not os.path.isdir(model) and (os.path.exists(model) or model.count("/") != 1 or model[0] in "./~"):
        raise Refused(f"MODEL expects a folder or OWNER/NAME on the Hub, found {model}; check the path")
    if os.path.isdir(model) and not os.path.isfile(os.path.join(model, "modules.json")):
        raise Refused(f"MODEL expects a sentence encoder, found no modules.json in {model}; give an exported folder")
    from sentence_transformers import SentenceTransformer
    from transformers.utils import cached_file

    try:
        cached_file(
            model, "modules.json", revision=revision
        )  # without this check, any backbone would pass as a sentence encoder
        encoder = SentenceTransformer(model, revision=revision)
        encoder[0]  # older releases also load an empty list of modules
        return encoder
    except Exception as error:  # many libraries can raise here
        reason = " ".join(str(error).split())[:300]
        raise Refused(f"MODEL expects a sentence encoder, found {model}, which does not load: {reason}") from error


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; environment variables are its defaults."""
    parser = Parser(prog="app.py", description=__doc__, allow_abbrev=False)
    environment = os.environ.get
    parser.add_argument(
        "model", metavar="MODEL", nargs="?", default=environment("MODEL"), help="folder, or OWNER/NAME on the Hub"
    )
    parser.add_argument(
        "--revision", default=environment("MODEL_REVISION") or None, help="branch, tag or commit of the repository"
    )
    parser.add_argument(
        "--texts", metavar="FILE", default=environment("TEXTS") or HERE / "texts.txt", help="text file to search"
    )
    args = parser.parse_args(arguments)
    if not args.model:
        parser.error("expected MODEL, a folder or OWNER/NAME on the Hub, as an argument or a variable, found none")
    return args


def start(arguments: Sequence[str] | None = None) -> "gr.Blocks":
    """The page for the given model and text file, with the texts already encoded.

    Raises:
        Refused: a wrong argument, model or text file.
    """
    args = parse(arguments)
    texts = Path(args.texts)
    if not texts.is_file():
        raise Refused(f"--texts expects a file with one text a line, found none at {texts}; check the path")
    try:
        lines = read_lines(texts)
    except Refused as error:
        raise Refused(f"--texts {texts}: {error}") from None
    encoder = Encoder(load_model(args.model, args.revision))
    encoder.encode_corpus(lines)
    if os.path.isdir(args.model):
        return build(encoder, Path(args.model).resolve().name, None, texts)
    return build(encoder, args.model, f"https://huggingface.co/{args.model}", texts)


def main() -> None:
    """Start the page. A wrong argument prints one line and exits with status 2."""
    try:
        page = start()
    except Refused as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    page.launch(**launch_options())


if __name__ == "__main__":
    main()
