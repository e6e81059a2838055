"""Reads a study's YAML file and lists its runs."""

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from cmlmcse.common.errors import InputError
from cmlmcse.common.recipes import meant_by_no, read_recipe
from cmlmcse.training.parse import parse_recipe

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")  # valid as a folder name on every system
OWN_FIELDS = ("seed", "output_dir", "resume_from_checkpoint")  # a study sets these itself for each run
MACHINE_FIELDS = ("data_dir",)  # these may differ between the machines of a study


@dataclass(frozen=True)
class Run:
    """One training run: one arm with one seed. `fields` are the recipe fields of its command line, as text. `asked` is
    :meth:`Study.asked` of its arm."""

    index: int
    arm: str
    seed: int
    recipe: str
    fields: dict[str, str]
    folder: Path
    asked: str

    @property
    def arguments(self) -> list[str]:
        """The arguments of cmlmcse train, except --output_dir."""
        return [self.recipe, *(part for name, value in self.fields.items() for part in (f"--{name}", value))]

    def __str__(self) -> str:
        return f"{self.arm}, seed {self.seed}"


@dataclass(frozen=True)
class Published:
    """A paper's results, shown beside ours: metric → arm → value."""

    source: str
    values: dict[str, dict[str, float]]


@dataclass(frozen=True)
class Study:
    """The content of a study's YAML file.

    Attributes:
        name: the study's name, and the name of its output folder, which lies beside the YAML file.
        recipe: the RECIPE argument of cmlmcse train.
        seeds: every arm runs with every seed. A seed gives all arms the same data order and the same fresh weights.
        arms: arm → the recipe fields that this arm sets.
        baseline: the arm, or the method, that all others are compared with.
        metrics: entries of results.json, such as `dev.spearman` or `sts.avg`. Higher is better.
        common: recipe fields that all runs share.
        launch: command that starts the training, such as `accelerate launch --config_file FILE` (default: this Python).
        methods: method → its arms, which are the settings that were tried for it, the same number for every method.
            Each method is reported at the setting with the best mean of the first development metric.
        keep_checkpoints: whether a finished run keeps its checkpoints. It always keeps its export.
        published: a paper's results.
        folder: the output folder.
        written: the common fields of the file, without those of the command line.
    """

    name: str
    recipe: str
    seeds: list[int]
    arms: dict[str, dict[str, str]]
    baseline: str
    metrics: list[str]
    common: dict[str, str] = field(default_factory=dict)
    launch: str | None = None
    methods: dict[str, list[str]] = field(default_factory=dict)
    keep_checkpoints: bool = False
    published: Published | None = None
    folder: Path = Path()
    written: dict[str, str] = field(default_factory=dict)

    @property
    def runs(self) -> list[Run]:
        """All runs. All arms of one seed come before the next seed, so that paired runs are complete early."""
        pairs = [(arm, seed) for seed in self.seeds for arm in self.arms]
        return [
            Run(
                index,
                arm,
                seed,
                self.recipe,
                {**self.fields(arm), "seed": str(seed)},
                self.folder / "runs" / arm / f"seed-{seed}",
                self.asked(arm),
            )
            for index, (arm, seed) in enumerate(pairs)
        ]

    @property
    def dev_metric(self) -> str:
        """The metric that chooses the setting of a method: the first one on a development set."""
        return next(metric for metric in self.metrics if is_dev(metric))

    def fields(self, arm: str) -> dict[str, str]:
        """The fields of an arm: the common fields, overridden by its own."""
        return {**self.common, **self.arms[arm]}

    def asked(self, arm: str) -> str:
        """A short hash of the recipe's name and the fields that the file gives an arm. Those of a machine do not count,
        nor those of the command line, which a clone does not know."""
        own = {**self.written, **self.arms[arm]}
        fields = {name: value for name, value in own.items() if name not in MACHINE_FIELDS}
        return hashlib.sha256(json.dumps([self.recipe, fields], sort_keys=True).encode()).hexdigest()[:12]

    def with_fields(self, fields: dict[str, str]) -> "Study":
        """A copy of the study with these common fields added; they override its own.

        Raises:
            InputError: a field that an arm sets, or that a study sets itself.
        """
        for name in fields:
            if owner := next((arm for arm, own in self.arms.items() if name in own), None):
                raise InputError(f"--{name} expects a field that all arms share, found one that {owner} sets; drop it")
        return dataclasses.replace(self, common={**self.common, **_fields(fields, "the command line")})


def load_study(path: Path) -> Study:
    """Read a study.

    Raises:
        InputError: no such file, an unknown or missing entry, or an entry of the wrong type.
    """
    if path.suffix not in (".yaml", ".yml") or not path.is_file():
        raise InputError(f"STUDY must be a YAML file, found {str(path)!r}; studies/ has some")
    content = read_recipe(path)
    known = {item.name: item for item in dataclasses.fields(Study) if item.name not in ("folder", "written")}
    if unknown := [name for name in content if name not in known]:
        raise InputError(f"{path.name} expects the entries {', '.join(known)}, found {unknown[0]!r}; fix it")
    content = {"name": path.stem, **content}
    needed = [name for name, item in known.items() if item.default is item.default_factory is dataclasses.MISSING]
    if missing := [name for name in needed if content.get(name) is None]:
        raise InputError(f"{path.name} expects {', '.join(needed)}, found no {missing[0]}; add it")

    def expect(entry: str, right: bool, expected: str) -> None:
        if not right:
            raise InputError(f"{path.name}: {entry} must be {expected}, found {content[entry]!r}; fix it")

    _check_entries(content, expect)
    arms = {str(arm): _fields(own or {}, f"{path.name}, arm {arm}") for arm, own in content["arms"].items()}
    content["baseline"] = str(content["baseline"])
    methods = content["methods"] = _methods(content["methods"], arms, expect)
    named, kind = (methods, "methods") if methods else (arms, "arms")
    expect("baseline", content["baseline"] in named, f"one of the {kind} {', '.join(named)}")
    if methods:
        expect("metrics", any(map(is_dev, content["metrics"])), "a list with a score on a development set, such as "
               "dev.score, because it chooses the setting of each method")  # fmt: skip
    published = _published(content.get("published"), path.name, content["metrics"], arms)
    common = _fields(content.get("common") or {}, f"{path.name}, common")
    given = {**content, "arms": arms, "common": common, "published": published}
    return Study(**given, folder=path.parent / content["name"], written=common)


def _check_entries(content: dict[str, Any], expect: Callable[[str, bool, str], None]) -> None:
    """Check the type of every entry of a study.

    Raises:
        InputError: by `expect`, for an entry of the wrong type.
    """
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
    content.setdefault("methods", {})
    expect("keep_checkpoints", isinstance(content.setdefault("keep_checkpoints", False), bool), "true or false")


def is_dev(metric: str) -> bool:
    """Whether a metric is a score on a development set, such as `dev.score` or `stsb_dev.spearman`."""
    return metric.split(".")[0].split("_")[-1] == "dev"


def _methods(given: Any, arms: dict[str, Any], expect: Callable[[str, bool, str], None]) -> dict[str, list[str]]:
    """Read the entry `methods`.

    Raises:
        InputError: by `expect`, if it has another form, or if a method was given more settings than another.
    """
    right = isinstance(given, dict) and all(isinstance(own, list) and own for own in given.values())
    expect("methods", right, "a mapping of names to lists of arms")
    methods = {str(name): [str(arm) for arm in own] for name, own in given.items()}
    expect(
        "methods", all(arm in arms for own in methods.values() for arm in own), f"lists of the arms {', '.join(arms)}"
    )
    sizes = {name: len(set(own)) for name, own in methods.items()}
    counted = ", ".join(f"{name} has {size}" for name, size in sizes.items())
    same = "methods with the same number of settings, so that none is tuned more than another"
    expect("methods", len(set(sizes.values())) < 2, f"{same} ({counted})")
    return methods


def _fields(fields: dict[str, Any], where: str) -> dict[str, str]:
    """Fields with their values as text, as on the command line; `null` unsets what the recipe has.

    Raises:
        InputError: a field that a study sets itself, or a value that is not a number, text, boolean or null.
    """
    for name, value in fields.items():
        if name in OWN_FIELDS:
            raise InputError(f"{where} expects fields of a recipe, found {name}, which a study sets itself; remove it")
        if not isinstance(value, (bool, int, float, str, type(None))):
            raise InputError(f"{where}: {name} must be a plain value, found {value!r}; fix it")
    meant = {str(name): meant_by_no(str(name)) if value is False else value for name, value in fields.items()}
    return {name: "null" if value is None else str(value) for name, value in meant.items()}


def _published(given: Any, file: str, metrics: list[str], arms: dict[str, Any]) -> Published | None:
    """Read the entry `published`: `source`, and for some of the metrics a mapping of arms to values.

    Raises:
        InputError: the entry has another form.
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
    """Check the fields of all runs before the first one starts.

    On a machine with GPUs the check runs in a separate process, because it would occupy a GPU.

    Returns:
        The names of this machine's GPUs, as in CUDA_VISIBLE_DEVICES.

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
    with get_context("spawn").Pool(1, show_one_gpu, (names[0],)) as pool:
        pool.apply(parse_all, (runs,))
    return names


def show_one_gpu(name: str) -> None:
    """Make only this GPU visible to this process, as for a run."""
    os.environ["CUDA_VISIBLE_DEVICES"] = name


def parse_all(runs: Sequence[Run]) -> None:
    """Parse the arguments of every run as cmlmcse train does.

    Raises:
        InputError: cmlmcse train would refuse them.
    """
    for run in runs:
        try:
            parse_recipe(run.arguments)
        except InputError as error:
            raise InputError(f"{run}: {error}") from None
