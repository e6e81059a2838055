"""Alignment, uniformity, anisotropy and spectrum of the embedding space."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from cmlmcse.common.vectors import unit
from modeling_cmlmcse.losses import anisotropy, uniformity

from .card_metric import CardMetric
from .encoding import Encode, EncodeOnce
from .scores import rounded
from .sts_data import STSB_DEV, Pairs, sentences_of

POSITIVE_SCORE = 4.0  # pairs with at least this score are positives; SimCSE's analysis takes those above it


def geometry(encode: Encode, stsb_pairs: Pairs) -> dict[str, Any]:
    """Measures of the normalised embeddings of M distinct sentences; None if a measure is not defined.

    `alignment` is the mean of ‖u − v‖² over the pairs with a score of at least 4. `uniformity` is the logarithm of the
    mean of exp(−2 ‖x − y‖²) over all pairs of distinct sentences. Lower is better for both (Wang & Isola 2020, §4.1,
    α = 2, t = 2). `anisotropy` is the mean cosine over all pairs of distinct sentences; it is 0 if directions are
    spread evenly (Ethayarajh 2019, §3.4). The other measures come from :func:`spectrum`.

    A zero vector, as word vectors have for a sentence of unknown words, has no direction. `uniformity` is then not
    defined, nor is `alignment` where the sentence is of such a pair.
    """
    encoder = EncodeOnce.of(encode)
    sentences = sentences_of([stsb_pairs])
    vectors = unit(encoder(sentences).astype(np.float64))  # (M, H)
    row = {text: index for index, text in enumerate(sentences)}
    positives = [index for index, score in enumerate(stsb_pairs.scores) if score >= POSITIVE_SCORE]
    first = vectors[[row[stsb_pairs.first[index]] for index in positives]]  # (P, H)
    second = vectors[[row[stsb_pairs.second[index]] for index in positives]]  # (P, H)
    several = torch.from_numpy(vectors) if len(vectors) > 1 else None
    aligned = bool(positives) and all_directed(first) and all_directed(second)
    return {
        "alignment": rounded(np.square(first - second).sum(axis=1).mean()) if aligned else None,
        "uniformity": rounded(uniformity(several).item()) if several is not None and all_directed(vectors) else None,
        "anisotropy": None if several is None else rounded(anisotropy(several).item()),
        **spectrum(vectors),
        "positive_pairs": len(positives),
        "sentences": len(sentences),
    }


def all_directed(vectors: np.ndarray) -> bool:
    """Whether no row of (N, H) is zero."""
    return bool(vectors.any(axis=1).all())


def spectrum(vectors: np.ndarray) -> dict[str, Any]:
    """The singular values σ of (M, H) embeddings of length 1, as in SimCSE §5.

    The squares σ² are the eigenvalues of W Wᵀ. Their sum is M for every model, and the contrastive loss lowers the
    largest one. The embeddings are not centred: a direction common to all of them is what anisotropy measures, and
    centring would remove it.

    Returns:
        `effective_rank`: exp of the entropy of σ / Σσ (Roy & Vetterli 2007); 1 if all embeddings are equal, min(M, H)
        if all σ are equal. `top_share`: the largest σ² / Σσ². `spectrum`: σ / Σσ, largest first.
    """
    sigma = np.linalg.svd(vectors, compute_uv=False) if np.isfinite(vectors).all() else np.zeros(0)  # (min(M, H),)
    if not sigma.any():
        return {"effective_rank": None, "top_share": None, "spectrum": []}
    shares = sigma / sigma.sum()
    entropy = -float((shares * np.log(shares, where=shares > 0, out=np.zeros_like(shares))).sum())
    return {
        "effective_rank": rounded(np.exp(entropy)),
        "top_share": rounded(sigma[0] ** 2 / np.square(sigma).sum()),
        "spectrum": [round(float(share), 6) for share in shares],
    }


def card_metrics(found: dict[str, Any]) -> Iterator[CardMetric]:
    """The measures, for a model card."""
    for name in ("alignment", "uniformity", "anisotropy", "effective_rank"):
        metric = (name, name.replace("_", " "))
        yield CardMetric("feature-extraction", STSB_DEV.hub, "STS-B dev", "validation", metric, found.get(name))
