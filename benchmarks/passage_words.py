"""How many words should a passage have? `cmlmcse search` cuts the files of a folder into passages of at most 80 words.

    python benchmarks/passage_words.py --data_dir DIR --models assets/encoder-mini-en MINILM --collections time scifact

Each document is cut as a file of that folder would be, its title before every passage. A document's score is that of
its best passage. nDCG@10 on the labelled queries by cosine, by BM25, and by both; BM25 of the passages alone, and with
that of the files that they are from, as `search --bm25` has it in a folder. "whole" is one passage a document, which
the model reads to its limit. Nothing is trained.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from cmlmcse.common.tables import markdown_table
from cmlmcse.data import folder
from cmlmcse.evaluation.beir_data import RetrievalSet, from_folder
from cmlmcse.evaluation.bm25 import BM25, WEIGHT, WEIGHT_FOR_WEAK, BM25OfFiles, BM25Shares
from cmlmcse.evaluation.encoding import EncodeOnce
from cmlmcse.evaluation.retrieval import BLOCK, DEPTH, by_query, encode_blocks, exact_unit, means
from cmlmcse.models.encoders import load_model_encoder

RECORD = Path(__file__).parent / "records" / "passage-words.json"
WHOLE = 1_000_000  # words: more than any document has


def main() -> None:
    """Score every model, collection and length, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", type=Path, required=True, help="holds beir/<name>/corpus.jsonl and so on")
    parser.add_argument("--models", nargs="+", required=True, help="finished encoders")
    parser.add_argument("--collections", nargs="+", required=True)
    parser.add_argument("--words", nargs="+", type=int, default=[40, 60, 80, 120, 160, WHOLE], help="in a passage")
    parser.add_argument("--output", type=Path, default=RECORD)
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for model in args.models:
        encode = EncodeOnce.of(load_model_encoder(model, show_progress_bar=False))
        for name in args.collections:
            dataset = from_folder(args.data_dir / "beir" / name)
            for words in args.words:
                found = {"words": words if words < WHOLE else "whole", **score(encode, dataset, words)}
                rows.append({"model": model, "collection": name, **found})
                args.output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    heads = list(rows[0])
    cells = [[f"{value:.2f}" if isinstance(value, float) else str(value) for value in row.values()] for row in rows]
    print(markdown_table(heads, cells, texts=3))


def score(encode: EncodeOnce, dataset: RetrievalSet, words: int) -> dict[str, float]:
    """The number of passages, and nDCG@10 × 100 by cosine, by cosine and BM25 with both weights, and by BM25."""
    rows, owners = cut(dataset, words)  # P (file, title, text), (P,)
    passages = [f"{title} {text}".strip() for _, title, text in rows]
    names = list(dataset.qrels)
    asked = [dataset.queries[name] for name in names]
    queries = exact_unit(encode(asked))  # (Q, H)
    cosines = np.concatenate([queries @ block.T for block in encode_blocks(encode, passages, BLOCK)], axis=1)  # (Q, P)
    kinds = {"cosine": cosines}
    for by_file, name in ((False, "BM25"), (True, "BM25 with files")):
        index = BM25OfFiles(rows, asked) if by_file else BM25(passages, asked)
        shares = BM25Shares(index, asked)(slice(None))  # (Q, P)
        both = {f"cosine and {weight:g} {name}": cosines + weight * shares for weight in (WEIGHT, WEIGHT_FOR_WEAK)}
        kinds |= {name: shares, **both}
    ids = list(dataset.passages)
    found = {kind: ndcg(dataset, names, ids, best_of(scores, owners)) for kind, scores in kinds.items()}
    return {"passages": len(passages), **found}


def cut(dataset: RetrievalSet, words: int) -> tuple[list[tuple[str, str, str]], np.ndarray]:
    """All passages, each with its document's id and title, and the place of each one's document."""
    folder.PASSAGE_WORDS = words
    rows: list[tuple[str, str, str]] = []
    owners: list[int] = []
    for place, (_, row) in enumerate(dataset.rows()):
        pieces = folder.cut_text(row.get("text") or "")
        rows += [(row["_id"], row.get("title") or "", piece) for piece in pieces]
        owners += [place] * len(pieces)
    return rows, np.array(owners)


def best_of(scores: np.ndarray, owners: np.ndarray) -> np.ndarray:
    """(Q, P) scores of passages → (Q, C), of each document's best passage. Each document's passages are neighbours."""
    starts = np.flatnonzero(np.diff(owners, prepend=-1))
    return np.maximum.reduceat(scores, starts, axis=1)


def ndcg(dataset: RetrievalSet, names: list[str], ids: list[str], scores: np.ndarray) -> float:
    """nDCG@10 × 100 of the documents' scores (Q, C); a query does not find the document of its own id."""
    run = {}
    for name, row in zip(names, scores, strict=True):
        best = [place for place in np.argsort(-row, kind="stable")[: DEPTH + 1] if ids[place] != name][:DEPTH]
        run[name] = {ids[place]: float(row[place]) for place in best}
    return means(by_query(dataset.qrels, run))["ndcg@10"]


if __name__ == "__main__":
    main()
