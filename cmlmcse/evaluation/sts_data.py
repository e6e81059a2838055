"""The pairs of the seven STS sets and of the STS-B development set, from a data folder or the Hub."""

import math
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cmlmcse.common.errors import InputError


class Pairs(NamedTuple):
    """N scored sentence pairs: human scores (N,) and the two sides."""

    scores: np.ndarray
    first: list[str]
    second: list[str]


class STSSet(NamedTuple):
    """Where a set lies: its folder under `sts/`, its files with their published pair counts, its Hub dataset."""

    folder: str
    counts: dict[str, int]
    hub: str


SENTEVAL = "princeton-nlp/datasets-for-simcse"  # whose senteval.tar is SentEval's data

# Pair counts as published for SentEval's form of the sets: unscored pairs dropped, STS13 without SMT.
STS_SETS: dict[str, STSSet] = {
    "STS12": STSSet(
        "sts12",
        {"MSRpar": 750, "MSRvid": 750, "SMTeuroparl": 459, "surprise.OnWN": 750, "surprise.SMTnews": 399},
        "mteb/sts12-sts",
    ),
    "STS13": STSSet("sts13", {"FNWN": 189, "headlines": 750, "OnWN": 561}, "mteb/sts13-sts"),
    "STS14": STSSet(
        "sts14",
        {"deft-forum": 450, "deft-news": 300, "headlines": 750, "images": 750, "OnWN": 750, "tweet-news": 750},
        "mteb/sts14-sts",
    ),
    "STS15": STSSet(
        "sts15",
        {"answers-forums": 375, "answers-students": 750, "belief": 375, "headlines": 750, "images": 750},
        "mteb/sts15-sts",
    ),
    "STS16": STSSet(
        "sts16",
        {"answer-answer": 254, "headlines": 249, "plagiarism": 230, "postediting": 244, "question-question": 209},
        "mteb/sts16-sts",
    ),
    "STSBenchmark": STSSet("stsb", {"test": 1379}, "mteb/stsbenchmark-sts"),
    # mteb/sickr-sts holds all 9,927 pairs; the papers score the 4,927 of the test split, which is in SentEval's
    # archive as the authors of SimCSE keep it on the Hub.
    "SICKRelatedness": STSSet("sickr", {"test": 4927}, SENTEVAL),
}
STSB_DEV = STSSet("stsb", {"dev": 1500}, "mteb/stsbenchmark-sts")
UNSPLIT = "all"  # the one subset of a set whose source does not name its subsets
SICK_MEMBER = "SICK/SICK_test_annotated.txt"  # of senteval.tar


class MissingData(InputError):
    """A data set that is not there, as opposed to one that is wrong."""


def sentences_of(pairs: Iterable[Pairs]) -> list[str]:
    """The distinct sentences of some sets of pairs, in order of appearance."""
    return list(dict.fromkeys(text for item in pairs for side in (item.first, item.second) for text in side))


def load_sts(data_dir: str | None) -> dict[str, dict[str, Pairs]]:
    """The STS sets that are there, by result name and subset; see :func:`missing_sts` for those that are not.

    A set counts as there only if all its files are. Without `data_dir` the sets come from the Hub, where STS12-16
    are not split into subsets.

    Raises:
        InputError: no such folder, a malformed file, a wrong number of pairs, no Hub; `MissingData` if none of the
            sets is there.
    """
    if data_dir is None:
        return {name: _from_hub(one, "test") for name, one in STS_SETS.items()}
    root = sts_root(data_dir)
    found = {name: one for name, one in STS_SETS.items() if not _absent(root, one)}
    if not found:
        raise MissingData(f"STS: none of the sets under {root}, expected such as {root / 'sts12' / 'MSRpar.tsv'}")
    return {name: _from_folder(root, one) for name, one in found.items()}


def missing_sts(data_dir: str | None, data: dict[str, dict[str, Pairs]]) -> list[str]:
    """A line for each of the seven sets that is not in `data`, with the files that lack."""
    if data_dir is None:
        return []
    lacking = {name: _absent(sts_root(data_dir), one) for name, one in STS_SETS.items() if name not in data}
    return [f"{name}: no {', '.join(map(str, paths))}" for name, paths in lacking.items()]


def missing_stsb_dev(data_dir: str | None) -> list[str]:
    """A line if the STS-B development set is not there."""
    return [f"STS-B dev: no {path}" for path in _absent(sts_root(data_dir), STSB_DEV)] if data_dir else []


def load_stsb_dev(data_dir: str | None) -> Pairs:
    """The 1,500 pairs of the STS-B development set.

    Raises:
        InputError: as :func:`load_sts`; `MissingData` if the file is not there.
    """
    return _load_stsb(data_dir, STSB_DEV, "dev", "validation")


def load_stsb_test(data_dir: str | None) -> Pairs:
    """The 1,379 pairs of the STS-B test set.

    Raises:
        InputError: as :func:`load_sts`; `MissingData` if the file is not there.
    """
    return _load_stsb(data_dir, STS_SETS["STSBenchmark"], "test", "test")


def _load_stsb(data_dir: str | None, one: STSSet, split: str, hub_split: str) -> Pairs:
    """The one subset of a split of STS-B."""
    if data_dir is None:
        return _from_hub(one, hub_split)[hub_split]
    root = sts_root(data_dir)
    if absent := _absent(root, one):
        raise MissingData(f"STS-B {split}: no {absent[0]}")
    return _from_folder(root, one)[split]


def sts_root(data_dir: str) -> Path:
    """The folder `sts` of a data folder; see :func:`data_root`."""
    return data_root(data_dir, "sts")


def data_root(data_dir: str, part: str) -> Path:
    """A folder of a data folder, which need not be there.

    Raises:
        InputError: the data folder does not exist.
    """
    if not Path(data_dir).is_dir():
        raise InputError(f"--data_dir {data_dir}: expected a folder that holds {part}/, found none; check the path")
    return Path(data_dir) / part


def _absent(root: Path, one: STSSet) -> list[Path]:
    """The files of a set that are not there."""
    paths = [root / one.folder / f"{subset}.tsv" for subset in one.counts]
    return [path for path in paths if not path.is_file()]


def _from_folder(root: Path, one: STSSet) -> dict[str, Pairs]:
    """All subsets of a set, their counts checked."""
    subsets = {}
    for subset, expected in one.counts.items():
        path = root / one.folder / f"{subset}.tsv"
        subsets[subset] = _checked(read_pairs(path), expected, str(path))
    return subsets


def _checked(pairs: Pairs, expected: int, source: str) -> Pairs:
    """The pairs, if their number is the published one."""
    if len(pairs.scores) != expected:
        raise InputError(
            f"{source}: expected {expected} pairs, as published, found {len(pairs.scores)}; scores on other data "
            "cannot be compared: take SentEval's files"
        )
    return pairs


def read_pairs(path: Path) -> Pairs:
    """Read score TAB sentence TAB sentence lines; nothing is quoted or escaped.

    Raises:
        InputError: a line has other columns, a score that is no number, or is not UTF-8.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    if not lines[-1]:
        lines.pop()
    return _pairs(_fields(line, f"{path}, line {number}") for number, line in enumerate(lines, 1))


def _pairs(rows: Iterable[tuple[float, str, str]]) -> Pairs:
    """Rows of score and two sentences as columns."""
    scores, first, second = map(list, zip(*rows, strict=True)) if (rows := list(rows)) else ([], [], [])
    return Pairs(np.array(scores, np.float64), first, second)


def _fields(line: bytes, where: str) -> tuple[float, str, str]:
    """Score and sentences of one line."""
    try:
        columns = line.decode().removesuffix("\r").split("\t")
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: expected UTF-8, found byte {error.start + 1} that is not") from error
    if len(columns) != 3:
        raise InputError(f"{where}: expected 3 columns (score TAB sentence TAB sentence), found {len(columns)}")
    return _score(columns[0], where), columns[1], columns[2]


def _score(text: str, where: str) -> float:
    """A human score."""
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise InputError(f"{where}: expected a number as score, found {text!r}")
    return score


def _from_hub(one: STSSet, split: str) -> dict[str, Pairs]:
    """A set from the Hub, its count checked; STS12-16 as one unnamed subset.

    Raises:
        InputError: the Hub cannot be reached, or holds something else.
    """
    with hub_errors(one.hub, "sts"):
        pairs = _sick_from_hub() if one.folder == "sickr" else _rows_from_hub(one.hub, split)
    _checked(pairs, sum(one.counts.values()), f"Hub dataset {one.hub}, split {split}")
    return {split if len(one.counts) == 1 else UNSPLIT: pairs}


@contextmanager
def hub_errors(name: str, folder: str) -> Iterator[None]:
    """Turn whatever goes wrong with a Hub dataset into an :class:`InputError` that names the data folder's part."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # datasets, huggingface_hub, httpx, tarfile: no common ancestor
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"cannot load {name} from the Hub ({reason}); pass --data_dir with a folder that holds {folder}/"
        ) from error


def _rows_from_hub(name: str, split: str) -> Pairs:
    """A split with the columns score, sentence1 and sentence2."""
    from datasets import load_dataset

    rows = load_dataset(name, split=split)
    return Pairs(np.array(rows["score"], np.float64), list(rows["sentence1"]), list(rows["sentence2"]))


def _sick_from_hub() -> Pairs:
    """SICK's test split out of SentEval's archive: a header line, then id, sentence, sentence, score, judgment."""
    lines = senteval_files([SICK_MEMBER])[SICK_MEMBER].decode().splitlines()[1:]
    rows = (line.split("\t") for line in lines if line)
    return _pairs((_score(row[3], SICK_MEMBER), row[1], row[2]) for row in rows)


def senteval_files(members: Sequence[str]) -> dict[str, bytes]:
    """Files of SentEval's archive on the Hub, named from the task's folder on; see :func:`hub_errors`.

    Raises:
        FileNotFoundError: the archive lacks one.
    """
    from huggingface_hub import hf_hub_download

    found = {}
    with tarfile.open(hf_hub_download(SENTEVAL, "senteval.tar", repo_type="dataset")) as archive:
        for item in archive:
            for member in members:
                if f"/{item.name}".endswith(f"/{member}") and (content := archive.extractfile(item)) is not None:
                    found[member] = content.read()
    if lacking := [member for member in members if member not in found]:
        raise FileNotFoundError(f"no {', '.join(lacking)} in senteval.tar")
    return found
