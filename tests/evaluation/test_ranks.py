"""RankEncoder's similarity: against scipy's Spearman correlation of the rankings, and as an option of the command."""

import json
from functools import partial

import numpy as np
import pytest
from scipy.stats import spearmanr

from cmlmcse.common.vectors import unit
from cmlmcse.evaluation.command import evaluate, main
from cmlmcse.evaluation.encoding import EncodeOnce, MappedEncoder
from cmlmcse.evaluation.ranks import append_ranks
from cmlmcse.evaluation.scores import cosine
from support.text import one_space


class Drawn:
    """Vectors of a text that depend on it alone; counts what it encodes."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, sentences: list[str]) -> np.ndarray:
        self.texts += sentences
        return np.stack([np.random.default_rng(list(text.encode())).normal(size=6) + 1 for text in sentences])


@pytest.mark.parametrize("weight", (0.0, 0.1, 1.0))
def test_similarity(weight):
    """The cosine of two vectors is the weighted sum; the corpus and each sentence are encoded once."""
    encode = Drawn()
    corpus = [f"c{i}" for i in range(40)]
    once = EncodeOnce(encode)
    ranked = MappedEncoder(once, partial(append_ranks, corpus=unit(once.encode_uncached(corpus)), weight=weight))
    first, second = [f"a{i}" for i in range(7)], [f"b{i}" for i in range(7)]
    found = cosine(ranked(first), ranked(second))
    assert ranked(first).shape == (7, 6 + 40)
    assert len(encode.texts) == 40 + 14
    one, other, known = Drawn()(first), Drawn()(second), Drawn()(corpus)
    axes = known / np.linalg.norm(known, axis=1, keepdims=True)
    rankings = [spearmanr(axes @ a, axes @ b)[0] for a, b in zip(one, other, strict=True)]
    np.testing.assert_allclose(found, (1 - weight) * cosine(one, other) + weight * np.array(rankings), atol=1e-6)
    np.testing.assert_allclose(cosine(ranked(first), ranked(first)), np.ones(7), atol=1e-6)


def test_the_option(data_dir, tmp_path, backbone_folders, capsys):
    """The results and the table say so; with weight 0 the score is the plain one, with 1 another; other tasks and cut
    vectors are refused."""
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("".join(f"w{i} w{3 * i % 60} the cat\n" for i in range(30)) * 2)
    model, options = backbone_folders["bert"], {"tasks": "stsb_dev", "data_dir": str(data_dir), "pooling": "avg"}
    plain = evaluate(model, **options)
    scores = {}
    for weight in (0, 1):
        found = evaluate(model, **options, rank_corpus=corpus, rank_sentences=20, rank_weight=weight)
        said = {"rank_corpus": "corpus.txt", "rank_sentences": 20, "rank_weight": weight}
        assert said.items() <= found["settings"].items()
        scores[weight] = found["stsb_dev"]["spearman"]
    assert scores[0] == pytest.approx(plain["stsb_dev"]["spearman"], abs=1e-3)
    assert abs(scores[1] - scores[0]) > 0.1
    words = [model, *(f"--{name}={value}" for name, value in options.items()), f"--rank_corpus={corpus}"]
    main([*words, "--rank_sentences=5", f"--output={tmp_path / 'out.json'}"])
    assert json.loads((tmp_path / "out.json").read_text())["settings"]["rank_weight"] == 0.1
    for wrong, message in (
        (["--tasks=geometry"], "--rank_corpus expects the tasks sts and stsb_dev alone, found geometry"),
        (["--truncate_dim=8"], "--truncate_dim expects no --rank_corpus"),
        (["--rank_weight=2"], "expected a number from 0 to 1, found '2'"),
        (["--rank_corpus=no.txt"], "no.txt"),
    ):
        with pytest.raises(SystemExit, match="2"):
            main([*words, *wrong])
        assert message in one_space(capsys.readouterr().err.strip().splitlines()[-1])
