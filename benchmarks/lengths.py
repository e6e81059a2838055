"""Seconds and memory of a training step as the texts get longer: this project's against common implementations.

    python benchmarks/lengths.py --repetitions 5 --output benchmarks/records/lengths.json

Arms: transformers' padded SimCSE step, sentence-transformers' MultipleNegativesRankingLoss without its tokenisation,
and our SimCSE and CMLM-CSE (4 lexical and 2 fusion layers), on a BERT of 6 layers of 384 dimensions with fresh weights.
Every batch has about --tokens tokens in each view: fewer texts where they are longer. The lengths are drawn evenly
between a half of the limit and all of it. A step is forward, backward, clipping and AdamW.

Each arm takes turns with the first one, step by step, in two processes; its ratio is to those steps of the first one.
The memory is the largest resident set of the arm's process less what it had before its first step. It holds gradients
and AdamW's moments, which are the same for all arms but for CMLM-CSE's own blocks.
"""

import gc
import statistics
from collections.abc import Callable
from functools import partial

import torch
from common import in_a_process, interleaved, parser, print_table, timed, write_record
from gpu import ARMS, make_batch
from memory import MIB, peak, resident
from step import training_step
from transformers import BertConfig

from modeling_cmlmcse.fast_cpu import use_fast_cpu_kernels

LENGTHS = (32, 128, 256, 512)
TITLES = [title for title in ARMS if not title.startswith("DiffCSE")]
MEMORY = -1  # the number of a round that asks for the memory instead
CONFIG = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}


def build_arm(title: str, texts: int, length: int, rounds: int) -> Callable[[int], float]:
    """One arm as a function: the number of a round → the seconds of its step; `MEMORY` → MiB."""
    torch.manual_seed(0)
    batches = [make_batch(texts, length, seed=number) for number in range(rounds)]
    model, loss = ARMS[title](BertConfig(**CONFIG))
    use_fast_cpu_kernels(model)
    step = timed(training_step(model, lambda number: loss(batches[number])))
    gc.collect()
    before = resident()
    return lambda number: (peak() - before) / MIB if number == MEMORY else step(number)


def compare(length: int, texts: int, repetitions: int, warmup: int) -> dict[str, dict[str, float]]:
    """Seconds of a step, their ratio to the first arm's, and memory, by arm."""
    build = partial(build_arm, texts=texts, length=length, rounds=repetitions + warmup)
    first, *others = TITLES
    found: dict[str, dict[str, float]] = {}
    for title in others:
        with in_a_process(build, first) as baseline, in_a_process(build, title) as arm:
            seconds = interleaved({first: baseline, title: arm}, repetitions, warmup)
            ratios = [one / other for one, other in zip(seconds[title], seconds[first], strict=True)]
            found.setdefault(first, {"seconds": statistics.median(seconds[first]), "ratio": 1, "mib": baseline(MEMORY)})
            found[title] = {"seconds": statistics.median(seconds[title]), "ratio": statistics.median(ratios),
                            "lowest": min(ratios), "highest": max(ratios), "mib": arm(MEMORY)}  # fmt: skip
    return {title: {name: round(value, 3) for name, value in row.items()} for title, row in found.items()}


def main() -> None:
    """Measure every length, print a table and write the record."""
    options = parser(__doc__ or "", tokens=1536, repetitions=5, warmup=2, lengths=",".join(map(str, LENGTHS)))
    args = options.parse_args()
    steps, rows = {}, []
    for length in map(int, args.lengths.split(",")):
        texts = max(2, round(args.tokens / (0.75 * length)))
        steps[f"{texts} × {length}"] = found = compare(length, texts, args.repetitions, args.warmup)
        rows += [[f"{texts} × {length}", title, f"{row['seconds']:.3f}", f"{row['ratio']:.2f}", f"{row['mib']:.0f}"]
                 for title, row in found.items()]  # fmt: skip
    title = f"A step of about {args.tokens} tokens in each view, by texts × most tokens of a text"
    print_table(title, ["texts × tokens", "arm", "seconds", "ratio", "MiB"], rows)
    write_record(args.output, title, steps=steps, model=CONFIG, repetitions=args.repetitions)


if __name__ == "__main__":
    main()
