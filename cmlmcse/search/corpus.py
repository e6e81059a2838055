"""What is searched: texts, which are encoded as they are read, or embeddings that `cmlmcse encode` wrote."""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import compute, parquet, types

from cmlmcse.common.errors import InputError
from cmlmcse.common.progress import progress
from cmlmcse.common.vectors import unit
from cmlmcse.data import tables
from cmlmcse.data.row_blocks import check_names, open_parquet
from cmlmcse.data.unchanged import unchanged, version_of
from cmlmcse.encode.columns import EMBEDDING, METADATA, TEXT
from cmlmcse.encode.mentions import mention_cut, mention_unread
from cmlmcse.encode.settings import model_provenance
from cmlmcse.evaluation.encoding import encode_as

if TYPE_CHECKING:  # what is wrong with the corpus is said before torch is imported, which takes seconds
    from cmlmcse.models.encoders import Encoder

SAMPLE = 8  # texts that are encoded to see whether a file's embeddings are this model's
MORE_SPACE = ("  ", "\n", "\t", "\r")
SAME = 0.99  # cosine of an embedding with its own one, in half precision too


class Block(NamedTuple):
    """B rows of the corpus.

    Attributes:
        table: their columns.
        vectors: (B, H) their embeddings.
        blank: (B,) whether a row has neither title nor text, so that it answers nothing.
        texts: (B,) a number for the title and text of each row, which its copies have too; None where they are not
            kept.
    """

    table: pyarrow.Table
    vectors: NDArray[np.floating]
    blank: NDArray[np.bool_]
    texts: NDArray[np.int64] | None


class Columns(NamedTuple):
    """The columns of the files, the titles and the texts; None: the corpus has none."""

    file: str | None
    title: str | None
    text: str


class Corpus(Protocol):
    """Rows of texts, which have embeddings or get them.

    Attributes:
        columns: their names.
    """

    columns: Columns

    def check(self, model: str, encoder: "Encoder") -> None:
        """Compare the corpus with the model that the queries are encoded with, and say what its user should know.

        Raises:
            InputError: they do not fit together.
        """

    def blocks(self, encoder: "Encoder") -> Iterator[Block]:
        """Yield all rows with their embeddings."""

    def rows(self) -> Iterator[tuple[str, ...]]:
        """Yield the file, the title and the text of each row; empty where there is none."""


def open_corpus(args: argparse.Namespace) -> Corpus:
    """The corpus that the command line names.

    Raises:
        InputError: it cannot be read, or has no such column.
    """
    if not has_embeddings(args.corpus):
        return TextCorpus(args.corpus, args.text_column, args.title_column, args.passages)
    if args.passages:
        raise InputError(
            f"--passages expects texts, found embeddings in {args.corpus}; encode the texts again with --passages"
        )
    return EncodedCorpus(args.corpus, args.text_column, args.title_column)


def has_embeddings(path: Path) -> bool:
    """Whether a file is a .parquet with a column of embeddings.

    Raises:
        InputError: the file cannot be read.
    """
    if path.suffix != ".parquet" or not path.is_file():
        return False
    with open_parquet(path) as file:
        schema = file.schema_arrow
    if EMBEDDING not in schema.names:
        return False
    if schema.names.count(EMBEDDING) > 1:
        raise InputError(f"{path}: expected one column {EMBEDDING}, found several; rename the others")
    kind = schema.field(EMBEDDING).type
    lists = types.is_fixed_size_list(kind) or types.is_list(kind) or types.is_large_list(kind)
    return lists and types.is_floating(kind.value_type)


def stored_record(path: Path, stored: bytes | None) -> dict[str, Any]:
    """What a file says about how it was encoded; empty if it says nothing.

    Raises:
        InputError: the record is damaged.
    """
    try:
        found = json.loads(stored or b"{}")
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InputError(
            f"{path}: expected the record of cmlmcse encode in its metadata, found other data; encode it again"
        )
    return found


def text_numbers(table: pyarrow.Table, columns: Columns) -> NDArray[np.int64]:
    """(B,) a hash of the title and the text of each row, whatever white space is in them."""
    rows = tables.rows_of(table, (columns.title, columns.text))
    return np.array([hash((in_one_line(title), in_one_line(text))) for title, text in rows], np.int64)


def in_one_line(text: str) -> str:
    """A text with single spaces. Most texts have no others, and to split those takes five times as long."""
    return " ".join(text.split()) if any(sign in text for sign in MORE_SPACE) else text.strip()


class TextCorpus:
    """Texts of a file or a folder; see :class:`Corpus`."""

    def __init__(self, path: Path, text_column: str | None, title_column: str | None, passages: bool) -> None:
        self.source = tables.scan(path, text_column, title_column, all_columns=False, passages=passages, as_json=True)
        self.columns = Columns(self.source.file_column, self.source.title_column, self.source.text_column)

    def check(self, model: str, encoder: "Encoder") -> None:
        mention_unread(self.source)
        mention_cut(self.source, model, encoder)

    def blocks(self, encoder: "Encoder") -> Iterator[Block]:
        from modeling_cmlmcse.prompts import DOCUMENT

        with progress(self.source.rows, "Encoding", "texts") as shown:  # this takes most of the time
            for table in self.source.tables():
                texts = self.source.titled_texts(table)
                blank = np.array([not text.strip() for text in texts])
                yield Block(table, encode_as(encoder, DOCUMENT, texts), blank, text_numbers(table, self.columns))
                shown.add(len(table))

    def rows(self) -> Iterator[tuple[str, ...]]:
        for table in self.source.tables():
            yield from tables.rows_of(table, self.columns)


class EncodedCorpus:
    """A .parquet with embeddings; see :class:`Corpus`.

    Attributes:
        stored: what the file says about how it was encoded; empty if `cmlmcse encode` did not write it.
    """

    def __init__(self, path: Path, text_column: str | None, title_column: str | None) -> None:
        self.path, self.version = path, version_of(path)
        with self._open() as file:
            schema = file.schema_arrow
        check_names(path, schema.names)
        if text_column is not None and text_column not in schema.names:
            raise tables.no_column(path, text_column, schema.names, "--text_column")
        self.stored = stored_record(path, (schema.metadata or {}).get(METADATA))
        file, title = self.stored.get("file_column"), self._title_column(title_column)
        self.columns = Columns(
            file if file in schema.names else None, title if title in schema.names else None, text_column or TEXT
        )

    @contextmanager
    def _open(self) -> Iterator[parquet.ParquetFile]:
        """Open the file, to be read inside the block.

        Raises:
            InputError: it cannot be read, or it changed.
        """
        with unchanged(self.path, self.version), open_parquet(self.path) as file:
            yield file

    def _title_column(self, wanted: str | None) -> str | None:
        """The column of the titles that the texts were encoded with, if any.

        Raises:
            InputError: --title_column names another one.
        """
        title: str | None = self.stored.get("title_column")
        if wanted is not None and wanted != title:
            with_what = f"those of {title}" if title else "none"
            raise InputError(
                f"{self.path}: --title_column {wanted} expects texts that were encoded with these titles, found "
                f"{with_what}; encode the corpus again with --title_column {wanted}"
            )
        return title

    def check(self, model: str, encoder: "Encoder") -> None:
        """Check that the embeddings can be compared with those of this model. If they were truncated, the encoder is
        set to truncate its own to the same number of dimensions.

        Raises:
            InputError: they are of another model, pooling or prompt, or have another number of dimensions.
        """
        if self.stored:
            self._check_model(model, model_provenance(model, encoder.settings["pooling"]))
            self._check_prompt(encoder.prompts.get("document", ""))
        else:
            self._mention_sample(model, encoder)
        encoder.arguments["truncate_dim"] = self.stored.get("truncate_dim")
        width = self.stored.get("truncate_dim") or encoder.width
        with self._open() as file:
            batch = next(file.iter_batches(batch_size=1, columns=[EMBEDDING]), None)
        found = width if batch is None else len(batch.column(0)[0].as_py() or [])
        if found != width:
            raise InputError(
                f"{self.path}: expected embeddings of {width} dimensions, as {model} makes them, found {found}; give "
                "the model that the corpus was encoded with"
            )

    def _check_model(self, model: str, ours: dict[str, Any]) -> None:
        """Compare the model that encoded the texts with the one of the queries: by the fingerprint of its files where
        both have one, by its name where neither has."""
        theirs = self.stored
        same_name, same_pooling = (theirs.get(name) == ours[name] for name in ("model", "pooling"))
        if theirs.get("fingerprint") and ours["fingerprint"]:
            same = theirs["fingerprint"] == ours["fingerprint"]
        else:
            same = bool(theirs.get("fingerprint") or ours["fingerprint"]) or same_name
        if same and same_pooling:
            return
        if same_name and same_pooling:
            raise InputError(
                f"{self.path} must hold embeddings of MODEL, {model}, as it is now, found those from before "
                "its files were changed; encode the corpus again"
            )
        raise InputError(
            f"{self.path} must hold embeddings of MODEL, {model} with the pooling {ours['pooling']}, found "
            f"those of {theirs.get('model')} with {theirs.get('pooling')}; encode the corpus again with MODEL, or give "
            "that model"
        )

    def _mention_sample(self, model: str, encoder: "Encoder") -> None:
        """Encode the first texts again, where the file does not say which model encoded them, and say so if that gives
        other embeddings. They may be another model's; or titles, a prompt or another column may have been encoded."""
        from modeling_cmlmcse.prompts import DOCUMENT

        with self._open() as file:
            names = [field.name for field in file.schema_arrow if tables.is_text(field.type)]
            batch = next(file.iter_batches(batch_size=SAMPLE), None)
        said = f"warning: {self.path} does not say which model made its embeddings"
        if batch is None or self.columns.text not in names:
            print(f"{said}, and has no column {self.columns.text} to find out with", file=sys.stderr)
            return
        columns = (batch.column(batch.schema.names.index(name)) for name in (self.columns.text, EMBEDDING))
        texts, kept = (column.to_pylist() for column in columns)
        rows = [row for row, text in enumerate(texts) if text and text.strip()]
        own = unit(encode_as(encoder, DOCUMENT, [texts[row] for row in rows])) if rows else np.zeros((0, 0))  # (S, H)
        if not rows or {len(kept[row] or []) for row in rows} != {own.shape[1]}:
            return  # another check says so
        cosines = (unit(np.array([kept[row] for row in rows], np.float64)) * own).sum(axis=1)
        if cosines.min() < SAME:
            print(
                f"{said}; those of its first texts have cosines from {cosines.min():.2f} to {cosines.max():.2f} with "
                f"{model}'s own. If they are another model's, the results mean nothing",
                file=sys.stderr,
            )

    def _check_prompt(self, prompt: str) -> None:
        """Compare the prompt that the texts were encoded with with the model's own for documents."""
        found = self.stored.get("prompt", "")
        if found != prompt:
            raise InputError(
                f"{self.path}: expected texts encoded with MODEL's prompt for documents, {prompt!r}, found {found!r}; "
                "encode the corpus again without --prompt and --prompt_name"
            )

    def blocks(self, encoder: "Encoder") -> Iterator[Block]:
        """Yield all rows with their embeddings. A row whose title and text are blank was an empty text.

        Raises:
            InputError: an embedding is missing, has another size, or is no number.
        """
        with self._open() as file:
            for batch in file.iter_batches(batch_size=tables.TABLE_ROWS):
                table = pyarrow.Table.from_batches([batch])
                column = batch.column(batch.schema.names.index(EMBEDDING))
                flat = column.flatten()
                sizes = set(compute.list_value_length(column).to_pylist())
                if len(sizes) != 1 or flat.null_count:
                    raise InputError(
                        f"{self.path}: expected embeddings of one size in every row, found others; encode it again"
                    )
                vectors = flat.to_numpy(zero_copy_only=False).reshape(len(column), -1)
                if not np.isfinite(vectors).all():
                    raise InputError(f"{self.path}: expected finite embeddings, found NaN or infinity; encode it again")
                kept = self.columns.text in table.schema.names
                texts = text_numbers(table, self.columns) if kept else None
                yield Block(table.drop_columns([EMBEDDING]), vectors, self._blank(table), texts)

    def _blank(self, table: pyarrow.Table) -> NDArray[np.bool_]:
        """(B,) whether the texts that `cmlmcse encode` read are blank; False where it left them out, or where another
        program wrote the file or dropped its titles."""
        names = table.schema.names
        # behind the embeddings stand copied columns, one of which may have the same name
        kept = bool(self.stored) and TEXT in names and names.index(TEXT) < names.index(EMBEDDING)
        titles_are_gone = self.stored.get("title_column") not in (None, self.columns.title)
        if not kept or titles_are_gone:
            return np.zeros(len(table), bool)
        read = [name for name in (self.columns.title, TEXT) if name]
        rows = zip(*(table[name].to_pylist() for name in read), strict=True)
        return np.array([not any(str(text or "").strip() for text in row) for row in rows])

    def rows(self) -> Iterator[tuple[str, ...]]:
        """Yield the file, the title and the text of each row; empty where there is none.

        Raises:
            InputError: there is no such column of texts.
        """
        with self._open() as file:
            texts = [field.name for field in file.schema_arrow if tables.is_text(field.type)]
            if self.columns.text not in texts:
                raise InputError(
                    f"{self.path}: --bm25 expects the texts in the column {self.columns.text}, found columns of text: "
                    f"{', '.join(texts) or 'none'}; encode the corpus again without --no_text, or give --text_column"
                )
            read = [name for name in self.columns if name]
            for batch in file.iter_batches(batch_size=tables.TABLE_ROWS, columns=read):
                yield from tables.rows_of(pyarrow.Table.from_batches([batch]), self.columns)
