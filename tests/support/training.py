"""The training command in this process, its data, and what it logs."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import TrainerCallback, set_seed

from cmlmcse.training import command
from cmlmcse.training.build_collator import build_collator
from cmlmcse.training.build_model import build_model, build_templates, build_tokenizer
from cmlmcse.training.build_text import build_sentences
from cmlmcse.training.command import field_arguments
from cmlmcse.training.contrastive_trainer import ContrastiveTrainer
from cmlmcse.training.fields import Recipe
from cmlmcse.training.parse import parse_recipe
from support.tiny import WORDS

STEPS = 8  # of saving_recipe, a recipe of the tests of checkpoints
SHORT_RUN = {"per_device_train_batch_size": 16, "max_steps": 12, "eval_steps": 6, "save_steps": 6, "logging_steps": 3,
             "use_cpu": True, "disable_tqdm": True}  # fmt: skip


def write_pairs(path: Path, count: int = 60) -> Path:
    """A development set of one's own: pairs of tiny sentences, scored by the words that they share."""
    rng = np.random.default_rng(0)
    lines = []
    for _ in range(count):
        words = rng.choice(WORDS, size=6)
        other = np.where(rng.random(6) < rng.random(), words, rng.choice(WORDS, size=6))
        lines.append(f"{5 * (words == other).mean():.2f}\t{' '.join(words)}\t{' '.join(other)}")
    path.write_text("\n".join(lines) + "\n")
    return path


def write_text(path: Path, count: int = 200) -> Path:
    """Different sentences, one a line; words as unequally frequent as in a language, so that MLM can learn."""
    generator = torch.Generator().manual_seed(1)
    frequency = 1.0 / torch.arange(1, len(WORDS) + 1) ** 1.5
    lines = []
    for _ in range(count):
        length = int(torch.randint(3, 12, (), generator=generator))
        lines.append(" ".join(WORDS[i] for i in torch.multinomial(frequency, length, True, generator=generator)))
    path.write_text("\n".join(lines) + "\n")
    return path


def write_data(folder: Path) -> Path:
    """A data folder with an STS-B dev set of the published size."""
    (folder / "sts" / "stsb").mkdir(parents=True)
    write_pairs(folder / "sts" / "stsb" / "dev.tsv", 1500)
    return folder


def run(monkeypatch, *arguments: object) -> None:
    """The command in this process."""
    monkeypatch.setattr(sys, "argv", ["train.py", *map(str, arguments)])
    command.main()


def parsed(recipe: Path, **fields: Any) -> Recipe:
    """A recipe with these changes."""
    return parse_recipe([str(recipe), *field_arguments(fields)])


def build_trainer(
    recipe: Path, fields: dict[str, Any], sentences: Any = None, callbacks: tuple[TrainerCallback, ...] = ()
) -> ContrastiveTrainer:
    """The trainer of sentences or pairs that the command builds for these fields. It writes nothing.

    Args:
        recipe: its file.
        fields: changes to it.
        sentences: the text of another trainer, so that it is not read and encoded again.
        callbacks: further ones.
    """
    found = parsed(recipe, **fields)
    set_seed(found.run.seed)
    tokenizer = build_tokenizer(found.model, found.data.augmentation, found.data.max_seq_length)
    templates = build_templates(found.model, tokenizer)
    model = build_model(found.model, tokenizer)
    trainer = ContrastiveTrainer(
        model=model,
        args=found.run,
        train_dataset=sentences or build_sentences(found, tokenizer),
        data_collator=build_collator(model, tokenizer, found, templates),
        processing_class=tokenizer,
        callbacks=list(callbacks),
    )
    trainer.args.save_strategy = "no"
    return trainer


def history(folder: Path, name: str) -> list[float]:
    """One logged quantity of a run."""
    log = json.loads((folder / "run.json").read_text())["log"]
    return [row[name] for row in log if name in row]
