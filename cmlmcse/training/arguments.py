"""The fields of a recipe, and the parser that reads them from a recipe and the command line."""

import argparse
import contextlib
import dataclasses
import difflib
import inspect
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch
from accelerate.utils import DistributedType
from transformers import AutoConfig, HfArgumentParser, TrainingArguments
from transformers.trainer_pt_utils import AcceleratorConfig

from cmlmcse.common.docstrings import argument_texts
from cmlmcse.common.errors import InputError, as_input_error
from cmlmcse.common.locations import resolve
from cmlmcse.common.recipes import find_recipe, read_recipe, recipe_folder
from cmlmcse.data.augmentation import AUGMENTATIONS, check_augmentation
from cmlmcse.data.views import view_names
from cmlmcse.models.encoders import recorded_pooling
from modeling_cmlmcse.configuration_cmlmcse import CMLMCSEConfig, in_range, one_of, proportion
from modeling_cmlmcse.distributed import rank

from .pretraining_model import DECODERS

LAYER_COUNTS = ("lexical_layers", "fusion_layers")
BASE_DEPTH = 12  # layers of BERT-base and RoBERTa-base
# Appended to the command line, because TrainingArguments checks at construction that these fields fit save_steps.
GPU_WORKERS = 2  # without any, a GPU waits while each batch is collated; how many are best has not been measured
WITHOUT_DEV_SCORES = ("--eval_strategy", "no", "--load_best_model_at_end", "false")


def described(default: Any, text: str) -> Any:
    """A dataclass field with its help text."""
    return field(default=default, metadata={"help": text})


CONFIG_DEFAULTS = inspect.signature(CMLMCSEConfig).parameters
CONFIG_HELP = argument_texts(CMLMCSEConfig.__doc__ or "")


def of_config(name: str) -> Any:
    """A dataclass field with the default and the help text that :class:`CMLMCSEConfig` has for it."""
    text = CONFIG_HELP[name]
    return described(CONFIG_DEFAULTS[name].default, text[0].upper() + text[1:] if text[0] != "λ" else text)


@dataclass
class ModelArguments:
    """The model. Fields made by :func:`of_config` have their default and help in :class:`CMLMCSEConfig`."""

    model_name_or_path: str = described("bert-base-uncased", "Backbone: a folder or a Hub name.")
    model_sha256: str | None = described(None, "Expected sha256 of the backbone's model.safetensors (default: not "
                                         "checked).")  # fmt: skip
    from_scratch: bool = described(False, "Start from random weights, with the backbone's configuration and tokenizer "
                                   "(CLEAR). Off: start from the backbone's weights.")  # fmt: skip
    backbone_dropout: float | None = described(None, "Probability of every dropout in the backbone (default: the "
                                               "backbone's own). ModernBERT's is 0, which makes the two views equal: "
                                               "set it there.")  # fmt: skip
    pooling: str = of_config("pooling")
    projection: str = of_config("projection")
    normalize: bool = of_config("normalize")
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
    rtd_generator: str | None = described(None, "Model that fills masked words: folder or Hub name of a "
                                          "masked-language model with the same tokenizer (default: the "
                                          "backbone).")  # fmt: skip
    rtd_positions: str = of_config("rtd_positions")
    rtd_fill: str = of_config("rtd_fill")
    rtd_condition: str = of_config("rtd_condition")
    mlm_weight: float = of_config("mlm_weight")
    mlm_tied: bool = of_config("mlm_tied")
    retromae_weight: float = of_config("retromae_weight")
    decoder_hidden_share: float = of_config("decoder_hidden_share")
    lora_r: int | None = described(None, "Rank of LoRA matrices beside the backbone's linear layers; its own weights "
                                   "stay as they are. The export has merged weights. It needs pip install peft "
                                   "(default: all weights train).")  # fmt: skip

    def config_fields(self) -> dict[str, Any]:
        """The fields of :class:`CMLMCSEConfig`."""
        fields = dataclasses.asdict(self)
        del fields["model_name_or_path"], fields["model_sha256"], fields["lora_r"]
        return fields


@dataclass
class PretrainingArguments:
    """Fields that only `--stage pretrain` reads (InfoCSE §3.1, or plain masked-language modelling)."""

    model_type: str | None = described(None, "Pre-train a new backbone of this model type, bert or roberta, instead of "
                                       "model_name_or_path.")  # fmt: skip
    config_overrides: str | None = described(None, "Sizes of the new backbone: num_hidden_layers=4,hidden_size=256,… "
                                             "(default: BERT-base or RoBERTa-base).")  # fmt: skip
    tokenizer_name: str | None = described(None, "Tokenizer of the new backbone: a folder or a Hub name (default: a "
                                           "tokenizer trained on the text, saved in "
                                           "output_dir/tokenizer).")  # fmt: skip
    vocab_size: int = described(30522, "Vocabulary size of a tokenizer trained on the text (BERT-base).")
    do_lower_case: bool = described(True, "A WordPiece tokenizer trained on the text is uncased. RoBERTa's is always "
                                    "cased.")  # fmt: skip
    auxiliary_weight: float = described(1.0, "Weight of the auxiliary network's MLM loss (InfoCSE §4.2). 0 is plain "
                                        "masked-language modelling.")  # fmt: skip
    auxiliary_decoder: str = described("fusion", "What the auxiliary network is: fusion (fusion_layers blocks on "
                                       "lexical_layers of the backbone, which predict the masked words; InfoCSE, "
                                       "Condenser), or retromae (one block that predicts all words from the sentence "
                                       "vector and a few other words; it is not exported).")  # fmt: skip
    sequences: str = described("sentences", "A training sequence: sentences (one sentence), or documents (the "
                               "sentences of one document joined up to max_seq_length). Blank lines in a .txt file, "
                               "and rows of a table, separate documents.")  # fmt: skip
    whole_word_mask: bool = described(False, "Mask all tokens of a word or none. mlm_probability then counts words.")
    validation_split_percentage: float = described(1.0, "Percentage of the text, taken from its end, that measures the "
                                                   "development loss; at most 2,000 sequences. 0: no development "
                                                   "loss.")  # fmt: skip
    preprocessing_num_workers: int | None = described(None, "Processes that tokenise documents (default: one process; "
                                                      "its tokenizer uses all cores).")  # fmt: skip


@dataclass
class DataArguments(PretrainingArguments):
    """The text, the masking and the development set."""

    train_file: str = described("princeton-nlp/datasets-for-simcse", "Text: a file (.txt, .csv, .tsv, .jsonl or "
                                ".parquet, compressed or not), a Wikipedia dump (.xml.bz2), or a Hub "
                                "dataset.")  # fmt: skip
    train_data_files: str | None = described(None, "File to read from a Hub dataset that has several files "
                                             "(default, or empty: all).")  # fmt: skip
    text_column: str | None = described(None, "Column of the sentences (default: text, or the only column).")
    positive_column: str | None = described(None, "Column of labelled positives (supervised SimCSE). Default: the "
                                            "sentence itself is the positive.")  # fmt: skip
    negative_column: str | None = described(None, "Column of hard negatives (supervised SimCSE). Default: no hard "
                                            "negatives.")  # fmt: skip
    views: str = described("dropout", "The two texts of a document that the contrast pulls together: dropout (the text "
                           "twice, SimCSE), crops (two crops of a window of 256 tokens, Contriever), neighbours (the "
                           "text before and after a cut, coCondenser), title_body. a+b draws one for each document "
                           "and epoch. All but dropout read documents: rows of a table, texts between blank "
                           "lines.")  # fmt: skip
    title_column: str | None = described(None, "Column of the titles of documents (default: title, if there is one).")
    streaming: bool = described(False, "Read the text as a stream. It is shuffled in a buffer of 10,000 sentences.")
    max_train_samples: int | None = described(None, "Train on the first sentences only, this many (default: all).")
    max_seq_length: int = described(32, "Longest training sentence in tokens; longer ones are cut (SimCSE).")
    mlm_probability: float = described(0.15, "Share of tokens that are masked (CMLM-CSE §4.3.2; Table 4: 0.40 is "
                                       "best).")  # fmt: skip
    augmentation: str = described("none", f"Augmentation of the views: {', '.join(AUGMENTATIONS)} (CMLM-CSE Table 3, "
                              "CLEAR §3.3). a+b applies a, then b.")  # fmt: skip
    augmented_views: str = described("second", "Views to augment: second (CMLM-CSE; the first view stays the original "
                                     "sentence) or both, independently (CLEAR).")  # fmt: skip
    synonyms: str | None = described(None, "File for the augmentation substitute: a JSON object, word → list of words. "
                                     "cmlmcse/data/synonyms.py says where to get one.")  # fmt: skip
    data_dir: str | None = described(None, "Folder of evaluation data, sts/<set>/<subset>.tsv (default: the Hub).")
    dev_set: str = described("stsb", "Data that choose the best checkpoint: stsb (STS-B dev), lee50 (50 rated "
                             "documents in the gensim package), a .tsv file of your own pairs (score, sentence, "
                             "sentence), auto (label-free: held-out documents of the training text; auto_half: half "
                             "of them), or none (the last step is exported).")  # fmt: skip
    final_evaluation: str | None = described(None, "Tasks that score the exported model, separated by commas, or none "
                                             "(default: sts; none where dev_set is none or auto and no data_dir is "
                                             "given, so that nothing is downloaded).")  # fmt: skip


@dataclass
class RunArguments(TrainingArguments):
    """The arguments of transformers' Trainer, with the defaults of SimCSE's unsupervised script."""

    resume_from_checkpoint: str | None = described(None, "Checkpoint to resume from: a folder, or auto for the newest "
                                                   "checkpoint in output_dir. Without one auto starts from the "
                                                   "beginning.")  # fmt: skip
    stage: str = described("train", "train: train the sentence encoder. pretrain: first pre-train a backbone, with or "
                           "without the auxiliary network (InfoCSE's first stage).")  # fmt: skip
    output_dir: str | None = described(None, "Folder of the run (default: runs/RECIPE).")
    learning_rate: float = described(3e-5, "Peak learning rate (SimCSE, BERT-base).")
    auxiliary_learning_rate: float | None = described(None, "Peak learning rate of the auxiliary networks (default: "
                                                      "learning_rate, as in the papers).")  # fmt: skip
    per_device_train_batch_size: int = described(64, "Sentences in a batch on one device (SimCSE, BERT-base).")
    mini_batch_size: int | None = described(None, "Sentences in memory at a time (GradCache): same gradient as the "
                                            "whole batch; the encoder runs twice.")  # fmt: skip
    num_train_epochs: float = described(1.0, "Passes over the text (SimCSE).")
    lr_scheduler_type: str = described("linear", "Learning-rate schedule (SimCSE: linear decay to 0, no warm-up).")
    eval_strategy: str = described("steps", "When the development set is scored: steps, epoch or no.")
    eval_steps: float = described(125, "Optimizer steps between scores (SimCSE, unsupervised script).")
    save_strategy: str = described("steps", "When a checkpoint is written: steps, epoch, best or no.")
    save_steps: float = described(125, "Optimizer steps between checkpoints; a multiple of eval_steps, to keep the "
                                  "best.")  # fmt: skip
    save_total_limit: int | None = described(2, "Checkpoints to keep: the best and the newest.")
    load_best_model_at_end: bool = described(True, "Export the checkpoint with the best development score (SimCSE).")
    metric_for_best_model: str | None = described("dev_score", "Score that chooses the best checkpoint.")
    early_stopping_patience: int | None = described(None, "Stop after this many development scores in a row without a "
                                                    "new best (default: train to the end).")  # fmt: skip
    restore_callback_states_from_checkpoint: bool = described(True, "A resumed run continues the checkpoint's counts "
                                                              "of early stopping and training time.")  # fmt: skip
    logging_steps: float = described(25, "Optimizer steps between log lines. A line holds averages over these steps.")
    logging_nan_inf_filter: bool = described(False, "Hide NaN losses in the log. Off: show them.")
    remove_unused_columns: bool = described(False, "Drop columns before the collator. Off: the collator needs them.")
    dataloader_drop_last: bool = described(False, "Drop the last incomplete batch of an epoch. Off: on one device it "
                                           "is a smaller batch; on several devices the epoch's first sentences fill it "
                                           "up.")  # fmt: skip
    ddp_find_unused_parameters: bool | None = described(False, "Search each step for weights without a gradient. Off: "
                                                        "every trainable weight has one here, at least "
                                                        "zero.")  # fmt: skip
    report_to: str | None = described("none", "Where logs go besides the run's folder: tensorboard, wandb, …, "
                                      "separated by commas.")  # fmt: skip

    def __post_init__(self) -> None:
        if self.fp16 and not torch.cuda.is_available():
            raise InputError("fp16 needs a GPU, found none; leave out --fp16, or use --bf16 on a CPU that has it")
        if self.report_to and "," in self.report_to:
            self.report_to = self.report_to.split(",")  # type: ignore[assignment]
        if self.stage == "pretrain" and self.metric_for_best_model == "dev_score":
            self.metric_for_best_model = "mlm_loss"
        if "LOCAL_RANK" in os.environ and not torch.accelerator.is_available() and not fsdp_requested():
            self.use_cpu = True  # Accelerate's launcher does not pass its use_cpu to its processes
        super().__post_init__()
        self.dataloader_pin_memory &= torch.cuda.is_available()
        assert isinstance(self.accelerator_config, AcceleratorConfig)
        self.accelerator_config.dispatch_batches = False  # a packed batch cannot be split by rows
        self.accelerator_config.even_batches = True  # the contrastive loss needs equal rows on all processes


class RecipeParser(HfArgumentParser):
    """Parser that raises one-line errors (:class:`InputError`) and suggests the nearest name for an unknown field."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see cmlmcse train --help")

    def suggest(self, name: str, where: str) -> NoReturn:
        """Refuse an unknown field, with the nearest known name.

        Raises:
            InputError: always.
        """
        known = sorted({action.dest for action in self._actions})
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else "cmlmcse train --help lists the fields"
        raise InputError(f"{where} expects fields of a recipe, found the unknown field {name!r}; {hint}")


def stage_recipe(arguments: list[str]) -> tuple[Path, dict[str, Any]]:
    """RECIPE [--stage …] → the file and the fields of the recipe for this stage.

    A recipe may name another recipe in its field `pretrain`. That one is used for `--stage pretrain`.

    Raises:
        InputError: an unknown recipe, or one that cannot be read.
    """
    path = find_recipe(arguments[0])
    fields = read_recipe(path)
    pretraining_recipe = fields.pop("pretrain", None)
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--stage", default=fields.get("stage"))
    if pretraining_recipe is None or parser.parse_known_args(arguments)[0].stage != "pretrain":
        return path, fields
    path = find_recipe(str(pretraining_recipe))
    return path, read_recipe(path)


def parse_recipe(arguments: list[str]) -> tuple[Path, ModelArguments, DataArguments, RunArguments]:
    """RECIPE [--field value …] → the recipe's file and the fields. The command line overrides the recipe.

    Raises:
        InputError: an unknown recipe or field, a value of the wrong type or out of range.
    """
    parser = RecipeParser([ModelArguments, DataArguments, RunArguments], prog="cmlmcse train", allow_abbrev=False)  # type: ignore[list-item]
    parser.add_argument("recipe")
    known = {action.dest for action in parser._actions}
    path, fields = stage_recipe(arguments)
    parser.set_defaults(output_dir=f"runs/{path.stem}")
    for name, value in fields.items():
        if name not in known:
            parser.suggest(name, path.name)
        plain = isinstance(value, (bool, int, float, str))
        parser.set_defaults(**{name: str(value) if plain else value})
    with as_input_error():
        unscored = has_no_dev_scores(parser.parse_known_args(arguments)[0])
        words = [*arguments, *WITHOUT_DEV_SCORES] if unscored else arguments
        model, data, run, _, unknown = parser.parse_args_into_dataclasses(words, return_remaining_strings=True)
    if unknown:
        parser.suggest(unknown[0].lstrip("-").split("=")[0], "the command line")
    if unscored:
        run.metric_for_best_model = None
    given = {argument.split("=")[0].removeprefix("--").replace("-", "_") for argument in arguments}
    if "model_name_or_path" in given and "model_sha256" not in given:
        model.model_sha256 = None  # the recipe's sha256 is that of the recipe's own model
    another = model.model_name_or_path != fields.get("model_name_or_path", ModelArguments.model_name_or_path)
    if another and data.model_type is None:
        follow_depth(model, path.stem, {name for name in LAYER_COUNTS if name in fields} - given)
    if run.device.type == "cuda":
        feed_gpu(run, "dataloader_num_workers" in given | set(fields))
    if another and "pooling" not in given:
        keep_pooling(model, "normalize" in given)
    return validate(path, model, data, run)


def keep_pooling(model: ModelArguments, normalize_given: bool) -> None:
    """Keep the pooling that another backbone records, in place, and say so: its vectors were trained with it. Whether
    it normalises is kept too, unless it was given.

    What cannot be read is left to the loading of the model, which reports the reason.
    """
    with contextlib.suppress(InputError):
        recorded, normalizes = recorded_pooling(model.model_name_or_path)
        if recorded is not None and not normalize_given:
            model.normalize = normalizes
        if recorded not in (None, model.pooling):
            if rank() == 0:
                print(
                    f"pooling is {recorded}, as {model.model_name_or_path} records, and not {model.pooling} as the "
                    f"recipe says; --pooling {model.pooling} changes that",
                    file=sys.stderr,
                )
            model.pooling = str(recorded)


def has_no_dev_scores(fields: argparse.Namespace) -> bool:
    """Whether a run with these fields has no development score, so that it keeps its last step instead of its best.

    Raises:
        InputError: training must stop early by these scores.
    """
    unscored = fields.validation_split_percentage == 0 if fields.stage == "pretrain" else fields.dev_set == "none"
    if unscored and fields.early_stopping_patience is not None:
        raise InputError("early_stopping_patience expects development scores, found no dev_set; choose one")
    return unscored


def follow_depth(model: ModelArguments, recipe: str, counts: set[str]) -> None:
    """Adapt layer counts that a recipe gives for its own backbone to another backbone, in place.

    A recipe named …-base counts layers out of 12. Another backbone gets the same share of its own depth. The counts
    become None, so that the model's defaults hold (8 and 3 of 12, CMLM-CSE Table 6), in three cases. The recipe has
    another name, so its depth is unknown. A pre-trained auxiliary network brings its own counts. The backbone's depth
    cannot be read; loading the model then reports the reason.

    Args:
        model: the fields, with the name of the other backbone.
        recipe: the recipe's name.
        counts: the fields to adapt, among `LAYER_COUNTS`.
    """
    depth = None
    if counts and recipe.endswith("-base") and model.fusion_init != "pretrained":
        with contextlib.suppress(OSError, ValueError):
            depth = AutoConfig.from_pretrained(resolve(model.model_name_or_path)).num_hidden_layers
    for name in counts:
        share = getattr(model, name) / BASE_DEPTH
        setattr(model, name, None if depth is None else proportion(depth, share))


def validate(
    path: Path, model: ModelArguments, data: DataArguments, run: RunArguments
) -> tuple[Path, ModelArguments, DataArguments, RunArguments]:
    """Check the values of all fields.

    Raises:
        InputError: a value out of range, or two fields that do not fit each other.
    """
    fields = model.config_fields()
    if fields["fusion_init"] not in ("last", "next", "random"):
        fields["fusion_init"] = "checkpoint"
    del fields["rtd_generator"], fields["from_scratch"], fields["backbone_dropout"]
    fields["lexical_layers"] = fields["fusion_layers"] = None  # checked when the backbone's depth is known
    with as_input_error():
        CMLMCSEConfig(**fields)
        if model.backbone_dropout is not None:
            in_range("backbone_dropout", model.backbone_dropout, float, 0.0, 1.0)
        one_of("augmented_views", data.augmented_views, ("second", "both"))
        one_of("stage", run.stage, ("train", "pretrain"))
    check_augmentation(data.augmentation, data.synonyms)
    check_documents(data, run)
    if data.negative_column is not None and data.positive_column is None:
        raise InputError("negative_column expects a positive_column, found none; set --positive_column")
    if model.hard_negative_weight != 0 and data.negative_column is None:
        raise InputError("hard_negative_weight expects hard negatives, found none; set --negative_column")
    if not 0.0 < data.mlm_probability < 1.0:
        raise InputError(f"mlm_probability must be between 0 and 1, found {data.mlm_probability}; fix the recipe")
    if data.max_seq_length < 3:
        raise InputError(
            f"max_seq_length must be at least 3 tokens, [CLS] word [SEP], found {data.max_seq_length}; fix the recipe"
        )
    if model.lora_r is not None and model.lora_r < 1:
        raise InputError(f"lora_r must be at least 1, found {model.lora_r}; a usual rank is 8")
    if run.stage == "pretrain":
        if model.lora_r is not None:
            raise InputError("lora_r is for stage train, found it with stage pretrain; leave it out")
        check_pretraining(data, run)
    elif run.per_device_train_batch_size < 2:
        raise InputError(
            "per_device_train_batch_size must be at least 2, because in-batch negatives are other sentences, found "
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
    use_one_gpu(run)
    check_bf16(run)
    check_launch(run)
    return path, model, data, run


def reads_documents(data: DataArguments) -> bool:
    """Whether a row of the text is a document, and not a sentence."""
    return data.views != "dropout" or data.dev_set.startswith("auto")


def check_documents(data: DataArguments, run: RunArguments) -> None:
    """Check the fields of document views and of the label-free development set.

    Raises:
        InputError: an unknown view, or a field that documents do not have.
    """
    view_names(data.views)
    if not reads_documents(data):
        if data.title_column is not None:
            raise InputError(
                f"title_column expects views of documents or dev_set auto, found views {data.views} and dev_set "
                f"{data.dev_set}; set --views title_body, or leave it out"
            )
        return
    named = f"views {data.views}" if data.views != "dropout" else "dev_set auto"
    others = {"streaming": data.streaming, "positive_column": data.positive_column, "stage": run.stage == "pretrain"}
    for name, used in others.items():
        if used:
            raise InputError(
                f"{named} expects unlabelled documents in stage train, found {name}; leave one of them out"
            )


def check_pretraining(data: DataArguments, run: RunArguments) -> None:
    """Check the fields of `--stage pretrain`.

    Raises:
        InputError: a field out of range, or a field that this stage does not use.
    """
    with as_input_error():
        one_of("sequences", data.sequences, ("documents", "sentences"))
        in_range("auxiliary_weight", data.auxiliary_weight, float, 0.0, 1e6)
        one_of("auxiliary_decoder", data.auxiliary_decoder, DECODERS)
        in_range("validation_split_percentage", data.validation_split_percentage, float, 0.0, 99.0)
    if data.streaming:
        raise InputError("stage pretrain tokenises the text ahead of training, found streaming; leave it out")
    if run.auxiliary_learning_rate is not None:
        raise InputError(
            f"auxiliary_learning_rate is for stage train, found {run.auxiliary_learning_rate} with stage pretrain, "
            "where backbone and auxiliary network share one rate; leave it out"
        )
    if run.mini_batch_size is not None:
        raise InputError(
            f"mini_batch_size is for the contrastive loss of stage train, found {run.mini_batch_size} with stage "
            "pretrain; use gradient_accumulation_steps"
        )


def fsdp_requested() -> bool:
    """Whether Accelerate's launcher requests FSDP."""
    return os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"


def use_one_gpu(run: RunArguments) -> None:
    """Make one process train on one GPU. Trainer would split each batch over all GPUs of the machine (DataParallel),
    and the contrast would see the parts as batches."""
    if run.n_gpu > 1:
        print(f"found {run.n_gpu} GPUs: one process trains on one of them; accelerate launch train.py … uses them all")
        run._n_gpu = 1


def feed_gpu(run: RunArguments, workers_given: bool) -> None:
    """Make batches ready while the GPU computes: copies that nobody waits for, and processes that collate."""
    assert isinstance(run.accelerator_config, AcceleratorConfig)
    run.accelerator_config.non_blocking = True  # from pinned memory
    if not workers_given:
        run.dataloader_num_workers = GPU_WORKERS


def check_bf16(run: RunArguments) -> None:
    """Check that the GPU computes in bf16 if that is asked for. PyTorch emulates it on older ones, and crawls.

    Raises:
        InputError: it does not.
    """
    asked = run.bf16 or os.environ.get("ACCELERATE_MIXED_PRECISION") == "bf16"
    if asked and run.device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise InputError(
            f"bf16 expects a GPU of the Ampere generation or newer, found {torch.cuda.get_device_name()}; use --fp16 "
            "true, or launch with one-gpu-fp16.yaml or multi-gpu-fp16.yaml"
        )


def check_launch(run: RunArguments) -> None:
    """Refuse a launch that would not train as asked.

    Raises:
        InputError: processes that would each train alone, or FSDP on CPUs, which Accelerate would silently ignore.
    """
    launched = int(os.environ["WORLD_SIZE"]) if "LOCAL_RANK" in os.environ else 1
    if run.world_size != launched:
        raise InputError(
            f"accelerate launch expects GPUs for its {launched} processes, found none; choose "
            f"{recipe_folder() / 'accelerate' / 'multi-cpu.yaml'}"
        )
    on_cpu = run.distributed_state is not None and run.distributed_state.distributed_type == DistributedType.MULTI_CPU
    if on_cpu and fsdp_requested():
        raise InputError(
            "FSDP expects GPUs, found use_cpu, for which Accelerate has DDP only; choose "
            f"{recipe_folder() / 'accelerate' / 'multi-cpu.yaml'}"
        )
