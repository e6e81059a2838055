"""CMLM-CSE sentence embeddings and their family as a Hugging Face Transformers model-hub extension."""

from .configuration_cmlmcse import CMLMCSEConfig
from .modeling_cmlmcse import CMLMCSEForSentenceEmbedding

__all__ = ["CMLMCSEConfig", "CMLMCSEForSentenceEmbedding"]
