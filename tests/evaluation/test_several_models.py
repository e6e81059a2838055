"""`cmlmcse evaluate A B`: what is wrong with B shows before A is scored."""

import re
from pathlib import Path

import pytest

from cmlmcse.common.errors import InputError
from cmlmcse.evaluation import prepare
from cmlmcse.evaluation.command import main
from cmlmcse.hub.export import export
from cmlmcse.models.encoders import load_model_encoder, with_length
from cmlmcse.models.without_weights import check_encoder
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from support.tiny import KINDS, WORDS, tiny_backbone, tiny_tokenizer


@pytest.fixture
def second(tmp_path: Path) -> Path:
    """A model of 24 positions and 32 dimensions."""
    tiny_backbone("bert", max_position_embeddings=24).save_pretrained(tmp_path / "second")
    tiny_tokenizer("bert").save_pretrained(tmp_path / "second")
    return tmp_path / "second"


@pytest.mark.parametrize(("options", "words"), [
    (["--max_seq_length", "40"], "--max_seq_length must be from 3 to 24, the most"),
    (["--truncate_dim", "33"], "--truncate_dim must be at most 32, the model's, found 33; lower it"),
    (["--whitening", "33"], "--whitening must be at most 32, as"),
    (["--tasks", "glue"], "expected a model that transformers can fine-tune, found one that it cannot load"),
])  # fmt: skip
def test_the_second_model(options, words, second, backbone_folders, data_dir, monkeypatch, capsys) -> None:
    """One line and status 2, and no model's weights are loaded."""
    if options[0] == "--tasks":
        CMLMCSEForSentenceEmbedding.from_backbone(str(second), cmlm_weight=0.0, pooling="avg").save_pretrained(second)
        monkeypatch.setattr("cmlmcse.evaluation.command.load_data", lambda tasks, folder: ({"glue": {}}, []))
    monkeypatch.setattr(prepare, "load_encoder", lambda *given: pytest.fail("a model was loaded"))
    others = ["--tasks", "stsb_dev", "--pooling", "avg", "--data_dir", str(data_dir), *options]
    with pytest.raises(SystemExit, match="2"):
        main([backbone_folders["roberta"], str(second), *others])
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert words in errors[0]


def test_a_model_that_is_not_there_and_word_vectors(backbone_folders, data_dir, tmp_path, monkeypatch, capsys) -> None:
    """Word vectors read whole texts."""
    (tmp_path / "words.txt").write_text("".join(f"{word} {i} 1\n" for i, word in enumerate(WORDS)))
    monkeypatch.setattr(prepare, "load_encoder", lambda *given: pytest.fail("a model was loaded"))
    options = ["--tasks", "stsb_dev", "--data_dir", str(data_dir), "--pooling", "avg", "--max_seq_length", "20"]
    for model, words in {
        str(tmp_path / "none"): "expected a model's folder, found none",
        str(tmp_path / "words.txt"): "expects a model with layers, found word vectors",
    }.items():
        with pytest.raises(SystemExit, match="2"):
            main([backbone_folders["bert"], model, *options])
        assert words in capsys.readouterr().err


@pytest.mark.parametrize("kind", KINDS)
def test_as_the_loaded_model_says(kind: str, backbone_folders, tmp_path: Path) -> None:
    """A backbone, an export and a checkpoint take the same lengths with and without their weights."""
    model = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders[kind], cmlm_weight=0.0, pooling="avg")
    exported, saved = export(model, tiny_tokenizer(kind), tmp_path / "run" / "export"), tmp_path / "checkpoint"
    model.save_pretrained(saved)
    tiny_tokenizer(kind).save_pretrained(saved)
    for place, pooling in ((backbone_folders[kind], "avg"), (str(exported), None), (str(saved), None)):
        encoder = load_model_encoder(place, pooling, show_progress_bar=False)
        assert check_encoder(place, pooling, [None, 20], None) == encoder.width
        with pytest.raises(InputError, match=r"--max_seq_length must be from \d+ to 64, the most") as loaded:
            with_length(encoder, 65, place)
        with pytest.raises(InputError, match=re.escape(str(loaded.value))):
            check_encoder(place, pooling, [20, 65], None)
