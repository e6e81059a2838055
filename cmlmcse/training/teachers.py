"""Teachers of a distillation: each encodes the training text once."""

from pathlib import Path

import datasets

from .fields import Recipe
from .text_vectors import kept_vectors, load_reader, most_tokens


def teacher_vectors(rows: datasets.Dataset, recipe: Recipe) -> list[list[Path]]:
    """The files of each teacher's vectors (:func:`kept_vectors`), one for each text of a row; none without teachers.

    Args:
        rows: sentences, column "text"; labelled pairs, with the column "positive"; or documents, with "title".
        recipe: the recipe.

    Raises:
        InputError: a teacher cannot be loaded.
    """
    if recipe.model.distillation_weight == 0:
        return []
    texts = [rows]
    if "positive" in rows.column_names:
        texts = [rows.select_columns(name).rename_columns({name: "text"}) for name in ("text", "positive")]
    files = []
    for name in recipe.model.teachers:
        encoder = load_reader(
            name, recipe.model.teacher_pooling, most_tokens(rows, recipe.data.max_seq_length), recipe.run
        )
        files.append([kept_vectors(encoder, name, each, "teacher") for each in texts])
    return files
