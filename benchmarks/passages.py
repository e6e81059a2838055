"""Long articles as passages of a few sentences, each a document: text for a retriever that has not seen its collection.

    python benchmarks/passages.py FILE.xz ... --output passages.txt [--sentences 8] [--each 2] [--seed 0]

FILE.xz holds a sentence a line, in the article's order, with an empty line between articles (LZMA). Of each article
`--each` passages of `--sentences` sentences are drawn; they do not overlap. The passages are shuffled.
"""

import argparse
import lzma
import random
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path


def main() -> None:
    """Write the passages with an empty line between them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.xz")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--sentences", type=int, default=8)
    parser.add_argument("--each", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng, passages = random.Random(args.seed), []
    for article in articles(args.files):
        starts = range(0, len(article) - args.sentences + 1, args.sentences)
        for start in rng.sample(starts, min(args.each, len(starts))):
            passages.append("\n".join(article[start : start + args.sentences]))
    rng.shuffle(passages)
    args.output.write_text("\n\n".join(passages) + "\n", encoding="utf-8")
    print(f"{args.output}: {len(passages)} passages")


def articles(files: Iterable[Path]) -> Iterator[list[str]]:
    """The sentences of one article after the other."""
    for file in files:
        with lzma.open(file, "rt", encoding="utf-8") as lines:
            for filled, sentences in groupby(map(str.strip, lines), key=bool):
                if filled:
                    yield list(sentences)


if __name__ == "__main__":
    main()
