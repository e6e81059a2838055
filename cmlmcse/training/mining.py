"""Mined hard negatives of a run: which rows of the text are near which others, by the start or another model."""

import time
from collections.abc import Iterator
from pathlib import Path

import datasets
import numpy as np
import torch

from cmlmcse.common.errors import InputError
from cmlmcse.common.progress import progress
from cmlmcse.data.file_parts import write_npy
from cmlmcse.data.negatives import NO_ROW, MinedNegatives, mean_of, nearest_below
from cmlmcse.models.folders import PLAIN_POOLINGS
from modeling_cmlmcse.pooling import POOLINGS

from .fields import DataArguments, Recipe
from .text_vectors import kept_vectors, load_reader, most_tokens


def mine_negatives(rows: datasets.Dataset, recipe: Recipe) -> MinedNegatives | None:
    """The hard negatives of the rows; None without. Vectors and neighbours are computed once and kept on disk.

    Args:
        rows: sentences, column "text"; or documents, columns "title" and "text".
        recipe: the recipe.

    Raises:
        InputError: the mining model cannot be loaded, or the margin leaves a row without negatives.
    """
    if recipe.data.mined_negatives == 0:
        return None
    name = recipe.data.mining_model or recipe.model.model_name_or_path
    # Without a recorded pooling the vector is the run's own, before a head that would be fresh.
    pooling = next(each for each in PLAIN_POOLINGS if POOLINGS[each].reads_as(POOLINGS[recipe.model.pooling]))
    tokens = most_tokens(rows, recipe.data.max_seq_length)
    encoder = load_reader(name, pooling, tokens, recipe.run, recipe.model.prompt_template)
    vectors = kept_vectors(encoder, name, rows, "mining model")
    path = vectors.with_name(f"{vectors.stem}-{recipe.data.mining_margin:g}-{recipe.data.mining_candidates}.npy")
    if not path.exists():
        write_neighbours(path, vectors, recipe.data, recipe.run.device)
    check_neighbours(path, recipe.data)
    return MinedNegatives(path, recipe.data.mined_negatives, recipe.run.text_seed)


def write_neighbours(path: Path, vectors: Path, data_args: DataArguments, device: torch.device) -> None:
    """Find each row's nearest others below the margin, write them (:class:`MinedNegatives`), and say what was found."""
    table, start = np.load(vectors, mmap_mode="r"), time.perf_counter()
    blocks = nearest_below(table, mean_of(table), 1 - data_args.mining_margin, data_args.mining_candidates, device)
    near = []  # (B,) each: the cosine of a row with its nearest other row

    def neighbours() -> Iterator[np.ndarray]:
        with progress(len(table), "mining", "rows") as shown:
            for rows, nearest in blocks:
                near.append(nearest)
                yield rows
                shown.add(len(rows))

    write_npy(path, neighbours(), len(table), data_args.mining_candidates, np.int32)
    cosines, seconds = np.concatenate(near), time.perf_counter() - start
    print(
        f"mining: compared {len(table):,} rows with each other in {seconds:.0f} s; half of the rows have a neighbour "
        f"with a cosine above {np.median(cosines):.2f}; {(cosines > 1 - data_args.mining_margin).mean():.1%} have one "
        f"above {1 - data_args.mining_margin:g}, which may mean the same and is left out (mining_margin "
        f"{data_args.mining_margin:g})"
    )


def check_neighbours(path: Path, data_args: DataArguments) -> None:
    """Check that each row has enough negatives.

    Raises:
        InputError: a row has fewer than a batch needs.
    """
    found = np.load(path, mmap_mode="r")[:, data_args.mined_negatives - 1]  # (N,)
    if lacking := int((found == NO_ROW).sum()):
        raise InputError(
            f"mined_negatives {data_args.mined_negatives} expects that many other rows with a cosine of at most "
            f"{1 - data_args.mining_margin:g}, found fewer for {lacking:,} of {len(found):,} rows; lower "
            "mining_margin, choose another mining_model, or add text"
        )
