"""What an export needs in order to load in transformers 4 too, as far as this environment can tell.

`make test-compat` loads exports there (tests/compat).
"""

import json
from pathlib import Path

import numpy as np
import pytest
from transformers.dynamic_module_utils import get_relative_imports

from cmlmcse.hub.export import AUTO_MAP, export
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding, families
from support.tiny import KINDS, OTHER_KINDS, tiny_backbone, tiny_tokenizer

SOURCE = Path(families.__file__).parent


def named(name: str) -> set[str]:
    """The siblings that transformers finds in a shipped file."""
    return set(get_relative_imports(SOURCE / f"{name}.py"))


def test_every_file_is_named_by_one_that_is_loaded():
    """Transformers copies the files that a loaded file names, the configuration first; then it reads the imports of
    what it has copied, and all of them must be there."""
    configuration, model = (AUTO_MAP[name].split(".")[0] for name in ("AutoConfig", "AutoModel"))
    first = {configuration} | named(configuration)
    assert set().union(*map(named, first)) <= first
    assert {model, "__init__"} | named(model) == {path.stem for path in SOURCE.glob("*.py")}


def test_imports_have_no_circle():
    """Transformers 4.51 to 4.55 follows the names of files without remembering where it was: a circle never ends, and
    each path costs it the reading of a file."""
    level, read = [AUTO_MAP["AutoModel"].split(".")[0]], 0
    while level:
        read += len(level)
        assert read < 2_000
        level = [name for file in level for name in named(file)]


@pytest.mark.parametrize("kind", (*KINDS, *OTHER_KINDS))
def test_blocks_part_by_part(kind, backbone_folders, sentences, monkeypatch):
    """Transformers 4's blocks cannot run as a whole on packed tokens; their parts give the same."""
    model = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders[kind], pooling="avg_first_last").eval()
    whole = model.encode(sentences, tiny_tokenizer(kind))
    monkeypatch.setattr(families, "TRANSFORMERS_5", False)
    np.testing.assert_allclose(model.encode(sentences, tiny_tokenizer(kind)), whole, atol=1e-5)


def test_tokenizer_has_the_names_of_both(backbone_folders, tmp_path):
    """Class, further special tokens, and what the tokenizer returns."""
    tokenizer = tiny_tokenizer("bert")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<one>"]})
    model = CMLMCSEForSentenceEmbedding.from_backbone(backbone_folders["bert"], cmlm_weight=0.0)
    export(model, tokenizer, tmp_path / "export")
    fields = json.loads((tmp_path / "export" / "tokenizer_config.json").read_text())
    assert fields["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert fields["additional_special_tokens"] == ["<one>"]
    assert "extra_special_tokens" not in fields
    assert fields["model_input_names"] == tokenizer.model_input_names
    again = type(tokenizer).from_pretrained(tmp_path / "export")
    assert again("the <one> cat")["input_ids"] == tokenizer("the <one> cat")["input_ids"]


def test_modernbert_has_the_rotary_bases_of_both(tmp_path):
    """Those that are not transformers 4's defaults above all, as mmBERT's."""
    plain = tiny_backbone("modernbert")
    plain.config.rope_parameters["sliding_attention"]["rope_theta"] = 500.0
    plain.save_pretrained(tmp_path / "backbone")
    model = CMLMCSEForSentenceEmbedding.from_backbone(tmp_path / "backbone", cmlm_weight=0.0)
    export(model, tiny_tokenizer("modernbert"), tmp_path / "export")
    fields = json.loads((tmp_path / "export" / "config.json").read_text())
    assert (fields["global_rope_theta"], fields["local_rope_theta"]) == (160000.0, 500.0)
    again = CMLMCSEForSentenceEmbedding.from_pretrained(tmp_path / "export")
    assert again.config.backbone_config.rope_parameters == model.config.backbone_config.rope_parameters
