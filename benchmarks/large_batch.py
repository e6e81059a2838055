"""Peak memory and seconds of one CMLM-CSE step with a very large batch, computed in parts (GradCache).

    python benchmarks/large_batch.py --batch 4096 --mini_batch_size 64 --output benchmarks/records/large_batch.json

The model is BERT-base with 8 lexical and 3 fusion layers. Peak memory is the resident set of the process; on a GPU it
is the allocator's. It includes weights, gradients and optimizer.
"""

import json
import resource
import time

import torch
from common import text_parser, tokenizer
from transformers import BertConfig

from cmlmcse.data.batches import Example
from cmlmcse.data.collator import ViewCollator
from cmlmcse.data.masking import Masking
from cmlmcse.training.large_batch import backward_in_parts
from cmlmcse.training.training_losses import TrainingLosses
from modeling_cmlmcse import CMLMCSEConfig, CMLMCSEForSentenceEmbedding
from modeling_cmlmcse.fast_cpu import use_fast_cpu_kernels


def peak_gib() -> float:
    """Peak memory so far in GiB."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    """Run one optimizer step; print and record its time and memory."""
    args = text_parser(__doc__ or "", batch=4096, mini_batch_size=64).parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tok = tokenizer()
    with args.text.open(encoding="utf-8") as file:
        lines = [next(file).strip() for _ in range(args.batch)]
    tokens = tok(lines, truncation=True, max_length=32)["input_ids"]
    masking = Masking.of(tok, 0.15)
    collator = ViewCollator(tok, 0, masking, mini_batch_size=args.mini_batch_size)
    parts = collator([Example(sentence, 0, row) for row, sentence in enumerate(tokens)])["parts"]
    parts = [
        {name: {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in group.items()}
         for name, group in part.items()} for part in parts
    ]  # fmt: skip
    torch.manual_seed(0)
    config = CMLMCSEConfig(backbone_config=BertConfig(), lexical_layers=8, fusion_layers=3)
    model = TrainingLosses(CMLMCSEForSentenceEmbedding(config)).to(device).train()
    use_fast_cpu_kernels(model)
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=3e-5, fused=True)
    before, start = peak_gib(), time.perf_counter()
    loss, _ = backward_in_parts(
        model, parts, lambda loss: loss.backward(), lambda: torch.autocast(device.type, enabled=False)
    )
    torch.nn.utils.clip_grad_norm_(trainable, 1.0)
    optimizer.step()
    record = {
        "batch": args.batch,
        "mini_batch_size": args.mini_batch_size,
        "tokens": sum(part["views"]["input_ids"].numel() for part in parts),
        "loss": round(float(loss), 4),
        "seconds": round(time.perf_counter() - start, 1),
        "peak_gib_before_the_step": round(before, 2),
        "peak_gib": round(peak_gib(), 2),
        "torch": torch.__version__,
    }
    print(json.dumps(record, indent=2))
    if args.output:
        args.output.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
