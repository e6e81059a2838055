"""The part of a model card that shows how to load the model, with the similarities that it really gives."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cmlmcse.common.vectors import unit
from modeling_cmlmcse.pooling import POOLINGS

EXAMPLE = ["A man is playing a guitar.", "Somebody plays an instrument.", "The shop opens at nine."]

USAGE = """```python
from transformers import AutoModel

model = AutoModel.from_pretrained({source}, trust_remote_code=True)
{encode}
{similarities}```

With sentence-transformers, which runs no code of this repository:

"""

USAGE_WITHOUT_CODE = """```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer({source})
{encode}
{similarities}```"""

RUNS_NO_CODE = "With sentence-transformers, which runs no code of this repository:"
RUNS_CODE = """With sentence-transformers, which has no pooling that reads the mask token. So it runs the code of this
repository:"""
TRUSTED = "{source}, trust_remote_code=True"

NEEDS = "The code needs transformers {version} or newer."  # docs/results/robustness.md
BACKENDS = """For ONNX or OpenVINO give `SentenceTransformer` `backend="onnx"` or `backend="openvino"`, in an
environment installed with `pip install "sentence-transformers[onnx,openvino]" "transformers<5"`."""
NO_BACKENDS = """Do not use the ONNX or OpenVINO backends of sentence-transformers. They average only the last layer,
without a warning, and give wrong embeddings."""
IN_TEMPLATE = "The tokenizer puts the sentence into the template that the model was trained with."

ONNX_USAGE = """

ONNX files: `onnx/model.onnx` (fp32) and `onnx/model_quantized.onnx` (int8). sentence-transformers takes one with
`backend="onnx", model_kwargs={"file_name": "onnx/model.onnx"}`, transformers.js with `dtype: "fp32"` or `"q8"`."""

NO_HEAD = """ The head that this model's pooling keeps is in neither. sentence-transformers applies it; transformers.js
does not, nor does text-embeddings-inference on a CPU."""

OPENVINO_USAGE = """

OpenVINO file: `openvino/openvino_model.xml` (fp32). sentence-transformers takes it with `backend="openvino"`."""


def similarity_example(encode: Callable[[list[str]], NDArray[np.float32]]) -> dict[str, Any]:
    """Three sentences and their cosines, for the records of a run.

    Args:
        encode: N texts → (N, H).
    """
    vectors = unit(encode(EXAMPLE))  # (3, H)
    return {"sentences": EXAMPLE, "cosines": np.round(vectors @ vectors.T, 2).tolist()}


class Loading(NamedTuple):
    """How a card loads the model.

    Attributes:
        source: the repository.
        revision: the branch, tag or commit to load.
        trust_free: the export holds no code.
        more: text that follows the code.
        pooling: the model's; sentence-transformers runs the repository's code for the one that it has not.
    """

    source: str | None = None
    revision: str | None = None
    trust_free: bool = False
    more: str = ""
    pooling: str = "cls_before_pooler"

    def text(self, example: dict[str, Any] | None = None) -> str:
        """The section "Use" of a card; `example` as in :meth:`code`."""
        return f"{self.code(example)}\n\n{requirements(self.pooling, self.trust_free)}{self.more}"

    def code(self, example: dict[str, Any] | None = None) -> str:
        """The code that loads an export.

        Args:
            example: from :func:`similarity_example`; without it no similarities are shown.
        """
        pinned = f', revision="{self.revision}"' if self.revision else ""
        where = f'"{self.source}"{pinned}' if self.source else "FOLDER_OR_REPO"
        sentences = ", ".join(f'"{sentence}"' for sentence in (example["sentences"] if example else EXAMPLE[:2]))
        encode = f"embeddings = model.encode([{sentences}])"
        if example:  # the line would be wider than a page of the Hub
            encode = f"sentences = [{sentences}]\nembeddings = model.encode(sentences)"
        parts = {"source": where, "encode": encode, "similarities": similarities(example)}
        if self.pooling in POOLINGS and POOLINGS[self.pooling].reads_mask:
            trusted = USAGE_WITHOUT_CODE.replace("{source}", TRUSTED)
            return (USAGE.replace(RUNS_NO_CODE, RUNS_CODE) + trusted).format(**parts)
        return ("" if self.trust_free else USAGE).format(**parts) + USAGE_WITHOUT_CODE.format(**parts)


def graphs_usage(pooling: str, onnx: bool, openvino: bool) -> str:
    """How the files of `--onnx` and `--openvino` are loaded; empty without them."""
    head = NO_HEAD if pooling in POOLINGS and POOLINGS[pooling].keeps_head else ""
    return (ONNX_USAGE + head) * onnx + OPENVINO_USAGE * openvino


def requirements(pooling: str, trust_free: bool) -> str:
    """What loading needs, and which backends of sentence-transformers give the same embeddings."""
    if pooling not in POOLINGS:  # of a newer version
        return ""
    entry = POOLINGS[pooling]
    needs = [] if trust_free else [NEEDS.format(version="4.52" if entry.keeps_head else "4.51")]
    last = IN_TEMPLATE if entry.reads_mask else NO_BACKENDS if len(entry.layers) > 1 else BACKENDS
    return " ".join([*needs, last])


def similarities(example: dict[str, Any] | None) -> str:
    """Code that compares the sentences of the example, and in comments what it gives."""
    if example is None:
        return ""
    rows = ["[" + "  ".join(f"{cosine:.2f}" for cosine in row) + "]" for row in example["cosines"]]
    code = "print(model.similarity(embeddings, embeddings))  # cosines; rounded, they are:\n"
    return code + "".join(f"# {row}\n" for row in rows)


def pinned_commit(card: str) -> str | None:
    """The commit that a card's code (:meth:`Loading.code`) is pinned to."""
    found = re.search(r'revision="([0-9a-f]{40})", trust_remote_code=True', card)
    return found.group(1) if found else None
