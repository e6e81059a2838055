"""Seconds and memory of `cmlmcse adapt` on a text of many lines, with next to no training. Linux only.

    OMP_NUM_THREADS=1 python benchmarks/large_adapt.py --work WORK --output benchmarks/records/large-adapt.json

The lines are those of corpus.py, eight to a document, with a blank line between documents. Each size runs in a process
of its own, with an empty datasets cache. "Anonymous" is memory that the process allocated; the rest of its resident
memory are pages of files, which the kernel can drop at any time. `adapt` draws 200,000 of the documents. What does not
depend on the number of lines, the scores and 2 steps of each arm, is in the seconds too: the smallest size shows it.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

from common import print_table, text_parser, write_record

from cmlmcse import adapt
from corpus import Memory, rotated_lines

BACKBONE = Path(__file__).parents[1] / "assets/bert-mini-en"
LINES = 8  # of a document


def write_text(source: Path, lines: int, path: Path) -> None:
    """Write a text of so many lines with words."""
    made = rotated_lines(source, lines)
    with path.open("w", encoding="utf-8") as file:
        while document := list(islice(made, LINES)):
            file.writelines([*document, "\n"])


def measure(text: Path, folder: Path) -> dict[str, float]:
    """Adapt to a text with two steps for each arm."""
    start, cpu = time.perf_counter(), time.process_time()
    with Memory() as memory:
        _, results = adapt(str(BACKBONE), text, folder, max_steps=2)
    taken = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu}
    found = {name: results["text"][name] for name in ("documents_found", "documents", "held_out")}
    return {**found, **taken, "text_mb": text.stat().st_size / 1e6, **memory.peak}


def main() -> None:
    """Run one process for each size, one after the other, and print a table of their results."""
    options = text_parser(__doc__ or "", lines=0)
    options.add_argument("--work", type=Path, required=True, help="folder for text, cache and runs; emptied each time")
    options.add_argument("--sizes", type=int, nargs="+", default=[80_000, 10_000_000], help="numbers of lines")
    args = options.parse_args()
    if args.lines:  # one of the processes
        print(json.dumps(measure(args.work / "text.txt", args.work / "adapted")))
        return
    found = {}
    for lines in args.sizes:
        shutil.rmtree(args.work, ignore_errors=True)
        args.work.mkdir(parents=True)
        write_text(Path(args.text), lines, args.work / "text.txt")
        command = [sys.executable, __file__, "--lines", str(lines), "--work", str(args.work)]
        places = {"HF_DATASETS_CACHE": str(args.work / "cache")}
        output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=os.environ | places).stdout
        found[f"{lines:,}"] = json.loads(output.splitlines()[-1])
        write_record(args.output, "adapt of bert-mini-en, two steps for each arm", sizes=found)
    shutil.rmtree(args.work)
    rows = [[name, *(f"{value:,.0f}" for value in sizes.values())] for name, sizes in found.items()]
    print_table("adapt on a large text", ["lines", *next(iter(found.values()))], rows)


if __name__ == "__main__":
    main()
