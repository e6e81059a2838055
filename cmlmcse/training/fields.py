"""The fields of a recipe, in three groups: the model, the data, and the run. Each has its default and its help."""

import dataclasses
import inspect
import math
import os
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from transformers import TrainingArguments
from transformers.trainer_pt_utils import AcceleratorConfig

from cmlmcse.common.docstrings import argument_texts
from cmlmcse.common.errors import InputError
from cmlmcse.common.names import split_names
from cmlmcse.data.augmentation import AUGMENTATIONS, DELETION_RATE
from cmlmcse.data.searches import SEARCH
from modeling_cmlmcse.configuration_cmlmcse import CMLMCSEConfig

# Development sets without labels. auto_half: half of auto's documents, so that the others confirm. auto_together_half:
# the same half, with the criteria that a finished encoder is judged by. auto_unscored: auto's documents are held out,
# and no score is taken.
LABEL_FREE = ("auto", "auto_half", "auto_together_half", "auto_unscored")
UNSCORED = ("none", "auto_unscored")  # development sets without scores: the last step is exported


def described(default: Any, text: str) -> Any:
    """A dataclass field with its help text."""
    return field(default=default, metadata={"help": text})


CONFIG_DEFAULTS = inspect.signature(CMLMCSEConfig).parameters
CONFIG_HELP = argument_texts(CMLMCSEConfig.__doc__ or "")


def of_config(name: str) -> Any:
    """A dataclass field with the default and the help text that :class:`CMLMCSEConfig` has for it."""
    text = CONFIG_HELP[name]
    return described(CONFIG_DEFAULTS[name].default, text[0].upper() + text[1:] if text[0].isascii() else text)


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
    prompt_template: str = of_config("prompt_template")
    second_prompt_template: str = of_config("second_prompt_template")
    negative_prompt_template: str | None = of_config("negative_prompt_template")
    prompt_denoising: str = of_config("prompt_denoising")
    projection: str | None = of_config("projection")
    normalize: bool = of_config("normalize")
    contrastive_loss: str = of_config("contrastive_loss")
    contrastive_weight: float = of_config("contrastive_weight")
    matryoshka_dims: str | None = of_config("matryoshka_dims")
    temp: float = of_config("temp")
    hard_negative_weight: float = of_config("hard_negative_weight")
    positive_ratio: float = of_config("positive_ratio")
    dimension_weight: float = of_config("dimension_weight")
    dimension_temp: float = of_config("dimension_temp")
    consistency_weight: float = of_config("consistency_weight")
    distillation_weight: float = of_config("distillation_weight")
    distillation_loss: str = of_config("distillation_loss")
    distillation_temp: float = of_config("distillation_temp")
    teacher: str | None = described(None, "Model whose similarities are distilled: a folder or a Hub name, or with "
                                    "views search bm25; two separated by a comma (a name that has one stands in "
                                    "double quotes). It encodes every training text once, of a pair both and of a "
                                    "document the first 256 tokens, with views search as many as training reads. The "
                                    "vectors stay in the cache of the library datasets (default: none).")  # fmt: skip
    teacher_pooling: str = described("cls_before_pooler", "Pooling of a teacher that records none. The default is that "
                                     "of SimCSE's and DiffCSE's released models.")  # fmt: skip
    teacher_temp: float = of_config("teacher_temp")
    teacher_share: float = of_config("teacher_share")
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
    condenser_weight: float = of_config("condenser_weight")
    retromae_weight: float = of_config("retromae_weight")
    decoder_hidden_share: float = of_config("decoder_hidden_share")
    denosent_weight: float = of_config("denosent_weight")
    denosent_layers: int = of_config("denosent_layers")
    denosent_noise: float = of_config("denosent_noise")
    query_prompt: str | None = described(None, "Text put before a query when it is encoded, as \"query: \". Training "
                                         "does not see it (default: what the backbone records).")  # fmt: skip
    document_prompt: str | None = described(None, "Text put before a document when it is encoded, as \"passage: \" "
                                            "(default: what the backbone records).")  # fmt: skip
    lora_r: int | None = described(None, "Rank of LoRA matrices beside the backbone's linear layers; its own weights "
                                   "stay as they are. The export has merged weights. It needs pip install peft "
                                   "(default: all weights train).")  # fmt: skip

    def config_fields(self) -> dict[str, Any]:
        """The fields of :class:`CMLMCSEConfig`."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name in CONFIG_DEFAULTS}

    @property
    def teachers(self) -> list[str]:
        """Folders or Hub names, or `bm25`, in order."""
        return split_names(self.teacher)


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
    positive_column: str | None = described(None, "Column of labelled positives (supervised SimCSE), or with "
                                            "score_column of the pairs' second sentences. Default: the sentence "
                                            "itself is the positive.")  # fmt: skip
    negative_column: str | None = described(None, "Column of hard negatives (supervised SimCSE). Default: no hard "
                                            "negatives.")  # fmt: skip
    score_column: str | None = described(None, "Column of a pair's score, for the contrastive loss cosent: any finite "
                                         "number, larger for sentences that are more alike. Only the order of the "
                                         "scores counts. The pair is text_column and positive_column (default: no "
                                         "scores).")  # fmt: skip
    mined_negatives: int = described(0, "Hard negatives of each sentence or document without labels: this many of its "
                                     "nearest others in the text, found before training. Each costs one more encoding; "
                                     "of a document it is a piece (default: none).")  # fmt: skip
    mining_model: str | None = described(None, "Model that says which texts are near: a folder or a Hub name; perhaps "
                                         "an earlier run's export (default: the start).")  # fmt: skip
    mining_margin: float = described(0.1, "How far a hard negative must be, because what is nearer may mean the same: "
                                     "its cosine is at most 1 minus this, of vectors minus the text's mean. Not "
                                     "tuned.")  # fmt: skip
    mining_candidates: int = described(10, "Nearest texts beyond the margin from which a row draws its hard negatives "
                                       "anew in every epoch.")  # fmt: skip
    views: str = described("dropout", "The two texts of a document that the contrast pulls together: dropout (the text "
                           "twice, SimCSE), crops (two crops of a window of 256 tokens, Contriever), neighbours (the "
                           "text before and after a cut, coCondenser), title_body, words (a few telling words and a "
                           "passage), sentence (a short piece and a passage), search (a query made from a document, "
                           "and another document that the teachers find for it; it stands alone). a+b draws one for "
                           "each document and epoch. All but dropout read documents: rows of a table, texts between "
                           "blank lines.")  # fmt: skip
    title_column: str | None = described(None, "Column of the titles of documents (default: title, if there is one).")
    streaming: bool = described(False, "Read the text as a stream. It is shuffled in a buffer of 10,000 sentences.")
    max_train_samples: int | None = described(None, "Train on the first sentences only, this many (default: all).")
    max_documents: int | None = described(None, "Read at most so many of the documents, drawn by the seed (default: "
                                          "all).")  # fmt: skip
    max_queries: int | None = described(None, "Search with at most so many of the queries that the views search make, "
                                        "drawn by the seed (default: all, four of each document).")  # fmt: skip
    max_seq_length: int = described(32, "Longest training sentence in tokens; longer ones are cut (SimCSE).")
    pad_to_multiple_of: int | None = described(None, "Round the tokens of a batch's packed views up to a multiple, "
                                               "such as 256, so that few shapes are left; no loss sees the filler "
                                               "(default: not).")  # fmt: skip
    mlm_probability: float = described(0.15, "Share of tokens that are masked (CMLM-CSE §4.3.2; Table 4: 0.40 is "
                                       "best).")  # fmt: skip
    augmentation: str = described("none", f"Augmentation of the views: {', '.join(AUGMENTATIONS)} (CMLM-CSE Table 3, "
                              "CLEAR §3.3). a+b applies a, then b. Stage pretrain has delete_tokens alone: RetroMAE's "
                              "decoder restores the tokens.")  # fmt: skip
    augmented_views: str = described("second", "Views to augment: second (CMLM-CSE; the first view stays the original "
                                     "sentence) or both, independently (CLEAR).")  # fmt: skip
    deletion_rate: float = described(DELETION_RATE, "Probability with which the augmentation delete_tokens deletes a "
                                     "token (Contriever: 0.1; TSDAE: 0.6).")  # fmt: skip
    synonyms: str | None = described(None, "File for the augmentation substitute: a JSON object, word → list of words. "
                                     "cmlmcse/data/synonyms.py says where to get one.")  # fmt: skip
    data_dir: str | None = described(None, "Folder of evaluation data, sts/<set>/<subset>.tsv (default: the Hub).")
    dev_set: str = described("stsb", "Data that choose the best checkpoint: stsb (STS-B dev), lee50 (50 rated "
                             "documents in the gensim package), a .tsv file of your own pairs (score, sentence, "
                             "sentence), auto (label-free: held-out documents of the training text; auto_half: half "
                             "of them; auto_together_half: the same, asked as adapt asks a finished encoder), or none "
                             "(the last step is exported; auto_unscored: so too, but auto's documents are held "
                             "out).")  # fmt: skip
    final_evaluation: str | None = described(None, "Tasks that score the exported model, separated by commas, or none "
                                             "(default: sts; none where dev_set is none or auto and no data_dir is "
                                             "given, so that nothing is downloaded).")  # fmt: skip

    @property
    def holds_out(self) -> bool:
        """Whether the development set is made of documents of the text, which are held out from training."""
        return self.dev_set in LABEL_FREE

    @property
    def has_labels(self) -> bool:
        """Whether the development set has labels."""
        return self.dev_set != "none" and not self.holds_out

    @property
    def reads_documents(self) -> bool:
        """Whether a row of the text is a document, and not a sentence."""
        return self.views != "dropout" or self.holds_out

    @property
    def makes_views(self) -> bool:
        """Whether the collator makes the two texts of a row from a document; `search` finds them before."""
        return self.reads_documents and self.views != SEARCH


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
    variable_length_attention: bool = described(True, "On a GPU let attention take sentences of different lengths "
                                                "without padding, where a kernel passes its check. Off: pad them, "
                                                "which is right and slower.")  # fmt: skip
    num_train_epochs: float = described(1.0, "Passes over the text (SimCSE).")
    lr_scheduler_type: str = described("linear", "Learning-rate schedule (SimCSE: linear decay to 0, no warm-up).")
    eval_strategy: str = described("steps", "When the development set is scored: steps, epoch or no.")
    eval_steps: float = described(125, "Optimizer steps between scores (SimCSE, unsupervised script).")
    save_strategy: str = described("steps", "When a checkpoint is written: steps, epoch, best or no.")
    save_steps: float = described(125, "Optimizer steps between checkpoints; a multiple of eval_steps, to keep the "
                                  "best.")  # fmt: skip
    save_minutes: float | None = described(None, "Least minutes between two checkpoints, unless one is the best so far "
                                           "or the last (default: 5 on a GPU, where save_steps may pass in seconds; "
                                           "else 0).")  # fmt: skip
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
    ddp_broadcast_buffers: bool | None = described(False, "Send the buffers of the first process to the others before "
                                                   "each step. Off: they are the same on all, for BatchNorm sees the "
                                                   "whole batch.")  # fmt: skip
    bf16: bool | None = described(None,  # type: ignore[assignment]
                                  "Compute in bf16 where it is safe (autocast); the weights stay fp32. Default: "
                                  "on a CPU that was measured to be faster in it, unless a launcher says which "
                                  "precision; not on a GPU. A run resumed on a CPU keeps its precision.")  # fmt: skip
    report_to: str | None = described("none", "Where logs go besides the run's folder: tensorboard, wandb, …, "
                                      "separated by commas.")  # fmt: skip

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, float) and not math.isfinite(value):
                raise InputError(f"{name} must be a finite number, found {value}; fix it, or leave it out")
        if self.eval_steps == 0:  # transformers would take logging_steps instead
            raise InputError(f"eval_steps must be above 0, found {self.eval_steps}; raise it")
        if self.fp16 and not torch.cuda.is_available():
            raise InputError("fp16 needs a GPU, found none; leave out --fp16, or use --bf16 on a CPU that has it")
        if self.report_to and "," in self.report_to:
            self.report_to = self.report_to.split(",")  # type: ignore[assignment]
        if self.stage == "pretrain" and self.metric_for_best_model == "dev_score":
            self.metric_for_best_model = "mlm_loss"
        if ("LOCAL_RANK" in os.environ or self.bf16) and not torch.accelerator.is_available() and not fsdp_requested():
            # Accelerate's launcher does not pass its use_cpu to its processes, and Trainer wants it for bf16.
            self.use_cpu = True
        super().__post_init__()
        self.dataloader_pin_memory &= torch.cuda.is_available()
        assert isinstance(self.accelerator_config, AcceleratorConfig)
        self.accelerator_config.dispatch_batches = False  # a packed batch cannot be split by rows
        self.accelerator_config.even_batches = True  # the contrastive loss needs equal rows on all processes

    @property
    def text_seed(self) -> int:
        """The seed of everything that is drawn from the text."""
        return self.seed if self.data_seed is None else self.data_seed


def fsdp_requested() -> bool:
    """Whether Accelerate's launcher requests FSDP."""
    return os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"


class Recipe(NamedTuple):
    """A recipe's name and its fields, those of the command line among them."""

    name: str
    model: ModelArguments
    data: DataArguments
    run: RunArguments


ARGUMENTS = (ModelArguments, DataArguments, RunArguments)
# Field → default. Of a field with a default_factory it is MISSING, which is not None.
DEFAULTS = {each.name: each.default for kind in ARGUMENTS for each in dataclasses.fields(kind)}
