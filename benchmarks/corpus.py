"""Large corpora: start-up time, memory and speed of data loading, compared with training speed. Linux only.

    python benchmarks/corpus.py --output benchmarks/records/corpus.json    # 10 million lines; an hour or so
    python benchmarks/corpus.py --cost_table                       # estimate: hours of an epoch on many GPUs

The corpus repeats the lines of --text; each repetition rotates the words of a line by one more place. Every measurement
runs in its own process, so that its peak memory is its own. The input is the trainer's own data loader. "Anonymous" is
memory that the process allocated. The rest of its resident memory are cached pages of files, which the kernel can drop
at any time. CPU seconds are given beside wall-clock seconds, because other work on the machine hardly changes them.
"""

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from common import LENGTH, device, print_table, text_parser, tokenizer, write_record
from transformers import BertConfig

from cmlmcse.data.shuffle import permuted
from cmlmcse.training.build_collator import build_collator
from cmlmcse.training.build_text import build_sentences
from cmlmcse.training.contrastive_trainer import ContrastiveTrainer
from cmlmcse.training.fields import DataArguments, ModelArguments, Recipe, RunArguments
from cmlmcse.training.training_losses import TrainingLosses
from modeling_cmlmcse import CMLMCSEConfig, CMLMCSEForSentenceEmbedding
from modeling_cmlmcse.fast_cpu import use_fast_cpu_kernels

# Assumptions of the cost table. None of them is measured here.
SENTENCES_PER_SECOND = 1_000_000 / 240  # one H200; the target is 4 minutes per million sentences
GRADIENT_BYTES = 4 * 133e6  # float32: BERT-base, 3 fusion layers and the heads
BATCH_PER_GPU = 512  # sentences; with 64, the exchange between machines takes most of a step
GPUS_A_MACHINE = 8
BYTES_PER_SECOND = {"inside": 300e9, "between": 40e9}  # per GPU, inside a machine and between machines


def rotated_lines(text: Path, count: int) -> Iterator[str]:
    """`count` lines that repeat a text; each repetition rotates the words of a line by one more place."""
    with text.open(encoding="utf-8") as file:
        lines = [line.split() for line in file if line.strip()]
    for number in range(count):
        turn, words = number // len(lines), lines[number % len(lines)]
        start = turn % len(words)
        yield " ".join(words[start:] + words[:start]) + "\n"


class Memory:
    """Peak memory in MB of this process and of its largest worker, sampled 20 times a second."""

    def __init__(self) -> None:
        self.peak: dict[str, int] = {}
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Memory":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self.thread.join()
        self._look("main", os.getpid())

    def _watch(self) -> None:
        while not self.stopped.wait(0.05):
            self._look("main", os.getpid())
            for thread in Path("/proc/self/task").iterdir():
                for child in (thread / "children").read_text().split():
                    self._look("worker", int(child))

    def _look(self, who: str, process: int) -> None:
        """Note the resident memory of a process, which may have ended."""
        try:
            lines = Path(f"/proc/{process}/status").read_text().splitlines()
        except OSError:
            return
        for name, _, value in (line.partition(":") for line in lines):
            if key := {"RssAnon": "anonymous", "RssFile": "file", "VmHWM": "rss"}.get(name):
                self.peak[f"{who}_{key}"] = max(int(value.split()[0]) // 1024, self.peak.get(f"{who}_{key}", 0))


def bytes_from_disk() -> int:
    """Bytes that the disk has read for this process, including pages of mapped files."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def loader(file: str, streaming: bool, weight: float, workers: int, batch: int) -> Any:
    """The trainer's own loader over a corpus, for SimCSE (`weight` 0) or CMLM-CSE."""
    tok = tokenizer()
    config = BertConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16)
    fields = {"lexical_layers": 1, "fusion_layers": 1} if weight else {}
    model = CMLMCSEForSentenceEmbedding(CMLMCSEConfig(backbone_config=config, cmlm_weight=weight, **fields))
    run = RunArguments(
        output_dir=f"{file}.run",
        per_device_train_batch_size=batch, dataloader_num_workers=workers, max_steps=1_000_000, use_cpu=True,
        eval_strategy="no", load_best_model_at_end=False,
    )  # fmt: skip
    data = DataArguments(train_file=file, streaming=streaming, max_seq_length=LENGTH)
    recipe = Recipe("corpus", ModelArguments(), data, run)
    sentences = build_sentences(recipe, tok)
    collator = build_collator(model, tok, recipe)
    trainer = ContrastiveTrainer(model=model, args=run, train_dataset=sentences, data_collator=collator)
    return trainer.get_train_dataloader()


def measure_start(file: str, streaming: bool, batch: int) -> dict[str, Any]:
    """Seconds, memory and megabytes read from disk, from the file to the first batch."""
    read, start, cpu = bytes_from_disk(), time.perf_counter(), time.process_time()
    with Memory() as memory:
        next(iter(loader(file, streaming, 0.005, 0, batch)))
        taken = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu}
    return {**taken, "disk_mb": (bytes_from_disk() - read) / 1e6, **memory.peak}


def measure_input(
    file: str, streaming: bool, weight: float, workers: int, batch: int, batches: int, seconds: float
) -> dict[str, Any]:
    """Sentences and tokens (of both views) per second of data loading, after the first batches of each worker."""
    with Memory() as memory:
        iterator = iter(loader(file, streaming, weight, workers, batch))
        for _ in islice(iterator, 2 + 4 * workers):  # each worker prefetches two batches; the buffer fills
            pass
        tokens = count = 0
        start, cpu = time.perf_counter(), time.process_time()
        for made in islice(iterator, batches):
            tokens += made["views"]["input_ids"].numel()
            count += 1
            if time.perf_counter() - start > seconds:
                break
        taken, worked = time.perf_counter() - start, time.process_time() - cpu
        time.sleep(0.2)  # so that the memory is sampled once more
    rates = {"sentences_per_second": count * batch / taken, "tokens_per_second": tokens / taken, "batches": count}
    if not workers:
        rates["cpu_microseconds_a_sentence"] = 1e6 * worked / (count * batch)
    os._exit(print(json.dumps({**rates, **memory.peak}), flush=True) or 0)  # a stream's worker may still be reading


def measure_training(file: str, batch: int, steps: int) -> dict[str, Any]:
    """Sentences and tokens (of both views) per second of CMLM-CSE training at BERT-base size."""
    batches = islice(iter(loader(file, False, 0.005, 0, batch)), steps + 1)
    config = CMLMCSEConfig(backbone_config=BertConfig(), lexical_layers=8, fusion_layers=3)
    model = TrainingLosses(CMLMCSEForSentenceEmbedding(config)).to(device()).train()
    use_fast_cpu_kernels(model)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=3e-5, fused=True)
    seconds, tokens = [], []
    for made in batches:
        start = time.perf_counter()
        moved = {
            part: {k: v.to(device()) if isinstance(v, torch.Tensor) else v for k, v in made[part].items()}
            for part in ("views", "masked")
        }
        with torch.autocast(device(), torch.bfloat16, enabled=device() == "cuda"):
            loss = model(**moved).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()  # waits for the device
        seconds.append(time.perf_counter() - start)
        tokens.append(made["views"]["input_ids"].numel())
    rate = statistics.median(count / taken for count, taken in zip(tokens[1:], seconds[1:], strict=True))
    return {"tokens_per_second": rate, "sentences_per_second": batch / statistics.median(seconds[1:]), "steps": steps}


def measure_order(rows: int, keys: int) -> dict[str, Any]:
    """CPU seconds until the first block of an epoch's order, and CPU microseconds per row."""
    start = time.process_time()
    blocks = permuted(rows, 0, 0)
    made = len(next(blocks))
    first = time.process_time() - start
    while made < keys and (block := next(blocks, None)) is not None:
        made += len(block)
    return {"first_block_seconds": first, "microseconds_a_row": 1e6 * (time.process_time() - start) / made}


STAGES = {"start": measure_start, "input": measure_input, "training": measure_training, "order": measure_order}


def run_stage(folder: Path, stage: str, **arguments: Any) -> dict[str, Any]:
    """The result of a stage that runs in a separate process."""
    environment = {**os.environ, "HF_DATASETS_CACHE": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
    environment["HF_DATASETS_DISABLE_PROGRESS_BARS"] = "1"
    command = [sys.executable, __file__, "--stage", json.dumps({"stage": stage, **arguments})]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{stage} {arguments} failed:\n{done.stderr[-3000:]}")
    result = json.loads(done.stdout.splitlines()[-1])
    print(f"{stage} {arguments}: {result}", file=sys.stderr, flush=True)
    return result


def forget_pages(folder: Path) -> None:
    """Make the kernel drop the cached pages of a folder's files, so that the next read comes from disk."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure_starts(folder: Path, text: Path, lines: int, batch: int) -> dict[str, Any]:
    """Repeated starts at growing sizes. The largest corpus stays in the folder."""
    found: dict[str, Any] = {}
    for size in [*(n for n in (10_000, 100_000, 1_000_000) if n < lines), lines]:
        file = folder / f"lines-{size}.txt"
        with file.open("w", encoding="utf-8") as out:
            out.writelines(rotated_lines(text, size))
        start = {"file": str(file), "batch": batch}
        record: dict[str, Any] = {"text_mb": file.stat().st_size / 1e6}
        record["first"] = run_stage(folder, "start", streaming=False, **start)
        forget_pages(folder)
        record["second"] = run_stage(folder, "start", streaming=False, **start)
        record["third"] = run_stage(folder, "start", streaming=False, **start)
        record["streamed"] = run_stage(folder, "start", streaming=True, **start)
        found[str(size)] = record
    return found


def measure(args: Any, folder: Path) -> dict[str, Any]:
    """Run all measurements."""
    starts = measure_starts(folder, args.text, args.lines, args.batch)
    smallest = str(folder / f"lines-{min(map(int, starts))}.txt")
    training = run_stage(folder, "training", file=smallest, batch=args.batch, steps=args.steps)
    inputs = []
    corpus = {"file": str(folder / f"lines-{args.lines}.txt"), "batch": args.batch, "batches": args.batches}
    for streaming in (False, True):
        for method, weight in (("SimCSE", 0.0), ("CMLM-CSE", 0.005)):
            for workers in (0, 2):
                arm = {"streaming": streaming, "weight": weight, "workers": workers, "seconds": args.seconds}
                found = run_stage(folder, "input", **corpus, **arm)
                inputs.append({"method": method, "streaming": streaming, "workers": workers, **found})
    orders = {str(rows): run_stage(folder, "order", rows=rows, keys=2_000_000) for rows in (10**6, 10**7, 10**9)}
    return {"lines": args.lines, "batch": args.batch, "starts": starts, "training": training, "input": inputs,
            "order": orders}  # fmt: skip


def show(found: dict[str, Any]) -> None:
    """Print the Markdown tables."""
    kinds = ("first", "second", "third", "streamed")
    header = ["lines", "text MB", *(f"{kind} s (cpu)" for kind in kinds), "lines/s, first", "disk MB, second"]
    starts = []
    for size, r in found["starts"].items():
        row = [f"{int(size):,}", f"{r['text_mb']:,.0f}"]
        row += [f"{r[kind]['seconds']:.1f} ({r[kind]['cpu_seconds']:.1f})" for kind in kinds]
        starts.append([*row, f"{int(size) / r['first']['seconds']:,.0f}", f"{r['second']['disk_mb']:.0f}"])
    print_table("Seconds from the file to the first batch; the second start with an empty page cache", header, starts)
    kinds = ("first", "third", "streamed")
    header = ["lines", *(f"{kind}: {what} MB" for kind in kinds for what in ("anonymous", "peak RSS"))]
    memory = [
        [f"{int(size):,}"] + [f"{r[kind][key]:,}" for kind in kinds for key in ("main_anonymous", "main_rss")]
        for size, r in found["starts"].items()
    ]
    print_table("Memory of these starts", header, memory)
    rate = found["training"]["tokens_per_second"]
    rows = []
    for r in found["input"]:
        row = [f"{'streamed' if r['streaming'] else 'memory-mapped'}, {r['method']}, {r['workers']} workers"]
        row += [f"{r['sentences_per_second']:,.0f}", f"{r['tokens_per_second']:,.0f}"]
        row += [f"{r.get('cpu_microseconds_a_sentence', math.nan):.0f}".replace("nan", "")]
        row += [f"{r['tokens_per_second'] / rate:,.0f}", f"{r['main_anonymous']:,}", f"{r['main_rss']:,}"]
        rows.append([*row, f"{r.get('worker_anonymous', 0):,}"])
    header = ["input", "sentences/s", "tokens/s", "cpu µs/sentence", "× training"]
    header += ["anonymous MB", "peak RSS MB", "worker anonymous MB"]
    print_table(f"The input alone, {found['lines']:,} lines, batch {found['batch']}", header, rows)
    print(f"\nTraining CMLM-CSE at BERT-base size here: {found['training']['sentences_per_second']:,.1f} sentences/s, "
          f"{rate:,.0f} tokens/s of both views.")  # fmt: skip
    order = [[f"{int(n):,}", f"{r['first_block_seconds']:.3f}", f"{r['microseconds_a_row']:.2f}"]
             for n, r in found["order"].items()]  # fmt: skip
    print_table("The order of an epoch", ["rows", "cpu s to the first block", "cpu µs a row"], order)


def hours(sentences: float, gpus: int) -> float:
    """Estimated hours of an epoch: compute time of each step, then the exchange of the gradient, not overlapped.

    A ring all-reduce sends and receives 2 · (gpus − 1) / gpus of the gradient.
    """
    compute = BATCH_PER_GPU / SENTENCES_PER_SECOND
    speed = BYTES_PER_SECOND["inside" if gpus <= GPUS_A_MACHINE else "between"]
    exchange = 2 * GRADIENT_BYTES * (gpus - 1) / gpus / speed
    return sentences / (BATCH_PER_GPU * gpus) * (compute + exchange) / 3600


def show_cost() -> None:
    """Print the hours of an epoch for corpora and numbers of GPUs."""
    gpus = (1, 8, 64, 256)
    rows = [
        [f"{sentences:,.0f}", *(f"{hours(sentences, count):.3g}" for count in gpus)]
        for sentences in (1e6, 1e7, 1e8, 1e9)
    ]
    efficiency = ["efficiency, assumed", *(f"{hours(1e9, 1) / hours(1e9, count) / count:.2f}" for count in gpus)]
    title = f"Hours of an epoch, on paper: {SENTENCES_PER_SECOND:,.0f} sentences/s a GPU, assumed"
    header = ["sentences", *(f"{count} GPU{'s' if count > 1 else ''}" for count in gpus)]
    print_table(title, header, [*rows, efficiency])
    inside, between = (f"{BYTES_PER_SECOND[where] / 1e9:.0f} GB/s" for where in ("inside", "between"))
    print(f"\nAll of it is assumed, nothing measured: {BATCH_PER_GPU} sentences a GPU and step, after which the GPUs "
          f"exchange {GRADIENT_BYTES / 1e6:.0f} MB of gradient at {inside} inside a machine of {GPUS_A_MACHINE}, and "
          f"{between} between machines, a GPU.")  # fmt: skip


def main() -> None:
    """Run all measurements, or print the cost table. `--stage` is for the processes that this one starts."""
    options = text_parser(
        __doc__ or "", lines=10_000_000, folder="", batch=32, batches=2000, seconds=60.0, steps=3, stage="",
        cost_table=False,
    )  # fmt: skip
    args = options.parse_args()
    if args.stage:
        arguments = json.loads(args.stage)
        print(json.dumps(STAGES[arguments.pop("stage")](**arguments)), flush=True)
    elif args.cost_table:
        show_cost()
    else:
        with tempfile.TemporaryDirectory(dir=args.folder or None, prefix="corpus-") as folder:
            found = measure(args, Path(folder))
        show(found)
        write_record(args.output, f"Large corpora, {args.lines:,} lines", **found)


if __name__ == "__main__":
    main()
