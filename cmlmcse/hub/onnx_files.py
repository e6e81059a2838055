"""`onnx/` in an export: the plain backbone as an ONNX graph, in fp32 and in int8, checked with ONNX Runtime.

Names and layout are those that sentence-transformers (`backend="onnx"`) and transformers.js read. The graph maps token
ids to token vectors. Whoever loads it does the pooling, as with PyTorch.
"""

import copy
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedTokenizerBase

from cmlmcse.common.errors import InputError
from modeling_cmlmcse.backbone import quiet_loading
from modeling_cmlmcse.modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from modeling_cmlmcse.packing import Packing
from modeling_cmlmcse.pooling import POOLINGS

PACKAGES = ("onnx", "onnxruntime", "onnxscript")  # the extra `onnx`
FP32, INT8 = "model.onnx", "model_quantized.onnx"
OPSET = 18  # the lowest that torch's exporter writes without converting; old runtimes read it
TOLERANCE = 1e-4  # of a coordinate in fp32, absolute or relative to the largest one
LEAST_COSINE = 0.95  # of an int8 embedding with its own fp32 one, on average; all-MiniLM-L6-v2 has 0.99
MOST_BYTES = 2**31  # of a protobuf file
Tokens = dict[str, Tensor]  # (N, T) each, by the names of a graph's inputs


class OnnxCheck(NamedTuple):
    """How near the embeddings are: the largest difference of fp32, and the mean and least cosine of int8."""

    difference: float
    mean_cosine: float
    least_cosine: float

    def __str__(self) -> str:
        return (
            f"onnx/{FP32}: largest difference {self.difference:.1e}; onnx/{INT8}: cosine with fp32 "
            f"{self.mean_cosine:.4f} on average, {self.least_cosine:.4f} at least"
        )


def check_graph(option: str, packages: Sequence[str], pooling: str) -> None:
    """Check before any work that a graph's files can be written.

    Args:
        option: `onnx` or `openvino`, the option and the extra of the same name.
        packages: what the extra installs.
        pooling: the model's.

    Raises:
        InputError: a package is missing, other layers than the last are pooled, or the pooling needs the model's code.
    """
    if missing := [name for name in packages if find_spec(name) is None]:
        found = f"found no {', '.join(missing)}"
        raise InputError(f'--{option} expects the extra {option}, {found}; pip install "cmlmcse[{option}]"')
    if POOLINGS[pooling].reads_mask:
        raise InputError(
            f"--{option} expects a pooling that readers of such files know, found {pooling}; drop --{option}"
        )
    if POOLINGS[pooling].layers != (-1,):
        raise InputError(
            f"--{option} expects a pooling of the last layer, found {pooling}: readers of such files see no other "
            f"layer; drop --{option}"
        )


def write_onnx(
    model: CMLMCSEForSentenceEmbedding, tokenizer: PreTrainedTokenizerBase, folder: Path, sentences: Sequence[str]
) -> OnnxCheck:
    """Write `onnx/` in an export, and compare its embeddings of some sentences with the model's.

    Args:
        model: the exported model.
        tokenizer: its tokenizer.
        folder: the export.
        sentences: N texts, some longer than the model takes.

    Raises:
        InputError: weights beyond 2 GB, or embeddings that differ.
    """
    check_size("onnx", folder)
    (folder / "onnx").mkdir()
    fp32, int8 = folder / "onnx" / FP32, folder / "onnx" / INT8
    tokens = tokenize(tokenizer, sentences)
    with quiet_exporter():
        export_graph(folder, tokens, fp32)
        quantize(fp32, int8)
    difference = fp32_difference(model, tokenizer, sentences, partial(run_onnx, fp32))
    expected = torch.from_numpy(in_fp32(model).encode(list(sentences), tokenizer, prompt=""))  # (N, H)
    cosines = nn.functional.cosine_similarity(pooled(model, run_onnx(int8, tokens), tokens), expected)  # (N,)
    found = OnnxCheck(difference, float(cosines.mean()), float(cosines.min()))
    if not (found.difference <= TOLERANCE and found.mean_cosine >= LEAST_COSINE):
        raise InputError(
            f"--onnx expects a difference of at most {TOLERANCE:.0e} and a mean cosine of at least {LEAST_COSINE}, "
            f"found {found}; nothing was published, drop --onnx"
        )
    return found


def check_size(option: str, folder: Path) -> None:
    """Raise an InputError if the weights of an export do not fit into one ONNX file."""
    if (folder / "model.safetensors").stat().st_size >= MOST_BYTES:
        raise InputError(f"--{option} expects weights below 2 GB, the most that one ONNX file holds; drop --{option}")


def fp32_difference(
    model: CMLMCSEForSentenceEmbedding,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    run: Callable[[Tokens], NDArray[np.float32]],
) -> float:
    """The largest difference of a coordinate between a graph's embeddings and the model's, in fp32; relative to the
    largest coordinate if that is above 1. The first sentence is compared alone too: another batch size and length.

    Args:
        run: the graph, tokens → token vectors (N, T, H).
    """
    model, differences = in_fp32(model), []
    expected = torch.from_numpy(model.encode(list(sentences), tokenizer, prompt=""))  # (N, H)
    for count in (len(sentences), 1):
        tokens = tokenize(tokenizer, sentences[:count])
        differences.append((pooled(model, run(tokens), tokens) - expected[:count]).abs().max())
    return float(torch.stack(differences).max()) / max(1.0, float(expected.abs().max()))


def in_fp32(model: CMLMCSEForSentenceEmbedding) -> CMLMCSEForSentenceEmbedding:
    """The model, or a copy of it, in fp32."""
    return model if model.dtype == torch.float32 else copy.deepcopy(model).float()


def tokenize(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> Tokens:
    """N texts → (N, T) each."""
    return dict(tokenizer(list(texts), padding=True, truncation=True, return_tensors="pt"))


class TokenVectors(nn.Module):
    """A plain backbone with positional inputs and one output, as the exporter wants it."""

    def __init__(self, backbone: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.backbone, self.names = backbone, names

    def forward(self, *inputs: Tensor) -> Tensor:
        """(N, T) each → (N, T, H)."""
        states: Tensor = self.backbone(**dict(zip(self.names, inputs, strict=True))).last_hidden_state
        return states


def export_graph(folder: Path, tokens: Tokens, path: Path) -> None:
    """The plain backbone of an export as an ONNX file, for any batch size and length.

    Args:
        folder: the export.
        tokens: (N, T) each, N and T at least 2, by the names that the graph's inputs get.
        path: the file.
    """
    with quiet_loading():
        backbone = AutoModel.from_pretrained(folder, trust_remote_code=False, dtype=torch.float32).eval()
    names = list(tokens)
    program: Any = torch.onnx.export(
        TokenVectors(backbone, names).eval(),
        tuple(tokens.values()),
        input_names=names,
        output_names=["last_hidden_state"],
        dynamic_shapes=(({0: "batch", 1: "sequence"},) * len(names),),
        opset_version=OPSET,
        dynamo=True,
        verbose=False,
    )
    program.save(path)


def quantize(source: Path, target: Path) -> None:
    """Dynamic quantisation: weights in 8 bits, activations quantised as they come.

    Both are unsigned, because signed weights overflow on x86 processors without VNNI (ONNX Runtime's documentation).
    Each output channel has a scale of its own: one scale for a whole matrix turns the vectors further from fp32's.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(source, target, weight_type=QuantType.QUInt8, per_channel=True)


def run_onnx(path: Path, tokens: Tokens) -> NDArray[np.float32]:
    """The token vectors (N, T, H) that a file gives in ONNX Runtime."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (states,) = session.run(None, {name: np.asarray(grid) for name, grid in tokens.items()})
    return np.asarray(states)


def pooled(model: CMLMCSEForSentenceEmbedding, states: NDArray[np.float32], tokens: Tokens) -> Tensor:
    """(N, T, H) token vectors of a graph → (N, H) embeddings, with the model's own pooling."""
    packing = Packing.from_mask(tokens["attention_mask"])
    with torch.no_grad():
        return in_fp32(model).embedding_of([packing.pack(torch.from_numpy(states))], packing)


@contextmanager
def quiet_exporter() -> Iterator[None]:
    """Without the exporter's warnings on packages and shapes that do not concern the user."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
