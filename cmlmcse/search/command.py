"""The command `cmlmcse search MODEL CORPUS QUERY`: the texts of a file or a folder that are nearest to a query.

The search is exact: each query is compared with every text. The corpus is read as a stream, so memory grows by 8 bytes
a text only, which tell its copies. With --bm25 the texts are read once more before, to index the words of the queries.
"""

import argparse
import json
import math
import os
import sys
import unicodedata
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cmlmcse.common.arguments import Parser
from cmlmcse.common.command import command
from cmlmcse.common.errors import InputError
from cmlmcse.common.files import check_writable, write_asked
from cmlmcse.common.run_files import RESULTS

if TYPE_CHECKING:
    from .corpus import Columns, Corpus
    from .nearest import Nearest, Shares

STDIN = "-"
SHOWN_CHARACTERS = 200  # of a text on the screen
NEAR_CHARACTERS = 80  # so long may the rest of a sentence be that is left out at the start of a passage


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Parse the command line.

    Raises:
        InputError: an argument is invalid.
    """
    from cmlmcse.common.options import add_encoder_options, add_model, positive
    from cmlmcse.data.options import add_text_options
    from cmlmcse.evaluation.bm25 import WEIGHT, WEIGHT_FOR_WEAK

    parser = Parser(
        prog="cmlmcse search",
        description="Find the texts of a file that are nearest to a query, by the cosine of their embeddings, or by "
        "the cosine and their words.",
        allow_abbrev=False,
    )
    add_model(parser)
    parser.add_argument("corpus", metavar="CORPUS", type=Path, help="a .parquet that `cmlmcse encode` wrote; or "
                        "texts, which are encoded first: .csv, .tsv, .jsonl, .parquet, a text per line, or a folder of "
                        ".txt and .md files, which are cut into passages")  # fmt: skip
    parser.add_argument("query", metavar="QUERY", help="a text; - reads queries from standard input, one per line")
    parser.add_argument("--top_k", type=positive, default=10, metavar="K", help="texts shown per query, each "
                        "once (default: 10)")  # fmt: skip
    parser.add_argument("--bm25", type=bm25_weight, nargs="?", const=0.0, metavar="WEIGHT", help="search by "
                        "words too: the score is the cosine + WEIGHT x BM25, divided by the query's best BM25. Without "
                        f"a number WEIGHT is {WEIGHT}, or {WEIGHT_FOR_WEAK} where MODEL is a folder of adapt whose "
                        "report says that BM25 alone finds more. Give "
                        f"{WEIGHT_FOR_WEAK} to any other model that finds less than BM25. Put it behind "
                        "QUERY")  # fmt: skip
    add_text_options(
        parser,
        titles="those of a folder, and those that the .parquet was encoded with",
        passages="; a result then names the row of its text, from 0",
    )
    parser.add_argument("--output", type=Path, metavar="FILE.jsonl", help="write the K nearest rows here, copies too, "
                        "a line per query: rank, row (from 0), score, with --bm25 its parts, and all "
                        "columns")  # fmt: skip
    add_encoder_options(parser)
    args, others = parser.parse_known_args(argv)
    if others and not any(word.startswith("-") for word in others):
        parser.error(f"QUERY must be one word of the command line, found {1 + len(others)}; put quotes round it")
    if others:
        parser.error(f"unrecognized arguments: {' '.join(others)}")
    if not os.path.exists(args.corpus) and os.path.exists(args.query):
        parser.error(
            f"expected MODEL CORPUS QUERY in this order, found no file or folder {args.corpus}, but one called "
            f"{args.query} in the place of QUERY; change their order"
        )
    if args.output is not None and args.output.exists():
        parser.error(f"--output {args.output}: exists; choose another name")
    if args.output is not None and not args.output.parent.is_dir():
        parser.error(f"--output {args.output}: expected the folder {args.output.parent} to exist, found none")
    if args.output is not None:
        check_writable(args.output, "--output")
    return args


def bm25_weight(text: str) -> float:
    """The weight of --bm25. Another word behind it is the query."""
    from cmlmcse.common.options import as_number, positive_number

    if math.isnan(as_number(text)):
        raise argparse.ArgumentTypeError(f"expected a number above 0, found {text!r}; put --bm25 behind QUERY")
    return positive_number(text)


@command
def main(argv: list[str] | None = None) -> None:
    """Search, print the nearest texts, and write them to --output if it is given."""
    args = parse(argv)
    queries = read_queries(args.query)
    from .corpus import open_corpus

    corpus = open_corpus(args)
    from cmlmcse.evaluation.encoding import encode_as
    from cmlmcse.models.encoders import load_model_encoder
    from modeling_cmlmcse.prompts import QUERY

    from .nearest import nearest_rows

    limits = (args.max_seq_length, args.batch_size, args.device)
    encoder = load_model_encoder(args.model, args.pooling, *limits, show_progress_bar=False)
    corpus.check(args.model, encoder)
    shares, weight = None, 0.0
    if args.bm25 is not None:
        shares, weight = bm25_shares(corpus, queries), args.bm25 or default_weight(args.model)
    found = nearest_rows(encode_as(encoder, QUERY, queries), corpus.blocks(encoder), args.top_k, shares, weight)
    if not any(nearest.rows for nearest in found):
        raise InputError(f"{args.corpus}: expected texts to search, found no row; choose another file")
    show_results(queries, found, corpus.columns)
    if args.output is not None:
        write_results(args.output, queries, found)


def bm25_shares(corpus: "Corpus", queries: list[str]) -> "Shares":
    """The BM25 shares of the rows of a corpus. If the rows are passages of files, the words of the whole file count."""
    from cmlmcse.evaluation.bm25 import BM25, BM25OfFiles, BM25Shares

    if corpus.columns.file:
        return BM25Shares(BM25OfFiles(corpus.rows(), queries), queries)
    return BM25Shares(BM25((f"{title} {text}" for _, title, text in corpus.rows()), queries), queries)


def default_weight(model: str) -> float:
    """The weight of BM25 for a model: that of a weak one where a folder of adapt says that BM25 alone finds more."""
    from cmlmcse.evaluation.bm25 import WEIGHT, WEIGHT_FOR_WEAK

    try:
        found = json.loads((Path(model) / RESULTS).read_text(encoding="utf-8"))["adapt"]
        weak = found["bm25"] > found["after"]
    except (OSError, ValueError, KeyError, TypeError):  # it is no such folder
        return WEIGHT
    if not weak:
        return WEIGHT
    print(
        f"{model}: adapt found that BM25 alone finds more than this model, so BM25 has the weight {WEIGHT_FOR_WEAK}; "
        "--bm25 WEIGHT sets another",
        file=sys.stderr,
    )
    return WEIGHT_FOR_WEAK


def standard_input() -> list[str]:
    """The lines of standard input, as UTF-8 with or without a byte-order mark."""
    return sys.stdin.buffer.read().decode("utf-8-sig").split("\n")


def read_queries(given: str) -> list[str]:
    """The query of the command line, or the non-blank lines of standard input.

    Raises:
        InputError: there is no text.
    """
    try:
        queries = [line.strip() for line in standard_input()] if given == STDIN else [given.strip()]
        for query in queries:
            query.encode()  # a byte that is not UTF-8 came as half a character
    except UnicodeError as error:
        raise InputError(f"QUERY must be UTF-8 text, found something else ({error}); convert it") from error
    queries = [query for query in queries if query]
    if not queries:
        raise InputError(
            f"QUERY must be a text, found {'no line on standard input' if given == STDIN else repr(given)}"
        )
    return queries


def show_results(queries: list[str], found: "list[Nearest]", columns: "Columns") -> None:
    """Print of each text the score, the row, or the file or document that a passage is from, how many more rows have
    it, and the start of "title | text"; below its query if there are several."""
    for query, nearest in zip(queries, found, strict=True):
        if len(queries) > 1:
            print(query)
        for result in nearest.texts:
            named = [name for name in (columns.title, columns.text) if name]
            texts = [" ".join(str(result["columns"].get(name) or "").split()) for name in named]
            if columns.file:  # the text is a passage of a longer one
                texts[-1] = from_a_sentence(texts[-1])
            shown = without_controls(" | ".join(filter(None, texts)))[:SHOWN_CHARACTERS]
            row, name = f"row {result['row']}", result["columns"][columns.file] if columns.file else None
            source = row if name is None else printable(name if isinstance(name, str) else f"document {name}")
            more = f" (and {result['copies']} more)" if result["copies"] else ""
            line = "  ".join(dict.fromkeys((f"{result['score']:.4f}", f"{source}{more}", shown or row)))
            print(f"{'  ' if len(queries) > 1 else ''}{line}")


def from_a_sentence(passage: str) -> str:
    """A passage from its first whole sentence on, or with "…" in front where the rest of the sentence before is long.

    It begins inside a sentence if its first word has small letters only, not as iPhone or nDCG@10, and its second
    sentence begins with a capital letter.
    """
    from cmlmcse.data.wikipedia import split_sentences

    sentences = list(islice(split_sentences(passage), 2))
    if len(sentences) < 2 or not sentences[1][0].isupper():
        return passage
    if not passage[0].islower() or not passage.split()[0].islower():
        return passage
    rest = len(sentences[0])
    return passage[rest:].lstrip() if rest <= NEAR_CHARACTERS else f"… {passage}"


def printable(name: str) -> str:
    """A file's name on one line, whatever signs it has."""
    return "".join(sign if sign.isprintable() else "?" for sign in name)


def without_controls(text: str) -> str:
    """A text without signs that move the cursor or colour the screen."""
    return "".join("?" if unicodedata.category(sign) == "Cc" else sign for sign in text)


def strict(value: Any) -> Any:
    """A value for JSON, which has no NaN and no infinity: None stands for them."""
    if isinstance(value, dict):
        return {name: strict(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):  # a map is a list of pairs
        return [strict(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_results(path: Path, queries: list[str], found: "list[Nearest]") -> None:
    """Write one JSON line per query, with the nearest rows: their other columns differ where their texts do not.

    Raises:
        InputError: the file cannot be written.
    """
    lines = [
        json.dumps({"query": query, "results": strict(nearest.rows)}, ensure_ascii=False, allow_nan=False, default=str)
        for query, nearest in zip(queries, found, strict=True)
    ]
    write_asked(path, "\n".join(lines) + "\n", "--output")
