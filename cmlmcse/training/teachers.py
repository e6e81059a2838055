"""Teachers of a distillation: each encodes the training text once."""

from pathlib import Path

import datasets

from .fields import DataArguments, ModelArguments, RunArguments
from .text_vectors import kept_vectors, load_reader, most_tokens


def teacher_vectors(
    rows: datasets.Dataset, model_args: ModelArguments, data_args: DataArguments, run_args: RunArguments
) -> list[list[Path]]:
    """The files of each teacher's vectors (:func:`kept_vectors`), one for each text of a row; none without teachers.

    Args:
        rows: sentences, column "text"; labelled pairs, with the column "positive"; or documents, with "title".
        model_args, data_args, run_args: the fields.

    Raises:
        InputError: a teacher cannot be loaded.
    """
    if model_args.distillation_weight == 0:
        return []
    texts = [rows]
    if "positive" in rows.column_names:
        texts = [rows.select_columns(name).rename_columns({name: "text"}) for name in ("text", "positive")]
    files = []
    for name in model_args.teachers:
        encoder = load_reader(name, model_args.teacher_pooling, most_tokens(rows, data_args.max_seq_length), run_args)
        files.append([kept_vectors(encoder, name, each, "teacher") for each in texts])
    return files
