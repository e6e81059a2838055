"""From a study's YAML file to its runs."""

import dataclasses
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from cmlmcse.common.errors import InputError
from cmlmcse.common.recipes import read_recipe
from cmlmcse.training.arguments import parse_recipe

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")  # what may be a folder anywhere
OWN_FIELDS = ("seed", "output_dir", "resume_from_checkpoint")  # which a study gives its runs itself


@dataclass(frozen=True)
class Run:
    """One training run: an arm of a study with a seed. `fields` are those of the command line, as text."""

    index: int
    arm: str
    seed: int
    recipe: str
    fields: dict[str, str]
    folder: Path

    @property
    def arguments(self) -> list[str]:
        """What cmlmcse train is called with, but for where it writes."""
        return [self.recipe, *(part for name, value in self.fields.items() for part in (f"--{name}", value))]

    def __str__(self) -> str:
        return f"{self.arm}, seed {self.seed}"


@dataclass(frozen=True)
class Published:
    """Figures of a paper to be shown beside ours: metric → arm → value."""

    source: str
    values: dict[str, dict[str, float]]


@dataclass(frozen=True)
class Study:
    """A study as its YAML file has it.

    Attributes:
        name: of the study, and of the folder beside its file that it writes to.
        recipe: what cmlmcse train takes as RECIPE.
        seeds: every arm runs with each; a seed gives all arms the same data order and the same fresh weights.
        arms: arm → the fields in which it differs.
        baseline: the arm that the others are compared with.
        metrics: entries of results.json, such as `dev.spearman` or `sts.avg`; higher is better.
        common: fields of every run.
        launch: what starts the training, such as `accelerate launch --config_file FILE` (default: this Python).
        keep_checkpoints: whether a run that is done keeps its checkpoints; its export it always keeps.
        published: figures of a paper.
        folder: where it writes.
    """

    name: str
    recipe: str
    seeds: list[int]
    arms: dict[str, dict[str, str]]
    baseline: str
    metrics: list[str]
    common: dict[str, str] = field(default_factory=dict)
    launch: str | None = None
    keep_checkpoints: bool = False
    published: Published | None = None
    folder: Path = Path()

    @property
    def runs(self) -> list[Run]:
        """All runs, all arms of one seed before the next seed, so that pairs are complete early."""
        pairs = [(arm, seed) for seed in self.seeds for arm in self.arms]
        return [
            Run(
                index,
                arm,
                seed,
                self.recipe,
                {**self.fields(arm), "seed": str(seed)},
                self.folder / "runs" / arm / f"seed-{seed}",
            )
            for index, (arm, seed) in enumerate(pairs)
        ]

    def fields(self, arm: str) -> dict[str, str]:
        """An arm's fields, above those of every run."""
        return {**self.common, **self.arms[arm]}

    def with_fields(self, fields: dict[str, str]) -> "Study":
        """The study with more common fields, above its own.

        Raises:
            InputError: a field that is an arm's or a run's own.
        """
        for name in fields:
            if owner := next((arm for arm, own in self.arms.items() if name in own), None):
                raise InputError(f"--{name} expects a field that all arms share, found one that {owner} sets; drop it")
        return dataclasses.replace(self, common={**self.common, **_fields(fields, "the command line")})


def load_study(path: Path) -> Study:
    """Read a study.

    Raises:
        InputError: no such file, an unknown or missing entry, or one of the wrong kind.
    """
    if path.suffix not in (".yaml", ".yml") or not path.is_file():
        raise InputError(f"STUDY must be a YAML file, found {str(path)!r}; studies/ has some")
    content = read_recipe(path)
    known = {item.name: item for item in dataclasses.fields(Study) if item.name != "folder"}
    if unknown := [name for name in content if name not in known]:
        raise InputError(f"{path.name} expects the entries {', '.join(known)}, found {unknown[0]!r}; mend it")
    content = {"name": path.stem, **content}
    needed = [name for name, item in known.items() if item.default is item.default_factory is dataclasses.MISSING]
    if missing := [name for name in needed if content.get(name) is None]:
        raise InputError(f"{path.name} expects {', '.join(needed)}, found no {missing[0]}; add it")

    def expect(entry: str, right: bool, expected: str) -> None:
        if not right:
            raise InputError(f"{path.name}: {entry} must be {expected}, found {content[entry]!r}; mend it")

    _check_entries(content, expect)
    arms = {str(arm): _fields(own or {}, f"{path.name}, arm {arm}") for arm, own in content["arms"].items()}
    content["baseline"] = str(content["baseline"])
    expect("baseline", content["baseline"] in arms, f"one of the arms {', '.join(arms)}")
    published = _published(content.get("published"), path.name, content["metrics"], arms)
    common = _fields(content.get("common") or {}, f"{path.name}, common")
    given = {**content, "arms": arms, "common": common, "published": published}
    return Study(**given, folder=path.parent / content["name"])


def _check_entries(content: dict[str, Any], expect: Callable[[str, bool, str], None]) -> None:
    """The kinds of a study's entries."""
    text, seeds, arms = isinstance(content["name"], str), content["seeds"], content["arms"]
    expect("name", text and NAME.fullmatch(content["name"]) is not None, "letters, digits and . _ + -")
    expect("recipe", isinstance(content["recipe"], str), "a recipe")
    whole = isinstance(seeds, list) and all(type(seed) is int and seed >= 0 for seed in seeds)
    expect("seeds", whole and 0 < len(seeds) == len(set(seeds)), "a list of different whole numbers")
    expect("arms", isinstance(arms, dict) and len(arms) > 0, "a mapping of names to fields")
    for arm, own in arms.items():
        expect("arms", NAME.fullmatch(str(arm)) is not None, f"named by letters, digits and . _ + - (not {arm!r})")
        expect("arms", own is None or isinstance(own, dict), f"a mapping of names to fields (not {own!r})")
    metrics = content["metrics"]
    listed = isinstance(metrics, list) and all(isinstance(metric, str) for metric in metrics)
    expect("metrics", listed and len(metrics) > 0, "a list such as [dev.spearman, sts.avg]")
    expect("common", isinstance(content.setdefault("common", {}), dict), "a mapping of fields to values")
    expect("launch", isinstance(content.setdefault("launch", None), (str, type(None))), "a command")
    expect("keep_checkpoints", isinstance(content.setdefault("keep_checkpoints", False), bool), "true or false")


def _fields(fields: dict[str, Any], where: str) -> dict[str, str]:
    """Fields as the text that the command line takes.

    Raises:
        InputError: a field that the study gives its runs itself, or one that is no plain value.
    """
    for name, value in fields.items():
        if name in OWN_FIELDS:
            raise InputError(f"{where} expects fields of a recipe, found {name}, which a study sets itself; remove it")
        if not isinstance(value, (bool, int, float, str)):
            raise InputError(f"{where}: {name} must be a plain value, found {value!r}; mend it")
    return {str(name): str(value) for name, value in fields.items()}


def _published(given: Any, file: str, metrics: list[str], arms: dict[str, Any]) -> Published | None:
    """The entry `published`: `source`, and a mapping of arms to values for some of the metrics.

    Raises:
        InputError: it is something else.
    """
    if given is None:
        return None
    values = {name: value for name, value in given.items() if name != "source"} if isinstance(given, dict) else {}
    right = isinstance(given, dict) and isinstance(given.get("source"), str) and set(values) <= set(metrics)
    for by_arm in values.values():
        right = right and isinstance(by_arm, dict) and all(isinstance(v, (int, float)) for v in by_arm.values())
        right = right and {str(arm) for arm in by_arm} <= set(arms)
    if not right:
        raise InputError(
            f"{file}: published must map source to a text, and metrics to values of some arms, found {given!r}"
        )
    return Published(
        given["source"],
        {metric: {str(arm): float(v) for arm, v in by_arm.items()} for metric, by_arm in values.items()},
    )


def check_fields(runs: Sequence[Run]) -> list[str]:
    """Check the fields of all runs before the first one starts, and name this machine's GPUs.

    With GPUs it happens in a process of its own, for it would take hold of one.

    Raises:
        InputError: fields that cmlmcse train would refuse.
    """
    import torch

    count = torch.cuda.device_count()
    if count == 0:
        parse_all(runs)
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = (visible.split(",") if visible else [str(number) for number in range(count)])[:count]
    with get_context("spawn").Pool(1, hide_gpus, (names[0],)) as pool:
        pool.apply(parse_all, (runs,))
    return names


def hide_gpus(but: str) -> None:
    """Leave one GPU visible to this process, as a run has it."""
    os.environ["CUDA_VISIBLE_DEVICES"] = but


def parse_all(runs: Sequence[Run]) -> None:
    """Parse every run's arguments as cmlmcse train will.

    Raises:
        InputError: it would refuse them.
    """
    for run in runs:
        try:
            parse_recipe(run.arguments)
        except InputError as error:
            raise InputError(f"{run}: {error}") from None
