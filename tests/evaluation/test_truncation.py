"""`--truncate_dim`: the scores of cut embeddings beside those of whole ones."""

import json

import numpy as np
import pytest

from cmlmcse.common.errors import InputError
from cmlmcse.evaluation.command import evaluate, main
from cmlmcse.evaluation.encoding import EncodeOnce
from cmlmcse.evaluation.sts import load_stsb_dev, stsb_dev
from cmlmcse.evaluation.truncation import truncated
from cmlmcse.models.encoders import load_model_encoder


def test_command_and_function(backbone_folders, data_dir, tmp_path, capsys):
    """Each size is a row and a result of its own; its figure is that of the sliced vectors."""
    folder = backbone_folders["bert"]
    encode = load_model_encoder(folder, "avg", show_progress_bar=False)
    expected = [stsb_dev(lambda texts: encode(texts)[:, :size], load_stsb_dev(str(data_dir))) for size in (32, 16, 3)]  # noqa: B023
    options = ["--pooling", "avg", "--tasks", "stsb_dev", "--data_dir", str(data_dir)]
    main([folder, *options, "--truncate_dim", "16, 3", "--output", str(tmp_path / "out.json")])
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["model"] == [folder, f"{folder}, 16 dimensions", f"{folder}, 3 dimensions"]
    assert [one["stsb_dev"] for one in written["results"]] == expected
    assert [one["settings"].get("truncate_dim") for one in written["results"]] == [None, 16, 3]
    assert ", 3 dimensions" in capsys.readouterr().out
    found = evaluate(folder, "stsb_dev", data_dir, pooling="avg", truncate_dim=3)
    assert found["stsb_dev"] == expected[2]


@pytest.mark.parametrize("sizes", ["16,3", [16, 3], (16,), 0, "a"])
def test_the_function_takes_one_size(sizes):
    """It returns one result, so the message does not suggest a list."""
    with pytest.raises(InputError, match="truncate_dim must be one whole number of at least 1"):
        evaluate("model", "stsb_dev", truncate_dim=sizes)


def test_each_text_is_encoded_once():
    """Also where several sizes share the vectors; passages are cut without being kept."""
    calls: list[str] = []

    def encode(texts: list[str]) -> np.ndarray:
        calls.extend(texts)
        return np.arange(4.0) + len(texts[0]) * np.ones((len(texts), 1))

    once = EncodeOnce(encode)
    small, smaller = truncated(once, 3), truncated(once, 1)
    np.testing.assert_array_equal(small(["ab"]), [[2, 3, 4]])
    np.testing.assert_array_equal(EncodeOnce.of(smaller).bare(["ab"]), [[2]])
    assert calls == ["ab"]
    np.testing.assert_array_equal(smaller.encode_uncached(["abc"]), [[3]])
    np.testing.assert_array_equal(small(["abc"]), [[3, 4, 5]])
    assert calls == ["ab", "abc", "abc"]
    with pytest.raises(InputError, match="--truncate_dim must be at most 4, the model's, found 5"):
        truncated(once, 5)(["ab"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["16,16"], "--truncate_dim expects different whole numbers of at least 1, as 256,64, found '16,16'"),
        (["0"], "of at least 1"),
        (["a"], "found 'a'"),
        (["16", "--whitening"], "--truncate_dim expects no --whitening, found both"),
    ],
)
def test_refusals(options, words, capsys):
    """One line, status 2."""
    with pytest.raises(SystemExit, match="2"):
        main(["model", "--truncate_dim", *options])
    assert words in capsys.readouterr().err


def test_known_before_anything_is_encoded(backbone_folders, data_dir, monkeypatch, capsys):
    """A size beyond the model's is refused at once, and so is an output that the function does not write."""
    monkeypatch.setattr("cmlmcse.models.encoders.Encoder.__call__", None)
    with pytest.raises(SystemExit, match="2"):
        main([backbone_folders["bert"], "--pooling", "avg", "--tasks", "stsb_dev", "--data_dir", str(data_dir),
              "--truncate_dim", "16,9999"])  # fmt: skip
    assert "--truncate_dim must be at most 32, the model's, found 9999; lower it" in capsys.readouterr().err
    with pytest.raises(InputError, match="expects options that change a score, found output, which only the command"):
        evaluate("model", output="o.json")
