"""Operations of a training step, counted, not timed: what a GPU's host asks for in a forward and a backward pass.

    python benchmarks/launches.py --output benchmarks/records/launches.json

A small batch on a fast GPU is bound by its host, which asks for one operation after the other. So their number is what
can be known without a GPU. The step runs at BERT-base size on the meta device, whose tensors have sizes and no values.
There this project takes the path of a GPU. Attention and dropout count as the one operation that they are on a GPU, a
boolean mask as the three that make it a mask of numbers; meta alone would show their parts.

"Operations" are all that PyTorch dispatches. "Launches" are those of them that start a kernel on a GPU: no views and no
empty tensors. Precision is fp32: autocast adds the copies of the weights to every arm.

Arms: plain, simcse and cmlm as in step.py, padded within attention; "variable-length" is with FlashAttention for rows
of different lengths (modeling_cmlmcse/variable_length.py), which GPUs from Ampere on have in half precision.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import step
import torch
from common import print_table, read_batches, text_parser, write_record
from step import ARMS, Batches
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from modeling_cmlmcse import attention
from modeling_cmlmcse.variable_length import flash

STEPS = {
    "SimCSE, plain padded": ("plain", False),
    "SimCSE, ours": ("simcse", False),
    "SimCSE, ours, variable-length": ("simcse", True),
    "CMLM-CSE, ours": ("cmlm", False),
    "CMLM-CSE, ours, variable-length": ("cmlm", True),
}
BASELINE = "SimCSE, plain padded"
NO_KERNEL = {"_unsafe_view", "empty_like", "new_empty", "empty", "_local_scalar_dense", "lift_fresh"}


class Counted(TorchDispatchMode):
    """Counts the operations that are dispatched, by name, and apart from them those that start a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: Counter[str] = Counter()
        self.launches: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket._qualified_op_name.split("::")[-1]
        self.operations[name] += 1
        if not func.is_view and name not in NO_KERNEL:
            self.launches[name] += 1
        if name == "_local_scalar_dense":  # the plain step asks whether there is any padding; there is
            return False
        return func(*args, **(kwargs or {}))


def attention_of_a_gpu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    **_: Any,
) -> Tensor:
    """`scaled_dot_product_attention` as the memory-efficient kernel of a GPU computes it."""
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            added = torch.zeros_like(attn_mask, dtype=query.dtype)
            attn_mask = added.masked_fill_(attn_mask.logical_not(), float("-inf"))
        attn_mask = attn_mask.expand(*query.shape[:3], key.shape[2])
    kernel = torch.ops.aten._scaled_dot_product_efficient_attention
    found = kernel(query, key, value, attn_mask, True, dropout_p, is_causal, scale=scale)
    return found[0]  # type: ignore[no-any-return]


def dropout_of_a_gpu(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """`dropout` as the one kernel of a GPU."""
    return torch.native_dropout(input, p, True)[0] if training and p else input


@contextmanager
def pretended_gpu(variable_length: bool) -> Iterator[None]:
    """The operations of a GPU on the meta device, which has no autocast."""
    with (
        mock.patch.object(step, "device", return_value="meta"),
        mock.patch.object(torch, "autocast", return_value=nullcontext()),
        mock.patch.object(nn.functional, "scaled_dot_product_attention", attention_of_a_gpu),
        mock.patch.object(nn.functional, "dropout", dropout_of_a_gpu),
        mock.patch.object(attention, "find_kernel", return_value=flash if variable_length else None),
    ):
        yield


def count(key: str, variable_length: bool, lines: list[list[str]]) -> dict[str, dict[str, dict[str, int]]]:
    """Operations and launches of an arm's forward and backward pass, by name, the commonest first."""
    with pretended_gpu(variable_length):
        model, loss = ARMS[key].build(Batches(lines))
        model.to("meta").train()
        with Counted() as forward:
            value = loss(0)
        with Counted() as backward:
            value.backward()
    passes = {"forward": forward, "backward": backward}
    return {
        kind: {name: dict(getattr(counted, kind).most_common()) for name, counted in passes.items()}
        for kind in ("operations", "launches")
    }


def main() -> None:
    """Count all arms and print a table."""
    args = text_parser(__doc__ or "", batch=32).parse_args()
    lines = read_batches(args.text, args.batch, 1)
    found = {title: count(*arm, lines) for title, arm in STEPS.items()}
    sums = {
        title: [sum(part.values()) for kind in kinds.values() for part in kind.values()]
        for title, kinds in found.items()
    }
    of_baseline = sum(sums[BASELINE][:2]), sum(sums[BASELINE][2:])
    rows = []
    for title, (ahead, back, launched_ahead, launched_back) in sums.items():
        totals = ahead + back, launched_ahead + launched_back
        ratios = [f"{total / base:.2f}" for total, base in zip(totals, of_baseline, strict=True)]
        numbers = (ahead, back, totals[0]), (launched_ahead, launched_back, totals[1])
        cells = [[*(f"{number:,}" for number in three), ratio] for three, ratio in zip(numbers, ratios, strict=True)]
        rows.append([title, *cells[0], *cells[1]])
    title = f"Operations of a training step, BERT-base, batch {args.batch}: counted on the meta device, not timed"
    header = ["operations forward", "backward", "both", "× plain", "launches forward", "backward", "both", "× plain"]
    print_table(title, ["arm", *header], rows)
    write_record(args.output, title, batch=args.batch, **{kind: {t: found[t][kind] for t in found} for kind in
                                                          ("operations", "launches")})  # fmt: skip


if __name__ == "__main__":
    main()
