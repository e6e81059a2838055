"""The lower case that sentence-transformers gives texts before any tokenizer reads them (`do_lower_case`)."""

from tempfile import TemporaryDirectory
from typing import Any

from tokenizers.normalizers import Lowercase, Sequence
from transformers import AutoTokenizer

from cmlmcse.common.errors import InputError


def lower_case(tokenizer: Any, source: str) -> Any:
    """A tokenizer that writes texts in lower case first, as sentence-transformers makes it, and does so once saved too.

    Raises:
        InputError: a kind of tokenizer that loses this when it is saved.
    """
    backend = tokenizer.backend_tokenizer
    own = backend.normalizer
    if own is not None and own.normalize_str("A") == "a":
        return tokenizer
    backend.normalizer = Sequence([Lowercase(), *([] if own is None else [own])])
    if hasattr(tokenizer, "do_lower_case"):  # BERT's makes its normalizer anew from these when it is loaded
        accents = bool(getattr(tokenizer, "strip_accents", None))  # with None it would strip them, once it lower-cases
        for name, value in {"do_lower_case": True, "strip_accents": accents}.items():
            setattr(tokenizer, name, value)
            tokenizer.init_kwargs[name] = value
    with TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        saved = AutoTokenizer.from_pretrained(folder)
    probe = "A Näive Test"
    if saved(probe)["input_ids"] != tokenizer(probe)["input_ids"]:
        raise InputError(
            f"{source}/sentence_bert_config.json: expected a tokenizer that keeps do_lower_case, found a "
            f"{type(tokenizer).__name__}, which loses it when it is saved; use a model whose tokenizer lower-cases"
        )
    return tokenizer
