"""The eight GLUE tasks to fine-tune on, from a data folder (GLUE's own files) or the Hub."""

import logging
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cmlmcse.common.errors import InputError

from . import transfer_data
from .sts_data import MissingData, data_root, hub_errors
from .transfer_data import Examples

logger = logging.getLogger(__name__)

HUB = "nyu-mll/glue"
BINARY = ("0", "1")
ENTAILMENT = ("entailment", "not_entailment")


class GlueSet(NamedTuple):
    """A task: how its files read, the published rows of each dev file, and what is measured.

    `sides` and `label` name columns of GLUE's own files, `hub_sides` those of the Hub's where they differ; without
    `labels` a number is predicted; `header` names the columns of files that have no header line.
    """

    hub: str
    sides: tuple[str, ...]
    label: str
    labels: tuple[str, ...]
    dev: dict[str, int]
    metrics: tuple[str, ...] = ("accuracy",)
    hub_sides: tuple[str, ...] = ()
    header: tuple[str, ...] = ()
    broken_rows: bool = False  # whether GLUE's own files hold rows cut short

    @property
    def files(self) -> list[str]:
        """The names of all files."""
        return ["train.tsv", *(f"{split}.tsv" for split in self.dev)]


PAIR = ("sentence1", "sentence2")
# In the order of GLUE (Wang et al. 2018, Table 1), without WNLI, which papers leave out.
GLUE_SETS: dict[str, GlueSet] = {
    "CoLA": GlueSet(
        "cola", ("sentence",), "label", BINARY, {"dev": 1043}, ("matthews",),
        header=("source", "label", "mark", "sentence"),
    ),
    "SST-2": GlueSet("sst2", ("sentence",), "label", BINARY, {"dev": 872}),
    "MRPC": GlueSet(
        "mrpc", ("#1 String", "#2 String"), "Quality", BINARY, {"dev": 408}, ("accuracy", "f1"), hub_sides=PAIR
    ),
    "STS-B": GlueSet("stsb", PAIR, "score", (), {"dev": 1500}, ("pearson", "spearman")),
    "QQP": GlueSet(
        "qqp", ("question1", "question2"), "is_duplicate", BINARY, {"dev": 40430}, ("accuracy", "f1"), broken_rows=True
    ),
    "MNLI": GlueSet(
        "mnli", PAIR, "gold_label", ("entailment", "neutral", "contradiction"),
        {"dev_matched": 9815, "dev_mismatched": 9832}, hub_sides=("premise", "hypothesis"),
    ),
    "QNLI": GlueSet("qnli", ("question", "sentence"), "label", ENTAILMENT, {"dev": 5463}),
    "RTE": GlueSet("rte", PAIR, "label", ENTAILMENT, {"dev": 277}),
}  # fmt: skip
FROM_TRANSFER = {"SST-2": ("SST2", "dev"), "MRPC": ("MRPC", "test")}  # the same sentences; MRPC's dev is in its train


class GlueData(NamedTuple):
    """A task's training examples, and those of each split that it is scored on."""

    train: Examples
    scored: dict[str, Examples]


def load_glue(data_dir: str | None) -> dict[str, GlueData]:
    """The GLUE tasks that are there, by name.

    A task counts as there if all its files are under `glue/`; SST-2 and MRPC also if SentEval's form of them is under
    `transfer/`, where MRPC has no dev split and is scored on its test split. Without `data_dir`, from the Hub.

    Raises:
        InputError: no such folder, a malformed file, a wrong number of rows, no Hub; `MissingData` if none of the
            tasks is there.
    """
    if data_dir is None:
        return {name: _from_hub(one) for name, one in GLUE_SETS.items()}
    root, transfer = data_root(data_dir, "glue"), data_root(data_dir, "transfer")
    found = {}
    for name in GLUE_SETS:
        if not _absent(root, name):
            found[name] = _from_folder(root / name, GLUE_SETS[name])
        elif name in FROM_TRANSFER and not transfer_data.absent(transfer, FROM_TRANSFER[name][0]):
            task, split = FROM_TRANSFER[name]
            parts = transfer_data.load_set(transfer, task)
            found[name] = GlueData(parts["train"], {split: parts[split]})
    if not found:
        raise MissingData(f"GLUE: none of the tasks under {root}, expected such as {root / 'SST-2' / 'train.tsv'}")
    return found


def missing_glue(data_dir: str | None, data: dict[str, GlueData]) -> list[str]:
    """A line for each of the eight tasks that is not in `data`, with the files that lack."""
    if data_dir is None:
        return []
    lacking = {name: _absent(data_root(data_dir, "glue"), name) for name in GLUE_SETS if name not in data}
    return [f"GLUE {name}: no {', '.join(map(str, paths))}" for name, paths in lacking.items()]


def _absent(root: Path, name: str) -> list[Path]:
    """The files of a task that are not there."""
    paths = [root / name / file for file in GLUE_SETS[name].files]
    return [path for path in paths if not path.is_file()]


def _from_folder(folder: Path, one: GlueSet) -> GlueData:
    """A task from GLUE's own files."""
    scored = {
        split: _counted(read_examples(folder / f"{split}.tsv", one), count, str(folder / f"{split}.tsv"))
        for split, count in one.dev.items()
    }
    return GlueData(read_examples(folder / "train.tsv", one), scored)


def _counted(examples: Examples, expected: int, source: str) -> Examples:
    """The examples, if their number is the published one."""
    if len(examples.labels) != expected:
        raise InputError(
            f"{source}: expected {expected} rows, as published, found {len(examples.labels)}; scores on other data "
            "cannot be compared: take GLUE's files"
        )
    return examples


def read_examples(path: Path, one: GlueSet) -> Examples:
    """Read a file of columns with tabs between; nothing is quoted.

    Raises:
        InputError: not UTF-8, a column that lacks in the header line or in a row, an unknown label, or no rows.
    """
    try:
        lines = path.read_bytes().decode("utf-8-sig").removesuffix("\n").split("\n")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: expected UTF-8, found byte {error.start + 1} that is not; restore it") from error
    header = one.header or tuple(lines[0].rstrip("\r").split("\t"))
    if lacking := [name for name in (*one.sides, one.label) if name not in header]:
        raise InputError(f"{path}, line 1: expected a header line with {', '.join(lacking)}, found {lines[0][:60]!r}")
    rows, broken = [], 0
    for number, line in enumerate(lines[not one.header :], 1 + (not one.header)):
        columns = line.rstrip("\r").split("\t")
        if len(columns) >= len(header):
            rows.append(_example(dict(zip(header, columns, strict=False)), one, f"{path}, line {number}"))
        elif one.broken_rows:
            broken += 1
        else:
            found = f"expected {len(header)} columns, found {len(columns)}"
            raise InputError(f"{path}, line {number}: {found}; restore the file")
    if broken:
        logger.warning("%s: %d rows left out that are cut short", path, broken)
    if not rows:
        raise InputError(f"{path}: expected rows, found none; restore the file")
    labels, *sides = map(list, zip(*rows, strict=True))
    return Examples(np.array(labels), tuple(sides))


def _example(row: dict[str, str], one: GlueSet, where: str) -> tuple[int | float | str, ...]:
    """The label, as its number or a score, and the sides of a row."""
    text = row[one.label]
    return _label(text, one.labels, where), *(row[side] for side in one.sides)


def _label(text: str, labels: tuple[str, ...], where: str) -> int | float:
    """The number of a label, or a score."""
    if labels:
        if text not in labels:
            raise InputError(f"{where}: expected a label of {', '.join(labels)}, found {text!r}; restore the file")
        return labels.index(text)
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise InputError(f"{where}: expected a number as score, found {text!r}; restore the file")
    return score


def _from_hub(one: GlueSet) -> GlueData:
    """A task from the Hub, whose labels are numbered in the same order."""
    from datasets import load_dataset

    def split(name: str) -> Examples:
        rows = load_dataset(HUB, one.hub, split=name)
        return Examples(np.array(rows["label"]), tuple(list(rows[side]) for side in one.hub_sides or one.sides))

    with hub_errors(f"{HUB} ({one.hub})", "glue"):
        dev = {name: split(name.replace("dev", "validation")) for name in one.dev}
        scored = {name: _counted(dev[name], count, f"Hub dataset {HUB}, {one.hub}") for name, count in one.dev.items()}
        return GlueData(split("train"), scored)
