"""Seconds of one training step inside a trainer at BERT-base size: our trainer against sentence-transformers'.

    python benchmarks/trainers.py --repetitions 5 --output benchmarks/records/trainers.json

Arms:
    st      SentenceTransformerTrainer, MultipleNegativesRankingLoss on (s, s) pairs, [CLS] pooling
    simcse  our ContrastiveTrainer, SimCSE
    cmlm    our ContrastiveTrainer, CMLM-CSE, 8 lexical and 3 fusion layers

Both trainers have their own defaults, except that logging, saving and scoring are off. In each round every arm calls
`train()` for --steps_per_round steps on the same sentences; each round has new ones. The time runs from the end of the
first step to the end of the last step. So it includes loading, collation, optimizer and callbacks, but not the set-up
of `train()`. sentence-transformers tokenises in its collator. Ours tokenises once before training; the record has that
time separately (`tokenisation_seconds`, for one step).
"""

import tempfile
import time
from collections.abc import Callable
from typing import Any

import datasets
import torch
from common import (
    LENGTH,
    choose,
    interleaved,
    read_batches,
    report,
    sentence_transformer,
    synchronize,
    text_parser,
    tokenizer,
)
from step import our_model
from transformers import BertConfig, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from cmlmcse.data.batches import TrainingSentences, tokenize_sentences
from cmlmcse.training.build_collator import build_collator
from cmlmcse.training.contrastive_trainer import ContrastiveTrainer
from cmlmcse.training.fields import DataArguments, ModelArguments, Recipe, RunArguments


class StepClock(TrainerCallback):
    """Seconds per step of the latest `train()`, without its first step."""

    first = last = 0.0
    steps = 1

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.global_step == 1:
            synchronize()
            self.first = time.perf_counter()
        if state.global_step == state.max_steps:
            synchronize()
            self.last, self.steps = time.perf_counter(), state.max_steps

    def seconds(self) -> float:
        """The mean over the steps after the first."""
        return (self.last - self.first) / (self.steps - 1)


def arm(trainer: Trainer, rounds: list[Any]) -> Callable[[int], float]:
    """An arm: number of the round → seconds per step in `train()`. The model keeps its state between rounds."""
    clock = StepClock()
    trainer.add_callback(clock)
    trainer.remove_callback(PrinterCallback)

    def train(number: int) -> float:
        trainer.train_dataset = rounds[number]
        trainer.train()
        return clock.seconds()

    return train


def sentence_transformers_trainer(rounds: list[datasets.Dataset], arguments: dict[str, Any]) -> Trainer:
    """The trainer of sentence-transformers."""
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    model = sentence_transformer(BertConfig())
    return SentenceTransformerTrainer(
        model=model,
        args=SentenceTransformerTrainingArguments(**arguments),
        train_dataset=rounds[0],
        loss=MultipleNegativesRankingLoss(model),
    )


def our_trainer(rounds: list[TrainingSentences], arguments: dict[str, Any], **fields: Any) -> Trainer:
    """Our trainer, as train.py builds it."""
    run = RunArguments(**arguments, load_best_model_at_end=False)
    tok, model = tokenizer(), our_model(**fields)
    return ContrastiveTrainer(
        model=model,
        args=run,
        train_dataset=rounds[0],
        data_collator=build_collator(
            model, tok, Recipe("trainers", ModelArguments(), DataArguments(max_seq_length=LENGTH), run)
        ),
        processing_class=tok,
    )


ARMS = ("st", "simcse", "cmlm")


def main() -> None:
    """Time the trainers in turns."""
    options = text_parser(
        __doc__ or "", batch=32, repetitions=5, warmup=1, steps_per_round=3, arms=",".join(ARMS), bf16=False
    )
    args = options.parse_args()
    chosen = choose(options, args.arms, ARMS)
    if args.steps_per_round < 2:
        options.error(f"--steps_per_round must be at least 2, for the first is dropped, found {args.steps_per_round}")
    datasets.disable_progress_bars()
    # One batch more than steps, because the loader fetches one batch ahead, also in the last step.
    sentences = args.batch * (args.steps_per_round + 1)
    texts = read_batches(args.text, sentences, args.warmup + args.repetitions)
    pairs = [datasets.Dataset.from_dict({"anchor": lines, "positive": lines}) for lines in texts]
    tok, table = tokenizer(), datasets.Dataset.from_dict({"text": [line for lines in texts for line in lines]})
    start = time.perf_counter()
    tokenized = tokenize_sentences(table, tok, LENGTH)
    tokenisation = (time.perf_counter() - start) * args.batch / len(table)
    starts = range(0, len(table), sentences)
    packed = [TrainingSentences(tokenized.select(range(i, i + sentences))) for i in starts]
    with tempfile.TemporaryDirectory() as folder:
        arguments = {
            "output_dir": folder,
            "per_device_train_batch_size": args.batch,
            "max_steps": args.steps_per_round,
            "eval_strategy": "no",
            "save_strategy": "no",
            "logging_strategy": "no",
            "report_to": "none",
            "disable_tqdm": True,
            "use_cpu": not torch.cuda.is_available(),
            "dataloader_pin_memory": torch.cuda.is_available(),
            "bf16": args.bf16,
        }
        build: dict[str, tuple[str, Callable[[], Callable[[int], float]]]] = {
            "st": (
                "sentence-transformers trainer, MNRL",
                lambda: arm(sentence_transformers_trainer(pairs, arguments), pairs),
            ),
            "simcse": ("SimCSE, our trainer", lambda: arm(our_trainer(packed, arguments, cmlm_weight=0.0), packed)),
            "cmlm": (
                "CMLM-CSE, our trainer",
                lambda: arm(our_trainer(packed, arguments, lexical_layers=8, fusion_layers=3), packed),
            ),
        }
        arms = {build[key][0]: build[key][1]() for key in chosen}
        seconds = interleaved(arms, args.repetitions, args.warmup)
    print(f"our tokenisation, ahead of training: {tokenisation:.4f} s a step")
    precision = "bf16 autocast" if args.bf16 else "fp32"
    report(
        f"One step inside a trainer, BERT-base, batch {args.batch}, at most {LENGTH} tokens, {precision}",
        seconds,
        next(iter(arms)),
        args.output,
        amounts={"sentences": args.batch},
        steps_per_round=args.steps_per_round,
        warmup=args.warmup,
        tokenisation_seconds=tokenisation,
    )


if __name__ == "__main__":
    main()
