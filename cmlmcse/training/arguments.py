"""The fields of a recipe, and how a recipe and the command line become them."""

import argparse
import dataclasses
import difflib
import inspect
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch
import yaml
from accelerate.utils import DistributedType
from transformers import HfArgumentParser, TrainingArguments
from transformers.trainer_pt_utils import AcceleratorConfig
from transformers.trainer_utils import IntervalStrategy

from cmlmcse.common.docstrings import argument_texts
from cmlmcse.common.errors import InputError, as_input_error
from cmlmcse.data.augmentation import AUGMENTATIONS, check_augmentation
from modeling_cmlmcse.configuration_cmlmcse import CMLMCSEConfig, in_range, one_of

RECIPES = Path(__file__).resolve().parents[2] / "configuration"


def described(default: Any, text: str) -> Any:
    """A dataclass field with its help text."""
    return field(default=default, metadata={"help": text})


CONFIG_DEFAULTS = inspect.signature(CMLMCSEConfig).parameters
CONFIG_HELP = argument_texts(CMLMCSEConfig.__doc__ or "")


def of_config(name: str) -> Any:
    """A dataclass field with the default and the text that :class:`CMLMCSEConfig` has for it."""
    return described(CONFIG_DEFAULTS[name].default, CONFIG_HELP[name])


@dataclass
class ModelArguments:
    """The model. Defaults and help of the fields of :class:`CMLMCSEConfig` are stated there."""

    model_name_or_path: str = described("bert-base-uncased", "Backbone: a folder or a Hub name.")
    model_sha256: str | None = described(None, "Expected sha256 of the backbone's model.safetensors, if it is checked.")
    from_scratch: bool = described(False, "Start from random weights, with the backbone's configuration and tokenizer "
                                   "alone (CLEAR); off: go on from its weights.")  # fmt: skip
    backbone_dropout: float | None = described(None, "Probability of all dropouts of the backbone (default: its own; "
                                               "ModernBERT's are 0, and the two views the same).")  # fmt: skip
    pooling: str = of_config("pooling")
    projection: str = of_config("projection")
    contrastive_loss: str = of_config("contrastive_loss")
    contrastive_weight: float = of_config("contrastive_weight")
    temp: float = of_config("temp")
    hard_negative_weight: float = of_config("hard_negative_weight")
    cmlm_weight: float = of_config("cmlm_weight")
    lexical_layers: int | None = of_config("lexical_layers")
    fusion_layers: int | None = of_config("fusion_layers")
    fusion_init: str = of_config("fusion_init")
    cmlm_condition: str = of_config("cmlm_condition")
    masked_views: str = of_config("masked_views")
    lexical_frozen: bool = of_config("lexical_frozen")
    lexical_dropout: bool = of_config("lexical_dropout")
    rtd_weight: float = of_config("rtd_weight")
    rtd_generator: str | None = described(None, "Model that fills masked words: a folder or a Hub name of an MLM with "
                                          "the same tokenizer (default: the backbone).")  # fmt: skip
    rtd_fill: str = of_config("rtd_fill")
    rtd_condition: str = of_config("rtd_condition")
    mlm_weight: float = of_config("mlm_weight")

    def config_fields(self) -> dict[str, Any]:
        """The fields of :class:`CMLMCSEConfig`."""
        fields = dataclasses.asdict(self)
        del fields["model_name_or_path"], fields["model_sha256"]
        return fields


@dataclass
class PretrainingArguments:
    """What `--stage pretrain` alone reads (InfoCSE §3.1, or plain masked-language modelling)."""

    model_type: str | None = described(None, "Pre-train a new backbone of this kind, bert or roberta, instead of "
                                       "model_name_or_path.")  # fmt: skip
    config_overrides: str | None = described(None, "Its sizes: num_hidden_layers=4,hidden_size=256,… (default: the "
                                             "kind's own, BERT-base or RoBERTa-base).")  # fmt: skip
    tokenizer_name: str | None = described(None, "Its tokenizer: a folder or a Hub name (default: trained on the text "
                                           "and kept in output_dir/tokenizer).")  # fmt: skip
    vocab_size: int = described(30522, "Tokens of a trained tokenizer (BERT-base).")
    do_lower_case: bool = described(True, "A trained WordPiece tokenizer is uncased; RoBERTa's is always cased.")
    auxiliary_weight: float = described(1.0, "Weight of the auxiliary network's MLM loss (InfoCSE §4.2); 0 is plain "
                                        "masked-language modelling.")  # fmt: skip
    sequences: str = described("sentences", "What a training sequence is: sentences, each by itself, or documents: the "
                               "sentences of a document joined up to max_seq_length. Blank lines of a .txt file, and "
                               "rows of a table, part documents.")  # fmt: skip
    whole_word_mask: bool = described(False, "Mask all tokens of a word, or none (mlm_probability is then of words).")
    validation_split_percentage: float = described(1.0, "Share of the text, its end, that the development loss is "
                                                   "measured on, 2,000 sequences at most; 0 is without.")  # fmt: skip
    preprocessing_num_workers: int | None = described(None, "Processes that tokenise documents (default: one, whose "
                                                      "tokenizer uses all cores).")  # fmt: skip


@dataclass
class DataArguments(PretrainingArguments):
    """The text, the masking and the development set."""

    train_file: str = described("princeton-nlp/datasets-for-simcse", "Text: .txt, .csv, .tsv, .jsonl, .parquet, "
                                "compressed or not, a Wikipedia dump .xml.bz2, or a Hub dataset.")  # fmt: skip
    train_data_files: str | None = described(None, "File inside a Hub dataset that holds several.")
    text_column: str | None = described(None, "Column of the sentences (default: text, or the only one).")
    positive_column: str | None = described(None, "Column of labelled positives (supervised SimCSE; none: the sentence "
                                            "itself).")  # fmt: skip
    negative_column: str | None = described(None, "Column of their hard negatives (supervised SimCSE; none: without).")
    streaming: bool = described(False, "Read the text as a stream, shuffled within a buffer of 10,000 sentences.")
    max_train_samples: int | None = described(None, "Sentences to train on (default: all), the first ones.")
    max_seq_length: int = described(32, "Tokens a training sentence is cut to (SimCSE, unsupervised script).")
    mlm_probability: float = described(0.15, "Share of tokens masked (CMLM-CSE §4.3.2; 0.40 is best in Table 4).")
    augmentation: str = described("none", f"Augmentation of the views: {', '.join(AUGMENTATIONS)} (CMLM-CSE Table 3, "
                              "CLEAR §3.3); a+b is first a, then b.")  # fmt: skip
    augmented_views: str = described("second", "Views that are augmented: second (CMLM-CSE; the first is the sentence "
                                     "itself) or both, each by itself (CLEAR).")  # fmt: skip
    synonyms: str | None = described(None, "File for the augmentation substitute: a JSON object, word → list of words; "
                                     "training/synonyms.py says where to get one.")  # fmt: skip
    data_dir: str | None = described(None, "Folder of evaluation data (sts/<set>/<subset>.tsv); default: the Hub.")
    dev_set: str = described("stsb", "What chooses the best checkpoint: stsb (STS-B dev), a .tsv of your own pairs "
                             "(score, sentence, sentence), lee50 (50 rated documents in the gensim package), none (the "
                             "last step is exported).")  # fmt: skip
    final_evaluation: str = described("sts", "Tasks run on the exported model at the end, by comma; none for none.")


@dataclass
class RunArguments(TrainingArguments):
    """Trainer's own arguments, with the defaults of SimCSE's unsupervised script."""

    stage: str = described("train", "train the sentence encoder, or pretrain: its auxiliary network with the backbone, "
                           "or a backbone alone (InfoCSE's first stage).")  # fmt: skip
    output_dir: str | None = described(None, "Folder of the run (default: runs/RECIPE).")
    learning_rate: float = described(3e-5, "Peak learning rate (SimCSE, BERT-base).")
    auxiliary_learning_rate: float | None = described(None, "Peak learning rate of the auxiliary networks alone "
                                                      "(default: learning_rate, as in the papers).")  # fmt: skip
    per_device_train_batch_size: int = described(64, "Sentences in a batch on one device (SimCSE, BERT-base).")
    mini_batch_size: int | None = described(
        None, "Sentences in memory at a time (GradCache: the whole batch's gradient, the encoder run twice)."
    )
    num_train_epochs: float = described(1.0, "Passes over the text (SimCSE).")
    lr_scheduler_type: str = described("linear", "Learning-rate schedule, down to 0 without warm-up (SimCSE).")
    eval_strategy: str = described("steps", "When the development set is scored.")
    eval_steps: float = described(125, "Optimizer steps between scores (SimCSE, unsupervised script).")
    save_strategy: str = described("steps", "When a checkpoint is written.")
    save_steps: float = described(125, "Optimizer steps between checkpoints; as eval_steps, to keep the best.")
    save_total_limit: int | None = described(2, "Checkpoints kept: the best and the newest.")
    load_best_model_at_end: bool = described(True, "Export the checkpoint with the best development score (SimCSE).")
    metric_for_best_model: str | None = described("dev_score", "The score that chooses it.")
    early_stopping_patience: int | None = described(None, "Stop after so many development scores in a row that are no "
                                                    "better than the best (default: train to the end).")  # fmt: skip
    restore_callback_states_from_checkpoint: bool = described(True, "A resumed run goes on counting them.")
    logging_steps: float = described(25, "Optimizer steps between log lines; a line is an average over them.")
    logging_nan_inf_filter: bool = described(False, "Hide NaN losses in the log; off: nothing is hidden.")
    remove_unused_columns: bool = described(False, "Leave the batches to the collator.")
    dataloader_drop_last: bool = described(False, "Leave out the sentences at an epoch's end that fill no batch of all "
                                           "devices. Off: on one device they are a smaller batch; on several the "
                                           "epoch's first sentences fill the batch up.")  # fmt: skip
    ddp_find_unused_parameters: bool | None = described(False, "Search each step for weights without a gradient; every "
                                                        "trainable weight has one, if only zero.")  # fmt: skip
    report_to: str | None = described(
        "none", "Where logs go besides the run's folder: tensorboard, wandb, …, by comma."
    )

    def __post_init__(self) -> None:
        if self.fp16 and not torch.cuda.is_available():
            raise InputError("fp16 needs a GPU, found none; leave out --fp16, or use --bf16 on a CPU that has it")
        if self.report_to and "," in self.report_to:
            self.report_to = self.report_to.split(",")  # type: ignore[assignment]
        if self.stage == "pretrain" and self.metric_for_best_model == "dev_score":
            self.metric_for_best_model = "mlm_loss"
        if "LOCAL_RANK" in os.environ and not torch.accelerator.is_available() and not fsdp_is_asked_for():
            self.use_cpu = True  # several processes; Accelerate's launcher keeps its own use_cpu to itself
        super().__post_init__()
        self.dataloader_pin_memory &= torch.cuda.is_available()
        assert isinstance(self.accelerator_config, AcceleratorConfig)
        self.accelerator_config.dispatch_batches = False  # a packed batch cannot be cut by rows
        self.accelerator_config.even_batches = True  # the contrast needs as many rows on every process

    def without_dev_set(self) -> None:
        """Nothing to score: keep the last step instead of the best.

        Raises:
            InputError: the scores were to stop training early.
        """
        if self.early_stopping_patience is not None:
            raise InputError("early_stopping_patience expects development scores, found no dev_set; choose one")
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


def stage_recipe(arguments: list[str]) -> tuple[Path, dict[str, Any]]:
    """RECIPE [--stage …] → the recipe's file and fields; for `--stage pretrain` those of the recipe that it names in
    the field `pretrain`, if it names one.

    Raises:
        InputError: an unknown recipe, or one that cannot be read.
    """
    path = find_recipe(arguments[0])
    fields = read_recipe(path)
    first = fields.pop("pretrain", None)
    stage = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    stage.add_argument("--stage", default=fields.get("stage"))
    if first is None or stage.parse_known_args(arguments)[0].stage != "pretrain":
        return path, fields
    path = find_recipe(str(first))
    return path, read_recipe(path)


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
        path, fields = stage_recipe(arguments)
        parser.set_defaults(output_dir=f"runs/{path.stem}")
        for name, value in fields.items():
            if name not in known:
                parser.suggest(name, path.name)
            plain = isinstance(value, (bool, int, float, str))
            parser.set_defaults(**{name: str(value) if plain else value})
    with as_input_error():
        model, data, run, _, unknown = parser.parse_args_into_dataclasses(arguments, return_remaining_strings=True)
    if unknown:
        parser.suggest(unknown[0].lstrip("-").split("=")[0], "the command line")
    given = {argument.split("=")[0].replace("-", "_") for argument in arguments}
    if "__model_name_or_path" in given and "__model_sha256" not in given:
        model.model_sha256 = None  # the recipe's is that of its own model
    return validate(path, model, data, run)


def validate(
    path: Path, model: ModelArguments, data: DataArguments, run: RunArguments
) -> tuple[Path, ModelArguments, DataArguments, RunArguments]:
    """Check ranges, and fill in what depends on other fields."""
    fields = model.config_fields()
    if fields["fusion_init"] not in ("last", "next", "random"):
        fields["fusion_init"] = "checkpoint"
    del fields["rtd_generator"], fields["from_scratch"], fields["backbone_dropout"]
    fields["lexical_layers"] = fields["fusion_layers"] = None  # checked against the backbone's depth when it is known
    with as_input_error():
        CMLMCSEConfig(**fields)
        if model.backbone_dropout is not None:
            in_range("backbone_dropout", model.backbone_dropout, float, 0.0, 1.0)
        one_of("augmented_views", data.augmented_views, ("second", "both"))
        one_of("stage", run.stage, ("train", "pretrain"))
    check_augmentation(data.augmentation, data.synonyms)
    if data.negative_column is not None and data.positive_column is None:
        raise InputError("negative_column expects a positive_column, found none; set --positive_column")
    if model.hard_negative_weight != 0 and data.negative_column is None:
        raise InputError("hard_negative_weight expects hard negatives, found none; set --negative_column")
    if not 0.0 < data.mlm_probability < 1.0:
        raise InputError(f"mlm_probability must be between 0 and 1, found {data.mlm_probability}; mend the recipe")
    if data.max_seq_length < 3:
        raise InputError(
            f"max_seq_length must be at least 3 tokens, [CLS] word [SEP], found {data.max_seq_length}; mend the recipe"
        )
    if run.stage == "pretrain":
        check_pretraining(data, run)
    elif run.per_device_train_batch_size < 2:
        raise InputError(
            "per_device_train_batch_size must be at least 2, for a sentence needs others as in-batch negatives, found "
            f"{run.per_device_train_batch_size}; raise it"
        )
    if run.mini_batch_size is not None and run.mini_batch_size < 1:
        raise InputError(f"mini_batch_size must be at least 1 sentence, found {run.mini_batch_size}; raise it")
    if run.auxiliary_learning_rate is not None:
        with as_input_error():
            in_range("auxiliary_learning_rate", run.auxiliary_learning_rate, float, 0.0, 1.0)
    if run.early_stopping_patience is not None and run.early_stopping_patience < 1:
        raise InputError(
            f"early_stopping_patience must be at least 1 score, found {run.early_stopping_patience}; raise it, or "
            "leave it out to train to the end"
        )
    if run.n_gpu > 1:
        raise InputError(f"one process drives one GPU, found {run.n_gpu}; start with: accelerate launch train.py …")
    check_launch(run)
    return path, model, data, run


def check_pretraining(data: DataArguments, run: RunArguments) -> None:
    """Check what `--stage pretrain` alone reads.

    Raises:
        InputError: a field out of range, or one that this stage has no use for.
    """
    with as_input_error():
        one_of("sequences", data.sequences, ("documents", "sentences"))
        in_range("auxiliary_weight", data.auxiliary_weight, float, 0.0, 1e6)
        in_range("validation_split_percentage", data.validation_split_percentage, float, 0.0, 99.0)
    if data.streaming:
        raise InputError("stage pretrain tokenises the text ahead of training, found streaming; leave it out")
    if run.auxiliary_learning_rate is not None:
        raise InputError(
            f"auxiliary_learning_rate is for stage train, found {run.auxiliary_learning_rate} with stage pretrain, "
            "where backbone and auxiliary network have one rate; leave it out"
        )
    if run.mini_batch_size is not None:
        raise InputError(
            f"mini_batch_size is for the contrast of stage train, found {run.mini_batch_size} with stage pretrain; use "
            "gradient_accumulation_steps"
        )


def fsdp_is_asked_for() -> bool:
    """Whether Accelerate's launcher asks for FSDP."""
    return os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"


def check_launch(run: RunArguments) -> None:
    """Refuse FSDP without GPUs.

    Raises:
        InputError: processes that would train each for itself, or FSDP that Accelerate would quietly leave out.
    """
    launched = int(os.environ["WORLD_SIZE"]) if "LOCAL_RANK" in os.environ else 1
    if run.world_size != launched:
        raise InputError(
            f"accelerate launch expects GPUs for its {launched} processes, found none; choose "
            "configuration/accelerate/multi-cpu.yaml"
        )
    on_cpu = run.distributed_state is not None and run.distributed_state.distributed_type == DistributedType.MULTI_CPU
    if on_cpu and fsdp_is_asked_for():
        raise InputError(
            "FSDP expects GPUs, found use_cpu, for which Accelerate has DDP only; choose "
            "configuration/accelerate/multi-cpu.yaml"
        )
