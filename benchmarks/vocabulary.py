"""Milliseconds of the loss of a vocabulary head on a CPU, forward and backward: all logits at once, and in blocks.

    python benchmarks/vocabulary.py --output benchmarks/vocabulary.json

Predictions × width × vocabulary: a step of the small backbone's pre-training, of CMLM-CSE at BERT-base size, and of
BERT-base's pre-training. The values are medians of --repetitions calls; the arms take turns. "MB" is the largest tensor
of logits.
"""

import statistics
from typing import Any

import torch
from common import interleaved, parser, print_table, timed, write_record
from torch import nn

from modeling_cmlmcse import vocabulary_loss as blocks

SHAPES = ((1200, 256, 16384), (400, 768, 30522), (2400, 768, 30522))
ROWS = (128, 256, 512, 1024)


def measure(predictions: int, width: int, vocabulary: int, repetitions: int) -> dict[str, float]:
    """Milliseconds of each way."""
    torch.manual_seed(0)
    hidden, weight, bias = (
        torch.randn(predictions, width),
        0.02 * torch.randn(vocabulary, width),
        torch.zeros(vocabulary),
    )
    given = [each.requires_grad_() for each in (hidden, weight, bias)]
    labels = torch.randint(vocabulary, (predictions,))

    def at_once(_: int) -> None:
        blocks.all_at_once(nn.functional.linear(*given), labels)[0].backward()

    def in_blocks(rows: int) -> Any:
        def call(_: int) -> None:
            blocks.CPU_ROWS = rows
            blocks.vocabulary_loss(*given, labels)[0].backward()

        return timed(call)

    arms = {"all at once": timed(at_once), **{f"{rows} rows": in_blocks(rows) for rows in ROWS}}
    return {name: 1000 * statistics.median(values) for name, values in interleaved(arms, repetitions, 2).items()}


def main() -> None:
    """Time every shape and print a table."""
    args = parser(__doc__ or "", repetitions=9).parse_args()
    found = {"×".join(map(str, shape)): measure(*shape, args.repetitions) for shape in SHAPES}
    header = ["predictions × width × vocabulary", "MB of all logits", *next(iter(found.values()))]
    rows = [
        [name, f"{4 * shape[0] * shape[2] / 1e6:.0f}", *(f"{value:.0f}" for value in ms.values())]
        for shape, (name, ms) in zip(SHAPES, found.items(), strict=True)
    ]
    print_table("The loss of a vocabulary head, forward and backward, ms", header, rows)
    write_record(args.output, "The loss of a vocabulary head, fp32, ms", vocabulary=found)


if __name__ == "__main__":
    main()
