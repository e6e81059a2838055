"""Semantic search and pairwise similarity with sentence encoders: python app.py MODEL [MODEL ...] [--texts FILE].

Several models answer side by side, as the start and what `cmlmcse adapt` made of it. A Space passes no arguments: the
environment variables MODEL, MODEL_REVISION and TEXTS are read instead. There the demo needs no code of the project that
trained the model; on a machine that has cmlmcse, it takes all that `cmlmcse evaluate` takes.
"""

import argparse
import functools
import html
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")

from corpus import (
    MAX_SENTENCES,
    TABLES,
    Corpus,
    Limits,
    Refused,
    check_query,
    check_sentences,
    current_limits,
    on_a_space,
    read_corpus,
)
from encoding import CORPORA, Encoder, check_embeddings, labels, load_encoder, nearest, similarity
from tables import hits_tables, similarity_tables

if TYPE_CHECKING:
    import gradio as gr

HERE = Path(__file__).resolve().parent
MAX_HITS = 20
MAX_MODELS = 4  # side by side on a wide screen
QUERIES = ("people who make music", "travel plans ruined by bad weather", "stars and planets", "keeping food fresh")
LEFT = "A dog runs across the beach.\nThe bank raised its interest rates.\nShe is learning to play the violin."
RIGHT = "A puppy is playing in the sand.\nLoans have become more expensive.\nHe practises the piano every day."
Encoders = Mapping[str, Encoder]
"""The models by the names that the page shows."""


class Parser(argparse.ArgumentParser):
    """An argument parser that prints usage errors as one line."""

    def error(self, message: str) -> NoReturn:
        raise Refused(f"{message}; see {self.prog} --help")


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


class Answers:
    """The page's event handlers. `own` is searched until a user uploads a file."""

    def __init__(self, encoders: Encoders, own: Corpus) -> None:
        self.encoders, self.own = encoders, own
        self.read = functools.lru_cache(maxsize=CORPORA)(read_corpus)  # a file of a million texts takes seconds

    def search(self, query: str, hits: int, file: str | None) -> tuple[str, dict[str, list[dict[str, Any]]]]:
        """The texts of a file nearest to a query, by each model: as a table and as data."""
        asked, corpus = check_query(query), self.read(file) if file else self.own
        found = {name: nearest(encoder, asked, corpus, int(hits)) for name, encoder in self.encoders.items()}
        return hits_tables(found), found

    def compare(self, left: str, right: str) -> tuple[str, dict[str, list[list[float]]]]:
        """The cosines of every sentence on the left with every one on the right, by each model."""
        rows, columns = check_sentences(left, "the first box"), check_sentences(right, "the second box")
        found = {name: similarity(encoder, rows, columns) for name, encoder in self.encoders.items()}
        data = {name: cosines.astype(float).round(4).tolist() for name, cosines in found.items()}
        return similarity_tables(rows, columns, found), data

    def status(self, file: str | None = None, corpus: Corpus | None = None) -> tuple[str | None, str, str]:
        """The file, the note that names the searched file, and an empty table of hits."""
        corpus = corpus or self.own
        note = f'<p class="note">Searching {len(corpus.lines):,} texts of {html.escape(corpus.name)}.</p>'
        return file, note, ""

    def upload(self, file: str) -> tuple[str | None, str, str]:
        """Encode an uploaded file; a refused file is dropped, with a warning on the page."""
        import gradio as gr

        try:
            corpus = self.read(file)
            check_embeddings(self.encoders, corpus)
        except Refused as error:
            gr.Warning(html.escape(str(error)))
            return self.status()
        for encoder in self.encoders.values():
            encoder.encode_corpus(corpus)
        return self.status(file, corpus)

    def clear(self) -> tuple[str | None, str, str]:
        """Back to the texts that the page started with."""
        return self.status()


def build(encoders: Encoders, links: Mapping[str, str], own: Corpus) -> "gr.Blocks":
    """The page. It names the models, as links where `links` has an address."""
    import gradio as gr

    answers = Answers(encoders, own)
    names = ", ".join(
        f'<a href="{html.escape(links[name])}">{html.escape(name)}</a>' if name in links else html.escape(name)
        for name in encoders
    )
    title = f"Sentence embeddings: {', '.join(encoders)}"
    with gr.Blocks(title=title, analytics_enabled=False, delete_cache=(3600, 86_400)) as page:
        models = "Model" if len(encoders) == 1 else "Models"
        about = f"A larger cosine means a more similar meaning. {models}: {names}"
        gr.HTML(f'<h1>Sentence embeddings</h1><p class="note">{about}</p>')
        with gr.Tab("Semantic search"):
            search_tab(answers)
        with gr.Tab("Similarity"):
            similarity_tab(answers)
    return page.queue(default_concurrency_limit=32, max_size=500)


def search_tab(answers: Answers) -> None:
    """The tab that finds the nearest texts."""
    import gradio as gr

    with gr.Row(equal_height=True):
        query = gr.Textbox(label="Query", placeholder="A few words, then Enter", scale=4, autofocus=True)
        hits = gr.Slider(1, MAX_HITS, 5, step=1, precision=0, label="Results", scale=1, min_width=200)
    button = gr.Button("Search", variant="primary")
    examples = gr.Examples(list(QUERIES), query, label="Examples", api_visibility="private")
    table, data = gr.HTML(), gr.JSON(visible=False)
    note = gr.HTML(answers.status()[1])
    with gr.Accordion("Search your own texts", open=False):
        kinds = [".txt"] if on_a_space() else [".txt", *TABLES]
        gr.HTML(f'<p class="note">{upload_note()}</p>')  # a label of this length would cover the box on a phone
        file = gr.File(label="File", file_types=kinds, height=160)
    request = {"fn": refusals_as_messages(answers.search), "inputs": [query, hits, file], "outputs": [table, data]}
    gr.on([button.click, query.submit], api_name="search", **request)
    examples.load_input_event.success(api_visibility="private", **request)
    file.upload(answers.upload, file, [file, note, table], api_visibility="private")
    file.clear(answers.clear, None, [file, note, table], api_visibility="private")


def upload_note() -> str:
    """What an uploaded file may be, as HTML."""
    limits = current_limits()
    if limits.lines is None or limits.size is None:
        return (
            f"<code>.txt</code>: one text a line. {', '.join(f'<code>{kind}</code>' for kind in TABLES)}: a column "
            "<code>text</code>. The file of <code>cmlmcse encode</code> is searched with its embeddings."
        )
    return f"A .txt file in UTF-8, one text a line, at most {limits.lines:,} lines and {limits.size // 2**20} MB."


def similarity_tab(answers: Answers) -> None:
    """The tab that compares sentences."""
    import gradio as gr

    box: dict[str, Any] = {"lines": 4, "max_lines": MAX_SENTENCES, "min_width": 300}
    with gr.Row():
        left = gr.Textbox(LEFT, label="First sentences, one per line", **box)
        right = gr.Textbox(RIGHT, label="Second sentences, one per line", **box)
    button = gr.Button("Compare", variant="primary")
    table, data = gr.HTML(), gr.JSON(visible=False)
    gr.HTML('<p class="note">Shift+Enter compares. One sentence in each box gives one number.</p>')
    request = {"fn": refusals_as_messages(answers.compare), "inputs": [left, right], "outputs": [table, data]}
    gr.on([button.click, left.submit, right.submit], api_name="similarity", **request)


def launch_options() -> dict[str, Any]:
    """Launch options: no fonts from other hosts, a limit on uploads, no stored queries."""
    import gradio as gr

    fonts, mono = ["system-ui", "sans-serif"], ["ui-monospace", "monospace"]
    theme = gr.themes.Default(primary_hue="indigo", neutral_hue="slate", font=fonts, font_mono=mono)
    return {
        "theme": theme,
        "css_paths": HERE / "style.css",
        "max_file_size": current_limits().size,
        "run_history": False,
        "footer_links": ["api", "settings"],
    }


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; environment variables are its defaults."""
    parser = Parser(prog="app.py", description=__doc__, allow_abbrev=False)
    environment = os.environ.get
    parser.add_argument(
        "models", metavar="MODEL", nargs="*", help="what `cmlmcse evaluate` takes: a run, an export, a checkpoint, "
        "OWNER/NAME on the Hub, …; several stand side by side"
    )  # fmt: skip
    parser.add_argument(
        "--revision", default=environment("MODEL_REVISION") or None, help="branch, tag or commit of the repository"
    )
    parser.add_argument("--pooling", metavar="NAME", help="pooling for models that record none: avg, …")
    parser.add_argument(
        "--texts", metavar="FILE", default=environment("TEXTS") or HERE / "texts.txt",
        help="what to search: one text a line, a table with a column of texts, or an encoded .parquet"
    )  # fmt: skip
    parser.add_argument(
        "--text_column", metavar="NAME", help="column of the texts in a table (default: text, or the only one)"
    )
    args = parser.parse_intermixed_args(arguments)
    args.models = args.models or [name for name in [environment("MODEL")] if name]
    if not args.models:
        parser.error("expected MODEL, a folder or OWNER/NAME on the Hub, as an argument or a variable, found none")
    if len(args.models) > MAX_MODELS:
        parser.error(f"expected at most {MAX_MODELS} models side by side, found {len(args.models)}")
    return args


def start(arguments: Sequence[str] | None = None) -> "gr.Blocks":
    """The page for the given models and texts, with the texts already encoded.

    Raises:
        Refused: a wrong argument, model or text file.
    """
    args = parse(arguments)
    texts = Path(args.texts)
    if not texts.is_file():
        raise Refused(f"--texts expects a file with one text a line, found none at {texts}; check the path")
    names = labels(args.models)
    loaded = [load_encoder(model, args.revision, args.pooling) for model in args.models]
    encoders = {name: Encoder(model, name) for name, model in zip(names, loaded, strict=True)}
    try:
        own = read_corpus(texts, Limits(), args.text_column)  # its owner waits for it, once
        check_embeddings(encoders, own)
    except Refused as error:
        raise Refused(f"--texts {texts}: {error}") from None
    for encoder in encoders.values():
        encoder.encode_corpus(own)
    local = [os.path.exists(model) or ":" in model for model in args.models]
    links = {name: f"https://huggingface.co/{name}" for name, here in zip(names, local, strict=True) if not here}
    return build(encoders, links, own)


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
