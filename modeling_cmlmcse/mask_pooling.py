"""The pooling `prompt` as a module of sentence-transformers, which has none of its own that reads the mask token."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


class MaskPooling(nn.Module):
    """The state of a text's last mask token. The tokenizer of the model's folder puts the template around the text.

    sentence-transformers loads it with `trust_remote_code=True`.
    """

    def __init__(self, mask_token_id: int, word_embedding_dimension: int) -> None:
        super().__init__()
        self.mask_token_id, self.word_embedding_dimension = mask_token_id, word_embedding_dimension

    def forward(self, features: dict[str, Tensor], **kwargs: Any) -> dict[str, Tensor]:
        """Add `sentence_embedding` (N, H) to `input_ids` (N, T) and `token_embeddings` (N, T, H)."""
        masks = features["input_ids"] == self.mask_token_id  # (N, T)
        last = (masks * torch.arange(masks.shape[1], device=masks.device)).argmax(dim=1)  # (N,)
        rows = torch.arange(len(masks), device=masks.device)
        return {**features, "sentence_embedding": features["token_embeddings"][rows, last]}

    def get_sentence_embedding_dimension(self) -> int:
        """Width H of an embedding."""
        return self.word_embedding_dimension

    get_embedding_dimension = get_sentence_embedding_dimension

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Write config.json."""
        fields = {"mask_token_id": self.mask_token_id, "word_embedding_dimension": self.word_embedding_dimension}
        (Path(output_path) / "config.json").write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, input_path: str) -> "MaskPooling":
        """Read what :meth:`save` wrote."""
        return cls(**json.loads((Path(input_path) / "config.json").read_text(encoding="utf-8")))
