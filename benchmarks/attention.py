"""Milliseconds of a block's attention on a CPU: all rows on a grid, one row after another, and PyTorch's own on a grid.

    python benchmarks/attention.py --output benchmarks/records/attention.json
    python benchmarks/attention.py --bf16 --output benchmarks/records/attention-bf16.json

Forward and backward, fp32 or bf16, on packed tokens: about --tokens of them, in rows whose lengths are drawn evenly
between a half of the longest and all of it. "dropped out" is attention with dropout of 0.1 and "without" PyTorch's
`scaled_dot_product_attention`, both as modeling_cmlmcse/attention.py calls them. With --bf16 two more arms, "kept in
bf16", are the latter without its way to fp32. The arms take turns. The values are medians: of the thread's own time
with OMP_NUM_THREADS=1, else of the time that passes. `ROW_WEIGHTS` and `LEAST_HALF` of that module come from these
tables.
"""

import statistics
import time
from collections.abc import Callable

import torch
from common import interleaved, parser, print_table, write_record
from torch import Tensor, nn

from modeling_cmlmcse.attention import GridLayout, RowLayout, attention_of_blocks, attention_with_dropout, split_blocks
from modeling_cmlmcse.packing import Packing

HEADS = ((12, 32), (12, 64), (4, 64))  # heads and their dimensions: all-MiniLM-L6, BERT-base, assets/bert-mini-en
LENGTHS = (8, 16, 24, 32, 48, 64, 128, 256, 512)


def arms(heads: int, size: int, longest: int, tokens: int, precision: torch.dtype) -> dict[str, Callable[[int], float]]:
    """Each arm as a function that returns the seconds of a forward and a backward pass."""
    torch.manual_seed(0)
    lengths = torch.randint(longest // 2, longest + 1, (max(2, round(tokens / (0.75 * longest))),))
    lengths[0] = longest
    packing = Packing.from_lengths(lengths, int(lengths.sum()), longest)
    shape = int(lengths.sum()), heads, size
    states = [torch.randn(shape, dtype=precision, requires_grad=True) for _ in range(3)]
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    gradient, scaling = torch.randn_like(states[0]), size**-0.5
    grid, rows = GridLayout((packing, packing)), RowLayout((packing, packing))

    def dropped(layout: GridLayout, mask: Tensor | None) -> Tensor:
        return attention_with_dropout(*states, mask, layout, 0.1, scaling)

    def without(layout: GridLayout, mask: Tensor | None) -> Tensor:
        return attention_of_blocks(nn.functional.scaled_dot_product_attention, *states, mask, layout)

    def kept(layout: GridLayout, mask: Tensor | None) -> Tensor:  # autocast takes the blocks back to bf16
        attend = nn.functional.scaled_dot_product_attention
        return layout.join([attend(*block) for block in split_blocks(layout, *states, mask)], 0)

    def seconds(attend: Callable[[GridLayout, Tensor | None], Tensor], layout: GridLayout) -> Callable[[int], float]:
        mask = packing.added_mask(precision) if layout is grid else None

        def once(_: int) -> float:
            started = clock()
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == torch.bfloat16):
                context = attend(layout, mask)
            context.backward(gradient)
            return clock() - started

        return once

    in_bf16 = {"kept in bf16, grid": seconds(kept, grid), "kept in bf16, rows": seconds(kept, rows)}
    return {
        "dropped out, grid": seconds(dropped, grid),
        "dropped out, rows": seconds(dropped, rows),
        "without, grid": seconds(without, grid),
        "without, rows": seconds(without, rows),
    } | (in_bf16 if precision == torch.bfloat16 else {})


def main() -> None:
    """Measure every shape, print a table and write the record."""
    args = parser(__doc__ or "", tokens=1536, repetitions=15, warmup=3, bf16=False).parse_args()
    precision = torch.bfloat16 if args.bf16 else torch.float32
    found, cells = [], []
    for heads, size in HEADS:
        for longest in LENGTHS:
            times = interleaved(arms(heads, size, longest, args.tokens, precision), args.repetitions, args.warmup)
            row = {name: round(1000 * statistics.median(values), 2) for name, values in times.items()}
            found.append({"heads": heads, "size": size, "longest": longest, "milliseconds": row})
            cells.append([f"{heads} × {size}", str(longest), *(f"{value:.1f}" for value in row.values())])
    title = f"Attention of about {args.tokens} tokens, forward and backward, {str(precision)[6:]}, in milliseconds"
    print_table(title, ["heads × size", "longest row", *found[0]["milliseconds"]], cells)
    write_record(args.output, title, shapes=found, repetitions=args.repetitions)


if __name__ == "__main__":
    main()
