"""Recipes: YAML files of training fields, found by path or by name. This module does not import torch."""

import difflib
from pathlib import Path
from typing import Any

import yaml

from .errors import InputError

NONE = ("augmentation", "dev_set", "final_evaluation", "projection", "prompt_denoising", "report_to")  # may be `none`
PACKAGE_FOLDER = Path(__file__).resolve().parents[1]


def recipe_folder() -> Path:
    """The folder of the recipes: inside the installed package, or beside the package in a checkout."""
    installed = PACKAGE_FOLDER / "configuration"  # setup.cfg installs configuration/ there
    return installed if installed.is_dir() else PACKAGE_FOLDER.parent / "configuration"


def recipe_names() -> list[str]:
    """The names of all recipes that come with the tool."""
    return sorted(path.stem for path in recipe_folder().glob("*.yaml"))


def find_recipe(name: str) -> Path:
    """The file of a recipe, which is given by path or by the name of a recipe that comes with the tool.

    Raises:
        InputError: there is no such recipe. The message lists the known ones.
    """
    path = Path(name)
    if path.suffix in (".yaml", ".yml") and path.is_file():
        return path
    path = recipe_folder() / f"{name}.yaml"
    if "/" not in name and path.is_file():
        return path
    known = recipe_names()
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise InputError(f"RECIPE must be a YAML file or one of {', '.join(known)}, found {name!r}{hint}")


def check_once_each(node: yaml.Node | None, seen: set[int]) -> None:
    """Check that no key stands twice in a mapping: the last one would win without a word.

    Raises:
        YAMLError: one does.
    """
    if node is None or id(node) in seen or isinstance(node, yaml.ScalarNode):
        return
    seen.add(id(node))
    pairs = node.value if isinstance(node, yaml.MappingNode) else [(None, each) for each in node.value]
    names = [key.value for key, _ in pairs if isinstance(key, yaml.ScalarNode)]
    if twice := [name for name in names if names.count(name) > 1]:
        raise yaml.constructor.ConstructorError(None, None, f"the key {twice[0]!r} twice", node.start_mark)
    for _, value in pairs:
        check_once_each(value, seen)


def read_recipe(path: Path) -> dict[str, Any]:
    """The fields of a recipe.

    Raises:
        InputError: the file is not a YAML mapping of field names to plain values.
    """
    try:
        text = path.read_text(encoding="utf-8")
        check_once_each(yaml.compose(text, yaml.SafeLoader), set())
        fields = yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path.name} must be a YAML file, found {reason}; fix it") from error
    if not isinstance(fields, dict) or not all(isinstance(name, str) for name in fields):
        raise InputError(f"{path.name} must map field names to values, found {type(fields).__name__}; fix it")
    return fields


def meant_by_no(name: str) -> Any:
    """The value of a field whose file says false, as YAML reads `no` without quotes: no strategy, no teacher, none of a
    field that may be `none`; and false of another one."""
    if name == "teacher":
        return None
    return "no" if name.endswith("_strategy") else "none" if name in NONE else False


def summary(path: Path) -> str:
    """What a recipe is for: the comment on its first line."""
    with path.open(encoding="utf-8") as file:
        first = file.readline()
    return first.removeprefix("#").strip() if first.startswith("#") else ""
