"""Which stage reads a field of a recipe: one table, which the checks and the page of fields read."""

import dataclasses

from .fields import DataArguments, ModelArguments, PretrainingArguments

TRAIN, PRETRAIN = "train", "pretrain"
# What both stages read of the model and the data.
BOTH = {"model_name_or_path", "model_sha256", "from_scratch", "backbone_dropout", "pooling", "lexical_layers",
        "fusion_layers", "fusion_init", "decoder_hidden_share", "train_file", "train_data_files", "text_column",
        "max_train_samples", "max_seq_length", "mlm_probability", "augmentation", "deletion_rate"}  # fmt: skip
RUN_OF_TRAIN = ("auxiliary_learning_rate", "mini_batch_size")  # all else of the run is for both
# What stage pretrain refuses in a recipe too, as it has no views, no labels, no hard negatives and one learning rate.
NEVER_PRETRAIN = ("lora_r", "augmented_views", "synonyms", "positive_column", "mined_negatives", "mining_margin",
                  "mining_candidates", "views", "streaming", "pad_to_multiple_of", *RUN_OF_TRAIN)  # fmt: skip


def only_stages() -> dict[str, str]:
    """Field → the one stage that reads it. A field that both read has no entry."""
    model, data, pretraining = (
        {field.name for field in dataclasses.fields(kind)}
        for kind in (ModelArguments, DataArguments, PretrainingArguments)
    )
    of_train = (model | data) - pretraining - BOTH | {*RUN_OF_TRAIN}
    return dict.fromkeys(pretraining, PRETRAIN) | dict.fromkeys(of_train, TRAIN)


ONLY_STAGE = only_stages()
