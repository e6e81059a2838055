"""The training text of the views `search`: queries made from documents, and passages that the teachers find."""

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Protocol

import datasets
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from cmlmcse.common.errors import InputError
from cmlmcse.common.files import atomic_write
from cmlmcse.common.vectors import unit
from cmlmcse.data.collection import draw_documents
from cmlmcse.data.file_parts import write_npy
from cmlmcse.data.search_words import STEM
from cmlmcse.data.searches import LEXICAL, SEARCHED, draw_passages, make_queries
from cmlmcse.data.tables import with_titles
from cmlmcse.evaluation.bm25 import BM25
from cmlmcse.evaluation.encoding import prompt_of
from modeling_cmlmcse.prompts import DOCUMENT, QUERY

from .fields import Recipe
from .text_vectors import fingerprint_rows, kept_vectors, load_reader, vectors_folder

# A teacher's vectors are compared by cosine. BM25's are made so that the cosine is this much of the score, divided by
# the query's best. It is small because vectors of length 1 that share some of many words have small products. With
# adaptation/arms.py's share of the model it makes the weight of evaluation/bm25.py.
LEXICAL_SCALE = 0.05
HASHED = 2048  # dimensions that the words are hashed into; in a batch of 64 passages a query meets few wrong ones
BLOCK = 1000  # rows written at once


class Teacher(Protocol):
    """A teacher of searches: a model, or BM25, that says how similar passages are to a query.

    Attributes:
        name: stands for all that decides its similarities; the names of its files are made of it.
    """

    name: str

    def similarities(self, rows: slice) -> NDArray[np.floating]:
        """(q, N) similarities of some queries with all passages."""

    def vectors(self, side: int, rows: NDArray[np.int64]) -> NDArray[np.floating]:
        """(B, H) vectors of queries (side 0) or passages (side 1), whose cosines are the similarities."""


class ModelTeacher:
    """A model: cosines of what it makes of queries and passages, each with its own prompt."""

    def __init__(self, name: str, queries: list[str], passages: list[str], recipe: Recipe) -> None:
        encoder = load_reader(name, recipe.model.teacher_pooling, recipe.data.max_seq_length, recipe.run).bare
        files = []
        for side, texts in ((QUERY, queries), (DOCUMENT, passages)):
            prompt = prompt_of(encoder, side)
            rows = datasets.Dataset.from_dict({"text": [prompt + text for text in texts]})
            files.append(kept_vectors(encoder, name, rows, "teacher"))
        self.name = "".join(path.stem for path in files)
        self.sides = [unit(np.load(path).astype(np.float32)) for path in files]

    def similarities(self, rows: slice) -> NDArray[np.floating]:
        return self.sides[0][rows] @ self.sides[1].T

    def vectors(self, side: int, rows: NDArray[np.int64]) -> NDArray[np.floating]:
        return self.sides[side][rows]


class LexicalTeacher:
    """BM25: a similarity is `LEXICAL_SCALE` · score / the query's best score among the documents that are not its own.

    Its vectors hold the words, hashed with a random sign (Weinberger et al. 2009), and two more coordinates that make
    all of them as long as each other, so that cosines are products.
    """

    def __init__(self, queries: list[str], owners: NDArray[np.int64], passages: list[str]) -> None:
        self.name = f"{LEXICAL}-{LEXICAL_SCALE:g}-{HASHED}-{STEM}"
        self.index, self.queries, self.owners = BM25(passages), queries, owners
        counts = self.index.counts  # (N, W)
        rng = np.random.default_rng(0)
        places, signs = rng.permutation(counts.shape[1]) % HASHED, rng.choice([-1.0, 1.0], counts.shape[1])
        self._hash = csr_matrix((signs, (np.arange(counts.shape[1]), places)), shape=(counts.shape[1], HASHED))
        self._counts = (counts @ self._hash).tocsr()  # (N, K)
        self._longest = float(np.sqrt(self._counts.multiply(self._counts).sum(axis=1)).max())

    def scaled(self, rows: list[int]) -> tuple[list[str], NDArray[np.float64], NDArray[np.float64]]:
        """Some queries, their scores (q, N), and the factors (q, 1) that make these similarities."""
        asked = [self.queries[row] for row in rows]
        scores = self.index.scores(asked)
        others = scores.copy()
        others[np.arange(len(rows)), self.owners[rows]] = 0
        best = others.max(axis=1, keepdims=True)
        return asked, scores, np.where(best > 0, LEXICAL_SCALE / np.maximum(best, 1e-9), 0)

    def similarities(self, rows: slice) -> NDArray[np.floating]:
        _, scores, factors = self.scaled(list(range(len(self.queries))[rows]))
        return scores * factors

    def vectors(self, side: int, rows: NDArray[np.int64]) -> NDArray[np.floating]:
        if side == 1:
            words = self._counts[rows].toarray() / self._longest
        else:
            asked, _, factors = self.scaled(rows.tolist())
            words = (self.index.weights(asked) @ self._hash).toarray() * factors * self._longest
        lengths = np.linalg.norm(words, axis=1, keepdims=True)
        words = words / np.maximum(lengths, 1.0)  # above 1 if the best passage is far shorter than the longest
        filled = np.zeros((len(words), HASHED + 2), np.float16)
        filled[:, :HASHED] = words
        filled[:, HASHED + side] = np.sqrt(np.maximum(1 - np.square(words).sum(axis=1), 0))
        return filled


def search_pairs(documents: datasets.Dataset, recipe: Recipe) -> tuple[datasets.Dataset, list[list[Path]]]:
    """Pairs of a query and a passage that the teachers find for it (data/searches.py), and their vectors by each
    teacher.

    Args:
        documents: columns "title" and "text"; at most 5,000 of them are searched, drawn by the text's seed.
        recipe: the recipe. A model that teaches reads as much of a text as training does: what it found further down,
            training could not learn to find.

    Returns:
        Rows with the columns "text" and "positive", and for each teacher the files of the vectors of both. What takes
        long is kept on disk, so that another run on the same text reads it.

    Raises:
        InputError: a teacher cannot be loaded, or no document gives a query.
    """
    seed = recipe.run.text_seed
    documents = draw_documents(documents, SEARCHED, seed)
    queries = make_queries(documents, seed, recipe.data.max_queries)
    if not queries.texts or len(documents) < 2:
        raise InputError(
            f"views search expects at least two documents with words of three letters or more, found "
            f"{len(documents)} documents and {len(queries.texts)} queries; add text, or choose the views crops"
        )
    asked = datasets.Dataset.from_dict({"text": queries.texts})
    texts = with_titles(documents["title"], documents["text"])
    teachers: list[Teacher] = [
        LexicalTeacher(*queries, texts) if name == LEXICAL else ModelTeacher(name, queries.texts, texts, recipe)
        for name in recipe.model.teachers
    ]
    shares = [1.0] if len(teachers) == 1 else [recipe.model.teacher_share, 1 - recipe.model.teacher_share]
    text = f"{fingerprint_rows(asked)}-{fingerprint_rows(documents)}"
    named = [*(teacher.name for teacher in teachers), *map(str, shares), str(seed)]
    kept = vectors_folder() / f"found-{text}-{sha256('|'.join(named).encode()).hexdigest()[:16]}.npy"
    if not kept.exists():

        def search(rows: slice) -> NDArray[np.floating]:
            found = [share * each.similarities(rows) for share, each in zip(shares, teachers, strict=True)]
            return np.sum(found, axis=0)

        found = draw_passages(search, queries.owners, len(texts), seed)
        with atomic_write(kept) as temporary, open(temporary, "wb") as file:
            np.save(file, found)
    found = np.load(kept)
    pairs = datasets.Dataset.from_dict({"text": queries.texts, "positive": [texts[row] for row in found]})
    sides = np.arange(len(found)), found
    return pairs, [[kept_rows(kept, each, side, sides[side]) for side in (0, 1)] for each in teachers]


def kept_rows(found: Path, teacher: Teacher, side: int, rows: NDArray[np.int64]) -> Path:
    """The file of a teacher's vectors of some queries or passages, beside that of the passages."""
    path = found.with_name(f"{found.stem}-{sha256(teacher.name.encode()).hexdigest()[:16]}-{side}.npy")
    if not path.exists():
        one = teacher.vectors(side, rows[:1])
        blocks: Iterator[NDArray[np.floating]] = (
            teacher.vectors(side, rows[start : start + BLOCK]) for start in range(0, len(rows), BLOCK)
        )
        write_npy(path, blocks, len(rows), one.shape[1], one.dtype.type)
    return path
