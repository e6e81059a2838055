"""What `encode` must give."""

import numpy as np
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from support.tiny import tiny_tokenizer

ROWS = 83  # of the text


def expected(model: CMLMCSEForSentenceEmbedding, lines: list[str], **options) -> np.ndarray:
    """What the method gives, a sentence at a time."""
    return np.stack([model.encode(line, tokenizer=tiny_tokenizer("bert"), **options) for line in lines])


def without_special_tokens() -> PreTrainedTokenizerFast:
    """A tokenizer that adds nothing, so that an empty text has no token."""
    tokenizer = tiny_tokenizer("bert")
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="$A", special_tokens=[])
    return tokenizer


class Ones:
    """An encoder whose tokens are the texts, and whose embeddings are ones."""

    def tokenize(self, texts: list[str]) -> list[str]:
        return texts

    def __call__(self, tokens: list[str]) -> np.ndarray:
        return np.ones((len(tokens), 64), np.float32)
