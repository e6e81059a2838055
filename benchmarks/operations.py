"""Milliseconds of single operations on a CPU: linear layers in MKL and oneDNN, dropout in PyTorch and in this project.

    python benchmarks/operations.py --output benchmarks/records/operations.json

Linear layers: tokens × width → width, forward, fp32. "first" is oneDNN's first call with a new number of tokens, which
compiles a kernel; nearly every packed batch has a new number. Dropout: forward and backward of (1630, 768), one layer
of BERT-base with 32 sentences. The values are medians of --repetitions calls; the arms take turns.
"""

import statistics
from collections.abc import Callable

import torch
from common import interleaved, parser, print_table, timed, write_record
from torch import nn

from modeling_cmlmcse.dropout import Dropout
from modeling_cmlmcse.linear import _multiply

SHAPES = ((1630, 768, 3072), (1630, 3072, 768), (1630, 768, 768), (3000, 384, 1536), (700, 384, 384), (64, 384, 384))
NEW_SIZE = 37  # added to the number of tokens, so that the first call has a new size


def milliseconds(arms: dict[str, Callable[[int], float]], repetitions: int) -> dict[str, float]:
    """The median of each arm."""
    return {name: 1000 * statistics.median(values) for name, values in interleaved(arms, repetitions, 3).items()}


@torch.no_grad()
def products(tokens: int, width: int, out: int, repetitions: int) -> dict[str, float]:
    """Milliseconds of a linear layer in MKL and in oneDNN."""
    weight, bias = torch.randn(out, width), torch.randn(out)
    hidden = torch.randn(tokens, width)
    fresh = [torch.randn(tokens + NEW_SIZE + number, width) for number in range(repetitions + 3)]
    return milliseconds(
        {
            "MKL": timed(lambda _: nn.functional.linear(hidden, weight, bias)),
            "oneDNN": timed(lambda _: _multiply(hidden, weight, bias)),
            "oneDNN, first": timed(lambda number: _multiply(fresh[number], weight, bias)),
        },
        repetitions,
    )


def dropouts(repetitions: int) -> dict[str, float]:
    """Milliseconds of dropout in PyTorch and in this project."""
    hidden = torch.randn(1630, 768, requires_grad=True)
    layers = {"PyTorch": nn.Dropout(0.1), "ours": Dropout(0.1)}
    return milliseconds(
        {name: timed(lambda _, layer=layer: layer(hidden).sum().backward()) for name, layer in layers.items()},
        repetitions,
    )


def main() -> None:
    """Time all operations and print tables."""
    args = parser(__doc__ or "", repetitions=15).parse_args()
    found = {"×".join(map(str, shape)): products(*shape, args.repetitions) for shape in SHAPES}
    rows = []
    for (tokens, width, out), (name, ms) in zip(SHAPES, found.items(), strict=True):
        speeds = [2e-6 * tokens * width * out / ms[way] for way in ("MKL", "oneDNN")]
        rows.append([name, *(f"{value:.3f}" for value in ms.values()), *(f"{speed:.0f}" for speed in speeds)])
    print_table("A linear layer", ["shape", "MKL ms", "oneDNN ms", "first ms", "MKL GFLOP/s", "oneDNN GFLOP/s"], rows)
    dropout = dropouts(args.repetitions)
    print_table("Dropout", list(dropout), [[f"{value:.2f}" for value in dropout.values()]])
    write_record(args.output, "Single operations, fp32, ms", linear=found, dropout=dropout)


if __name__ == "__main__":
    main()
