"""The pairs of the seven STS sets and of the STS-B development set, from a data folder or the Hub."""

import codecs
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cmlmcse.common.errors import InputError, first_line

from .data_checks import check_published, not_utf8, parse_score


class Pairs(NamedTuple):
    """N scored sentence pairs: human scores (N,), and N first and N second sentences."""

    scores: np.ndarray
    first: list[str]
    second: list[str]


class STSSet(NamedTuple):
    """A set: its folder under `sts/`, the published number of pairs of each file, its Hub dataset."""

    folder: str
    counts: dict[str, int]
    hub: str


SENTEVAL = "princeton-nlp/datasets-for-simcse"  # its senteval.tar holds SentEval's data

# Published pair counts of SentEval's version of the sets: without unscored pairs, STS13 without SMT.
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
    # mteb/sickr-sts holds all 9,927 pairs. The papers score the 4,927 of the test split. SentEval's archive has that
    # split; SimCSE's authors keep the archive on the Hub.
    "SICKRelatedness": STSSet("sickr", {"test": 4927}, SENTEVAL),
}
STSB_DEV = STSSet("stsb", {"dev": 1500}, "mteb/stsbenchmark-sts")
UNSPLIT = "all"  # name of the only subset if the source has no subsets
SICK_MEMBER = "SICK/SICK_test_annotated.txt"  # in senteval.tar


class MissingData(InputError):
    """A data set that does not exist, unlike one that is malformed."""


class HubFailed(InputError):
    """Data that cannot be loaded from the Hub, for example without a network."""


def sentences_of(pairs: Iterable[Pairs]) -> list[str]:
    """The distinct sentences of sets of pairs, in order of appearance."""
    return list(dict.fromkeys(text for item in pairs for side in (item.first, item.second) for text in side))


def load_sts(data_dir: str | None) -> dict[str, dict[str, Pairs]]:
    """The STS sets whose files are there: set → subset → pairs. :func:`missing_sts` names the others.

    A set needs all its files. Without `data_dir` the sets come from the Hub; there STS12-16 have no subsets.

    Raises:
        InputError: no such folder, a malformed file, a wrong number of pairs, no Hub; `MissingData` if no set
            has all its files.
    """
    if data_dir is None:
        return {name: _from_hub(sts_set, "test") for name, sts_set in STS_SETS.items()}
    root = sts_root(data_dir)
    found = {name: sts_set for name, sts_set in STS_SETS.items() if not _missing_files(root, sts_set)}
    if not found:
        raise MissingData(f"STS: none of the sets under {root}, expected such as {root / 'sts12' / 'MSRpar.tsv'}")
    return {name: _from_folder(root, sts_set) for name, sts_set in found.items()}


def missing_sts(data_dir: str | None, data: dict[str, dict[str, Pairs]]) -> list[str]:
    """One line for each of the seven sets that is not in `data`, with its missing files."""
    if data_dir is None:
        return []
    missing = {
        name: _missing_files(sts_root(data_dir), sts_set) for name, sts_set in STS_SETS.items() if name not in data
    }
    return [f"{name}: no {', '.join(map(str, paths))}" for name, paths in missing.items()]


def missing_stsb_dev(data_dir: str | None) -> list[str]:
    """One line if the STS-B development set does not exist."""
    return [f"STS-B dev: no {path}" for path in _missing_files(sts_root(data_dir), STSB_DEV)] if data_dir else []


def load_stsb_dev(data_dir: str | None) -> Pairs:
    """The 1,500 pairs of the STS-B development set.

    Raises:
        InputError: as :func:`load_sts`; `MissingData` if the file does not exist.
    """
    return _load_stsb(data_dir, STSB_DEV, "dev", "validation")


def load_stsb_test(data_dir: str | None) -> Pairs:
    """The 1,379 pairs of the STS-B test set.

    Raises:
        InputError: as :func:`load_sts`; `MissingData` if the file does not exist.
    """
    return _load_stsb(data_dir, STS_SETS["STSBenchmark"], "test", "test")


def _load_stsb(data_dir: str | None, sts_set: STSSet, split: str, hub_split: str) -> Pairs:
    """The pairs of one split of STS-B."""
    if data_dir is None:
        return _from_hub(sts_set, hub_split)[hub_split]
    root = sts_root(data_dir)
    if missing := _missing_files(root, sts_set):
        raise MissingData(f"STS-B {split}: no {missing[0]}")
    return _from_folder(root, sts_set)[split]


def sts_root(data_dir: str) -> Path:
    """The folder `sts` of a data folder; see :func:`data_root`."""
    return data_root(data_dir, "sts")


def data_root(data_dir: str, part: str) -> Path:
    """A subfolder of the data folder; it may not exist.

    Raises:
        InputError: the data folder does not exist.
    """
    if not Path(data_dir).is_dir():
        raise InputError(f"--data_dir {data_dir}: expected a folder that holds {part}/, found none; check the path")
    return Path(data_dir) / part


def _missing_files(root: Path, sts_set: STSSet) -> list[Path]:
    """The files of a set that do not exist."""
    paths = [root / sts_set.folder / f"{subset}.tsv" for subset in sts_set.counts]
    return [path for path in paths if not path.is_file()]


def _from_folder(root: Path, sts_set: STSSet) -> dict[str, Pairs]:
    """All subsets of a set, with checked pair counts."""
    subsets = {}
    for subset, expected in sts_set.counts.items():
        path = root / sts_set.folder / f"{subset}.tsv"
        subsets[subset] = _check_count(read_pairs(path), expected, str(path))
    return subsets


def _check_count(pairs: Pairs, expected: int, source: str) -> Pairs:
    """The pairs, if there are as many as published."""
    check_published(source, f"{expected} pairs", f"{len(pairs.scores)} pairs", "SentEval")
    return pairs


def read_pairs(path: Path, advice: str = "restore the file") -> Pairs:
    """Read lines of score TAB sentence TAB sentence, without quotes or escapes.

    Args:
        path: the file, in UTF-8, with or without a byte-order mark.
        advice: what to do about a score that is no number.

    Raises:
        InputError: a line without three columns, with a score that is not a number, or not in UTF-8.
    """
    try:
        lines = path.read_bytes().removeprefix(codecs.BOM_UTF8).split(b"\n")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    if not lines[-1]:
        lines.pop()
    return _pairs(_parse_line(line, f"{path}, line {number}", advice) for number, line in enumerate(lines, 1))


def read_own_pairs(path: Path) -> Pairs:
    """The user's own pairs: as :func:`read_pairs`, and with scores that differ.

    Raises:
        InputError: a line of another form, or fewer than two different scores, which makes a correlation impossible.
    """
    pairs = read_pairs(path, "write a number there; a header line is not expected")
    if len(set(pairs.scores)) < 2:
        raise InputError(f"{path}: expected pairs with different scores, found {len(pairs.scores)} pairs; add some")
    return pairs


def _pairs(rows: Iterable[tuple[float, str, str]]) -> Pairs:
    """Rows (score, sentence, sentence) as :class:`Pairs`."""
    scores, first, second = map(list, zip(*rows, strict=True)) if (rows := list(rows)) else ([], [], [])
    return Pairs(np.array(scores, np.float64), first, second)


def _parse_line(line: bytes, where: str, advice: str) -> tuple[float, str, str]:
    """The score and the sentences of one line."""
    try:
        columns = line.decode().removesuffix("\r").split("\t")
    except UnicodeDecodeError as error:
        raise not_utf8(where, error) from error
    if len(columns) != 3:
        raise InputError(f"{where}: expected 3 columns (score TAB sentence TAB sentence), found {len(columns)}")
    return parse_score(columns[0], where, advice), columns[1], columns[2]


def _from_hub(sts_set: STSSet, split: str) -> dict[str, Pairs]:
    """A set from the Hub, with a checked pair count. STS12-16 are one subset.

    Raises:
        InputError: the Hub cannot be reached, or its data are different.
    """
    with hub_errors(sts_set.hub, "sts"):
        pairs = _sick_from_hub() if sts_set.folder == "sickr" else _rows_from_hub(sts_set.hub, split)
    _check_count(pairs, sum(sts_set.counts.values()), f"Hub dataset {sts_set.hub}, split {split}")
    return {split if len(sts_set.counts) == 1 else UNSPLIT: pairs}


@contextmanager
def hub_errors(name: str, folder: str) -> Iterator[None]:
    """Turn any error of loading a Hub dataset into a :class:`HubFailed` that advises --data_dir."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # errors of datasets, huggingface_hub, httpx, tarfile have no common base class
        raise HubFailed(
            f"cannot load {name} from the Hub ({first_line(error)}); pass --data_dir with a folder that holds {folder}/"
        ) from error


def _rows_from_hub(name: str, split: str) -> Pairs:
    """One split of a dataset with the columns score, sentence1 and sentence2."""
    from datasets import load_dataset

    rows = load_dataset(name, split=split)
    return Pairs(np.array(rows["score"], np.float64), list(rows["sentence1"]), list(rows["sentence2"]))


def _sick_from_hub() -> Pairs:
    """SICK's test split from SentEval's archive. Columns: id, sentence, sentence, score, judgment; one header line."""
    lines = senteval_files([SICK_MEMBER])[SICK_MEMBER].decode().splitlines()[1:]
    rows = (line.split("\t") for line in lines if line)
    return _pairs((parse_score(row[3], SICK_MEMBER), row[1], row[2]) for row in rows)


def senteval_files(members: Sequence[str]) -> dict[str, bytes]:
    """Read files of SentEval's archive on the Hub. Call it inside :func:`hub_errors`.

    Args:
        members: paths that begin with the task's folder.

    Raises:
        FileNotFoundError: the archive does not hold one of them.
    """
    from huggingface_hub import hf_hub_download

    found = {}
    with tarfile.open(hf_hub_download(SENTEVAL, "senteval.tar", repo_type="dataset")) as archive:
        for item in archive:
            for member in members:
                if f"/{item.name}".endswith(f"/{member}") and (content := archive.extractfile(item)) is not None:
                    found[member] = content.read()
    if missing := [member for member in members if member not in found]:
        raise FileNotFoundError(f"no {', '.join(missing)} in senteval.tar")
    return found
