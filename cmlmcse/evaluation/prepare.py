"""From a model's name to the encoder that the tasks score: loaded, kept on disk, whitened, cut, as the options say."""

import argparse
import sys
from pathlib import Path
from typing import Any

from cmlmcse.common.errors import InputError
from cmlmcse.common.locations import resolve
from cmlmcse.models.encoders import Encoder, load_encoder, with_length
from cmlmcse.models.folders import records_pooling, resolve_model
from cmlmcse.models.without_weights import check_encoder
from cmlmcse.models.word_vectors import WordVectors

from .encoding import Encode, EncodeOnce
from .short_sight import short_sight
from .tasks import TASKS
from .truncation import check_size, truncated


def prepare_encoder(model: str, args: argparse.Namespace, data: dict[str, Any]) -> tuple[EncodeOnce, dict[str, Any]]:
    """Load a model as an encoder with the options of the command line; also the settings for the results.

    Raises:
        InputError: the model cannot be loaded, or an option does not suit it or the data.
    """
    lengths = args.max_seq_length.of_sets(data)
    model = resolve(model)
    encoder, others = load_at_lengths(model, args, set(lengths.values()))
    settings = {**encoder.settings, "data": args.data_dir or "Hub"}
    lengths = {name: length for name, length in lengths.items() if length != settings["max_seq_length"]}
    settings |= {"set_lengths": lengths} if lengths else {}
    if isinstance(encoder, Encoder) and args.truncate_dim:  # word vectors are checked when they are cut
        check_size(max(args.truncate_dim), encoder.width)
    for line in short_sight(model, encoder, data, lengths):
        print(f"warning: {line}", file=sys.stderr)
    encode = EncodeOnce(cached(encoder, model, args.cache))
    once = {length: EncodeOnce(cached(each, model, args.cache)) for length, each in others.items()}
    encode.by_set = {name: once[length] for name, length in lengths.items()}
    return transformed(encode, settings, args, data)


def load_at_lengths(
    model: str, args: argparse.Namespace, lengths: set[int]
) -> tuple[Encoder | WordVectors, dict[int, Encoder]]:
    """The model with the length of all texts, and the same model at each other length in tokens."""
    pooling, template = choices(model, args)
    limits = (args.max_seq_length.default, args.batch_size, args.device)
    encoder = load_encoder(model, pooling, *limits, sys.stderr.isatty(), template)
    return encoder, {length: with_length(encoder, length, model) for length in lengths}


def choices(model: str, args: argparse.Namespace) -> tuple[str | None, str | None]:
    """The pooling and the template for a model. Of several models, --pooling is for those that record none. With one
    model, a different --pooling is an error of load_encoder."""
    own = len(args.models) > 1 and records_pooling(model)
    return (None, None) if own else (args.pooling, args.prompt_template)


def check_encoders(args: argparse.Namespace, data: dict[str, Any]) -> None:
    """Check before the first of several models is scored that all are there and take the options. Weights are not read.

    Raises:
        InputError: a model or an option is wrong, as far as that shows without weights.
    """
    lengths = {args.max_seq_length.default, *args.max_seq_length.of_sets(data).values()}
    for model in map(resolve, args.models):
        pooling, template = choices(model, args)
        width = check_encoder(model, pooling, lengths, template)
        if width is not None and args.truncate_dim:
            check_size(max(args.truncate_dim), width)
        if width is not None and args.whitening is not None and args.whitening > width:
            raise InputError(f"--whitening must be at most {width}, as {model} has, found {args.whitening}; lower it")
        for name in data:
            TASKS[name].check(model)


def cached(encoder: Encoder | WordVectors, model: str, folder: Path | None) -> Encode:
    """The encoder, with its vectors kept in the folder if there is one."""
    if folder is None:
        return encoder
    from cmlmcse.models.fingerprint import fingerprint_model

    from .cache import CachedEncoder

    source = model if Path(model).is_file() else resolve_model(model)
    return CachedEncoder(encoder, folder, fingerprint_model(source, encoder.settings))


def transformed(
    encode: EncodeOnce, settings: dict[str, Any], args: argparse.Namespace, data: dict[str, Any]
) -> tuple[EncodeOnce, dict[str, Any]]:
    """The encoder with the whitening and the rankings that the options ask for, and the settings with theirs."""
    if args.whitening is not None:
        from .whitening import whiten

        encode, found = whiten(encode, data, args.whitening or None, args.whitening_file)
        settings = settings | found
    if args.rank_corpus is not None:
        from .ranks import with_ranks

        encode, found = with_ranks(encode, data, args.rank_corpus, args.rank_sentences, args.rank_weight)
        settings = settings | found
    return encode, settings


def truncate(encode: EncodeOnce, settings: dict[str, Any], size: int) -> tuple[EncodeOnce, dict[str, Any]]:
    """The encoder with its vectors cut to `size` dimensions, and the settings for the results."""
    return truncated(encode, size), {**settings, "truncate_dim": size}
