"""Load any kind of model, from its folder or Hub name, as one callable: texts → embeddings."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from huggingface_hub.constants import HF_HUB_OFFLINE

from cmlmcse.common.errors import InputError, as_input_error, first_line
from cmlmcse.common.locations import resolve
from modeling_cmlmcse.pooling import POOLINGS

from .folders import (
    PLAIN_POOLINGS,
    cached_file,
    check_whole_vectors,
    own_settings,
    read_json,
    recorded_max_length,
    recorded_prompts,
    records_lower_case,
    resolve_model,
    sentence_transformers_pooling,
    trained_pooling,
    unfinished,
)
from .word_vectors import WordVectors, is_word_vectors, load_word_vectors

if TYPE_CHECKING:
    from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
    from modeling_cmlmcse.text_encoding import Tokens

TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "sentencepiece.bpe.model", "spiece.model")

Load = Callable[[str, bool, str, bool], "CMLMCSEForSentenceEmbedding"]
"""Makes a model: its source, whether this project saved it, its pooling, whether it normalises."""

OF_TOKENS = ("max_length", "prompt_name", "prompt")  # arguments that decide the tokens of a text
BATCHES = ("batch_size", "batch_tokens")  # arguments that decide how many texts a forward pass has


@dataclass
class Encoder:
    """A loaded model as a callable: N texts → (N, H) float32 array.

    Attributes:
        arguments: further arguments of `model.encode`. :meth:`cut_to` changes `max_length`.
        bf16: whether it computes under autocast in bf16, as training with `--bf16` does.

    Raises:
        InputError: a text that the model cannot encode.
    """

    model: "CMLMCSEForSentenceEmbedding"
    tokenizer: Any
    arguments: dict[str, Any]
    bf16: bool = False

    def __call__(self, sentences: "list[str] | Tokens") -> np.ndarray:
        import torch

        from modeling_cmlmcse.text_encoding import Tokens

        made = OF_TOKENS if isinstance(sentences, Tokens) else ()
        arguments = {name: value for name, value in self.arguments.items() if name not in made}
        precision = torch.autocast(self.model.device.type, torch.bfloat16) if self.bf16 else contextlib.nullcontext()
        with precision, as_input_error():
            return self.model.encode(sentences, tokenizer=self.tokenizer, **arguments)

    def tokenize(self, sentences: list[str]) -> "Tokens":
        """The tokens of N texts, which a call takes in place of the texts. Another thread may make them meanwhile."""
        given = {name: self.arguments.get(name) for name in OF_TOKENS}
        with as_input_error():
            return self.model.tokenize(sentences, self.tokenizer, **given)

    @property
    def settings(self) -> dict[str, Any]:
        """A record of how it encodes. Names of cached vectors are a hash of it."""
        config = self.model.config
        reads_mask = POOLINGS[config.pooling].reads_mask
        return {
            "pooling": config.pooling,
            "max_seq_length": self.max_seq_length,
            **{name: self.arguments[name] for name in BATCHES if name in self.arguments},
            "device": str(self.model.device),
            **({"prompt_template": config.prompt_template} if reads_mask else {}),
            **({"precision": "bf16"} if self.bf16 else {}),
        }

    @property
    def max_seq_length(self) -> int:
        """The number of tokens that texts are cut to, special tokens included."""
        limit: int = self.arguments["max_length"]
        return limit

    @property
    def width(self) -> int:
        """The number of dimensions H of the model's vectors, before any are left out."""
        return self.model.config.hidden_size

    def cut_to(self, limit: int) -> "Encoder":
        """The same model, which cuts texts to `limit` tokens, special tokens included."""
        return replace(self, arguments=self.arguments | {"max_length": limit})

    @property
    def prompts(self) -> dict[str, str]:
        """The model's prompts by name; empty if it has none."""
        return self.model.config.prompts

    @property
    def bare(self) -> "Encoder":
        """The same model without its default prompt; itself if it has none."""
        if self.model.config.default_prompt_name is None:
            return self
        return replace(self, arguments={**self.arguments, "prompt": ""})


def load_encoder(
    name_or_path: str,
    pooling: str | None = None,
    max_seq_length: int | None = None,
    batch_size: int | None = None,
    device: str | None = None,
    show_progress_bar: bool = True,
    prompt_template: str | None = None,
) -> Encoder | WordVectors:
    """Load a model as :func:`load_model_encoder` does, or a text file of word vectors.

    Raises:
        InputError: as :func:`load_model_encoder`; a malformed file of word vectors; or an argument that these lack.
    """
    name_or_path = resolve(name_or_path)
    if not is_word_vectors(name_or_path):
        options = pooling, max_seq_length, batch_size, device, show_progress_bar, prompt_template
        return load_model_encoder(name_or_path, *options)
    if pooling is not None or max_seq_length is not None:
        raise no_layers("--max_seq_length" if pooling is None else "--pooling", name_or_path)
    return load_word_vectors(name_or_path)


def with_length(encoder: Encoder | WordVectors, max_seq_length: int, source: str) -> Encoder:
    """The same model, which cuts its texts to another number of tokens.

    Args:
        encoder: the loaded model.
        max_seq_length: the new number of tokens.
        source: the model's name, for messages.

    Raises:
        InputError: the model does not take so many, or has no such limit.
    """
    if not isinstance(encoder, Encoder):
        raise no_layers("--max_seq_length", source)
    return encoder.cut_to(max_length(source, encoder.model, encoder.tokenizer, max_seq_length))


def no_layers(option: str, source: str) -> InputError:
    """The error for an option of models that word vectors lack."""
    return InputError(f"{option} expects a model with layers, found word vectors in {source}; drop it")


def load_model_encoder(
    name_or_path: str,
    pooling: str | None = None,
    max_seq_length: int | None = None,
    batch_size: int | None = None,
    device: str | None = None,
    show_progress_bar: bool = True,
    prompt_template: str | None = None,
) -> Encoder:
    """Load an exported folder, a training checkpoint, a run's output folder, or a plain backbone.

    Args:
        name_or_path: a folder, a Hub name, or `package:NAME/path`, a folder in an installed package.
        pooling: for a model that records no pooling.
        max_seq_length: sentences are cut to this many tokens (default: the most that model and tokenizer take).
        batch_size: sentences in a forward pass (default: 64 on a CPU, 16,384 tokens on a GPU).
        device: where to compute (default: cuda if there is one, else cpu).
        show_progress_bar: whether to show a progress bar.
        prompt_template: with the pooling `prompt`, for a model that records no template (default: PromptBERT's).

    Raises:
        InputError: the model or its tokenizer is missing, a file cannot be read, the kind of model is not supported,
            or an argument contradicts what the model records.
    """
    from modeling_cmlmcse.text_encoding import choose_limits

    source = resolve_model(name_or_path)
    model, tokenizer = open_model(source, pooling, prompt_template, _load_model)
    limit = max_length(source, model, tokenizer, max_seq_length)
    model = _to_device(model, device)
    sentences, tokens = choose_limits(model.device.type, batch_size, None)
    batches = {"batch_size": sentences} if tokens is None else {"batch_tokens": tokens}
    arguments = {**batches, "max_length": limit, "show_progress_bar": show_progress_bar}
    return Encoder(model, tokenizer, arguments)


def open_model(
    source: str, pooling: str | None, prompt_template: str | None, load: Load
) -> "tuple[CMLMCSEForSentenceEmbedding, Any]":
    """A model and its tokenizer, with the prompts and the template that belong to it.

    Args:
        source: the model's folder or Hub name.
        pooling: for a model that records no pooling.
        prompt_template: as in :func:`load_model_encoder`.
        load: makes the model from its source, whether it is ours, its pooling, and whether it normalises.

    Raises:
        InputError: as :func:`load_model_encoder`.
    """
    config = read_json(source, "config.json", dict)
    if config is None:
        raise not_found(source, "config.json")
    ours = own_settings(source, config)
    chosen, normalize = _choose_pooling(source, ours, pooling)
    tokenizer = load_tokenizer(source)
    model = load(source, ours is not None, chosen, normalize)
    recorded_prompts(source).give(model)
    check_whole_vectors(source, model.config.hidden_size)
    if ours is None and POOLINGS[chosen].reads_mask:
        tokenizer = _give_template(model, tokenizer, prompt_template)
    elif prompt_template is not None:
        raise InputError(f"--prompt_template expects a plain backbone with --pooling prompt, found {source}; drop it")
    elif POOLINGS[chosen].reads_mask and model.config.mask_token_id not in tokenizer("")["input_ids"]:
        tokenizer = _give_template(model, tokenizer, None)  # a backbone's, saved beside a model made in Python
    return model, tokenizer


def _choose_pooling(source: str, ours: dict[str, Any] | None, given: str | None) -> tuple[str, bool]:
    """The pooling, and whether vectors are normalised. The pooling is the one that our model was trained with, else
    the given one, else the one that a sentence-transformers folder records.

    Raises:
        InputError: there is none of the three, or the given pooling contradicts the trained one.
    """
    if ours is not None:
        if given not in (None, ours.get("pooling")):
            raise InputError(
                f"{source} was trained with the pooling {ours.get('pooling')!r}, found --pooling {given!r}; drop it"
            )
        return trained_pooling(ours)
    recorded, normalize = sentence_transformers_pooling(source)
    pooling = given or recorded
    if pooling not in PLAIN_POOLINGS:
        known, found = ", ".join(PLAIN_POOLINGS), "none" if pooling is None else repr(pooling)
        records = "no pooling" if recorded is None else f"the pooling {recorded!r}"
        usual = "avg, the mean of the token vectors, is usual. After cmlmcse adapt a plain backbone finds more"
        advice = f"; {usual}" if recorded is None else ""
        raise InputError(f"{source} records {records}: expected --pooling with one of {known}, found {found}{advice}")
    return pooling, normalize


def _give_template(model: "CMLMCSEForSentenceEmbedding", tokenizer: Any, template: str | None) -> Any:
    """A plain backbone's tokenizer with a template, by default that of the model's configuration, where it is noted."""
    from cmlmcse.data.special_tokens import special_tokens
    from cmlmcse.data.templates import read_template, with_template

    model.config.prompt_template = template or model.config.prompt_template
    return with_template(tokenizer, read_template(model.config.prompt_template, tokenizer), special_tokens(tokenizer))


def not_found(source: str, name: str) -> InputError:
    """The error for a model without a file that every model has: no such model, or no network."""
    if Path(source).is_dir():
        return InputError(f"{source}: expected a model's folder, found no {name} in it; {unfinished(source)}")
    if source.startswith("assets/"):  # as in this project's recipes
        return InputError(
            f"{source}: expected a model's folder, found none at this place; it is in the checkout of cmlmcse: go "
            "there, or give its whole path"
        )
    offline = "HF_HUB_OFFLINE is set" if HF_HUB_OFFLINE else "the Hub has no such model, or cannot be reached"
    return InputError(
        f"{source}: expected a model's folder or Hub name, found no {name} on this machine, and {offline}; check the "
        "name and the network"
    )


def load_tokenizer(source: str) -> Any:
    """The model's tokenizer. Its files are checked first: without them transformers makes an empty tokenizer."""
    from transformers import AutoTokenizer

    from modeling_cmlmcse.backbone import quiet_loading

    from .lower_case import lower_case

    if not Path(source).is_dir() and cached_file(source, "config.json") is None:  # before five files are asked for
        raise not_found(source, "config.json")
    if not any(cached_file(source, name) for name in TOKENIZER_FILES):
        raise InputError(
            f"{source}: expected a tokenizer, found none of {', '.join(TOKENIZER_FILES)}; save one there, or choose "
            "another model"
        )
    try:
        with quiet_loading():  # a checkpoint's own model type is unknown to transformers
            tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)  # never asks to run code
        if records_lower_case(source):
            tokenizer = lower_case(tokenizer, source)
        tokenizer.chat_template = None  # a template would be saved as an extra file
        # datasets hashes the name too: without this, a copy in another folder would tokenise the text again
        tokenizer.name_or_path = tokenizer.init_kwargs["name_or_path"] = ""
        return tokenizer
    except InputError:
        raise
    except Exception as error:  # OSError, ValueError, KeyError, and plain Exception from the tokenizers library
        raise InputError(f"{source}: the tokenizer cannot be loaded: {first_line(error)[:300]}") from error


def _load_model(source: str, ours: bool, pooling: str, normalize: bool) -> "CMLMCSEForSentenceEmbedding":
    """The model, in evaluation mode and fp32."""
    import torch
    from safetensors import SafetensorError

    from modeling_cmlmcse import CMLMCSEForSentenceEmbedding as Model
    from modeling_cmlmcse.backbone import quiet_loading

    try:
        with as_input_error(f"{source}: the model cannot be loaded: "):
            if ours:
                config = Model.config_class.from_pretrained(source)
                listed = getattr(config, "transformers_weights", None)
                absent = listed is not None and cached_file(source, listed) is None
                if absent:  # saved by sentence-transformers, which has the head in its own module alone
                    del config.transformers_weights
                with quiet_loading() if absent else contextlib.nullcontext():
                    # fp32 also of files in half precision: a CPU computes fp16 several times more slowly
                    model = Model.from_pretrained(source, config=config, dtype=torch.float32).eval()
                if not _load_head(source, model) and absent:
                    raise InputError(f"{source}: expected {listed}, found none; export the model again")
                return model
            return Model.from_backbone(
                source, cmlm_weight=0.0, projection="none", pooling=pooling, normalize=normalize, backbone_dropout=0.0
            ).eval()
    except (OSError, RuntimeError, SafetensorError) as error:
        raise InputError(f"{source}: the model cannot be loaded: {first_line(error)[:300]}") from error


def _load_head(source: str, model: "CMLMCSEForSentenceEmbedding") -> bool:
    """Take the head that the embedding goes through from the folder's sentence-transformers module, in place; returns
    whether there is one.

    In our own folders it is the model's own. After training with sentence-transformers it is the trained one, and the
    model's own is the old one or is missing.
    """
    from safetensors.torch import load_file

    listed = read_json(source, "modules.json", list) or []
    paths = [item.get("path", "") for item in listed if item.get("type", "").endswith("Dense")]
    file = cached_file(source, f"{paths[0]}/model.safetensors") if paths else None
    if file is None or not POOLINGS[model.config.pooling].keeps_head:
        return False
    head = {name.removeprefix("linear."): tensor for name, tensor in load_file(file).items()}
    model.projection.dense.load_state_dict(head)
    return True


def max_length(source: str, model: "CMLMCSEForSentenceEmbedding", tokenizer: Any, given: int | None) -> int:
    """The number of tokens that sentences are cut to: the given one, else the smallest limit of the model, its
    tokenizer and its sentence-transformers settings."""
    rows, tokens = len(model.get_input_embeddings().weight), len(tokenizer)  # type: ignore[arg-type]
    if tokens > rows:
        raise InputError(f"{source}: expected a tokenizer of at most {rows} tokens, as the model has, found {tokens}")
    most = min(model.max_positions, tokenizer.model_max_length)
    least = tokenizer.num_special_tokens_to_add() + 1  # with those of a template, which is never cut
    if given is not None and not least <= given <= most:
        raise InputError(f"--max_seq_length must be from {least} to {most}, the most {source} takes, found {given}")
    return given or min(most, recorded_max_length(source) or most)


def _to_device(model: "CMLMCSEForSentenceEmbedding", device: str | None) -> "CMLMCSEForSentenceEmbedding":
    """Move the model to the device."""
    import torch

    name = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return model.to(torch.device(name))  # type: ignore[arg-type]
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"--device {name}: cannot be used here: {first_line(error)[:300]}") from error
