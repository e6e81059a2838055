"""`openvino/` in an export: the plain backbone as an OpenVINO model in fp32, checked with OpenVINO.

The name and layout are those that sentence-transformers reads (`backend="openvino"`). The ONNX graph is converted,
because OpenVINO's own reader of PyTorch models gives NaN for ModernBERT. An int8 file needs texts to calibrate with;
see docs/how-to/onnx.md.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from cmlmcse.common.errors import InputError
from modeling_cmlmcse.modeling_cmlmcse import CMLMCSEForSentenceEmbedding

from .onnx_files import TOLERANCE, Tokens, check_size, export_graph, fp32_difference, quiet_exporter, tokenize

PACKAGES = ("onnx", "onnxscript", "openvino")  # the extra `openvino`
NAME = "openvino/openvino_model.xml"
FP32 = {"INFERENCE_PRECISION_HINT": "f32"}  # without it OpenVINO computes in bf16 where the processor can


def write_openvino(
    model: CMLMCSEForSentenceEmbedding, tokenizer: PreTrainedTokenizerBase, folder: Path, sentences: Sequence[str]
) -> str:
    """Write `openvino/` in an export, and compare its embeddings of some sentences with the model's.

    Args:
        model: the exported model.
        tokenizer: its tokenizer.
        folder: the export.
        sentences: N texts, some longer than the model takes.

    Returns:
        how near the embeddings are, as one line.

    Raises:
        InputError: weights beyond 2 GB, or embeddings that differ.
    """
    check_size("openvino", folder)
    with tempfile.TemporaryDirectory() as temporary, quiet_exporter():
        graph = Path(temporary) / "model.onnx"
        export_graph(folder, tokenize(tokenizer, sentences), graph)
        convert(graph, folder / NAME)
    compiled = CompiledModel(folder / NAME)
    difference = fp32_difference(model, tokenizer, sentences, compiled)
    if not difference <= TOLERANCE:
        raise InputError(
            f"--openvino expects a difference of at most {TOLERANCE:.0e}, found {difference:.1e}; nothing was "
            "published, drop --openvino"
        )
    return f"{NAME}: largest difference {difference:.1e}"


def convert(graph: Path, path: Path) -> None:
    """An ONNX file → an OpenVINO model of the same precision: `path` and its weights beside it, `.bin`."""
    import openvino

    path.parent.mkdir()
    openvino.save_model(openvino.Core().read_model(graph), path, compress_to_fp16=False)


class CompiledModel:
    """A model file in OpenVINO: tokens → token vectors (N, T, H), computed in fp32."""

    def __init__(self, path: Path) -> None:
        import openvino

        self.compiled = openvino.Core().compile_model(path, "CPU", FP32)

    def __call__(self, tokens: Tokens) -> NDArray[np.float32]:
        states = self.compiled({name: grid.numpy() for name, grid in tokens.items()})
        return np.asarray(states["last_hidden_state"])
