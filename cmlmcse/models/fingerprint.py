"""A name for what a model computes, so that embeddings that were kept are never taken for another model's."""

import hashlib
import os
from pathlib import Path
from typing import Any

from cmlmcse.common.errors import InputError
from cmlmcse.common.files import update_from_file

# What an embedding depends on: weights, configurations, the tokenizer and code. Not what somebody adds: scores, notes.
FILES = ("*.safetensors", "*.bin", "*.index.json", "*config*.json", "modules.json", "tokenizer.json", "vocab*",
         "merges.txt", "special_tokens_map.json", "added_tokens.json", "*.model", "*.py")  # fmt: skip
TRAINING = ("training_args.bin", "optimizer.bin", "scheduler.bin")  # which lie beside weights, and are none


def fingerprint_model(source: str, settings: dict[str, Any]) -> str:
    """A name for a local model's embeddings: a hash of its files and of the settings that change an embedding.

    Raises:
        InputError: the model is not on this machine.
    """
    path = Path(source)
    if not path.exists():
        raise InputError(f"embeddings can be kept for a model on this machine, found {source}; download it first")
    found = {file for pattern in FILES for file in path.rglob(pattern) if file.name not in TRAINING}
    files = sorted(found) if path.is_dir() else [path]
    digest = hashlib.sha256()
    for file in files:
        digest.update(os.fsencode(file.relative_to(path)) + b"\0")
        update_from_file(digest, file)
    kept = {name: value for name, value in settings.items() if name not in ("batch_size", "batch_tokens", "device")}
    digest.update(repr(sorted(kept.items())).encode())
    return digest.hexdigest()[:32]
