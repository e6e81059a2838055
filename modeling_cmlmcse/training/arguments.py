"""The fields of a recipe, and how a recipe and the command line become them."""

import dataclasses
import difflib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch
import yaml
from transformers import HfArgumentParser, TrainingArguments
from transformers.trainer_pt_utils import AcceleratorConfig
from transformers.trainer_utils import IntervalStrategy

from ..configuration_cmlmcse import CMLMCSEConfig
from ..errors import InputError, as_input_error
from .augmentation import AUGMENTATIONS

RECIPES = Path(__file__).resolve().parents[2] / "configuration"


def described(default: Any, text: str) -> Any:
    """A dataclass field with its help text."""
    return field(default=default, metadata={"help": text})


@dataclass
class ModelArguments:
    """The model: see :class:`CMLMCSEConfig` for the reasons of its defaults."""

    model_name_or_path: str = described("bert-base-uncased", "Backbone: a folder or a Hub name of a BERT or RoBERTa.")
    model_sha256: str | None = described(None, "Expected sha256 of the backbone's model.safetensors, if it is checked.")
    pooling: str = described("cls_before_pooler", "Sentence vector: cls, cls_before_pooler, avg, avg_top2, "
                             "avg_first_last (raw [CLS]: SimCSE's evaluation of unsupervised models).")  # fmt: skip
    projection: str = described("mlp", "Training head: mlp (SimCSE), batchnorm (InfoCSE), none.")
    contrastive_loss: str = described("info_nce", "Contrastive loss (SimCSE).")
    temp: float = described(0.05, "Temperature of the contrastive loss (SimCSE).")
    cmlm_weight: float = described(0.005, "Weight λ of the conditional MLM loss (CMLM-CSE Table 5); 0 is SimCSE.")
    lexical_layers: int | None = described(None, "Frozen layers of the extractor (8 of 12, CMLM-CSE Table 6).")
    fusion_layers: int | None = described(None, "Trainable fusion layers (3 of 12, CMLM-CSE Table 6).")
    fusion_init: str = described("last", "Fusion layers start from: last, next, random, or a checkpoint's path.")
    cmlm_condition: str = described("before_head", "Conditioning vector: before_head (InfoCSE) or after_head.")
    cmlm_views: str = described("both", "Views that get a masked sentence of their own: both (InfoCSE) or first.")
    lexical_dropout: bool = described(False, "Dropout inside the frozen extractor (its features are a given).")

    def config_fields(self) -> dict[str, Any]:
        """The fields of :class:`CMLMCSEConfig`."""
        fields = dataclasses.asdict(self)
        del fields["model_name_or_path"], fields["model_sha256"]
        return fields


@dataclass
class DataArguments:
    """The text, the masking and the development set."""

    train_file: str = described("princeton-nlp/datasets-for-simcse", "Text: .txt, .csv, .tsv, .jsonl, .parquet, "
                                "compressed or not, a Wikipedia dump .xml.bz2, or a Hub dataset.")  # fmt: skip
    train_data_files: str | None = described(None, "File inside a Hub dataset that holds several.")
    text_column: str | None = described(None, "Column of the sentences (default: text, or the only one).")
    streaming: bool = described(False, "Read the text as a stream, shuffled within a buffer of 10,000 sentences.")
    max_train_samples: int | None = described(None, "Sentences to train on (default: all), the first ones.")
    max_seq_length: int = described(32, "Tokens a training sentence is cut to (SimCSE, unsupervised script).")
    mlm_probability: float = described(0.15, "Share of tokens masked (CMLM-CSE §4.3.2; 0.40 is best in Table 4).")
    augmentation: str = described("none", f"Augmentation of the second view: {', '.join(AUGMENTATIONS)} (Table 3).")
    data_dir: str | None = described(None, "Folder of evaluation data (sts/<set>/<subset>.tsv); default: the Hub.")
    dev_set: str = described("stsb", "What chooses the best checkpoint: stsb (STS-B dev), lee (50 rated documents in "
                             "the gensim package), none (the last step is exported).")  # fmt: skip
    final_evaluation: str = described("sts", "Tasks run on the exported model at the end, by comma; none for none.")


@dataclass
class RunArguments(TrainingArguments):
    """Trainer's own arguments, with the defaults of SimCSE's unsupervised script."""

    output_dir: str | None = described(None, "Folder of the run (default: runs/RECIPE).")
    learning_rate: float = described(3e-5, "Peak learning rate (SimCSE, BERT-base).")
    per_device_train_batch_size: int = described(64, "Sentences in a batch on one device (SimCSE, BERT-base).")
    num_train_epochs: float = described(1.0, "Passes over the text (SimCSE).")
    lr_scheduler_type: str = described("linear", "Learning-rate schedule, down to 0 without warm-up (SimCSE).")
    eval_strategy: str = described("steps", "When the development set is scored.")
    eval_steps: float = described(125, "Optimizer steps between scores (SimCSE, unsupervised script).")
    save_strategy: str = described("steps", "When a checkpoint is written.")
    save_steps: float = described(125, "Optimizer steps between checkpoints; as eval_steps, to keep the best.")
    save_total_limit: int | None = described(2, "Checkpoints kept: the best and the newest.")
    load_best_model_at_end: bool = described(True, "Export the checkpoint with the best development score (SimCSE).")
    metric_for_best_model: str | None = described("dev_score", "The score that chooses it.")
    logging_steps: float = described(25, "Optimizer steps between log lines; a line is an average over them.")
    logging_nan_inf_filter: bool = described(False, "Hide NaN losses in the log; off: nothing is hidden.")
    remove_unused_columns: bool = described(False, "Leave the batches to the collator.")
    report_to: str | None = described(
        "none", "Where logs go besides the run's folder: tensorboard, wandb, …, by comma."
    )

    def __post_init__(self) -> None:
        if self.fp16 and not torch.cuda.is_available():
            raise InputError("fp16 needs a GPU, found none; leave out --fp16, or use --bf16 on a CPU that has it")
        if self.report_to and "," in self.report_to:
            self.report_to = self.report_to.split(",")  # type: ignore[assignment]
        super().__post_init__()
        self.dataloader_pin_memory &= torch.cuda.is_available()
        assert isinstance(self.accelerator_config, AcceleratorConfig)
        self.accelerator_config.dispatch_batches = False  # a packed batch cannot be cut by rows

    def without_dev_set(self) -> None:
        """Nothing to score: keep the last step instead of the best."""
        self.eval_strategy, self.load_best_model_at_end, self.metric_for_best_model = IntervalStrategy.NO, False, None


class RecipeParser(HfArgumentParser):
    """Parser whose errors are one line (:class:`InputError`), whose unknown fields get the nearest match."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see train.py --help")

    def suggest(self, name: str, where: str) -> NoReturn:
        """Refuse an unknown field."""
        known = sorted({action.dest for action in self._actions})
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else "train.py --help lists the fields"
        raise InputError(f"{where} expects fields of a recipe, found the unknown field {name!r}; {hint}")


def find_recipe(name: str) -> Path:
    """The recipe's file: a path, or a bare name under configuration/.

    Raises:
        InputError: there is none; the message lists the known ones.
    """
    path = Path(name)
    if path.suffix in (".yaml", ".yml") and path.is_file():
        return path
    path = RECIPES / f"{name}.yaml"
    if "/" not in name and path.is_file():
        return path
    known = sorted(recipe.stem for recipe in RECIPES.glob("*.yaml"))
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise InputError(f"RECIPE must be a YAML file or one of {', '.join(known)}, found {name!r}{hint}")


def read_recipe(path: Path) -> dict[str, Any]:
    """The fields of a recipe.

    Raises:
        InputError: the file is not a YAML mapping of field names to plain values.
    """
    try:
        fields = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path.name} must be a YAML file, found {reason}; mend it") from error
    if not isinstance(fields, dict) or not all(isinstance(name, str) for name in fields):
        raise InputError(f"{path.name} must map field names to values, found {type(fields).__name__}; mend it")
    return fields


def parse_recipe(arguments: list[str]) -> tuple[Path, ModelArguments, DataArguments, RunArguments]:
    """RECIPE [--field value …] → the recipe's file and the fields, the command line above the recipe.

    Raises:
        InputError: an unknown recipe or field, a value of the wrong type or out of range.
    """
    parts: Any = [ModelArguments, DataArguments, RunArguments]
    parser = RecipeParser(parts, prog="train.py", usage="train.py RECIPE [--field value ...]", allow_abbrev=False)
    parser.add_argument("recipe", help="YAML file, or its bare name under configuration/.")
    if not arguments:
        parser.error(
            f"expected RECIPE, found nothing; known: {', '.join(sorted(p.stem for p in RECIPES.glob('*.yaml')))}"
        )
    known = {action.dest for action in parser._actions}
    if not {"-h", "--help"} & set(arguments):
        if arguments[0].startswith("-"):
            parser.error(f"expected RECIPE first, found {arguments[0]!r}")
        path = find_recipe(arguments[0])
        parser.set_defaults(output_dir=f"runs/{path.stem}")
        for name, value in read_recipe(path).items():
            if name not in known:
                parser.suggest(name, path.name)
            plain = isinstance(value, (bool, int, float, str))
            parser.set_defaults(**{name: str(value) if plain else value})
    with as_input_error():
        model, data, run, _, unknown = parser.parse_args_into_dataclasses(arguments, return_remaining_strings=True)
    if unknown:
        parser.suggest(unknown[0].lstrip("-").split("=")[0], "the command line")
    return finish(path, model, data, run)


def finish(
    path: Path, model: ModelArguments, data: DataArguments, run: RunArguments
) -> tuple[Path, ModelArguments, DataArguments, RunArguments]:
    """Check ranges, and fill in what depends on other fields."""
    fields = model.config_fields()
    if fields["fusion_init"] not in ("last", "next", "random"):
        fields["fusion_init"] = "checkpoint"
    fields["lexical_layers"] = fields["fusion_layers"] = None  # checked against the backbone's depth when it is known
    with as_input_error():
        CMLMCSEConfig(**fields)
    if not 0.0 < data.mlm_probability < 1.0:
        raise InputError(f"mlm_probability must be between 0 and 1, found {data.mlm_probability}; mend the recipe")
    if data.max_seq_length < 3:
        raise InputError(
            f"max_seq_length must be at least 3 tokens, [CLS] word [SEP], found {data.max_seq_length}; mend the recipe"
        )
    if run.per_device_train_batch_size < 2:
        raise InputError(
            "per_device_train_batch_size must be at least 2, for a sentence needs others as in-batch negatives, found "
            f"{run.per_device_train_batch_size}; raise it"
        )
    if run.n_gpu > 1:
        raise InputError(f"one process drives one GPU, found {run.n_gpu}; start with: accelerate launch train.py …")
    return path, model, data, run
