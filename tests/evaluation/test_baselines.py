"""Baselines of the papers' tables: whitening against its closed form, averaged word vectors against hand-made files."""

import gzip
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from cmlmcse.common.errors import InputError
from cmlmcse.evaluation.command import main
from cmlmcse.evaluation.sts import load_sts, load_stsb_dev, sentences_of
from cmlmcse.evaluation.whitening import Whitening, pairs_in, target_sentences
from cmlmcse.models.encoders import load_encoder
from cmlmcse.models.word_vectors import WordVectors
from support.text import one_space


def correlated(rows: int, columns: int) -> np.ndarray:
    """Embeddings far from isotropic, with a large mean."""
    rng = np.random.default_rng(0)
    return (rng.normal(size=(rows, columns)) @ rng.normal(size=(columns, columns)) + 7).astype(np.float32)


@pytest.mark.parametrize("dimensions", [None, 8, 3])
def test_fitted_embeddings_become_white(dimensions: int | None) -> None:
    """Mean 0 and covariance I on what was fitted on; top-k keeps the directions of most variance, in their order."""
    vectors = correlated(500, 8)
    whitening = Whitening.fit(vectors, dimensions)
    white = whitening(vectors).astype(np.float64)
    assert white.shape == (500, dimensions or 8)
    assert np.abs(white.mean(axis=0)).max() < 1e-5
    assert np.abs(np.cov(white.T, bias=True) - np.eye(white.shape[1])).max() < 1e-5
    _, _, directions = np.linalg.svd(vectors - vectors.mean(axis=0), full_matrices=False)  # an independent way
    projected = (vectors - vectors.mean(axis=0)) @ directions[: white.shape[1]].T
    assert np.abs(np.abs(white) - np.abs(projected / projected.std(axis=0))).max() < 1e-3


def test_fewer_sentences_than_dimensions() -> None:
    """Directions without variance are left out instead of blown up; more cannot be asked for."""
    vectors = correlated(5, 8)
    white = Whitening.fit(vectors)(vectors)
    assert white.shape == (5, 4)
    assert np.abs(np.cov(white.T, bias=True) - np.eye(4)).max() < 1e-4
    with pytest.raises(InputError, match="5 fitted embeddings that vary in at least 5 dimensions, found 4"):
        Whitening.fit(vectors, 5)
    with pytest.raises(InputError, match="at least 1 dimensions, found 0"):
        Whitening.fit(np.ones((4, 3)))
    with pytest.raises(InputError, match="finite"):
        Whitening.fit(np.full((4, 3), np.nan))


def test_target_sentences(data_dir: Path) -> None:
    """The distinct sentences of all evaluated sets; a task without pairs needs a file."""
    sets, dev = load_sts(str(data_dir)), load_stsb_dev(str(data_dir))
    pairs = [*(p for subsets in sets.values() for p in subsets.values()), dev]
    assert list(pairs_in((sets, dev))) == pairs
    assert target_sentences({"sts": (sets, dev), "stsb_dev": dev}) == sentences_of(pairs)
    with pytest.raises(InputError, match=r"none in the task transfer; .* --whitening_file"):
        target_sentences({"sts": (sets, None), "transfer": {"MR": ["a", "b"]}})


@pytest.mark.slow
def test_whitened_command(data_dir: Path, tmp_path: Path, backbone_folders, capsys) -> None:
    """The results say that they are whitened, on what and to how many dimensions; the scores change."""
    text = tmp_path / "text.txt"
    text.write_text("".join(f"w{i} w{2 * i} the cat\n" for i in range(30)) * 2)
    common = [backbone_folders["bert"], "--data_dir", str(data_dir), "--pooling", "avg_first_last"]
    wanted = {
        "plain": ([], None),
        "target": (["--whitening"], {"whitening": 32, "whitening_fitted_on": "the evaluated sentences"}),
        "file": (["--whitening", "7", "--whitening_file", str(text)],
                 {"whitening": 7, "whitening_fitted_on": "text.txt", "whitening_sentences": 30}),
    }  # fmt: skip
    averages = set()
    for name, (options, said) in wanted.items():
        main([*common, *options, "--output", str(tmp_path / f"{name}.json"), "--table", str(tmp_path / f"{name}.md")])
        assert (" + whitening |" in one_space((tmp_path / f"{name}.md").read_text())) == (said is not None)
        results = json.loads((tmp_path / f"{name}.json").read_text())
        averages.add(results["sts"]["avg"])
        found = {key: value for key, value in results["settings"].items() if key.startswith("whitening")}
        assert (said or {}).items() <= found.items()
        assert bool(found) == (said is not None) == (" + whitening |" in one_space(capsys.readouterr().out))
    assert len(averages) == 3
    for options, words in [
        (["--whitening", "33"], "at least 33 dimensions, found 32"),
        (["--whitening", "0"], "at least 1, found '0'"),
        (["--whitening_file", str(text)], "--whitening_file expects --whitening"),
        (["--whitening", "--whitening_file", "no.txt"], "no.txt"),
    ]:
        with pytest.raises(SystemExit, match="2"):
            main([*common, *options])
        assert words in capsys.readouterr().err.strip().splitlines()[-1]


LINES = "the 1 2 3\ncat -1 0 .5\nthe 9 9 9\n. . . 4 4 4\nn't 0 0 1e1\n! 8 0 0\n"


def write(path: Path, text: str = LINES) -> str:
    """A file of word vectors in the format that its name says."""
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    elif path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("vectors.txt", text)
    else:
        path.write_bytes(text.encode())
    return str(path)


@pytest.mark.parametrize("name", ["vectors.txt", "vectors.vec", "vectors.txt.gz", "vectors.zip"])
@pytest.mark.parametrize("header", ["", "4 3\n"])
def test_word_vectors(name: str, header: str, tmp_path: Path) -> None:
    """The mean over the known words, lower-cased, as they stand or else cut at punctuation; zeros if there is none."""
    encoder = load_encoder(write(tmp_path / name, header + LINES.replace("\n", " \r\n")))
    assert isinstance(encoder, WordVectors)
    assert encoder.settings == {"pooling": "mean of word vectors", "words": 4, "dimensions": 3}
    found = encoder(["The cat", "the  CAT! unknown", "n't", "the cat's n't", "nothing known", ""])
    expected = [[0, 1, 1.75], [8 / 3, 2 / 3, 3.5 / 3], [0, 0, 10], [0, 2 / 3, 4.5], [0, 0, 0], [0, 0, 0]]
    assert found.dtype == np.float32
    assert found == pytest.approx(np.array(expected, np.float32))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a 1 2\nb 1\n", ["line 2", "expected a word and 2 numbers", "found 1 fields"]),
        ("a 1 2\nb 1 2 3\n", ["line 2", "2 numbers", "found 3"]),
        ("2 2\na 1 2\n\nb 1 2\n", ["line 3", "found 0"]),
        ("a 1 2\nb 1 x\n", ["line 2", "'x'"]),
        ("a 1 2\nb 1 nan\n", ["finite", "'b'"]),
        ("word\n", ["line 1", "its numbers"]),
        ("", ["found none"]),
    ],
)
def test_broken_word_vectors(text: str, words: list[str], tmp_path: Path) -> None:
    """A line that is not a word and as many numbers as the others is named, and what is wrong with it."""
    with pytest.raises(InputError) as error:
        load_encoder(write(tmp_path / "vectors.txt", text))
    assert all(word in str(error.value) for word in words), error.value


def test_wrong_word_vector_files(tmp_path: Path) -> None:
    """Files that are not what their names say, and options for models with layers."""
    (tmp_path / "a.txt").write_bytes(b"\xff 1 2\n")
    (tmp_path / "b.gz").write_text(LINES)
    (tmp_path / "c.zip").write_text(LINES)
    for name in ("a.txt", "b.gz", "c.zip"):
        with pytest.raises(InputError, match="UTF-8" if name == "a.txt" else "cannot be read"):
            load_encoder(str(tmp_path / name))
    with zipfile.ZipFile(tmp_path / "d.zip", "w") as archive:
        archive.writestr("x", LINES)
        archive.writestr("y", LINES)
    with pytest.raises(InputError, match="one file inside, found 2"):
        load_encoder(str(tmp_path / "d.zip"))
    path = write(tmp_path / "e.txt")
    for option, value in (("pooling", "avg"), ("max_seq_length", 9)):
        with pytest.raises(InputError, match=f"--{option} expects a model with layers"):
            load_encoder(path, **{option: value})


def test_word_vectors_command(data_dir: Path, tmp_path: Path) -> None:
    """The command takes a file of word vectors as its model, with whitening too."""
    path = write(tmp_path / "vectors.txt", "".join(f"w{i} {i % 7} {i % 5} {i % 3}\n" for i in range(60)))
    output = tmp_path / "results.json"
    main([path, "--data_dir", str(data_dir), "--whitening", "2", "--output", str(output)])
    settings = json.loads(output.read_text())["settings"]
    assert (settings["pooling"], settings["words"], settings["whitening"]) == ("mean of word vectors", 60, 2)
