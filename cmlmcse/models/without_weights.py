"""Check a model without its weights: which options it takes follows from its configuration and its tokenizer."""

from collections.abc import Iterable

from cmlmcse.common.errors import InputError, as_input_error, first_line
from cmlmcse.common.locations import resolve
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from modeling_cmlmcse.configuration_cmlmcse import CMLMCSEConfig

from .encoders import max_length, no_layers, open_model
from .folders import resolve_model
from .word_vectors import is_word_vectors


def check_encoder(
    name_or_path: str, pooling: str | None, lengths: Iterable[int | None], prompt_template: str | None
) -> int | None:
    """Check that a model is there, that it is of a known kind, and that it takes these options.

    Args:
        name_or_path: as in :func:`cmlmcse.models.encoders.load_encoder`.
        pooling: as there.
        lengths: numbers of tokens that texts are cut to, each as `max_seq_length` there.
        prompt_template: as there.

    Returns:
        The number of dimensions of its vectors; None for word vectors, which are not read.

    Raises:
        InputError: as :func:`cmlmcse.models.encoders.load_encoder`, except for weights that are missing or damaged.
    """
    name_or_path, lengths = resolve(name_or_path), list(lengths)
    if is_word_vectors(name_or_path):
        if pooling is not None or any(lengths):
            raise no_layers("--max_seq_length" if pooling is None else "--pooling", name_or_path)
        return None
    source = resolve_model(name_or_path)
    model, tokenizer = open_model(source, pooling, prompt_template, _empty_model)
    for length in lengths:
        max_length(source, model, tokenizer, length)
    return model.config.hidden_size


def _empty_model(source: str, ours: bool, pooling: str, normalize: bool) -> CMLMCSEForSentenceEmbedding:
    """The model as its configuration describes it, with weights that take no memory."""
    import torch
    from transformers import AutoConfig

    try:
        with as_input_error(f"{source}: the model cannot be loaded: "), torch.device("meta"):
            if ours:
                return CMLMCSEForSentenceEmbedding(CMLMCSEConfig.from_pretrained(source))
            backbone = AutoConfig.from_pretrained(source, trust_remote_code=False)
            config = CMLMCSEConfig(
                backbone_config=backbone, cmlm_weight=0.0, projection="none", pooling=pooling, normalize=normalize
            )
            return CMLMCSEForSentenceEmbedding(config)
    except OSError as error:
        raise InputError(f"{source}: the model cannot be loaded: {first_line(error)}") from error
