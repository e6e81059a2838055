"""Would a cheaper precision of the frozen extractor make a CMLM-CSE step in bf16 faster, and what does it change?

    OMP_NUM_THREADS=1 python benchmarks/extractor.py --output benchmarks/records/extractor.json

Seconds: the frozen 8 layers alone, BERT-base with random weights, the masked sentences of both views, in fp32, in bf16,
and in bf16 with the linear layers in int8: a scale for each row and for each column, products by `torch._int_mm`. The
whole CMLM-CSE step in bf16 stands beside them; the four take turns. The seconds are those of the processor, which other
work on the machine changes little.

Loss: the masked words' loss of a CMLM-CSE model that starts from assets/bert-mini-en, 4 of its 6 layers frozen,
everything but the frozen linear layers in fp32. The same batches with other words masked say how far the loss moves by
chance.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from common import LENGTH, interleaved, print_table, read_batches, text_parser, write_record
from step import Batches, cmlm, our_losses, training_step
from torch import Tensor, nn
from transformers import AutoTokenizer

from cmlmcse.data.batches import Example
from cmlmcse.data.collator import ViewCollator
from cmlmcse.data.masking import Masking
from cmlmcse.training.training_losses import TrainingLosses
from modeling_cmlmcse import CMLMCSEForSentenceEmbedding
from modeling_cmlmcse.backbone import Module, embed_tokens, run_blocks
from modeling_cmlmcse.conditional_mlm import ConditionalMLM
from modeling_cmlmcse.masked_batch import MaskedBatch

BACKBONE = Path(__file__).parents[1] / "assets/bert-mini-en"
PRECISIONS = ("fp32", "bf16", "int8")


def timed(call: Callable[[int], Any]) -> Callable[[int], float]:
    """A function of the round's number → a function that returns the processor seconds of that call."""

    def seconds(number: int) -> float:
        start = time.process_time()
        call(number)
        return time.process_time() - start

    return seconds


def extractor_of(model: nn.Module) -> Module:
    """The frozen layers of a CMLM-CSE model."""
    return next(module.extractor for module in model.modules() if isinstance(module, ConditionalMLM))


def set_precision(extractor: Module, precision: str) -> None:
    """Let the linear layers of the extractor compute in this precision."""
    for layer in extractor.modules():
        if type(layer) is nn.Linear and precision != "fp32":
            layer.forward = MethodType(  # type: ignore[method-assign]
                in_bf16 if precision == "bf16" else partial(in_int8, *quantised(layer.weight)), layer
            )


def in_bf16(layer: nn.Linear, hidden: Tensor) -> Tensor:
    """The layer in bf16, the result in the precision of the input."""
    bias = None if layer.bias is None else layer.bias.bfloat16()
    return nn.functional.linear(hidden.bfloat16(), layer.weight.bfloat16(), bias).to(hidden.dtype)


def quantised(weight: Tensor) -> tuple[Tensor, Tensor]:
    """(L, K) weights → (K, L) int8 and (L,) scales."""
    scales = weight.detach().abs().amax(dim=1) / 127
    return (weight.detach() / scales[:, None]).round().to(torch.int8).t().contiguous(), scales


def in_int8(weight: Tensor, scales: Tensor, layer: nn.Linear, hidden: Tensor) -> Tensor:
    """The layer in int8, each row of the input by a scale of its own."""
    rows = hidden.flatten(0, -2).float()
    steps = rows.abs().amax(dim=-1, keepdim=True).clamp_min(1e-9) / 127
    products = torch._int_mm((rows / steps).round_().to(torch.int8), weight)
    found = torch.addcmul(layer.bias, products * steps, scales)
    return found.to(hidden.dtype).unflatten(0, hidden.shape[:-1])


def seconds(lines: list[list[str]], repetitions: int, warmup: int) -> dict[str, list[float]]:
    """Processor seconds of the extractor in each precision, and of the whole step in bf16."""
    batches = Batches(lines)
    packed = [batch["masked"] for batch in batches.packed(2)]

    def extract(extractor: Module, precision: str) -> Callable[[int], Any]:
        @torch.no_grad()
        def run(number: int) -> None:
            batch = MaskedBatch.of(packed[number])
            with torch.autocast("cpu", torch.bfloat16, enabled=precision != "fp32"):
                run_blocks(extractor, embed_tokens(extractor, batch.tokens, batch.packing), batch.packing)

        return run

    arms: dict[str, Callable[[int], float]] = {}
    for precision in PRECISIONS:
        extractor = extractor_of(our_losses(lexical_layers=8, fusion_layers=3)).eval()
        if precision == "int8":  # autocast makes the others bf16
            set_precision(extractor, precision)
        arms[precision] = timed(extract(extractor, precision))
    arms["the step, bf16"] = timed(training_step(*cmlm(batches), half=torch.bfloat16))
    return interleaved(arms, repetitions, warmup)


def losses(lines: list[list[str]]) -> dict[str, list[float]]:
    """The loss of the masked words of each batch, in each precision, and with other words masked."""
    tok = AutoTokenizer.from_pretrained(BACKBONE)
    collate = ViewCollator(tok, 0, Masking.of(tok, 0.15), masked_views=2)
    rows = [tok(batch, truncation=True, max_length=LENGTH)["input_ids"] for batch in lines]
    found = {}
    for name in (*PRECISIONS, "fp32, other words masked"):
        torch.manual_seed(0)
        model = CMLMCSEForSentenceEmbedding.from_backbone(str(BACKBONE), lexical_layers=4, fusion_layers=2)
        set_precision(extractor_of(model), name.split(",")[0])
        whole, epoch = TrainingLosses(model).eval(), int(name not in PRECISIONS)
        with torch.no_grad():
            found[name] = [
                float(whole(**collate([Example(row, epoch, at) for at, row in enumerate(batch)])).logs["cmlm_loss"])
                for batch in rows
            ]
    return found


def main() -> None:
    """Measure both and print two tables."""
    args = text_parser(__doc__ or "", batch=32, repetitions=5, warmup=2).parse_args()
    lines = read_batches(args.text, args.batch, args.warmup + args.repetitions)
    times = seconds(lines, args.repetitions, args.warmup)
    step = statistics.median(times["the step, bf16"])
    middle = {name: statistics.median(values) for name, values in times.items()}
    rows = [[name, f"{value:.3f}", f"{value / step:.3f}"] for name, value in middle.items()]
    print_table("The frozen extractor alone", ["precision", "median processor s", "of the step in bf16"], rows)
    loss = losses(read_batches(args.text, args.batch, 20))
    changes = {
        name: [abs(one - other) for one, other in zip(values, loss["fp32"], strict=True)]
        for name, values in loss.items()
    }
    table = [[n, f"{statistics.mean(v):.4f}", f"{statistics.mean(changes[n]):.4f}"] for n, v in loss.items()]
    print_table("Loss of the masked words", ["extractor", "mean", "mean change of a batch"], table)
    title = "The frozen extractor: processor seconds alone, of a whole step, and the loss of the masked words"
    write_record(args.output, title, seconds=times, losses=loss, batch=args.batch)


if __name__ == "__main__":
    main()
