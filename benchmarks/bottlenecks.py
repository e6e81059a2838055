"""Does a bottleneck help retrieval? Contrast of crops alone, after RetroMAE, and beside RetroMAE, at equal time.

    python benchmarks/bottlenecks.py --data_dir DIR --work WORK --tuned_on cacm --collections cisi med --seeds 1 2 3

Every arm starts from the same backbone, trains on the collection's documents, and has the same seconds of CPU, scores
and loading apart. Titles are not used. Each arm has four settings; the one with the better nDCG@10 on the labelled
queries of `--tuned_on` runs on the other collections, with the same seeds in every arm.

The seconds of a step are measured once for each setting. Run it with one thread (OMP_NUM_THREADS=1): it counts the CPU
time of the process, so other jobs on the machine matter little. Finished runs in the record are not made again.
"""

import argparse
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cmlmcse import train
from cmlmcse.common.tables import markdown_table
from cmlmcse.evaluation.beir_data import from_folder
from cmlmcse.evaluation.encoding import EncodeOnce
from cmlmcse.evaluation.retrieval import retrieval
from cmlmcse.models.encoders import load_model_encoder
from cmlmcse.training.dev_set import stsb

RECORD = Path(__file__).parent / "records" / "bottleneck.json"
TOKENS = 128  # all positions of bert-mini-en
PROBE = (5, 25)  # steps of the two runs whose difference gives the seconds of a step
QUIET = {"pooling": "avg", "dev_set": "none", "final_evaluation": "none", "max_seq_length": TOKENS, "warmup_steps": 10,
         "lr_scheduler_type": "constant_with_warmup", "save_strategy": "no", "eval_strategy": "no", "use_cpu": True,
         "logging_steps": 10, "disable_tqdm": True}  # fmt: skip
CROPS = {"recipe": "adapt", "views": "crops", "per_device_train_batch_size": 64, **QUIET}
RETROMAE = {"recipe": "retromae-bert-base", "per_device_train_batch_size": 32, **QUIET}


class Phase(NamedTuple):
    """One training: its share of the arm's time, and the fields that differ from its recipe."""

    share: float
    fields: dict[str, Any]


RATES = (3e-4, 1e-3)  # of the contrast


def crops(share: float, rate: float, **fields: Any) -> Phase:
    """Contrast of crops with a rate."""
    return Phase(share, CROPS | {"learning_rate": rate} | fields)


ARMS: dict[str, dict[str, list[Phase]]] = {
    "crops": {f"rate {rate:g}": [crops(1, rate)] for rate in (1e-4, *RATES, 3e-3)},
    "RetroMAE, then crops": {
        f"rates {own:g}, {rate:g}": [Phase(0.5, RETROMAE | {"learning_rate": own}), crops(0.5, rate)]
        for own in (1e-4, 5e-4) for rate in RATES
    },
    "crops beside RetroMAE": {
        f"rate {rate:g}, weight {weight:g}": [crops(1, rate, retromae_weight=weight)]
        for weight in (0.1, 1) for rate in RATES
    },
}  # fmt: skip


def main() -> None:
    """Tune, run what the record lacks, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", type=Path, required=True, help="holds beir/<name>/ and sts/")
    parser.add_argument("--work", type=Path, required=True, help="folder for scratch files")
    parser.add_argument("--model", default="assets/bert-mini-en")
    parser.add_argument("--tuned_on", required=True, help="collection that chooses the settings")
    parser.add_argument("--collections", nargs="+", required=True, help="collections of the table")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--seconds", type=float, default=180, help="CPU seconds of training of an arm")
    parser.add_argument("--output", type=Path, default=RECORD)
    args = parser.parse_args()
    rows: list[dict[str, Any]] = json.loads(args.output.read_text(encoding="utf-8")) if args.output.exists() else []

    def row(collection: str, arm: str, setting: str, seed: int) -> dict[str, Any]:
        key = {"model": args.model, "collection": collection, "arm": arm, "setting": setting, "seed": seed,
               "seconds": args.seconds}  # fmt: skip
        for done in rows:
            if key.items() <= done.items():
                return done
        rows.append(key | run(args, collection, ARMS[arm].get(setting, []), seed))
        args.output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        print(rows[-1], flush=True)
        return rows[-1]

    chosen = {
        arm: max(settings, key=lambda setting: row(args.tuned_on, arm, setting, args.seeds[0])["ndcg@10"])
        for arm, settings in ARMS.items()
    }
    print(f"chosen on {args.tuned_on}: {chosen}", flush=True)
    found = {name: [row(name, "crops", "untrained", 0)] for name in args.collections}
    for seed in args.seeds:
        for name in args.collections:
            found[name] += [row(name, arm, setting, seed) for arm, setting in chosen.items()]
    print(table(found))


def run(args: argparse.Namespace, collection: str, phases: list[Phase], seed: int) -> dict[str, Any]:
    """Train the phases one after another, and score what comes out."""
    corpus, model, steps = args.data_dir / "beir" / collection / "corpus.jsonl", args.model, []
    for number, phase in enumerate(phases):
        count = max(int(phase.share * args.seconds / seconds_of_step(args, collection, phase.fields)), 1)
        folder = args.work / f"phase{number}"
        train_phase(phase.fields, model, corpus, folder, count, seed)
        model, steps = str(folder / "export"), [*steps, count]
    encoder = load_model_encoder(model, "avg" if not phases else None, TOKENS, show_progress_bar=False)
    encode = EncodeOnce(encoder)
    score = retrieval(encode, {collection: from_folder(corpus.parent)})[collection]["ndcg@10"]
    return {"steps": steps, "ndcg@10": score, "stsb_dev": round(stsb(str(args.data_dir)).score(encode), 2)}


def train_phase(fields: dict[str, Any], model: str, corpus: Path, folder: Path, steps: int, seed: int) -> None:
    """Train one phase in an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    given = {"bf16": False} | {name: value for name, value in fields.items() if name != "recipe"}
    if fields["recipe"] == RETROMAE["recipe"]:
        given |= {"train_data_files": ""}
    train(fields["recipe"], **given, model_name_or_path=model, train_file=corpus, output_dir=folder,
          max_steps=steps, seed=seed)  # fmt: skip


def seconds_of_step(args: argparse.Namespace, collection: str, fields: dict[str, Any]) -> float:
    """CPU seconds of a training step with these fields, measured once for a work folder."""
    kept = args.work / "seconds.json"
    known = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    key = json.dumps([collection, fields], sort_keys=True)
    if key not in known:
        spent = []
        for steps in PROBE:
            start = time.process_time()
            corpus = args.data_dir / "beir" / collection / "corpus.jsonl"
            train_phase(fields, args.model, corpus, args.work / "probe", steps, seed=0)
            spent.append(time.process_time() - start)
        known[key] = (spent[1] - spent[0]) / (PROBE[1] - PROBE[0])
        kept.write_text(json.dumps(known, indent=1), encoding="utf-8")
    return known[key]


def table(found: dict[str, list[dict[str, Any]]]) -> str:
    """Mean nDCG@10 of each arm, and its difference from crops alone, paired by seed."""
    cells = []
    for name, rows in found.items():
        untrained = next(row for row in rows if row["setting"] == "untrained")
        cells.append([name, "untrained", f"{untrained['ndcg@10']:.2f}", "", f"{untrained['stsb_dev']:.2f}"])
        trained = [row for row in rows if row is not untrained]
        base = {row["seed"]: row["ndcg@10"] for row in trained if row["arm"] == "crops"}
        for arm in ARMS:
            own = [row for row in trained if row["arm"] == arm]
            apart = [row["ndcg@10"] - base[row["seed"]] for row in own]
            cells.append([name, arm, f"{np.mean([row['ndcg@10'] for row in own]):.2f}",
                          "" if arm == "crops" else ", ".join(f"{value:+.2f}" for value in apart),
                          f"{np.mean([row['stsb_dev'] for row in own]):.2f}"])  # fmt: skip
    return markdown_table(["collection", "arm", "nDCG@10", "less crops, each seed", "STS-B dev"], cells, texts=2)


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
