"""What a checkpoint and a development score cost, at BERT-base size: bytes and seconds.

    python benchmarks/checkpoints.py --output benchmarks/records/checkpoints.json

Checkpoints of CMLM-CSE (8 frozen and 3 fusion layers) and SimCSE, written by the trainer after one step:
    all weights     what older versions wrote each time: frozen weights too
    the first       of a run
    a later one     its frozen weights are another name of the first one's file
    the best alone  a new best model too soon after a checkpoint (`save_minutes`): its weights without optimizer

"Written" counts what is new on the disk. Seconds are wall-clock, which depend on the disk, and of the processor. Then
the development score in fp32, and in bf16 as it is between the steps of a bf16 run.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from common import print_table, read_batches, text_parser, tokenizer, write_record
from transformers import BertConfig, BertForMaskedLM

from cmlmcse.training import contrastive_trainer
from cmlmcse.training.build_collator import build_collator
from cmlmcse.training.build_model import build_model, build_tokenizer
from cmlmcse.training.build_text import build_sentences
from cmlmcse.training.contrastive_trainer import ContrastiveTrainer
from cmlmcse.training.dev_set import load_dev_set
from cmlmcse.training.parse import parse_recipe

RECIPES = {"SimCSE": "simcse-bert-base", "CMLM-CSE": "cmlmcse-bert-base"}
MIB = 2**20


def make_trainer(recipe: str, lines: list[str], folder: Path, pairs: int) -> ContrastiveTrainer:
    """A trainer after one step of two sentences."""
    torch.manual_seed(0)
    BertForMaskedLM(BertConfig()).save_pretrained(folder / "backbone")
    tokenizer().save_pretrained(folder / "backbone")
    (folder / "text.txt").write_text("\n".join(lines) + "\n")
    rows = [f"{index % 6}\t{lines[index]}\t{lines[index + 1]}" for index in range(pairs)]
    (folder / "dev.tsv").write_text("\n".join(rows) + "\n")
    fields = {
        "model_name_or_path": folder / "backbone", "train_file": folder / "text.txt", "dev_set": folder / "dev.tsv",
        "output_dir": folder / "run", "per_device_train_batch_size": 2, "max_steps": 1, "eval_strategy": "no",
        "save_strategy": "no", "load_best_model_at_end": False, "use_cpu": True, "disable_tqdm": True,
    }  # fmt: skip
    words = [recipe, *(str(word) for name, value in fields.items() for word in (f"--{name}", value))]
    parsed = parse_recipe(words)
    tokens = build_tokenizer(parsed.model)
    model = build_model(parsed.model, tokens)
    (folder / "run").mkdir()
    trainer = ContrastiveTrainer(
        model=model,
        args=parsed.run,
        train_dataset=build_sentences(parsed, tokens),
        data_collator=build_collator(model, tokens, parsed),
        processing_class=tokens,
        dev_set=load_dev_set(parsed.data.dev_set, None),
        start_values=torch.zeros(pairs).numpy(),
    )
    trainer.train()
    return trainer


def measured(call: Callable[[], Any]) -> dict[str, float]:
    """Wall-clock and processor seconds of a call."""
    wall, processor = time.perf_counter(), time.process_time()
    call()
    return {"seconds": time.perf_counter() - wall, "processor": time.process_time() - processor}


def save(trainer: ContrastiveTrainer) -> dict[str, float]:
    """Write the next checkpoint; what is new on the disk, and how long it took."""
    trainer.state.global_step += 1
    found = measured(lambda: trainer._save_checkpoint(trainer.model, None))
    files = Path(str(trainer.last_saved)).iterdir()
    return {"mib": sum(file.stat().st_size for file in files if file.stat().st_nlink == 1) / MIB, **found}


def checkpoints(trainer: ContrastiveTrainer, repetitions: int) -> dict[str, dict[str, float]]:
    """The medians of every kind of checkpoint."""
    found: dict[str, list[dict[str, float]]] = {}
    for _ in range(repetitions):
        with mock.patch.object(contrastive_trainer, "frozen_names", return_value=set()):
            found.setdefault("all weights", []).append(save(trainer))
        trainer.last_saved = None
        found.setdefault("the first", []).append(save(trainer))
        found.setdefault("a later one", []).append(save(trainer))
        trainer.weights_alone = True
        found.setdefault("the best alone", []).append(save(trainer))
    return {kind: {name: statistics.median(row[name] for row in rows) for name in rows[0]}
            for kind, rows in found.items()}  # fmt: skip


def scores(trainer: ContrastiveTrainer, repetitions: int) -> dict[str, dict[str, float]]:
    """The medians of a development score in each precision."""
    half = torch.autocast("cpu", torch.bfloat16)
    found = {}
    for name, context in (("fp32", nullcontext()), ("bf16", half)):
        with context:
            rows = [measured(lambda: trainer.dev_score(trainer.dev_values())) for _ in range(repetitions + 1)][1:]
        found[name] = {what: statistics.median(row[what] for row in rows) for what in rows[0]}
    return found


def main() -> None:
    """Measure and print tables."""
    args = text_parser(__doc__ or "", repetitions=3, pairs=128).parse_args()
    (lines,) = read_batches(args.text, max(args.pairs + 1, 64), 1)
    found: dict[str, Any] = {}
    rows, score = [], {}
    for title, recipe in RECIPES.items():
        with tempfile.TemporaryDirectory() as folder:
            trainer = make_trainer(recipe, lines, Path(folder), args.pairs)
            found[title] = checkpoints(trainer, args.repetitions)
            score = score or scores(trainer, args.repetitions)
        for kind, each in found[title].items():
            rows.append([title, kind, f"{each['mib']:,.0f}", f"{each['seconds']:.2f}", f"{each['processor']:.2f}"])
    title = "Checkpoints at BERT-base size, fp32"
    print_table(title, ["method", "checkpoint", "written, MiB", "seconds", "of the processor"], rows)
    cells = [[name, *(f"{value:.2f}" for value in each.values())] for name, each in score.items()]
    print_table(f"A development score of {args.pairs} pairs", ["precision", "seconds", "of the processor"], cells)
    write_record(args.output, title, checkpoints=found, score=score, pairs=args.pairs, repetitions=args.repetitions)


if __name__ == "__main__":
    main()
