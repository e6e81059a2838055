"""Plots of evaluated models: similarities, embedding space, and comparison of scores."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cmlmcse.common.errors import InputError
from cmlmcse.common.figures import BLUE, COLOURS, GREY, ORANGE, plot_cosine_by_gold, plt, save, set_labels

from .compare import Scored
from .encoding import Encode, EncodeOnce
from .sts_data import Pairs
from .tables import STS_COLUMNS, Results

MIN_SHARE = 1e-6  # smaller singular values are rounding errors; they would flatten the curve of all others
DRAWN = frozenset({"sts", "stsb_dev", "geometry"})  # the tasks that have a plot
MAP_PAIRS = 60  # pairs on the map; with more of them a reader cannot tell them apart


def plots_folder(folder: Path) -> Path:
    """The folder for plots, created if it does not exist.

    Raises:
        InputError: it cannot be created.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--plots {folder}: expected a folder for plots, found {error.strerror}") from error
    return folder


def map_vectors(encode: Encode, data: dict[str, Any]) -> NDArray[Any] | None:
    """The embeddings that a model's map is drawn from: of the first sentences of the most and the least similar pairs,
    then of the second ones (2P, H). None without STS-B dev."""
    pairs: Pairs | None = data.get("stsb_dev") or data.get("geometry") or data.get("sts", ({}, None))[1]
    if pairs is None:
        return None
    order = np.argsort(pairs.scores, kind="stable")
    chosen = [*order[-MAP_PAIRS // 2 :], *order[: MAP_PAIRS // 2]]
    return EncodeOnce.of(encode)([side[index] for side in (pairs.first, pairs.second) for index in chosen])


def plot_results(
    results: dict[str, Results],
    scored: dict[str, dict[str, Scored]],
    maps: dict[str, NDArray[Any]],
    folder: Path,
) -> None:
    """The plots of the results. Plots of tasks that did not run are left out."""
    for model, vectors in maps.items():
        plot_map(vectors, folder, model, f"_{file_name(model)}" if len(results) > 1 else "")
    plot_violins(scored, folder)
    plot_alignment_uniformity(results, folder)
    plot_bars(results, folder)
    plot_spectrum(results, folder)


def plot_violins(scored: dict[str, dict[str, Scored]], folder: Path) -> None:
    """`cosine_by_gold…`: the distribution of the similarities by human score over all sets; one plot for each model."""
    for model, sets in scored.items():
        # Sets have different scales of human scores: scale each set to 0–1.
        gold = np.concatenate([(one.gold - one.gold.min()) / max(np.ptp(one.gold), 1e-12) for one in sets.values()])
        cosines = np.concatenate([one.cosines for one in sets.values()])
        name = "cosine_by_gold" + (f"_{file_name(model)}" if len(scored) > 1 else "")
        plot_cosine_by_gold(cosines, gold, folder, f"{model}, {len(sets)} STS sets, scores as 0–1", name=name)


def plot_alignment_uniformity(results: dict[str, Results], folder: Path) -> None:
    """`alignment_uniformity`: each model as a point (Wang & Isola 2020); lower left is better."""
    points = {model: result["geometry"] for model, result in results.items() if "geometry" in result}
    points = {model: one for model, one in points.items() if None not in (one["alignment"], one["uniformity"])}
    if not points:
        return
    figure, axes = plt.subplots(figsize=(6.5, 5))
    for (model, one), colour in zip(points.items(), COLOURS * len(points), strict=False):
        score = results[model].get("sts", {}).get("avg")
        label = model if score is None else f"{model} (STS avg. {score:.2f})"
        axes.plot(one["uniformity"], one["alignment"], "o", color=colour, markersize=9, label=label)
    axes.margins(0.25)
    axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.15))
    set_labels(
        axes, "uniformity (lower is better)", "alignment (lower is better)", "Alignment and uniformity (STS-B dev)"
    )
    save(figure, folder, "alignment_uniformity")


def plot_bars(results: dict[str, Results], folder: Path) -> None:
    """`subsets`: the gain over the first model on every subset of the STS sets; with one model, its scores."""
    baseline, *others = results
    scores = {model: subset_scores(result) for model, result in results.items()}
    names = [name for name in scores[baseline] if all(name in scores[model] for model in others)]
    if not names:
        return
    shown = others or [baseline]
    figure, axes = plt.subplots(figsize=(8, 0.32 * len(names) * max(len(shown), 1) ** 0.5 + 1.5))
    rows, height = np.arange(len(names)), 0.8 / len(shown)
    for index, (model, colour) in enumerate(zip(shown, COLOURS * len(shown), strict=False)):
        values = [scores[model][name] - (scores[baseline][name] if others else 0) for name in names]
        axes.barh(rows + (index + 0.5) * height - 0.4, values, height * 0.9, color=colour, label=model)
    axes.set_yticks(rows, names, fontsize=8)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.axvline(0, color=GREY, linewidth=0.8)
    axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.06))
    axes.set_axisbelow(True)
    set_labels(axes, f"difference to {baseline}" if others else "", "", "Spearman × 100 by subset")
    save(figure, folder, "subsets")


def subset_scores(results: Results) -> dict[str, float]:
    """Spearman × 100 of every subset, and of sets without subsets."""
    found: dict[str, float | None] = {}
    for name, heading in STS_COLUMNS.items():
        one = results.get("sts", {}).get(name, {})
        subsets = one.get("subsets", {})
        several = {f"{heading} {subset}": value for subset, value in subsets.items()}
        found |= several if len(subsets) > 1 else {heading: one.get("all")}
    return {name: value for name, value in found.items() if value is not None}


def plot_map(vectors: NDArray[Any], folder: Path, model: str, suffix: str = "") -> None:
    """`map`: the most and the least similar pairs in two dimensions (t-SNE of cosine distances), each pair joined by
    a line. A good encoder gives short lines for similar pairs and long lines for the others.

    Args:
        vectors: (2P, H), from :func:`map_vectors`.
        folder: where the plot is saved.
        model: its name in the title.
        suffix: the end of the plot's name.
    """
    from sklearn.manifold import TSNE

    count = len(vectors) // 2  # P
    perplexity = min(10.0, (len(vectors) - 1) / 3)
    tsne = TSNE(metric="cosine", init="random", perplexity=perplexity, random_state=0)
    points = tsne.fit_transform(vectors)  # (2P, 2)
    first, second = points[:count], points[count:]
    figure, axes = plt.subplots(figsize=(6.5, 6))
    similar = count - MAP_PAIRS // 2
    groups = (("least similar pairs", slice(similar, None), ORANGE), ("most similar pairs", slice(similar), BLUE))
    for label, rows, colour in groups:
        for one, other in zip(first[rows], second[rows], strict=True):
            axes.plot(*zip(one, other, strict=True), color=colour, linewidth=0.8, alpha=0.7)
        ends = np.concatenate([first[rows], second[rows]])
        axes.plot(ends[:, 0], ends[:, 1], "o", color=colour, markersize=4, label=label)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.02), ncols=2)
    set_labels(axes, "", "", f"Pairs of STS-B dev ({model})")
    save(figure, folder, f"map{suffix}")


def plot_spectrum(results: dict[str, Results], folder: Path) -> None:
    """`spectrum`: the singular values of the embeddings. A flat curve means that all dimensions are used."""
    spectra = {model: result.get("geometry", {}).get("spectrum") for model, result in results.items()}
    drawn = {model: values for model, values in spectra.items() if values}
    if not drawn:
        return
    figure, axes = plt.subplots(figsize=(6.5, 4))
    for (model, values), colour in zip(drawn.items(), COLOURS * len(drawn), strict=False):
        shares = np.where(np.array(values) > MIN_SHARE, values, np.nan)
        axes.plot(np.arange(1, len(values) + 1), shares, color=colour, label=model)
    axes.set_yscale("log")
    axes.legend(frameon=False, fontsize=8)
    set_labels(
        axes, "dimension, by size", "share of the singular values", "Singular values of the embeddings (STS-B dev)"
    )
    save(figure, folder, "spectrum")


def file_name(model: str) -> str:
    """A model's name with characters that a file name may have."""
    return "".join(character if character.isalnum() or character in "-." else "_" for character in model).strip("._")
