"""Peak memory of a training step at BERT-base size; each arm of step.py runs in a separate process.

    python benchmarks/memory.py --output benchmarks/records/memory.json

On a CPU (Linux) the peak is the largest resident set of the process over three steps. The step's share is the peak
minus the resident memory before the first step, which includes model and batches. On a GPU both come from the
allocator. Gradients and AdamW's two moments are allocated in the first step, so they belong to the step's share. Their
size follows from the trainable parameters and has its own column. The rest of the share is mostly activations.
"""

import gc
import json
import resource
import subprocess
import sys
from pathlib import Path

import torch
from common import LENGTH, choose, print_table, read_batches, text_parser, write_record
from step import ARMS, Batches, training_step

STEPS = 3
MIB = 2**20
BASELINE = "infocse"


def resident() -> int:
    """Bytes in use now: of the allocator on a GPU, else of the process."""
    if torch.cuda.is_available():
        return torch.cuda.memory_allocated()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def peak() -> int:
    """The largest number of bytes so far (since the last reset on a GPU)."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB


def measure(key: str, lines: list[list[str]]) -> dict[str, float]:
    """Run a few steps of one arm; return memory sizes in MiB."""
    torch.manual_seed(0)
    model, loss = ARMS[key].build(Batches(lines))
    step = training_step(model, loss)
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    before, peak_before = resident(), peak()
    for number in range(STEPS):
        step(number)
    trainable = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    found = {
        "before": before,
        "peak_before": peak_before,
        "peak": peak(),
        "share": peak() - before,
        "gradients_and_moments": 3 * trainable,
    }
    return {name: round(value / MIB, 1) for name, value in found.items()}


def main() -> None:
    """Run one process for each arm, one after the other, and print a table of their results."""
    options = text_parser(__doc__ or "", batch=64, arms=f"plain,simcse,cmlm,{BASELINE}", arm="")
    args = options.parse_args()
    if args.arm:  # one of the processes
        print(json.dumps(measure(args.arm, read_batches(args.text, args.batch, STEPS))))
        return
    found = {}
    for key in choose(options, args.arms, list(ARMS)):
        command = [sys.executable, __file__, "--arm", key, "--batch", str(args.batch), "--text", str(args.text)]
        output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        found[key] = json.loads(output.splitlines()[-1])
    rows = []
    baseline = BASELINE if BASELINE in found else next(iter(found))
    for key, sizes in found.items():
        if sizes["peak_before"] >= sizes["peak"]:
            print(f"{key}: building took more than the steps, so the peak is not theirs; choose a larger --batch")
        numbers = [sizes[name] for name in ("before", "peak", "share", "gradients_and_moments")]
        rest = sizes["share"] - sizes["gradients_and_moments"]
        ratios = [sizes[name] / found[baseline][name] for name in ("peak", "share")]
        rows.append(
            [ARMS[key].title, *(f"{value:,.0f}" for value in (*numbers, rest)), *(f"{ratio:.3f}" for ratio in ratios)]
        )
    kind = "GPU allocator" if torch.cuda.is_available() else "resident set"
    title = f"Memory of a training step, BERT-base, batch {args.batch}, at most {LENGTH} tokens, MiB of the {kind}"
    header = ["arm", "before", "peak", "the step's share", "of it gradients and moments", "of it the rest"]
    print_table(title, [*header, f"peak × {baseline}", f"share × {baseline}"], rows)
    write_record(
        args.output, title, batch=args.batch, mib={ARMS[key].title: sizes for key, sizes in found.items()}, steps=STEPS
    )


if __name__ == "__main__":
    main()
