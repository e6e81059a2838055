"""What the host takes for the attention of one block with dropout: PyTorch's nested tensors against the operator below.

    python benchmarks/nested.py --output benchmarks/records/nested.json

Both reach the same FlashAttention for rows of different lengths, so this decides which way a training step should take.
The tensors are on the meta device: nothing is computed, and what is left is the host's own work, forward and backward.
A GPU of today computes such a block in less than a millisecond, so a host that needs longer is what one waits for.
"""

import statistics
from unittest import mock

import torch
from common import interleaved, parser, print_table, timed, write_record
from torch import Tensor, nn
from torch.nested._internal import sdpa
from torch.nn.attention import SDPBackend

from modeling_cmlmcse.variable_length import flash

ROWS, LONGEST, DROPOUT = 64, 32, 0.1  # SimCSE: 32 sentences, twice


def by_nested_tensors(query: Tensor, key: Tensor, value: Tensor, bounds: Tensor) -> Tensor:
    """`scaled_dot_product_attention` of three nested tensors. Their shortest row is given, for which it would wait."""
    nested = [
        torch.nested.nested_tensor_from_jagged(states, bounds, min_seqlen=1, max_seqlen=LONGEST).transpose(1, 2)
        for states in (query, key, value)
    ]
    return nn.functional.scaled_dot_product_attention(*nested, dropout_p=DROPOUT).transpose(1, 2).values()


def by_the_operator(query: Tensor, key: Tensor, value: Tensor, bounds: Tensor) -> Tensor:
    """As this project asks for it."""
    return flash(query, key, value, (bounds, bounds), (LONGEST, LONGEST), DROPOUT)


def main() -> None:
    """Time both in turns and print a table."""
    args = parser(__doc__ or "", repetitions=200, warmup=20).parse_args()
    lengths = torch.randint(5, LONGEST + 1, (ROWS,), generator=torch.Generator().manual_seed(0))
    bounds = nn.functional.pad(lengths.cumsum(0), (1, 0)).int().to("meta")
    states = [torch.empty(int(lengths.sum()), 12, 64, device="meta", requires_grad=True) for _ in range(3)]
    weights = torch.empty_like(states[0])
    ways = {"nested tensors": by_nested_tensors, "the operator": by_the_operator}
    arms = {name: timed(lambda _, way=way: way(*states, bounds).backward(weights)) for name, way in ways.items()}
    on_a_gpu = mock.patch.object(sdpa, "_select_sdp_backend", return_value=SDPBackend.FLASH_ATTENTION)
    on_meta = mock.patch.object(sdpa, "_is_computing_meta_flops", return_value=True)  # which has no autocast
    with on_a_gpu, on_meta:
        seconds = interleaved(arms, args.repetitions, args.warmup)
    found = {name: {"median": 1e6 * statistics.median(values), "least": 1e6 * min(values)}
             for name, values in seconds.items()}  # fmt: skip
    title = "The host's part of one block's attention with dropout, forward and backward, µs"
    rows = [[name, *(f"{value:,.0f}" for value in values.values())] for name, values in found.items()]
    print_table(title, ["way", "median", "least"], rows)
    write_record(args.output, title, microseconds=found, repetitions=args.repetitions)


if __name__ == "__main__":
    main()
