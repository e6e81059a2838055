"""GLUE: the encoder is fine-tuned on each task. All other tasks use frozen embeddings."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    PreTrainedModel,
    PrinterCallback,
    Trainer,
    TrainingArguments,
    set_seed,
)

from cmlmcse.common.errors import InputError, first_line
from cmlmcse.models.encoders import load_tokenizer
from cmlmcse.models.folders import resolve_model
from modeling_cmlmcse.backbone import max_positions, quiet_loading

from .card_metric import CardMetric
from .glue_data import GLUE_SETS, HUB, GlueData
from .metrics import STSCorrelation
from .scores import average, rounded
from .transfer_data import Examples


def _correlation(references: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
    """Pearson and Spearman correlation in per cent; NaN if not defined."""
    return STSCorrelation().compute(predictions=predictions, references=references)


METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {  # references (N,), predictions (N,) → per cent
    "accuracy": lambda references, predictions: 100 * accuracy_score(references, predictions),
    "f1": lambda references, predictions: 100 * f1_score(references, predictions, zero_division=0),
    "matthews": lambda references, predictions: 100 * matthews_corrcoef(references, predictions),
    "pearson": lambda references, predictions: _correlation(references, predictions)["pearson"],
    "spearman": lambda references, predictions: _correlation(references, predictions)["spearman"],
}


@dataclass(frozen=True)
class FineTuning:
    """How to fine-tune on a task. The schedule is linear without warm-up; nothing is tuned for a single task."""

    learning_rate: float = 2e-5
    epochs: int = 3
    batch_size: int = 32
    max_seq_length: int = 128
    seed: int = 42
    device: str | None = None  # "cpu", or None: transformers' Trainer uses all GPUs in CUDA_VISIBLE_DEVICES


@dataclass(frozen=True)
class Collator:
    """Rows (label, one or two texts) → a padded batch: `input_ids` and so on (B, T), `labels` (B,)."""

    tokenizer: Any
    max_length: int

    def __call__(self, rows: list[tuple[Any, ...]]) -> dict[str, torch.Tensor]:
        labels, *sides = zip(*rows, strict=True)
        batch = self.tokenizer(
            *map(list, sides), padding=True, truncation=True, max_length=self.max_length, return_tensors="pt"
        )
        return {**batch, "labels": torch.tensor(labels)}  # int64 for a class, float32 for a score


def run_glue_task(name_or_path: str, data: dict[str, GlueData], **options: Any) -> dict[str, Any]:
    """The entry `glue` of the results."""
    return {"glue": glue(name_or_path, data, FineTuning(**options))}


def glue(name_or_path: str, data: dict[str, GlueData], settings: FineTuning | None = None) -> dict[str, Any]:
    """Scores in per cent on the GLUE tasks (Wang et al. 2018; CLEAR, Table 1). A fresh copy is fine-tuned on each task.

    CoLA: Matthews correlation. MRPC and QQP: mean of accuracy and F1. STS-B: mean of Pearson and Spearman correlation.
    MNLI: mean accuracy of the matched and the mismatched split. Other tasks: accuracy. RoBERTa (Liu et al. 2019, §5.1)
    tries several learning rates and batch sizes on each task, and reports the median of five seeds. Here all tasks
    share one setting and one seed.

    "details" holds the number of training examples, and each metric on each scored split. "avg" needs all eight tasks,
    each scored on GLUE's own dev splits. A correlation that is not defined is None.

    Args:
        name_or_path: an exported folder, a run's output folder, a plain backbone or a Hub name.
        data: from :func:`load_glue`.
        settings: how to fine-tune.

    Raises:
        InputError: no model that can be fine-tuned is there.
    """
    source, settings = resolve_model(name_or_path), settings or FineTuning()
    results: dict[str, Any] = {}
    details: dict[str, Any] = {}
    for name, one in data.items():
        labels, metrics = GLUE_SETS[name].labels, GLUE_SETS[name].metrics
        outputs = fine_tune(source, one, len(labels), settings)
        scores = {split: score(outputs[split], examples.labels, metrics) for split, examples in one.scored.items()}
        results[name] = average([value for values in scores.values() for value in values.values()])
        counted = {split: {"examples": len(one.scored[split].labels), **scores[split]} for split in scores}
        details[name] = {"trained_on": len(one.train.labels), **counted}
    on_dev = all(split in GLUE_SETS[name].dev for name, one in data.items() for split in one.scored)
    whole = average([results.get(name) for name in GLUE_SETS]) if on_dev else None
    return {**results, **({} if whole is None else {"avg": whole}), "details": details}


def fine_tune(source: str, data: GlueData, classes: int, settings: FineTuning) -> dict[str, np.ndarray]:
    """Fine-tune the encoder with a fresh classifier; its outputs (N, K) on each split, K = 1 for a score.

    Args:
        source: the model's folder or Hub name.
        data: the task's examples.
        classes: the number of labels, 0 to predict a score.
        settings: how to fine-tune.
    """
    tokenizer = load_tokenizer(source)
    set_seed(settings.seed)  # before the classifier's weights are initialised
    model = load_classifier(source, classes)
    max_length = min(settings.max_seq_length, max_positions(model.base_model), tokenizer.model_max_length)
    with TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            learning_rate=settings.learning_rate,
            num_train_epochs=settings.epochs,
            per_device_train_batch_size=settings.batch_size,
            per_device_eval_batch_size=settings.batch_size,
            seed=settings.seed,
            use_cpu=settings.device == "cpu",
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            remove_unused_columns=False,
            dataloader_pin_memory=torch.cuda.is_available() and settings.device != "cpu",  # without a GPU it would warn
            disable_tqdm=not sys.stderr.isatty(),
        )
        trainer = Trainer(
            model, arguments, data_collator=Collator(tokenizer, max_length), train_dataset=_rows(data.train)
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        return {split: np.asarray(trainer.predict(_rows(one)).predictions) for split, one in data.scored.items()}


def load_classifier(source: str, classes: int) -> PreTrainedModel:
    """The encoder with a fresh classification head, or with a fresh regression head for 0 classes.

    A pooler of zeros, which an export of ours has where its pooling keeps no head, is drawn afresh, as transformers
    draws one that is missing: through zeros the encoder would learn nothing at first.

    Raises:
        InputError: transformers cannot load it. A training checkpoint is such a case: it is not a plain model.
    """
    problem = "single_label_classification" if classes else "regression"
    with loading(source):
        model = AutoModelForSequenceClassification.from_pretrained(
            source, num_labels=classes or 1, problem_type=problem, dtype=torch.float32, trust_remote_code=False
        )
    pooler = getattr(model.base_model, "pooler", None)
    if pooler is not None and not pooler.dense.weight.any():
        torch.nn.init.normal_(pooler.dense.weight, std=model.config.initializer_range)
    return model


def check_classifier(name_or_path: str) -> None:
    """Check that a model can be fine-tuned, as far as its configuration says.

    Raises:
        InputError: it cannot.
    """
    source = resolve_model(name_or_path)
    with loading(source), torch.device("meta"):  # weights that take no memory
        AutoModelForSequenceClassification.from_config(AutoConfig.from_pretrained(source, trust_remote_code=False))


@contextmanager
def loading(source: str) -> Iterator[None]:
    """Load a model for fine-tuning inside the block, without transformers' warning that the head's weights are new.

    Raises:
        InputError: transformers cannot load it.
    """
    try:
        with quiet_loading():
            yield
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        raise InputError(
            f"{source}: expected a model that transformers can fine-tune, found one that it cannot load "
            f"({first_line(error)[:200]}); export a checkpoint with cmlmcse push --export_only"
        ) from error


def score(outputs: np.ndarray, references: np.ndarray, metrics: tuple[str, ...]) -> dict[str, float | None]:
    """Outputs (N, K) against labels or scores (N,): each metric in per cent; None if not defined."""
    predictions = outputs[:, 0] if outputs.shape[1] == 1 else outputs.argmax(axis=1)  # (N,)
    return {metric: rounded(METRICS[metric](references, predictions)) for metric in metrics}


def _rows(examples: Examples) -> Any:
    """Rows (label, texts) as a list, which torch takes as a `Dataset`."""
    return list(zip(examples.labels.tolist(), *examples.sides, strict=True))


def card_metrics(found: dict[str, Any]) -> Iterator[CardMetric]:
    """The tasks, for a model card."""
    metric = ("glue_score", "GLUE's measure × 100, fine-tuned")
    for name, one in GLUE_SETS.items():
        if name in found:
            yield CardMetric("text-classification", HUB, f"GLUE {name}", "validation", metric, found[name], one.hub)
