"""Teachers of ranking distillation: each encodes the training sentences once."""

from pathlib import Path

import datasets

from .checks import teacher_names
from .fields import DataArguments, ModelArguments, RunArguments
from .text_vectors import kept_vectors, load_reader


def teacher_vectors(
    sentences: datasets.Dataset, model: ModelArguments, data: DataArguments, run: RunArguments
) -> list[Path]:
    """The files of the teachers' vectors (:func:`kept_vectors`); none without ranking distillation.

    Raises:
        InputError: a teacher cannot be loaded.
    """
    if model.distillation_weight == 0:
        return []
    paths = []
    for name in teacher_names(model):
        encoder = load_reader(name, model.teacher_pooling, data.max_seq_length, str(run.device))
        paths.append(kept_vectors(encoder, name, sentences, "teacher"))
    return paths
