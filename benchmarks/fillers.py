"""Memory of a process that trains on packed batches of very different lengths, as they are and rounded up.

    python benchmarks/fillers.py --output benchmarks/records/fillers.json

Every arm is a process of its own: SimCSE from assets/bert-mini-en on a CPU (Linux), --steps steps of the same texts of
4 to 192 tokens, filled up as `--pad_to_multiple_of` does it in a run. "Shapes" are the different numbers of tokens and
rows. "Peak" is the largest resident set, "after" that behind the last step; "before" is with the model and all
batches. oneDNN keeps few kernels, as in every command.
"""

import gc
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from common import print_table, read_batches, text_parser, write_record
from memory import MIB, peak, resident
from step import training_step
from transformers import AutoTokenizer

from cmlmcse.data.batches import Example
from cmlmcse.data.collator import ViewCollator
from cmlmcse.data.filler import fill_up
from cmlmcse.training.training_losses import TrainingLosses
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from modeling_cmlmcse.fast_cpu import use_fast_cpu_kernels

BACKBONE = Path(__file__).resolve().parents[1] / "assets" / "bert-mini-en"
MULTIPLES = (0, 256, 1024)  # 0: the batches as they are
WORDS = (4, 5, 6, 8, 10, 13, 17, 22, 30, 42, 60, 85, 125)
TOKENS = 192  # of a text at most


def batches(lines: list[list[str]], multiple: int) -> list[dict[str, Any]]:
    """The packed views of each batch, both of the same texts. One text has the greatest length, so that the shape of a
    filled batch depends on its tokens alone; the others are at most as long as the batch draws."""
    tokenizer, draw, found = AutoTokenizer.from_pretrained(BACKBONE), random.Random(0), []
    collator = ViewCollator(tokenizer, 0)
    for batch in lines:
        words, longest = " ".join(batch).split(), draw.randint(3, len(WORDS))
        lengths = [TOKENS, *(draw.choice(WORDS[:longest]) for _ in batch[1:])]
        texts = [" ".join(draw.choices(words, k=length)) for length in lengths]
        rows = tokenizer(texts, truncation=True, max_length=TOKENS)["input_ids"]
        views = collator([Example(row, 0, number) for number, row in enumerate(rows)])["views"]
        found.append(fill_up(views, multiple, tokenizer.mask_token_id) if multiple else views)
    return found


def measure(lines: list[list[str]], multiple: int) -> dict[str, float]:
    """Train on all batches once; sizes in MiB."""
    torch.manual_seed(0)
    model = CMLMCSEForSentenceEmbedding.from_backbone(str(BACKBONE), cmlm_weight=0.0)
    use_fast_cpu_kernels(model)
    losses, packed = TrainingLosses(model), batches(lines, multiple)
    step = training_step(losses, lambda number: losses(packed[number]).loss)
    gc.collect()
    before = resident()
    for number in range(len(packed)):
        step(number)
    sizes = {"before": before, "peak": peak(), "after": resident()}
    return {
        "shapes": len({(len(views["input_ids"]), len(views["lengths"])) for views in packed}),
        "tokens": sum(len(views["input_ids"]) for views in packed),
        **{name: round(value / MIB, 1) for name, value in sizes.items()},
    }


def main() -> None:
    """Run one process for each arm, one after the other, and print a table of their results."""
    args = text_parser(__doc__ or "", batch=16, steps=60, multiple=-1).parse_args()
    if args.multiple >= 0:  # one of the processes
        print(json.dumps(measure(read_batches(args.text, args.batch, args.steps), args.multiple)))
        return
    found = {}
    for multiple in MULTIPLES:
        command = [sys.executable, __file__, "--multiple", str(multiple), "--text", str(args.text)]
        command += ["--batch", str(args.batch), "--steps", str(args.steps)]
        output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        found[f"multiples of {multiple}" if multiple else "as they are"] = json.loads(output.splitlines()[-1])
    title = f"SimCSE, bert-mini-en, {args.steps} steps of {args.batch} texts of very different length, resident MiB"
    rows = [[name, *(f"{value:,}" for value in sizes.values())] for name, sizes in found.items()]
    print_table(title, ["batches", *next(iter(found.values()))], rows)
    write_record(args.output, title, batch=args.batch, steps=args.steps, arms=found)


if __name__ == "__main__":
    main()
