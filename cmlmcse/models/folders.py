"""What a model's folder, here or on the Hub, records of itself: its pooling, its prompts, where its files are."""

import json
import logging
import time
from pathlib import Path
from typing import Any

from cmlmcse.common.errors import InputError, as_input_error, first_line
from cmlmcse.common.locations import resolve
from cmlmcse.common.run_files import ARMS, EXPORT
from modeling_cmlmcse.configuration_cmlmcse import EXPORT_KEY, CMLMCSEConfig
from modeling_cmlmcse.pooling import POOLINGS

from .prompts import PROMPTS_FILE, Prompts
from .word_vectors import is_word_vectors

PLAIN_POOLINGS = tuple(name for name, pooling in POOLINGS.items() if not pooling.keeps_head)  # of a plain backbone
HEADLESS_POOLINGS = tuple(name for name in PLAIN_POOLINGS if not POOLINGS[name].reads_mask)  # with its own tokenizer
# sentence-transformers' name of a pooling mode → our pooling. Its poolings use the last layer only.
SENTENCE_TRANSFORMERS_POOLINGS = {
    POOLINGS[name].mode: name for name in HEADLESS_POOLINGS if POOLINGS[name].layers == (-1,)
}
SENTENCE_TRANSFORMERS_MODULES = ("Transformer", "Pooling", "Normalize")
COSINE = "cosine"  # what training compares
SIMILARITIES = (COSINE, "dot", "euclidean", "manhattan")  # sentence-transformers' names
REMEMBERED = 60.0  # seconds. Without a network the Hub's library tries for 25 s a file; a study asks for many
_unreachable: dict[str, tuple[float, str]] = {}  # models that could not be found: when, and the reason


def resolve_model(name_or_path: str) -> str:
    """The folder to load. For a run's output folder this is its `export/`, for `package:NAME/path` a folder in an
    installed package. A Hub name is returned unchanged.

    Raises:
        InputError: the path does not exist, or is a file.
    """
    name_or_path = resolve(name_or_path)
    path = Path(name_or_path)
    if not name_or_path:
        raise InputError("expected a model's folder or Hub name, found an empty one")
    if (path / EXPORT / "config.json").is_file():
        return str(path / EXPORT)
    could_be_hub_name = not path.is_absolute() and len(path.parts) <= 2 and not name_or_path.startswith((".", "~"))
    if not path.is_dir() and (not could_be_hub_name or Path(*path.parts[:1]).exists()):
        raise InputError(f"{name_or_path}: expected a model's folder, found none; check the path")
    return name_or_path


def unfinished(folder: str | Path) -> str:
    """What to do about a folder without a model: finish the run or the call of adapt that began in it, if one did."""
    if Path(folder, ARMS).is_dir() or any(Path(folder).glob("checkpoint-*")):
        return (
            "what began there is not finished: wait for it, or go on with its command and --resume_from_checkpoint auto"
        )
    return "check the name"


def records_pooling(name_or_path: str) -> bool:
    """Whether a model records a pooling that is known here, as models that this project trained and most
    sentence-transformers folders do.

    Raises:
        InputError: as :func:`recorded_pooling`.
    """
    name_or_path = resolve(name_or_path)
    return not is_word_vectors(name_or_path) and recorded_pooling(name_or_path)[0] in POOLINGS


def recorded_pooling(name_or_path: str) -> tuple[str | None, bool]:
    """The pooling that a model records, as models that this project trained and sentence-transformers folders do, None
    for a plain backbone; and whether it normalises.

    Raises:
        InputError: the path does not exist, or a configuration is malformed or not supported.
    """
    source = resolve_model(name_or_path)
    ours = own_settings(source, read_json(source, "config.json", dict) or {})
    return sentence_transformers_pooling(source) if ours is None else trained_pooling(ours)


def recorded_max_length(name_or_path: str) -> int | None:
    """The tokens that sentence-transformers cuts a model's texts to; None if the model does not say.

    Raises:
        InputError: the path does not exist, or the file is malformed.
    """
    return (read_json(resolve_model(name_or_path), "sentence_bert_config.json", dict) or {}).get("max_seq_length")


def records_lower_case(source: str) -> bool:
    """Whether sentence-transformers lower-cases a model's texts, whatever its tokenizer does.

    Raises:
        InputError: the file is malformed.
    """
    return bool((read_json(source, "sentence_bert_config.json", dict) or {}).get("do_lower_case"))


def recorded_prompts(name_or_path: str) -> Prompts:
    """The prompts that a model records. Every folder that this project writes records them for sentence-transformers.

    Raises:
        InputError: the path does not exist; the file is malformed; or the pooling leaves out the prompts' tokens.
    """
    source = resolve_model(name_or_path)
    with as_input_error(f"{source}/{PROMPTS_FILE}: "):
        prompts = Prompts.of(read_json(source, PROMPTS_FILE, dict) or {})
    if prompts.texts and (read_json(source, "1_Pooling/config.json", dict) or {}).get("include_prompt") is False:
        raise InputError(
            f"{source}: expected a pooling over all tokens, found include_prompt false, which leaves out those of the "
            "prompts and is not supported; use another model"
        )
    return prompts


def recorded_similarity(name_or_path: str) -> str:
    """The function that compares a model's embeddings, as it records for sentence-transformers; the cosine if it
    records none, or one that this library passes over.

    Raises:
        InputError: the path does not exist, or the file is malformed.
    """
    recorded = (read_json(resolve_model(name_or_path), PROMPTS_FILE, dict) or {}).get("similarity_fn_name")
    return recorded if recorded in SIMILARITIES else COSINE


def check_whole_vectors(source: str, width: int) -> None:
    """Check that sentence-transformers does not cut a model's vectors, of `width` numbers, as its folder may say.

    Raises:
        InputError: the folder says that vectors are cut.
    """
    cut = (read_json(source, PROMPTS_FILE, dict) or {}).get("truncate_dim")
    if isinstance(cut, int) and cut < width:
        raise InputError(
            f"{source}/{PROMPTS_FILE}: expected whole vectors, found truncate_dim {cut}, which only "
            "sentence-transformers follows; save a copy of the model without that entry, and cut vectors with "
            "--truncate_dim of encode and evaluate"
        )


def recorded_templates(name_or_path: str) -> dict[str, str]:
    """The templates that a model of this project records, by the names of their fields; none with another pooling.

    Raises:
        InputError: as :func:`recorded_pooling`.
    """
    source = resolve_model(name_or_path)
    ours = own_settings(source, read_json(source, "config.json", dict) or {}) or {}
    names = ("prompt_template", "second_prompt_template") if ours.get("pooling") == "prompt" else ()
    return {name: str(ours[name]) for name in names if name in ours}


def own_settings(source: str, config: dict[str, Any]) -> dict[str, Any] | None:
    """The settings that this project recorded in a model's config; None for any other model."""
    # Our checkpoints have our model type. Our exports have a plain backbone's config with one more section.
    ours = config if config.get("model_type") == CMLMCSEConfig.model_type else config.get(EXPORT_KEY)
    if ours is not None and not isinstance(ours, dict):
        raise InputError(f"{source}/config.json: expected {EXPORT_KEY} to be a dict, found {ours!r}; export it again")
    return ours


def trained_pooling(ours: dict[str, Any]) -> tuple[str, bool]:
    """The pooling that this project recorded, and whether the model normalises."""
    return str(ours.get("pooling")), ours.get("normalize") is True


def sentence_transformers_pooling(source: str) -> tuple[str | None, bool]:
    """The pooling that a sentence-transformers folder records (None if it records none), and whether it normalises.

    Raises:
        InputError: the folder has modules or a pooling that are not supported here.
    """
    listed = read_json(source, "modules.json", list) or []
    modules = {item.get("type", "").split(".")[-1]: item.get("path", "") for item in listed}
    unknown = [name for name in modules if name not in SENTENCE_TRANSFORMERS_MODULES]
    if unknown:
        raise InputError(
            f"{source}: expected sentence-transformers modules among {', '.join(SENTENCE_TRANSFORMERS_MODULES)}, "
            f"found {', '.join(unknown)} too, which is not supported; use another model"
        )
    config = read_json(source, f"{modules.get('Pooling', '1_Pooling')}/config.json", dict)
    if config is None:
        return None, "Normalize" in modules
    modes = _pooling_modes(config)
    if len(modes) != 1 or modes[0] not in SENTENCE_TRANSFORMERS_POOLINGS:
        known = " or ".join(SENTENCE_TRANSFORMERS_POOLINGS)
        raise InputError(f"{source}: expected the sentence-transformers pooling {known}, found {modes}")
    return SENTENCE_TRANSFORMERS_POOLINGS[modes[0]], "Normalize" in modules


def _pooling_modes(config: dict[str, Any]) -> list[str]:
    """The pooling modes of a sentence-transformers configuration. New folders have one key, old ones a flag each."""
    if "pooling_mode" in config:
        mode = config["pooling_mode"]
        return [mode] if isinstance(mode, str) else list(mode)
    flags = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
    on = [key for key, value in config.items() if key.startswith("pooling_mode_") and value is True]
    return [flags.get(key, key.removeprefix("pooling_mode_")) for key in on]


def read_json(source: str, name: str, kind: type) -> Any:
    """The content of a model's JSON file, which must be a `kind`; None if the model has no such file."""
    path = cached_file(source, name)
    if path is None:
        return None
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: expected JSON, found something else ({error}); restore the file") from error
    if not isinstance(content, kind):
        found = type(content).__name__
        raise InputError(f"{path}: expected a JSON {kind.__name__}, found a {found}; restore the file")
    return content


def cached_file(source: str, name: str) -> str | None:
    """The local path of a model's file, downloaded from the Hub if needed; None if the model has no such file.

    Raises:
        InputError: there is no such model, or the Hub cannot be reached. For a minute it is not asked again.
    """
    from transformers.utils import cached_file

    when, reason = _unreachable.get(source, (-REMEMBERED, ""))
    if time.monotonic() - when < REMEMBERED:
        raise InputError(reason)
    hub_log = logging.getLogger("huggingface_hub")
    level = hub_log.level
    hub_log.setLevel(logging.ERROR)  # without a network it would log every retry
    try:
        return cached_file(source, name, _raise_exceptions_for_missing_entries=False)
    except (OSError, ValueError) as error:
        reason = f"{source}: neither a folder nor a model on the Hub: {first_line(error)}"
        _unreachable[source] = (time.monotonic(), reason)
        raise InputError(reason) from error
    finally:
        hub_log.setLevel(level)
