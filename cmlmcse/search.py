"""The command `cmlmcse search MODEL CORPUS QUERY`: the texts of a file that are nearest to a query, by cosine.

The search is exact: every text is compared. The corpus is read in a stream, so memory does not grow with it.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cmlmcse.common.errors import InputError, Parser, command
from cmlmcse.encode import EMBEDDING, METADATA, TEXT, origin_of

if TYPE_CHECKING:
    import numpy as np
    import pyarrow

    from cmlmcse.models.encoders import Encoder

STDIN = "-"
SHOWN = 200  # characters of a text on the screen
DIGITS = 6  # of a score


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line.

    Raises:
        InputError: an argument that is wrong by itself.
    """
    from cmlmcse.evaluation.options import positive

    parser = Parser(
        prog="cmlmcse search",
        description="Find the texts of a file that are nearest to a query, by the cosine of their embeddings.",
        allow_abbrev=False,
    )
    parser.add_argument("model", metavar="MODEL", help="exported folder, checkpoint, run folder, Hub name, "
                        "package:NAME/path, or plain backbone")  # fmt: skip
    parser.add_argument("corpus", metavar="CORPUS", type=Path, help="what `cmlmcse encode` wrote as .parquet; or "
                        "texts, which are encoded now: .csv, .tsv, .jsonl, .parquet, or a text a line")  # fmt: skip
    parser.add_argument("query", metavar="QUERY", help="a text; - reads queries from standard input, a line each")
    parser.add_argument("--top_k", type=positive, default=10, metavar="K", help="texts a query (default: 10)")
    parser.add_argument("--text_column", help=f"column of the texts (default: {TEXT}, or the only one of strings)")
    parser.add_argument("--output", type=Path, metavar="FILE.jsonl", help="write the results there, a line a query: "
                        "rank, row (from 0), score and all columns of each text")  # fmt: skip
    parser.add_argument("--pooling", help="for models that record none: cls_before_pooler, avg, avg_top2, …")
    parser.add_argument("--batch_size", type=positive, default=64, help="texts in a forward pass (default: 64)")
    parser.add_argument("--max_seq_length", type=positive, help="tokens a text is cut to (default: the model's)")
    parser.add_argument("--device", help="cpu, cuda, cuda:1, … (default: cuda if there is one)")
    args = parser.parse_args(argv)
    if args.output is not None and args.output.exists():
        parser.error(f"--output {args.output}: exists; choose another name")
    if args.output is not None and not args.output.parent.is_dir():
        parser.error(f"--output {args.output}: expected the folder {args.output.parent} to exist, found none")
    return args


@command
def main(argv: list[str] | None = None) -> None:
    """Search, and print or write what is nearest."""
    args = parse(argv)
    queries = read_queries(args.query)
    encoded = has_embeddings(args.corpus)
    if not encoded:
        from cmlmcse.data.tables import scan

        source = scan(args.corpus, args.text_column)

    from cmlmcse.models.encoders import load_model_encoder

    limits = (args.max_seq_length, args.batch_size, args.device)
    encoder = load_model_encoder(args.model, args.pooling, *limits, show_progress_bar=False)
    if encoded:
        check_origin(args.corpus, args.model, encoder)
        blocks = embedded_blocks(args.corpus)
    else:
        blocks = ((table, encoder(source.texts(table))) for table in source.tables())
    column = (args.text_column or TEXT) if encoded else source.text_column
    found = search(encoder(queries), blocks, args.top_k)
    if not any(found):
        raise InputError(f"{args.corpus}: expected texts to search, found no row; choose another file")
    for query, nearest in zip(queries, found, strict=True):
        if len(queries) > 1:
            print(query)
        for one in nearest:
            text = one["columns"].get(column)
            shown = f"row {one['row']}" if text is None else " ".join(str(text).split())[:SHOWN]
            print(f"{'  ' if len(queries) > 1 else ''}{one['score']:.4f}  {shown}")
    if args.output is not None:
        write_results(args.output, queries, found)


def read_queries(given: str) -> list[str]:
    """The query, or the lines of standard input.

    Raises:
        InputError: there is no text in it.
    """
    queries = [line.strip() for line in sys.stdin] if given == STDIN else [given.strip()]
    queries = [query for query in queries if query]
    if not queries:
        raise InputError(
            f"QUERY must be a text, found {'no line on standard input' if given == STDIN else repr(given)}"
        )
    return queries


def has_embeddings(path: Path) -> bool:
    """Whether a file is a .parquet with a column of embeddings.

    Raises:
        InputError: it cannot be read.
    """
    if path.suffix != ".parquet" or not path.is_file():
        return False
    import pyarrow
    from pyarrow import parquet, types

    try:
        schema = parquet.read_schema(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{path}: expected a Parquet file, found one that cannot be read ({error})") from error
    if EMBEDDING not in schema.names:
        return False
    kind = schema.field(EMBEDDING).type
    lists = types.is_fixed_size_list(kind) or types.is_list(kind) or types.is_large_list(kind)
    return lists and types.is_floating(kind.value_type)


def check_origin(path: Path, model: str, encoder: "Encoder") -> None:
    """See that embeddings of a file can be compared with those of this model, and have the encoder cut its own to as
    many dimensions if those of the file were cut.

    Raises:
        InputError: they are another model's, or of another size.
    """
    from pyarrow import parquet

    stored = (parquet.read_schema(path).metadata or {}).get(METADATA)
    theirs = json.loads(stored) if stored else {}
    ours = origin_of(model, encoder.settings["pooling"])
    known = "fingerprint" if theirs.get("fingerprint") and ours["fingerprint"] else "model"
    both_names = not (theirs.get("fingerprint") or ours["fingerprint"])
    same = theirs.get(known) == ours[known] if known == "fingerprint" or both_names else True
    if theirs and not (same and theirs.get("pooling") == ours["pooling"]):
        raise InputError(
            f"{path} must have been encoded with the MODEL of the query, {ours['model']} with the pooling "
            f"{ours['pooling']}, found {theirs.get('model')} with {theirs.get('pooling')} in it; give that model, or "
            "encode the corpus again"
        )
    encoder.arguments["truncate_dim"] = theirs.get("truncate_dim")
    width = theirs.get("truncate_dim") or encoder.model.config.hidden_size
    with parquet.ParquetFile(path) as file:
        batch = next(file.iter_batches(batch_size=1, columns=[EMBEDDING]), None)
    found = width if batch is None else len(batch.column(0)[0].as_py() or [])
    if found != width:
        raise InputError(
            f"{path}: expected embeddings of {width} dimensions, as {model} makes them, found {found}; give the model "
            "that the corpus was encoded with"
        )


def embedded_blocks(path: Path) -> Iterator[tuple["pyarrow.Table", "np.ndarray"]]:
    """The rows of an encoded file, a table without the embeddings and the embeddings (B, H) at a time.

    Raises:
        InputError: an embedding is missing or of another size.
    """
    import pyarrow
    from pyarrow import compute, parquet

    from cmlmcse.data.tables import TABLE_ROWS

    with parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=TABLE_ROWS):
            table = pyarrow.Table.from_batches([batch])
            column = batch.column(batch.schema.names.index(EMBEDDING))
            flat = column.flatten()
            sizes = set(compute.list_value_length(column).to_pylist())
            if len(sizes) != 1 or flat.null_count:
                raise InputError(f"{path}: expected embeddings of one size in every row, found others; encode it again")
            yield table.drop_columns([EMBEDDING]), flat.to_numpy(zero_copy_only=False).reshape(len(column), -1)


def search(
    queries: "np.ndarray", blocks: Iterator[tuple["pyarrow.Table", "np.ndarray"]], top_k: int
) -> list[list[dict[str, Any]]]:
    """The `top_k` rows that are nearest to each query, by cosine; the earlier row first where two are equal.

    Args:
        queries: their embeddings (Q, H).
        blocks: the corpus, tables with the embeddings of their rows (B, H).
        top_k: how many.

    Returns:
        For each query, nearest first: `rank` from 1, `row` from 0, `score`, `columns`.
    """
    import numpy as np

    queries = unit(queries)
    scores, rows = np.empty((len(queries), 0)), np.empty((len(queries), 0), int)  # (Q, at most top_k)
    content: dict[int, dict[str, Any]] = {}
    start = 0
    for table, vectors in blocks:
        cosines = np.round(queries @ unit(vectors).T, DIGITS)  # (Q, B); a text's last bits depend on its batch
        scores = np.concatenate([scores, cosines], axis=1)  # (Q, top_k + B)
        here = np.arange(start, start + len(vectors))
        rows = np.concatenate([rows, np.broadcast_to(here, (len(queries), len(here)))], axis=1)
        best = np.argsort(-scores, axis=1, kind="stable")[:, :top_k]
        scores, rows = np.take_along_axis(scores, best, 1), np.take_along_axis(rows, best, 1)
        kept = sorted(set(rows.ravel().tolist()))
        new = [row for row in kept if row >= start]
        columns = table.take(np.array(new, int) - start).to_pylist() if table.num_columns else [{}] * len(new)
        content = {row: content[row] for row in kept if row < start} | dict(zip(new, columns, strict=True))
        start += len(vectors)
    return [
        [
            {"rank": rank, "row": int(row), "score": round(float(score), DIGITS), "columns": content[row]}
            for rank, (row, score) in enumerate(zip(*pair, strict=True), start=1)
        ]
        for pair in zip(rows, scores, strict=True)
    ]


def unit(vectors: "np.ndarray") -> "np.ndarray":
    """Vectors (N, H) scaled to length 1; a vector of zeros stays as it is."""
    import numpy as np

    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths == 0, 1, lengths)


def write_results(path: Path, queries: list[str], found: list[list[dict[str, Any]]]) -> None:
    """Write a JSON line for each query.

    Raises:
        InputError: the file cannot be written.
    """
    from cmlmcse.common.files import atomic_write

    lines = [
        json.dumps({"query": query, "results": nearest}, ensure_ascii=False, default=str)
        for query, nearest in zip(queries, found, strict=True)
    ]
    try:
        with atomic_write(path) as aside:
            aside.write_text("\n".join(lines) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"--output {path}: cannot be written: {error.strerror}") from error
