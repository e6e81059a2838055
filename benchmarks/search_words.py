"""Which words should BM25 compare, and with which weight beside a cosine? What data/search_words.py does, and why.

    python benchmarks/search_words.py --data_dir DIR --model MINILM --collections cacm cisi med npl scifact

nDCG@10 on the labelled queries by BM25, and by the cosine and each weight of BM25: with whole words, without the words
of every question, with words of 5, 6 or 7 letters, and with Porter's stemmer of English (version 2, of the package
snowballstemmer, if it is installed). Nothing is trained.
"""

import argparse
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from hybrids import encoded, score

from cmlmcse.common.tables import markdown_table
from cmlmcse.data.search_words import SearchWords, stem
from cmlmcse.models.encoders import load_model_encoder

RECORD = Path(__file__).parent / "records" / "search-words.json"
VARIANTS = {
    "whole words": SearchWords(lambda word: word, frozenset()),
    "whole words, no function words": SearchWords(lambda word: word),
    "6 letters with a final s": SearchWords(lambda word: word[:6] if word.isalpha() else word),
    "5 letters": SearchWords(lambda word: stem(word, 5)),
    "6 letters": SearchWords(),
    "7 letters": SearchWords(lambda word: stem(word, 7)),
}


def main() -> None:
    """Score every collection with all variants, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", type=Path, required=True, help="holds beir/<name>/corpus.jsonl and so on")
    parser.add_argument("--model", required=True, help="a finished encoder")
    parser.add_argument("--collections", nargs="+", required=True, help="of at most 30,000 passages")
    parser.add_argument("--weights", nargs="+", type=float, default=[0.2, 0.3, 0.4], help="of BM25 beside the cosine")
    parser.add_argument("--output", type=Path, default=RECORD)
    args = parser.parse_args()
    variants = VARIANTS
    if find_spec("snowballstemmer"):
        import snowballstemmer

        variants = VARIANTS | {"Porter's stemmer": SearchWords(snowballstemmer.stemmer("english").stemWord)}
    encoder = load_model_encoder(args.model)
    rows: list[dict[str, Any]] = []
    for name in args.collections:
        found = encoded(encoder, args.data_dir / "beir" / name)
        for title, words in variants.items():
            scores = score(found, args.weights, words)
            rows.append({"model": args.model, "collection": name, "words": title, **scores})
        args.output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    heads = list(rows[0])[3:]
    means = [[name, *(f"{np.mean([row[head] for row in rows if row['words'] == name]):.2f}" for head in heads)]
             for name in variants]  # fmt: skip
    print(markdown_table(["mean of the collections", *heads], means, texts=1))


if __name__ == "__main__":
    main()
