"""The data of eight GLUE tasks, from a data folder (GLUE's own files) or the Hub."""

import logging
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cmlmcse.common.errors import InputError

from . import transfer_data
from .data_checks import check_published, not_utf8, parse_score
from .sts_data import MissingData, data_root, hub_errors
from .transfer_data import Examples

logger = logging.getLogger(__name__)

HUB = "nyu-mll/glue"
BINARY = ("0", "1")
ENTAILMENT = ("entailment", "not_entailment")


class GlueSet(NamedTuple):
    """A task: the columns of its files, the published number of rows of each dev file, and its metrics.

    `sides` and `label`: columns of GLUE's own files. `hub_sides`: columns on the Hub, if they differ. `labels`: empty
    if the task predicts a number. `header`: the columns of files without a header line.
    """

    hub: str
    sides: tuple[str, ...]
    label: str
    labels: tuple[str, ...]
    dev: dict[str, int]
    metrics: tuple[str, ...] = ("accuracy",)
    hub_sides: tuple[str, ...] = ()
    header: tuple[str, ...] = ()
    broken_rows: bool = False  # whether GLUE's own files hold rows with missing columns

    @property
    def files(self) -> list[str]:
        """The names of all files."""
        return ["train.tsv", *(f"{split}.tsv" for split in self.dev)]


PAIR = ("sentence1", "sentence2")
# In the order of GLUE (Wang et al. 2018, Table 1), without WNLI: papers leave it out.
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
# SentEval's sets with the same sentences. Its MRPC has no dev split: GLUE's dev rows are in its train split.
FROM_TRANSFER = {"SST-2": ("SST2", "dev"), "MRPC": ("MRPC", "test")}


class GlueData(NamedTuple):
    """A task's training examples, and the examples of each split to score on."""

    train: Examples
    scored: dict[str, Examples]


def load_glue(data_dir: str | None) -> dict[str, GlueData]:
    """The GLUE tasks whose files are there, by name.

    A task needs all its files under `glue/`. SST-2 and MRPC may be in SentEval's format under `transfer/` instead. MRPC
    has no dev split there, and is scored on its test split. Without `data_dir` the tasks come from the Hub.

    Raises:
        InputError: no such folder, a malformed file, a wrong number of rows, no Hub; `MissingData` if no task
            has all its files.
    """
    if data_dir is None:
        return {name: _from_hub(task) for name, task in GLUE_SETS.items()}
    root, transfer = data_root(data_dir, "glue"), data_root(data_dir, "transfer")
    found = {}
    for name in GLUE_SETS:
        if not _missing_files(root, name):
            found[name] = _from_folder(root / name, GLUE_SETS[name])
        elif name in FROM_TRANSFER and not transfer_data.missing_files(transfer, FROM_TRANSFER[name][0]):
            transfer_name, split = FROM_TRANSFER[name]
            parts = transfer_data.load_set(transfer, transfer_name)
            found[name] = GlueData(parts["train"], {split: parts[split]})
    if not found:
        raise MissingData(f"GLUE: none of the tasks under {root}, expected such as {root / 'SST-2' / 'train.tsv'}")
    return found


def missing_glue(data_dir: str | None, data: dict[str, GlueData]) -> list[str]:
    """One line for each of the eight tasks that is not in `data`, with its missing files."""
    if data_dir is None:
        return []
    missing = {name: _missing_files(data_root(data_dir, "glue"), name) for name in GLUE_SETS if name not in data}
    return [f"GLUE {name}: no {', '.join(map(str, paths))}" for name, paths in missing.items()]


def _missing_files(root: Path, name: str) -> list[Path]:
    """The files of a task that do not exist."""
    paths = [root / name / file for file in GLUE_SETS[name].files]
    return [path for path in paths if not path.is_file()]


def _from_folder(folder: Path, task: GlueSet) -> GlueData:
    """A task from GLUE's own files."""
    scored = {
        split: _check_count(read_examples(folder / f"{split}.tsv", task), count, str(folder / f"{split}.tsv"))
        for split, count in task.dev.items()
    }
    return GlueData(read_examples(folder / "train.tsv", task), scored)


def _check_count(examples: Examples, expected: int, source: str) -> Examples:
    """The examples, if there are as many as published."""
    check_published(source, f"{expected} rows", f"{len(examples.labels)} rows", "GLUE")
    return examples


def read_examples(path: Path, task: GlueSet) -> Examples:
    """Read a file of tab-separated columns; quotes have no meaning.

    Raises:
        InputError: not UTF-8, a column missing in the header line or in a row, an unknown label, or no rows.
    """
    try:
        lines = path.read_bytes().decode("utf-8-sig").removesuffix("\n").split("\n")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise not_utf8(str(path), error) from error
    header = task.header or tuple(lines[0].rstrip("\r").split("\t"))
    if missing := [name for name in (*task.sides, task.label) if name not in header]:
        raise InputError(f"{path}, line 1: expected a header line with {', '.join(missing)}, found {lines[0][:60]!r}")
    rows, broken = [], 0
    for number, line in enumerate(lines[not task.header :], 1 + (not task.header)):
        columns = line.rstrip("\r").split("\t")
        if len(columns) >= len(header):
            rows.append(_example(dict(zip(header, columns, strict=False)), task, f"{path}, line {number}"))
        elif task.broken_rows:
            broken += 1
        else:
            found = f"expected {len(header)} columns, found {len(columns)}"
            raise InputError(f"{path}, line {number}: {found}; restore the file")
    if broken:
        logger.warning("%s: %d rows skipped, they have too few columns", path, broken)
    if not rows:
        raise InputError(f"{path}: expected rows, found none; restore the file")
    labels, *sides = map(list, zip(*rows, strict=True))
    return Examples(np.array(labels), tuple(sides))


def _example(row: dict[str, str], task: GlueSet, where: str) -> tuple[int | float | str, ...]:
    """The label of a row, as a class number or a score, and its texts."""
    text = row[task.label]
    return _label(text, task.labels, where), *(row[side] for side in task.sides)


def _label(text: str, labels: tuple[str, ...], where: str) -> int | float:
    """The class number of a label, or a score."""
    if labels:
        if text not in labels:
            raise InputError(f"{where}: expected a label of {', '.join(labels)}, found {text!r}; restore the file")
        return labels.index(text)
    return parse_score(text, where)


def _from_hub(task: GlueSet) -> GlueData:
    """A task from the Hub. The Hub numbers the labels in the same order."""
    from datasets import load_dataset

    def split(name: str) -> Examples:
        rows = load_dataset(HUB, task.hub, split=name)
        return Examples(np.array(rows["label"]), tuple(list(rows[side]) for side in task.hub_sides or task.sides))

    with hub_errors(f"{HUB} ({task.hub})", "glue"):
        dev = {name: split(name.replace("dev", "validation")) for name in task.dev}
        scored = {
            name: _check_count(dev[name], count, f"Hub dataset {HUB}, {task.hub}") for name, count in task.dev.items()
        }
        return GlueData(split("train"), scored)
