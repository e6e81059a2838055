"""Does a label-free criterion rank checkpoints as labelled queries do?

    python benchmarks/criteria.py --data_dir DIR --work WORK --collections med cisi cacm

For each collection, some settings of training, of which some get worse, with a checkpoint every few steps. Each
checkpoint gets every criterion on held-out documents, and nDCG@10 on the collection's labelled queries. The record
holds all scores; the table says how well each criterion ranks the checkpoints of a run, and of all runs of a
collection.
Finished runs and scored checkpoints in WORK are only read, so an interrupted call goes on.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from scipy.stats import spearmanr

from cmlmcse import train
from cmlmcse.common.tables import markdown_table
from cmlmcse.data.collection import hold_out, load_collection
from cmlmcse.evaluation.beir_data import from_folder
from cmlmcse.evaluation.geometry import spectrum, uniformity
from cmlmcse.evaluation.label_free import CRITERIA, Criterion, build_criterion
from cmlmcse.evaluation.retrieval import retrieval, unit
from cmlmcse.evaluation.sts import EncodeOnce
from cmlmcse.models.encoders import load_model_encoder

RECORD = Path(__file__).with_name("criteria.json")
SEED = 42
STEPS, EVERY = 60, 10
SETTINGS: dict[str, dict[str, Any]] = {
    "crops, 3e-4": {"views": "crops", "learning_rate": 3e-4},
    "title_body+crops, 3e-4": {"views": "title_body+crops", "learning_rate": 3e-4},
    "dropout, 3e-4": {"views": "dropout", "learning_rate": 3e-4},
    "crops, 3e-3, too fast": {"views": "crops", "learning_rate": 3e-3},
    "dropout, 3e-3, too fast": {"views": "dropout", "learning_rate": 3e-3},
}
LOWER_IS_BETTER = ("alignment", "uniformity", "training loss")
MEASURES = (*CRITERIA, "effective rank", *LOWER_IS_BETTER)
LABEL = "nDCG@10"


def main() -> None:
    """Train, score, write the record and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", type=Path, required=True, help="holds beir/<name>/corpus.jsonl and so on")
    parser.add_argument("--work", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--model", default="assets/bert-mini-en")
    parser.add_argument("--collections", nargs="+", required=True)
    parser.add_argument("--output", type=Path, default=RECORD)
    args = parser.parse_args()
    datasets.disable_progress_bars()
    rows: list[dict[str, Any]] = []
    for name in args.collections:
        folder = args.data_dir / "beir" / name
        criteria = criteria_of(folder)
        for setting, fields in SETTINGS.items():
            run = args.work / f"{name}-{''.join(filter(str.isalnum, setting))}"
            if not (run / "results.json").exists():
                train_one(args.model, folder, run, fields)
            rows += score_run(run, folder, criteria, {"collection": name, "setting": setting})
            args.output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
            print(f"{name}, {setting}: {[row[LABEL] for row in rows[-1 - STEPS // EVERY :]]}", flush=True)
    print(table(rows))


def criteria_of(folder: Path) -> dict[str, Criterion]:
    """Every criterion that the collection's text gives."""
    rest, held_out = hold_out(load_collection(str(folder / "corpus.jsonl")), SEED)
    built = {name: build_criterion(name, held_out, rest, SEED) for name in CRITERIA}
    return {name: criterion for name, criterion in built.items() if criterion is not None}


def train_one(model: str, folder: Path, run: Path, fields: dict[str, Any]) -> None:
    """One run, which keeps every checkpoint and trains on the documents that are not held out."""
    train(
        "adapt",
        **{"bf16": False, **fields},
        model_name_or_path=model,
        train_file=folder / "corpus.jsonl",
        dev_set="auto",
        output_dir=run,
        max_steps=STEPS,
        eval_steps=EVERY,
        save_steps=EVERY,
        logging_steps=EVERY,
        save_total_limit=STEPS,
        per_device_train_batch_size=32,
        max_seq_length=64,
        seed=SEED,
        disable_tqdm=True,
        resume_from_checkpoint="auto" if any(run.glob("checkpoint-*")) else None,
    )


def score_run(run: Path, folder: Path, criteria: dict[str, Criterion], facts: dict[str, Any]) -> list[dict[str, Any]]:
    """One row for the start and for each checkpoint of a run."""
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    losses = {row["step"]: row["loss"] for row in record["log"] if "loss" in row}
    start = record["fields"]["model_name_or_path"]
    rows = []
    for step in range(0, STEPS + 1, EVERY):
        kept = run / f"scores-{step}.json"
        found = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
        missing = {name: criterion for name, criterion in criteria.items() if name not in found}
        if missing:
            encoder = EncodeOnce(
                load_model_encoder(str(run / f"checkpoint-{step}") if step else start, "avg", show_progress_bar=False)
            )
            found |= {name: round(criterion.score(encoder), 4) for name, criterion in missing.items()}
            found |= {} if LABEL in found else vectors_and_label(encoder, folder, criteria["halves"])
            kept.write_text(json.dumps(found), encoding="utf-8")
        loss = {"training loss": losses[step]} if step else {}
        rows.append({**facts, "step": step, **found, **loss})
    return rows


def vectors_and_label(encode: EncodeOnce, folder: Path, pieces: Criterion) -> dict[str, float]:
    """What the vectors of queries and passages look like, and the labelled score."""
    passages = unit(encode(pieces.candidates))
    apart = unit(encode(pieces.queries)) - passages[pieces.answers]
    found = {"alignment": float(np.square(apart).sum(axis=1).mean())}
    found["uniformity"] = uniformity(passages)
    found["effective rank"] = spectrum(passages)["effective_rank"]
    found[LABEL] = retrieval(encode, {folder.name: from_folder(folder)})[folder.name]["ndcg@10"]
    return {name: round(float(value), 4) for name, value in found.items()}


def table(rows: list[dict[str, Any]]) -> str:
    """One line for each measure. The start, which all runs share, is left out."""
    rows = [row for row in rows if row["step"]]
    collections = list(dict.fromkeys(row["collection"] for row in rows))
    runs = list(dict.fromkeys((row["collection"], row["setting"]) for row in rows))
    groups = [[row for row in rows if (row["collection"], row["setting"]) == run] for run in runs]
    everything = [[row for row in rows if row["collection"] == name] for name in collections]
    cells = []
    for measure in MEASURES:
        within = [agreement(group, measure) for group in groups]
        between = [agreement(group, measure) for group in everything]
        lost = [regret(group, measure) for group in groups]
        chosen = [regret(group, measure) for group in everything]
        cells.append([measure, mean(within), mean(between), mean(lost), mean(chosen)])
    heads = ["measure", "ρ within a run", "ρ over a collection's runs", "points lost within a run", "over all runs"]
    return markdown_table(heads, cells)


def values(group: list[dict[str, Any]], measure: str) -> tuple[list[float], list[float]]:
    """The measure, higher is better, and the labelled score, of the rows that have both."""
    both = [row for row in group if measure in row]
    sign = -1 if measure in LOWER_IS_BETTER else 1
    return [sign * row[measure] for row in both], [row[LABEL] for row in both]


def agreement(group: list[dict[str, Any]], measure: str) -> float | None:
    """Spearman's correlation of the measure with the labelled score; None where it is not defined."""
    found, labels = values(group, measure)
    return float(spearmanr(found, labels).statistic) if len(set(found)) > 1 and len(set(labels)) > 1 else None


def regret(group: list[dict[str, Any]], measure: str) -> float | None:
    """The best labelled score less that of the row that the measure prefers."""
    found, labels = values(group, measure)
    return max(row[LABEL] for row in group) - labels[int(np.argmax(found))] if found else None


def mean(found: list[float | None]) -> str:
    """The mean of what is defined."""
    defined = [value for value in found if value is not None]
    return f"{np.mean(defined):.2f}" if defined else "–"


if __name__ == "__main__":
    main()
