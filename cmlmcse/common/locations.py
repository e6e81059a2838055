"""Resolve model and file names: a name may point to a file inside an installed package."""

import hashlib
import importlib.util
import os
from pathlib import Path

from .errors import InputError
from .files import update_from_file

PACKAGE = "package:"
SAVE_TEXT, SAVE_MODEL = "write the texts to a file, one per line", "save the model to a folder"


def resolve(name: str) -> str:
    """The local path of `package:NAME/path`, a file in an installed package. Other names are returned unchanged.

    Raises:
        InputError: the package is not installed, or has no such file.
    """
    if not name.startswith(PACKAGE):
        return name
    package, _, inside = name.removeprefix(PACKAGE).partition("/")
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:  # of a package inside another one
        spec = None
    if spec is None or spec.origin is None:
        raise InputError(f"{name} expects the package {package}, found none installed; pip install {package}")
    path = Path(spec.origin).parent / inside
    if not path.exists():
        raise InputError(
            f"{name} expects {inside} in the package {package}, found none; check the name and its version"
        )
    return str(path)


def path_or_name(argument: str, value: object, advice: str) -> str:
    """The text of an argument that is a path or a name: callers from Python may give the thing itself.

    Raises:
        InputError: it is something else.
    """
    if not isinstance(value, (str, os.PathLike)):
        kind = type(value).__name__
        raise InputError(f"{argument}: expected a path or a name, found a {kind}; {advice} and give its path")
    return str(value)


def check_weights(path: str, expected: str | None) -> None:
    """Check that the weights of a local model have the SHA-256 that the recipe expects.

    Raises:
        InputError: they differ.
    """
    if expected is None:
        return
    weights, found = Path(path) / "model.safetensors", "no model.safetensors"
    if weights.is_file():
        digest = hashlib.sha256()
        update_from_file(digest, weights)
        found = digest.hexdigest()
    if found != expected:
        raise InputError(
            f"the weights of model_name_or_path must have model_sha256 {expected}, found {found}; install the tested "
            "version again, or remove model_sha256 from the recipe"
        )
