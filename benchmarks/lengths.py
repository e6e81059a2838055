"""Seconds and memory of a training step as the texts get longer: this project's against common implementations.

    python benchmarks/lengths.py --repetitions 5 --output benchmarks/records/lengths.json
    python benchmarks/lengths.py --family modernbert --lengths 128,512 --output lengths.json

Arms: transformers' padded SimCSE step, sentence-transformers' MultipleNegativesRankingLoss without its tokenisation,
our SimCSE and CMLM-CSE (4 lexical and 2 fusion layers), and our SimCSE in four parts (GradCache), on a BERT of 6 layers
of 384 dimensions with fresh weights. --family modernbert: a ModernBERT of this size, whose layers see 128 tokens but
for every third one; without sentence-transformers, whose model here is a BERT. Every batch has about --tokens tokens in
each view: fewer texts where they are longer. The lengths are drawn evenly between a half of the limit and all of it. A
step is forward, backward, clipping and AdamW.

Each arm takes turns with the first one, step by step, in two processes; its ratio is to those steps of the first one.
The memory is the largest resident set of the arm's process less what it had before its first step. It holds gradients
and AdamW's moments, which are the same for all arms but for CMLM-CSE's own blocks.
"""

import gc
import statistics
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from common import in_a_process, interleaved, parser, print_table, timed, tokenizer, write_record
from gpu import ARMS, Arm, make_batch, make_examples, mnrl, ours
from memory import MIB, peak, resident
from step import training_step
from transformers import BertConfig, ModernBertConfig

from cmlmcse.data.collator import ViewCollator
from cmlmcse.training.large_batch import backward_in_parts
from modeling_cmlmcse.fast_cpu import use_fast_cpu_kernels

LENGTHS = (32, 128, 256, 512)
PARTS = 4
IN_PARTS = f"SimCSE, ours, in {PARTS} parts"
FAMILIES = ("bert", "modernbert")
MEMORY = -1  # the number of a round that asks for the memory instead
CONFIG = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
# Of the tokenizer in common.py. A gated block has three matrices where BERT's has two, so 1,024 is as large.
MODERN = {"vocab_size": 30522, "pad_token_id": 0, "bos_token_id": 101, "eos_token_id": 102, "cls_token_id": 101,
          "sep_token_id": 102, "intermediate_size": 1024}  # fmt: skip


def arms(family: str) -> dict[str, Arm]:
    """The arms of a family of backbones, the first one transformers'."""
    chosen = {title: arm for title, arm in ARMS.items() if not title.startswith("DiffCSE")}
    if family != "bert":
        chosen = {title: arm for title, arm in chosen.items() if arm is not mnrl}
    return {**chosen, IN_PARTS: partial(ours, cmlm_weight=0.0)}


def make_parts(texts: int, length: int, seed: int) -> list[dict[str, Any]]:
    """The texts of `make_batch` in parts; fewer than `PARTS` where these do not divide the texts."""
    collator = ViewCollator(tokenizer(), 0, mini_batch_size=-(-texts // PARTS))
    return collator(make_examples(texts, length, seed))["parts"]  # type: ignore[no-any-return]


def loss_in_parts(model: torch.nn.Module, parts: list[dict[str, Any]]) -> torch.Tensor:
    """The loss, whose backward pass has been run."""
    loss, _ = backward_in_parts(model, parts, lambda loss: loss.backward(), nullcontext)  # type: ignore[arg-type]
    return loss.requires_grad_()


def build_arm(title: str, family: str, texts: int, length: int, rounds: int) -> Callable[[int], float]:
    """One arm as a function: the number of a round → the seconds of its step; `MEMORY` → MiB."""
    torch.manual_seed(0)
    config = BertConfig(**CONFIG) if family == "bert" else ModernBertConfig(**CONFIG | MODERN)
    model, loss = arms(family)[title](config)
    use_fast_cpu_kernels(model)
    make = make_batch
    if title == IN_PARTS:
        make, loss = make_parts, partial(loss_in_parts, model)
    batches = [make(texts, length, seed=number) for number in range(rounds)]
    step = timed(training_step(model, lambda number: loss(batches[number])))
    gc.collect()
    before = resident()
    return lambda number: (peak() - before) / MIB if number == MEMORY else step(number)


def compare(family: str, length: int, texts: int, repetitions: int, warmup: int) -> dict[str, dict[str, float]]:
    """Seconds of a step, their ratio to the first arm's, and memory, by arm."""
    build = partial(build_arm, family=family, texts=texts, length=length, rounds=repetitions + warmup)
    first, *others = arms(family)
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
    options.add_argument("--family", choices=FAMILIES, default="bert", help="of the backbone")
    args = options.parse_args()
    steps, rows = {}, []
    for length in map(int, args.lengths.split(",")):
        texts = max(2, round(args.tokens / (0.75 * length)))
        steps[f"{texts} × {length}"] = found = compare(args.family, length, texts, args.repetitions, args.warmup)
        rows += [[f"{texts} × {length}", title, f"{row['seconds']:.3f}", f"{row['ratio']:.2f}", f"{row['mib']:.0f}"]
                 for title, row in found.items()]  # fmt: skip
    title = f"A step of about {args.tokens} tokens in each view, by texts × most tokens of a text"
    print_table(title, ["texts × tokens", "arm", "seconds", "ratio", "MiB"], rows)
    model = {"family": args.family, **CONFIG, **(MODERN if args.family == "modernbert" else {})}
    write_record(args.output, title, steps=steps, model=model, repetitions=args.repetitions)


if __name__ == "__main__":
    main()
