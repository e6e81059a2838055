"""The command `cmlmcse search MODEL CORPUS QUERY`: the texts of a file or a folder that are nearest to a query.

The search is exact: each query is compared with every text. The corpus is read as a stream, so memory does not grow
with its size. With --bm25 the texts are read once more before, to index the words of the queries.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cmlmcse.common.errors import InputError, Parser, command
from cmlmcse.encode import EMBEDDING, METADATA, TEXT, check_finite, mention_cut, mention_titles, model_provenance

if TYPE_CHECKING:
    import numpy as np
    import pyarrow

    from cmlmcse.data.tables import TextFile
    from cmlmcse.models.encoders import Encoder

    Shares = Callable[[slice], np.ndarray]
    """Rows of the corpus → (Q, B), what BM25 gives them for each query, from 0 to 1."""

Names = tuple[str | None, str | None, str]
"""The columns of the files, of the titles and of the texts; None: the corpus has none."""

STDIN = "-"
SHOWN_CHARACTERS = 200  # of a text on the screen
DECIMALS = 6  # of a score


class Block(NamedTuple):
    """B rows of the corpus.

    Attributes:
        table: their columns.
        vectors: (B, H) their embeddings.
        blank: (B,) whether a row has neither title nor text, so that it answers nothing.
    """

    table: "pyarrow.Table"
    vectors: "np.ndarray"
    blank: "np.ndarray"


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Parse the command line.

    Raises:
        InputError: an argument is invalid.
    """
    from cmlmcse.common.options import add_encoder_options, add_model, positive, positive_number
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
    parser.add_argument("--top_k", type=positive, default=10, metavar="K", help="texts shown per query (default: 10)")
    parser.add_argument("--bm25", type=positive_number, nargs="?", const=0.0, metavar="WEIGHT", help="search by "
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
    parser.add_argument("--output", type=Path, metavar="FILE.jsonl", help="write the results here, one line per query: "
                        "rank, row (from 0), score, with --bm25 its parts, and all columns of each text")  # fmt: skip
    add_encoder_options(parser)
    args, others = parser.parse_known_args(argv)
    if others and not any(word.startswith("-") for word in others):
        parser.error(f"QUERY must be one word of the command line, found {1 + len(others)}; put quotes round it")
    if others:
        parser.error(f"unrecognized arguments: {' '.join(others)}")
    if args.output is not None and args.output.exists():
        parser.error(f"--output {args.output}: exists; choose another name")
    if args.output is not None and not args.output.parent.is_dir():
        parser.error(f"--output {args.output}: expected the folder {args.output.parent} to exist, found none")
    return args


@command
def main(argv: list[str] | None = None) -> None:
    """Search, print the nearest texts, and write them to --output if it is given."""
    args = parse(argv)
    queries = read_queries(args.query)
    from cmlmcse.data.tables import scan

    source = None
    if not has_embeddings(args.corpus):
        source = scan(args.corpus, args.text_column, args.title_column, all_columns=False, passages=args.passages)
    elif args.passages:
        raise InputError(
            f"--passages expects texts, found embeddings in {args.corpus}; encode the texts again with --passages"
        )
    column = source.text_column if source else text_column_of(args.corpus, args.text_column)

    from cmlmcse.evaluation.bm25 import BM25, BM25OfFiles, BM25Shares
    from cmlmcse.evaluation.encoding import encode_as
    from cmlmcse.models.encoders import load_model_encoder
    from modeling_cmlmcse.prompts import DOCUMENT, QUERY

    limits = (args.max_seq_length, args.batch_size, args.device)
    encoder = load_model_encoder(args.model, args.pooling, *limits, show_progress_bar=False)
    blocks: Iterator[Block]
    if source:
        mention_titles(source)
        mention_cut(source, args.model, encoder)
        title, file = source.title_column, source.file_column
        blocks = encoded_blocks(source, lambda texts: encode_as(encoder, DOCUMENT, texts))
        rows = read_rows(source, (file, title, column))
    else:
        stored = check_provenance(args.corpus, args.model, encoder)
        title, file = stored_title(args.corpus, stored, args.title_column), stored_file(args.corpus, stored)
        blocks = embedded_blocks(args.corpus, encoded_columns(args.corpus, stored, title))
        rows = stored_rows(args.corpus, (file, title, column))
    shares, weight = None, 0.0
    if args.bm25 is not None:
        weight = args.bm25 or default_weight(args.model)
        texts = (f"{title} {text}" for _, title, text in rows)
        shares = BM25Shares(BM25OfFiles(rows, queries) if file else BM25(texts, queries), queries)
    found = search(encode_as(encoder, QUERY, queries), blocks, args.top_k, shares, weight)
    if not any(found):
        raise InputError(f"{args.corpus}: expected texts to search, found no row; choose another file")
    show_results(queries, found, [name for name in (title, column) if name], file)
    if args.output is not None:
        write_results(args.output, queries, found)


def default_weight(model: str) -> float:
    """The weight of BM25 for a model: that of a weak one where a folder of adapt says that BM25 alone finds more."""
    from cmlmcse.evaluation.bm25 import WEIGHT, WEIGHT_FOR_WEAK

    try:
        found = json.loads((Path(model) / "results.json").read_text(encoding="utf-8"))["adapt"]
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


def text_column_of(path: Path, given: str | None) -> str:
    """The column of the texts of an encoded file.

    Raises:
        InputError: it has no column of the given name.
    """
    from pyarrow import parquet

    names = parquet.read_schema(path).names
    if given is not None and given not in names:
        raise InputError(f"{path}: expected a column {given}, found the columns {', '.join(names)}; see --text_column")
    return given or TEXT


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


def has_embeddings(path: Path) -> bool:
    """Whether a file is a .parquet with a column of embeddings.

    Raises:
        InputError: the file cannot be read.
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


def stored_title(path: Path, stored: dict[str, Any], wanted: str | None) -> str | None:
    """The column of the titles that an encoded file was encoded with, if any.

    Raises:
        InputError: --title_column names another one.
    """
    title: str | None = stored.get("title_column")
    if wanted is not None and wanted != title:
        with_what = f"those of {title}" if title else "none"
        raise InputError(
            f"{path}: --title_column {wanted} expects texts that were encoded with these titles, found {with_what}; "
            f"encode the corpus again with --title_column {wanted}"
        )
    return title


def stored_file(path: Path, stored: dict[str, Any]) -> str | None:
    """The column of an encoded file that names the file of each passage, if it is there."""
    from pyarrow import parquet

    name = stored.get("file_column")
    return name if name in parquet.read_schema(path).names else None


def read_rows(source: "TextFile", names: Names) -> Iterator[tuple[str, ...]]:
    """Yield the file, the title and the text of each row of a file of texts; empty where there is none."""
    from cmlmcse.data.tables import rows_of

    for table in source.tables():
        yield from rows_of(table, names)


def stored_rows(path: Path, names: Names) -> Iterator[tuple[str, ...]]:
    """Yield the file, the title and the text of each row of an encoded file; empty where there is none.

    Raises:
        InputError: it has no such column of texts.
    """
    import pyarrow
    from pyarrow import parquet

    from cmlmcse.data.tables import TABLE_ROWS, is_text, rows_of

    *_, column = names
    with parquet.ParquetFile(path) as file:
        texts = [field.name for field in file.schema_arrow if is_text(field.type)]
        if column not in texts:
            raise InputError(
                f"{path}: --bm25 expects the texts in the column {column}, found columns of text: "
                f"{', '.join(texts) or 'none'}; encode the corpus again without --no_text, or give --text_column"
            )
        for batch in file.iter_batches(batch_size=TABLE_ROWS, columns=[name for name in names if name]):
            yield from rows_of(pyarrow.Table.from_batches([batch]), names)


def check_provenance(path: Path, model: str, encoder: "Encoder") -> dict[str, Any]:
    """Check that the embeddings of a file can be compared with those of this model.

    If the file's embeddings were truncated, the encoder is set to truncate its own to the same number of dimensions.

    Returns:
        What the file says about how it was encoded; empty if `cmlmcse encode` did not write it.

    Raises:
        InputError: the file's embeddings are of another model, pooling or prompt, or have another number of dimensions.
    """
    from pyarrow import parquet

    stored = (parquet.read_schema(path).metadata or {}).get(METADATA)
    theirs: dict[str, Any] = json.loads(stored) if stored else {}
    ours = model_provenance(model, encoder.settings["pooling"])
    known = "fingerprint" if theirs.get("fingerprint") and ours["fingerprint"] else "model"
    both_names = not (theirs.get("fingerprint") or ours["fingerprint"])
    same = theirs.get(known) == ours[known] if known == "fingerprint" or both_names else True
    if theirs and not same and all(theirs.get(name) == ours[name] for name in ("model", "pooling")):
        raise InputError(
            f"{path} must hold embeddings of MODEL, {ours['model']}, as it is now, found those from before its files "
            "were changed; encode the corpus again"
        )
    if theirs and not (same and theirs.get("pooling") == ours["pooling"]):
        raise InputError(
            f"{path} must hold embeddings of MODEL, {ours['model']} with the pooling {ours['pooling']}, found "
            f"{theirs.get('model')} with {theirs.get('pooling')} in it; give that model, or encode the corpus again"
        )
    prompt, found_prompt = encoder.prompts.get("document", ""), theirs.get("prompt", "")
    if theirs and found_prompt != prompt:
        raise InputError(
            f"{path}: expected texts encoded with MODEL's prompt for documents, {prompt!r}, found {found_prompt!r}; "
            "encode the corpus again without --prompt and --prompt_name"
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
    return theirs


def encoded_blocks(source: "TextFile", encode: Callable[[list[str]], "np.ndarray"]) -> Iterator[Block]:
    """Yield the rows of a file of texts in blocks, with the embeddings that `encode` makes of them."""
    import numpy as np

    for table in source.tables():
        texts = source.titled_texts(table)
        yield Block(table, encode(texts), np.array([not text.strip() for text in texts]))


def encoded_columns(path: Path, stored: dict[str, Any], title: str | None) -> list[str]:
    """The columns of the texts that `cmlmcse encode` read, title first; none if it left the texts out, or if another
    program wrote the file."""
    from pyarrow import parquet

    names = parquet.read_schema(path).names
    kept = bool(stored) and TEXT in names and names.index(TEXT) < names.index(EMBEDDING)  # else it is a copied column
    return [*([title] if title else []), TEXT] if kept else []


def embedded_blocks(path: Path, columns: list[str]) -> Iterator[Block]:
    """Yield the rows of an encoded file in blocks.

    Args:
        path: the file.
        columns: those of its texts and titles, or none. A row in which all of them are blank was an empty text.

    Raises:
        InputError: an embedding is missing or has another size.
    """
    import numpy as np
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
            blank = np.zeros(len(table), bool)
            if columns:
                rows = zip(*(table[name].to_pylist() for name in columns), strict=True)
                blank = np.array([not any(str(text or "").strip() for text in row) for row in rows])
            vectors = flat.to_numpy(zero_copy_only=False).reshape(len(column), -1)
            yield Block(table.drop_columns([EMBEDDING]), vectors, blank)


def search(
    queries: "np.ndarray",
    blocks: Iterator[Block],
    top_k: int,
    shares: "Shares | None" = None,
    weight: float = 0.0,
) -> list[list[dict[str, Any]]]:
    """The `top_k` rows nearest to each query, by cosine. If two scores are equal, the earlier row comes first. A row
    without text is never among them.

    Args:
        queries: embeddings of the queries (Q, H).
        blocks: the corpus in blocks.
        top_k: rows per query.
        shares: of BM25; then the score is the cosine + `weight` · share.
        weight: of the shares.

    Returns:
        For each query, nearest first: `rank` from 1, `row` from 0, `score`, `columns`; with shares `cosine` and `bm25`.

    Raises:
        InputError: an embedding is not finite.
    """
    import numpy as np

    from cmlmcse.common.vectors import unit

    check_finite(queries)
    queries = unit(queries)
    names = ["row", "score"] + (["cosine", "bm25"] if shares else [])
    kept = {name: np.empty((len(queries), 0), float if name != "row" else int) for name in names}  # (Q, at most top_k)
    content: dict[int, dict[str, Any]] = {}
    start = 0
    for table, vectors, blank in blocks:
        check_finite(vectors)
        rows, scores = np.arange(start, start + len(vectors)), queries @ unit(vectors).T  # (B,), (Q, B)
        block = {"row": np.broadcast_to(rows, scores.shape), "score": scores}
        if shares:
            bm25 = shares(slice(start, start + len(vectors)))
            block |= {"score": scores + weight * bm25, "cosine": scores, "bm25": bm25}
        block["score"] = np.where(blank, -np.inf, block["score"])
        # rounded, as the last bits depend on the batch
        joined = {name: np.concatenate([kept[name], np.round(block[name], DECIMALS)], axis=1) for name in names}
        best = np.argsort(-joined["score"], axis=1, kind="stable")[:, :top_k]
        kept = {name: np.take_along_axis(values, best, 1) for name, values in joined.items()}
        found = sorted(set(kept["row"].ravel().tolist()))
        new = [row for row in found if row >= start]
        columns = table.take(np.array(new, int) - start).to_pylist() if table.num_columns else [{}] * len(new)
        content = {row: content[row] for row in found if row < start} | dict(zip(new, columns, strict=True))
        start += len(vectors)
    return [
        [
            {
                "rank": place + 1,
                **{name: round(kept[name][query, place].item(), DECIMALS) for name in names},
                "columns": content[kept["row"][query, place]],
            }
            for place in range(kept["row"].shape[1])
            if np.isfinite(kept["score"][query, place])
        ]
        for query in range(len(queries))
    ]


def show_results(
    queries: list[str], found: list[list[dict[str, Any]]], shown_columns: list[str], file_column: str | None = None
) -> None:
    """Print the score, the file or document that a passage is from, and the start of "title | text"; below its query if
    there are several."""
    for query, nearest in zip(queries, found, strict=True):
        if len(queries) > 1:
            print(query)
        for result in nearest:
            texts = [" ".join(str(result["columns"].get(name) or "").split()) for name in shown_columns]
            shown = " | ".join(filter(None, texts))[:SHOWN_CHARACTERS] or f"row {result['row']}"
            name = result["columns"][file_column] if file_column else None
            file = "" if name is None else printable(name if isinstance(name, str) else f"document {name}") + "  "
            print(f"{'  ' if len(queries) > 1 else ''}{result['score']:.4f}  {file}{shown}")


def printable(name: str) -> str:
    """A file's name on one line, whatever signs it has."""
    return "".join(sign if sign.isprintable() else "?" for sign in name)


def write_results(path: Path, queries: list[str], found: list[list[dict[str, Any]]]) -> None:
    """Write one JSON line per query.

    Raises:
        InputError: the file cannot be written.
    """
    from cmlmcse.common.files import replace_text

    lines = [
        json.dumps({"query": query, "results": nearest}, ensure_ascii=False, default=str)
        for query, nearest in zip(queries, found, strict=True)
    ]
    try:
        replace_text(path, "\n".join(lines) + "\n")
    except OSError as error:
        raise InputError(f"--output {path}: cannot be written: {error.strerror}") from error
