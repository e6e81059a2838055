"""Training throughput of P CPU processes against one process with P threads, with the same global batch.

    python benchmarks/processes.py --repetitions 2 --output benchmarks/records/processes.json

Each arm is an `accelerate launch` with a configuration from this repository: one process with P threads and the whole
batch, or P processes (DDP, gloo) with one thread and 1/P of the batch each. Both train CMLM-CSE on the same global
batches with the negatives of the whole batch. A timed step is a whole trainer step: batch, forward, backward, exchange
of vectors and gradients, clipping, AdamW. The result of a launch is the median of its steps without the first ones.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from common import LENGTH, interleaved, report, text_parser
from transformers import TrainerCallback

ROOT = Path(__file__).resolve().parents[1]
WARMUP = 2  # steps: DDP builds its buckets in the first one


class StepTimes(TrainerCallback):
    """Records the seconds between the ends of steps. The first process writes them to a file."""

    def __init__(self, output: Path) -> None:
        self.output, self.ends = output, [0.0]

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.ends.append(time.perf_counter())

    def on_train_end(self, args: Any, *_: Any, **__: Any) -> None:
        if args.process_index == 0:
            steps = [end - start for start, end in zip(self.ends[:-1], self.ends[1:], strict=True)][1:]
            found = {"seconds": steps, "threads": torch.get_num_threads(), "processes": args.world_size}
            self.output.write_text(json.dumps(found))


def train(output: Path, arguments: list[str]) -> None:
    """One of the processes: trains as train.py does, and records the times of its steps."""
    from cmlmcse.training.build_collator import build_collator
    from cmlmcse.training.build_model import build_model, build_tokenizer
    from cmlmcse.training.build_text import build_sentences
    from cmlmcse.training.contrastive_trainer import ContrastiveTrainer
    from cmlmcse.training.parse import parse_recipe

    parsed = parse_recipe(arguments)
    tokenizer = build_tokenizer(parsed.model)
    model = build_model(parsed.model, tokenizer)
    ContrastiveTrainer(
        model=model,
        args=parsed.run,
        train_dataset=build_sentences(parsed, tokenizer),
        data_collator=build_collator(model, tokenizer, parsed),
        processing_class=tokenizer,
        callbacks=[StepTimes(output)],
    ).train()


def launch(args: Any, processes: int, threads: int) -> float:
    """Seconds per step of one arm, in newly launched processes."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "steps.json"
        fields = {
            "train_file": args.text,
            "max_train_samples": args.batch * (args.steps + WARMUP),
            "max_seq_length": LENGTH,
            "per_device_train_batch_size": args.batch // processes,
            "max_steps": args.steps + WARMUP,
            "dataloader_drop_last": True,
            "dev_set": "none",
            "save_strategy": "no",
            "logging_steps": args.steps + WARMUP,
            "disable_tqdm": True,
            "use_cpu": True,
            "output_dir": Path(folder) / "run",
        }
        config = ROOT / "configuration" / "accelerate" / ("multi-cpu.yaml" if processes > 1 else "cpu.yaml")
        command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", config]
        command += ["--num_processes", processes, "--main_process_port", 0, __file__, "--worker", output, args.recipe]
        command += [part for name, value in fields.items() for part in (f"--{name}", value)]
        subprocess.run(
            [str(part) for part in command],
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        found = json.loads(output.read_text())
    assert (found["processes"], found["threads"]) == (processes, threads), found
    return statistics.median(found["seconds"][WARMUP - 1 :])


def main() -> None:
    """Launch the arms in turns, and print a table of seconds per step."""
    options = text_parser(__doc__ or "", batch=64, steps=12, repetitions=2, processes=2)
    options.add_argument("--recipe", default="quickstart", help="name or path; quickstart has 6 layers, width 384")
    args = options.parse_args()
    if args.batch % args.processes or args.processes < 2:
        options.error(f"--batch must be a multiple of --processes, at least 2, found {args.batch}, {args.processes}")
    args.text = args.text.resolve()
    count = args.processes
    one = f"1 process, {count} threads"
    arms = {
        one: lambda _: launch(args, 1, count),
        f"{count} processes, 1 thread each": lambda _: launch(args, count, 1),
    }
    report(
        f"A training step of the recipe {Path(args.recipe).stem}, global batch {args.batch}, at most {LENGTH} tokens",
        interleaved(arms, args.repetitions, warmup=0),
        one,
        args.output,
        amounts={"sentences": args.batch},
        unit="s/step",
        steps=args.steps,
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        sys.path.insert(0, str(ROOT))
        train(Path(sys.argv[2]), sys.argv[3:])
    else:
        main()
