"""Adapt models to the collections of a data folder, each to its own text, and record the labelled scores.

    python benchmarks/adapting.py --data_dir DIR --work WORK --models MODEL … --collections cisi med --seeds 42 43

Every (seed, model, collection) is one `cmlmcse adapt`; a finished one in WORK is only read, so an interrupted call goes
on. The queries and their judgements give the labelled scores alone: no choice reads them. STS-B's development set says
what similarity loses or gains; --figure draws it against the search, a run a dot.
"""

import argparse
import json
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from cmlmcse import adapt, evaluate
from cmlmcse.adaptation.command import Adapted
from cmlmcse.adaptation.recipe_fields import PLAIN_POOLING
from cmlmcse.common.tables import markdown_table
from cmlmcse.models.folders import recorded_pooling

RECORD = Path(__file__).parent / "records" / "adapting.json"


def main() -> None:
    """Adapt, then write the record and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", type=Path, required=True, help="holds beir/<name>/corpus.jsonl and so on")
    parser.add_argument("--work", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--models", nargs="+", required=True)
    parser.add_argument("--collections", nargs="+", required=True)
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--seeds", nargs="+", type=int, default=[42], help="of the split and of training")
    parser.add_argument("--output", type=Path, default=RECORD)
    parser.add_argument("--figure", type=Path, help="draw STS-B against nDCG@10 there, as a .png")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    similarity = cache(partial(similarity_of, data_dir=args.data_dir))
    for seed, model in product(args.seeds, args.models):
        for name in args.collections:
            folder, results = adapt_one(model, name, args.data_dir, args.work, args.minutes, seed)
            kept = results["adapt"]["chosen"] == "start"
            sides = {"before": similarity(model), "after": similarity(model if kept else str(folder / "export"))}
            rows.append(summary(model, name, seed, args.minutes, results, folder) | {"similarity": sides})
            args.output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(table(rows))
    if args.figure:
        draw(rows, args.figure)


def adapt_one(model: str, name: str, data_dir: Path, work: Path, minutes: float, seed: int) -> Adapted:
    """Adapt a model to a collection, and score start and result on its queries."""
    labelled = work / "labelled" / name
    (labelled / "beir").mkdir(parents=True, exist_ok=True)
    link = labelled / "beir" / name
    if not link.exists():
        link.symlink_to((data_dir / "beir" / name).resolve())
    short = Path(model).name if ":" not in model else model.split(":")[1].split("/")[0]
    folder = work / f"{short}-{name}-{seed}"
    text = data_dir / "beir" / name / "corpus.jsonl"
    fields = {"seed": seed, "resume_from_checkpoint": "auto"}
    return adapt(model, text, folder, minutes=minutes, data_dir=labelled, **fields)


def similarity_of(model: str, data_dir: Path) -> dict[str, float]:
    """STS-B dev's Spearman × 100, alignment and uniformity of a model, or of a plain backbone as adapt pools it."""
    plain = None if recorded_pooling(model)[0] else PLAIN_POOLING
    found = evaluate(model, ["stsb_dev", "geometry"], data_dir, plain)
    geometry = {name: found["geometry"][name] for name in ("alignment", "uniformity", "anisotropy", "effective_rank")}
    return {"stsb_dev": found["stsb_dev"]["spearman"], **geometry}


def summary(model: str, name: str, seed: int, minutes: float, results: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What the record keeps of one result, without the path of its folder."""
    retrieval = results["labelled"]["retrieval"]
    found = {side: retrieval[side]["retrieval"][name] for side in ("before", "after")}
    scores = {side: each["ndcg@10"] for side, each in found.items()}
    both = {side: each["hybrid"]["ndcg@10"] for side, each in found.items()}
    choice = {name: value for name, value in results["adapt"].items() if name != "settings"}  # which name local files
    choice = json.loads(json.dumps(choice).replace(f"{folder}/", ""))  # of the encoder that a last arm starts from
    return {"model": model, "collection": name, "seed": seed, "minutes": minutes, "seconds": results["seconds"],
            "ndcg@10": scores, "with_bm25": both, "text": results["text"], "adapt": choice}  # fmt: skip


def table(rows: list[dict[str, Any]]) -> str:
    """One line for each model, collection and seed."""
    cells = []
    for row in rows:
        before, after = (row["ndcg@10"][side] for side in ("before", "after"))
        found = row["adapt"]
        low, high = found["interval"]
        cells.append([row["model"], row["collection"], str(row["seed"]), f"{before:.2f}", f"{after:.2f}",
                      f"{after - before:+.2f}", f"{found['before']:.2f}", f"{found['best_candidate']:.2f}",
                      f"{low:+.2f} to {high:+.2f}", found["chosen"]])  # fmt: skip
    heads = [
        "model",
        "collection",
        "seed",
        "nDCG@10 before",
        "after",
        "change",
        "criterion before",
        "after",
        "interval",
        "chosen",
    ]
    return markdown_table(heads, cells, texts=2)


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Similarity against search: a run a dot, and a ring for each start."""
    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for colour, name in enumerate(sorted({row["collection"] for row in rows})):
        chosen = [row for row in rows if row["collection"] == name]
        for side, style in (("before", {"facecolors": "none"}), ("after", {"label": name})):
            points = {(row["similarity"][side]["stsb_dev"], row["ndcg@10"][side]) for row in chosen}
            axes.scatter(*zip(*sorted(points), strict=True), edgecolors=f"C{colour}", **{"color": f"C{colour}"} | style)
    models = ", ".join(sorted({Path(row["model"]).name for row in rows}))
    title = f"{models}: before (ring) and after {rows[0]['minutes']:g} minutes of adapt (dot)"
    axes.set(xlabel="STS-B dev, Spearman × 100", ylabel="nDCG@10 × 100", title=title)
    axes.legend(title="text")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
