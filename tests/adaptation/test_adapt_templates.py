"""A model whose pooling is `prompt`: adapt, encode and the demo put its template around every text."""

import numpy as np
import pytest
from transformers import AutoTokenizer

from cmlmcse import adapt
from cmlmcse.data.special_tokens import special_tokens
from cmlmcse.data.templates import read_template, with_template
from cmlmcse.encode.command import main as encode
from cmlmcse.hub.export import export
from cmlmcse.models.folders import recorded_pooling, recorded_templates
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from support.paths import ROOT
from support.tiny import tiny_tokenizer

TEXTS = ["w1 w2", "the cat sat on the mat", "w5"]
TEMPLATES = {"prompt_template": "the big {sentence} sat on {mask} red", "second_prompt_template": "a {sentence} {mask}"}


@pytest.mark.slow
@pytest.mark.usefixtures("pictures")
def test_every_command_applies_the_template(corpus, backbone, tmp_path, monkeypatch):
    """Vectors are those of the filled template, before and after adapt, which keeps pooling and templates."""
    monkeypatch.syspath_prepend(ROOT / "demo")
    from encoding import PLAIN, load_encoder

    plain = tiny_tokenizer("bert")
    tokenizer = with_template(plain, read_template(TEMPLATES["prompt_template"], plain), special_tokens(plain))
    model = CMLMCSEForSentenceEmbedding.from_backbone(backbone, cmlm_weight=0.0, pooling="prompt", **TEMPLATES).eval()
    start = export(model, tokenizer, tmp_path / "start")
    found = adapt(start, corpus, tmp_path / "adapted", max_steps=4, per_device_train_batch_size=8, use_cpu=True)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    filled = [plain(f"the big {text} sat on [MASK] red")["input_ids"] for text in TEXTS]
    for folder in (start, found.folder / "export"):
        assert recorded_pooling(str(folder))[0] == "prompt"
        assert recorded_templates(str(folder)) == TEMPLATES
        assert AutoTokenizer.from_pretrained(folder)(TEXTS)["input_ids"] == filled
        encode([str(folder), str(tmp_path / "texts.txt"), "--output", str(tmp_path / "out.npy"), "--overwrite"])
        vectors = np.load(tmp_path / "out.npy")
        if folder == start:
            np.testing.assert_allclose(vectors, model.encode(TEXTS, tokenizer), atol=1e-6)
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        np.testing.assert_allclose(load_encoder(str(folder))(TEXTS, PLAIN), vectors / lengths, atol=1e-6)
