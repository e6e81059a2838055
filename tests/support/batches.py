"""Training batches, and what transformers' own padded models make of them."""

import copy
from typing import Any

import torch
from transformers import AutoModelForMaskedLM, PreTrainedModel

from cmlmcse.data.augmentation import build_augmentation
from cmlmcse.data.batches import Example
from cmlmcse.data.collator import ViewCollator
from cmlmcse.data.masking import Masking
from cmlmcse.data.pretraining_text import MaskedCollator
from support.tiny import tiny_tokenizer


def make_batch(kind: str, sentences: list[str], probability: float = 0.4, **options):
    """A training batch of these sentences."""
    tokenizer = tiny_tokenizer(kind)
    masking = Masking.of(tokenizer, probability)
    collator = ViewCollator(tokenizer, seed=5, masking=masking, **options)
    return collator([Example(tokenizer(s)["input_ids"], 0, row) for row, s in enumerate(sentences)])


def make_masked_batch(
    kind: str, sentences: list[str], probability: float = 0.4, seed: int = 5, deletion_rate: float = 0.0
) -> dict:
    """A masked batch of these sentences, perhaps without some of their words."""
    tokenizer = tiny_tokenizer(kind)
    masking = Masking.of(tokenizer, probability)
    shorten = build_augmentation("delete_tokens", tokenizer, deletion_rate=deletion_rate) if deletion_rate else None
    collator = MaskedCollator(seed, masking, shorten=shorten)
    return collator([Example(tokenizer(s)["input_ids"], 0, row) for row, s in enumerate(sentences)])


def moved(value: Any, device: str) -> Any:
    """A batch on a device; what the host knows, such as sizes, stays."""
    if isinstance(value, dict):
        return {name: moved(item, device) for name, item in value.items()}
    if isinstance(value, list):
        return [moved(item, device) for item in value]
    return value.to(device) if isinstance(value, torch.Tensor) else value


def rows_of(packed: dict) -> list[list[int]]:
    """The tokens of each packed row."""
    return [row.tolist() for row in packed["input_ids"].split(packed["lengths"].tolist())]


def unpack(packed: dict) -> tuple[torch.Tensor, torch.Tensor]:
    """Packed rows → padded ids (B, T) and mask (B, T), by a plain loop."""
    rows = packed["input_ids"].split(packed["lengths"].tolist())
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=0)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(r) for r in rows], batch_first=True)
    return ids, mask


def padded(kind: str, part: dict) -> tuple[torch.Tensor, torch.Tensor]:
    """A packed part → padded ids with the kind's padding token, and the mask."""
    ids, mask = unpack(part)
    return ids.masked_fill(mask == 0, tiny_tokenizer(kind).pad_token_id), mask


def reference(folder: str) -> PreTrainedModel:
    """transformers' own masked-language model."""
    model = AutoModelForMaskedLM.from_pretrained(folder).eval()
    model.set_attn_implementation("eager")
    return model


def restored(part: dict) -> torch.Tensor:
    """(S,) the sentences before masking."""
    return part["input_ids"].index_copy(0, part["mlm_positions"], part["mlm_labels"])


class Given(torch.nn.Module):
    """Embeddings of which the result is known."""

    def __init__(self, states: torch.Tensor) -> None:
        super().__init__()
        self.states = states

    def forward(self, *args, **kwargs) -> torch.Tensor:
        return self.states


def from_states(pretrained: PreTrainedModel, states: torch.Tensor, first: int = 0) -> PreTrainedModel:
    """transformers' own model on padded `states` (B, T, H), with its blocks from `first` on."""
    model = copy.deepcopy(pretrained)
    path = {"distilbert": "transformer.layer", "modernbert": "layers"}.get(model.config.model_type, "encoder.layer")
    base = model.base_model
    base.set_submodule(path, base.get_submodule(path)[first:])
    base.embeddings = Given(states)
    if hasattr(base, "embeddings_project"):
        del base.embeddings_project
    return model
