"""A query of search's tests, and its cosines with texts."""

import numpy as np

from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from support.tiny import tiny_tokenizer

QUERY = "the cat sat on the mat"


def cosines(texts: list[str]) -> np.ndarray:
    """Of the query with each text, by a model that encodes each by itself."""
    model = CMLMCSEForSentenceEmbedding.from_backbone(
        "model", cmlm_weight=0.0, projection="none", pooling="avg", backbone_dropout=0.0
    ).eval()
    query, *vectors = (model.encode(text, tokenizer=tiny_tokenizer("bert")) for text in [QUERY, *texts])
    return np.array([query @ v / np.linalg.norm(query) / np.linalg.norm(v) for v in vectors])
