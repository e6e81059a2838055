"""transformers' own tests of a model and of a configuration, on this project's: `make test-contract` runs them.

They are not part of transformers' wheel. The make target downloads the source distribution of the installed version and
names its folder in TRANSFORMERS_SOURCE. What cannot apply is in `CANNOT_APPLY`, each with its reason.
"""

import importlib.util
import os
import sys
import unittest
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
import transformers
from transformers import AutoConfig

from modeling_cmlmcse import CMLMCSEConfig, CMLMCSEForSentenceEmbedding

SOURCE = Path(os.environ["TRANSFORMERS_SOURCE"]) / "tests"
ABSENT = {  # modules that the source distribution lacks, and what the tests take from them
    "exporters.test_export": {"ExportTesterMixin": type("ExportTesterMixin", (), {})},
    "generation.test_utils": {"GenerationTesterMixin": type("GenerationTesterMixin", (), {})},
    "utils.test_configuration_utils": {"config_common_kwargs": {}},
}
CANNOT_APPLY = {
    "test_can_set_attention_dynamically": "packed attention is the only one: no other knows where a sentence ends",
    "test_capture_outputs_decorator": "it asks for attention weights, which packed attention does not keep",
    "test_correct_missing_keys": "it loads a plain backbone's folder, which points to from_backbone instead",
    "test_internal_model_config_and_subconfig_are_same": "the encoder has a copy of its configuration, so that a plain "
    "model which is built from the model's own does not get packed attention",
    "test_retain_grad_hidden_states_attentions": "hidden states are unpacked from the packed ones, which go on",
}


def their(name: str) -> Any:
    """One of their test modules, as part of a package of its own."""
    package = ModuleType("contract_of_transformers")
    package.__path__ = [str(SOURCE)]
    sys.modules.setdefault(package.__name__, package)
    for missing, content in ABSENT.items():
        module = ModuleType(f"{package.__name__}.{missing}")
        vars(module).update(content)
        parent = module.__name__.rpartition(".")[0]
        sys.modules.setdefault(parent, ModuleType(parent))
        sys.modules.setdefault(module.__name__, module)
    spec = importlib.util.spec_from_file_location(f"{package.__name__}.{name}", SOURCE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    with mock.patch("transformers.utils.direct_transformers_import", return_value=transformers):  # not from SOURCE
        spec.loader.exec_module(module)
    return module


modeling, configuration = their("test_modeling_common"), their("test_configuration_common")
SIZES = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
         "intermediate_size": 37, "max_position_embeddings": 66}  # fmt: skip
KINDS = {
    "bert": {},
    "roberta": {"type_vocab_size": 1},
    "modernbert": {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3},
}
MODELS = {"export": {"cmlm_weight": 0.0, "projection": "none", "pooling": "avg"}, "training": {}}


class Tester:
    """A small model and a batch, as their mixin asks for them."""

    batch_size, seq_length, is_training, hidden_size, num_hidden_layers = 3, 7, False, 32, 2

    def __init__(self, kind: str, model: str) -> None:
        self.kind, self.fields = kind, MODELS[model]

    def get_config(self) -> CMLMCSEConfig:
        """The configuration."""
        backbone = AutoConfig.for_model(self.kind, **SIZES, **KINDS[self.kind])
        return CMLMCSEConfig(backbone_config=backbone, **self.fields)

    def prepare_config_and_inputs_for_common(self) -> tuple[CMLMCSEConfig, dict[str, torch.Tensor]]:
        """The configuration, and token ids with a mask."""
        ids = torch.randint(4, 99, (self.batch_size, self.seq_length), generator=torch.Generator().manual_seed(0))
        return self.get_config(), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def case(kind: str, model: str) -> type:
    """The tests of one model."""

    class Case(modeling.ModelTesterMixin, unittest.TestCase):
        all_model_classes = (CMLMCSEForSentenceEmbedding,)
        has_attentions = False  # packed attention keeps no weights

        def setUp(self) -> None:
            self.model_tester = Tester(kind, model)
            if reason := CANNOT_APPLY.get(self._testMethodName):
                self.skipTest(reason)

        def test_config(self) -> None:
            fields = MODELS[model]
            tester = configuration.ConfigTester(
                self, config_class=CMLMCSEConfig, has_text_modality=True, common_properties=["hidden_size"], **fields
            )
            tester.run_common_tests()

    Case.__name__ = Case.__qualname__ = f"Test_{kind}_{model}"
    return Case


for _kind in KINDS:
    for _model in MODELS:
        globals()[f"Test_{_kind}_{_model}"] = case(_kind, _model)
del modeling.ModelTesterMixin  # the mixin alone is no test
