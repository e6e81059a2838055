"""The data of SentEval's seven transfer tasks, from a data folder or the Hub."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cmlmcse.common.errors import InputError

from .data_checks import check_published
from .sts_data import SENTEVAL, MissingData, data_root, hub_errors, senteval_files


class Examples(NamedTuple):
    """N labelled texts: labels (N,), and lists of N texts: one list for sentences, two for pairs."""

    labels: np.ndarray
    sides: tuple[list[str], ...]


class TransferSet(NamedTuple):
    """The files of a task.

    `member`: its folder in SentEval's archive. `parts`: the files of each part, with the published number of rows of
    each label. `read`: parses a line. `header`: how a header line starts; empty if there is none.
    """

    member: str
    parts: dict[str, dict[str, dict[str, int]]]  # part → file → label → rows
    read: Callable[[str, dict[str, int], str], tuple[str, tuple[str, ...]]]  # line, labels, where → label, sides
    header: str = ""

    @property
    def files(self) -> list[str]:
        """The names of all files."""
        return [file for files in self.parts.values() for file in files]


def _sentence(line: str, labels: dict[str, int], where: str) -> tuple[str, tuple[str, ...]]:
    """A whole line is the sentence; the file has one label."""
    return next(iter(labels)), (line,)


def _labelled(line: str, labels: dict[str, int], where: str) -> tuple[str, tuple[str, ...]]:
    """Sentence TAB label."""
    columns = line.split("\t")
    if len(columns) != 2:
        raise InputError(f"{where}: expected 2 columns (sentence TAB label), found {len(columns)}; restore the file")
    return columns[1].strip(), (columns[0],)


def _question(line: str, labels: dict[str, int], where: str) -> tuple[str, tuple[str, ...]]:
    """COARSE:fine QUESTION; the label is the coarse one."""
    label, colon, rest = line.partition(":")
    question = rest.partition(" ")[2]
    if not colon or not question.strip():
        raise InputError(f"{where}: expected COARSE:fine QUESTION, found {line[:40]!r}; restore the file")
    return label, (question,)


def _paraphrase(line: str, labels: dict[str, int], where: str) -> tuple[str, tuple[str, ...]]:
    """Label, two ids and the pair, separated by tabs, without quotes."""
    columns = line.split("\t")
    if len(columns) != 5:
        raise InputError(f"{where}: expected 5 columns (label, 2 ids, 2 sentences), found {len(columns)}; restore it")
    return columns[0], (columns[3], columns[4])


def _two_files(member: str, positive: str, negative: str, *rows: int) -> TransferSet:
    """A task with one file for each label, and without train and test parts."""
    return TransferSet(member, {"all": {positive: {"1": rows[0]}, negative: {"0": rows[1]}}}, _sentence)


# In the papers' order. The numbers of rows are those of the sets' papers and SentEval (Conneau & Kiela 2018, Table 1).
TRANSFER_SETS: dict[str, TransferSet] = {
    "MR": _two_files("MR", "rt-polarity.pos", "rt-polarity.neg", 5331, 5331),
    "CR": _two_files("CR", "custrev.pos", "custrev.neg", 2407, 1368),
    "SUBJ": _two_files("SUBJ", "subj.objective", "subj.subjective", 5000, 5000),  # SentEval gives objective the label 1
    "MPQA": _two_files("MPQA", "mpqa.pos", "mpqa.neg", 3312, 7294),
    "SST2": TransferSet(
        "SST/binary",
        {
            "train": {"sentiment-train": {"0": 29780, "1": 37569}},
            "dev": {"sentiment-dev": {"0": 428, "1": 444}},
            "test": {"sentiment-test": {"0": 912, "1": 909}},
        },
        _labelled,
    ),
    "TREC": TransferSet(
        "TREC",
        {
            "train": {
                "train_5500.label": {"ABBR": 86, "DESC": 1162, "ENTY": 1250, "HUM": 1223, "LOC": 835, "NUM": 896}
            },
            "test": {"TREC_10.label": {"ABBR": 9, "DESC": 138, "ENTY": 94, "HUM": 65, "LOC": 81, "NUM": 113}},
        },
        _question,
    ),
    "MRPC": TransferSet(
        "MRPC",
        {
            "train": {"msr_paraphrase_train.txt": {"0": 1323, "1": 2753}},
            "test": {"msr_paraphrase_test.txt": {"0": 578, "1": 1147}},
        },
        _paraphrase,
        header="Quality\t",
    ),
}


def load_transfer(data_dir: str | None) -> dict[str, dict[str, Examples]]:
    """The transfer tasks whose files are there: name → part ("all", or "train", "dev" and "test") → examples.

    A task needs all its files. Without `data_dir` the tasks come from SentEval's archive on the Hub.

    Raises:
        InputError: no such folder, a malformed file, a wrong number of rows, no Hub; `MissingData` if no task
            has all its files.
    """
    if data_dir is None:
        return _from_hub()
    root = data_root(data_dir, "transfer")
    found = [name for name in TRANSFER_SETS if not missing_files(root, name)]
    if not found:
        expected = root / "MR" / "rt-polarity.pos"
        raise MissingData(f"transfer: none of the tasks under {root}, expected such as {expected}")
    return {name: load_set(root, name) for name in found}


def missing_transfer(data_dir: str | None, data: dict[str, dict[str, Examples]]) -> list[str]:
    """One line for each of the seven tasks that is not in `data`, with its missing files."""
    if data_dir is None:
        return []
    root = data_root(data_dir, "transfer")
    missing = {name: missing_files(root, name) for name in TRANSFER_SETS if name not in data}
    return [f"transfer {name}: no {', '.join(map(str, paths))}" for name, paths in missing.items()]


def missing_files(root: Path, name: str) -> list[Path]:
    """The files of a task that do not exist under `root`."""
    paths = [root / name / file for file in TRANSFER_SETS[name].files]
    return [path for path in paths if not path.is_file()]


def load_set(root: Path, name: str) -> dict[str, Examples]:
    """One task of the folder `transfer`, by part.

    Raises:
        InputError: as :func:`load_transfer`.
    """
    contents = {}
    for file in TRANSFER_SETS[name].files:
        try:
            contents[file] = (root / name / file).read_bytes()
        except OSError as error:
            raise InputError(f"{root / name / file}: cannot be read: {error.strerror}") from error
    return _parse(TRANSFER_SETS[name], contents, str(root / name))


def _from_hub() -> dict[str, dict[str, Examples]]:
    """All tasks from SentEval's archive."""
    with hub_errors(SENTEVAL, "transfer"):
        found = senteval_files([f"{task.member}/{file}" for task in TRANSFER_SETS.values() for file in task.files])
    return {
        name: _parse(task, {file: found[f"{task.member}/{file}"] for file in task.files}, f"{SENTEVAL}: {task.member}")
        for name, task in TRANSFER_SETS.items()
    }


def _parse(task: TransferSet, contents: dict[str, bytes], folder: str) -> dict[str, Examples]:
    """The parts of a task. As in SentEval, labels are numbered in alphabetical order."""
    names = sorted({label for files in task.parts.values() for labels in files.values() for label in labels})
    parts = {}
    for part, files in task.parts.items():
        rows = []
        for file, labels in files.items():
            rows += _rows(task, contents[file], labels, f"{folder}/{file}")
        parts[part] = _examples([(names.index(label), sides) for label, sides in rows])
    return parts


def _rows(
    task: TransferSet, content: bytes, published: dict[str, int], source: str
) -> list[tuple[str, tuple[str, ...]]]:
    """The label and the texts of each row of a file, with checked numbers of rows.

    Words are separated by one blank, because users of SentEval join its tokens so.
    """
    lines = _decoded(content).split("\n")
    if not lines[-1]:
        lines.pop()
    if task.header and (not lines or not lines[0].startswith(task.header)):
        raise InputError(
            f"{source}, line 1: expected the header line that starts with {task.header!r}, found another; restore it"
        )
    rows = []
    for number, line in enumerate(lines[bool(task.header) :], 1 + bool(task.header)):
        label, sides = task.read(line, published, f"{source}, line {number}")
        if label not in published:
            raise InputError(f"{source}, line {number}: expected a label of {', '.join(published)}, found {label!r}")
        rows.append((label, tuple(" ".join(text.split()) for text in sides)))
    labels = [label for label, _ in rows]
    found = {label: labels.count(label) for label in published}
    check_published(source, _describe_counts(published), _describe_counts(found), "SentEval")
    return rows


def _decoded(content: bytes) -> str:
    """Decode UTF-8, without a byte order mark, or else latin-1: some files of SentEval's archive are in latin-1."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")


def _describe_counts(rows: dict[str, int]) -> str:
    """The number of rows in words, and that of each label if there are several."""
    each = f" ({', '.join(f'{label} {count}' for label, count in rows.items())})" if len(rows) > 1 else ""
    return f"{sum(rows.values())} rows{each}"


def _examples(rows: list[tuple[int, tuple[str, ...]]]) -> Examples:
    """Rows as :class:`Examples`, sorted as in SentEval by number of words, then label: the folds need this order."""
    rows = sorted(rows, key=lambda row: (*(len(text.split()) for text in row[1]), row[0]))
    labels, sides = zip(*rows, strict=True)
    return Examples(np.array(labels), tuple(map(list, zip(*sides, strict=True))))
