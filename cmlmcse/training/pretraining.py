"""`cmlmcse train RECIPE --stage pretrain`: pre-trains a backbone and its auxiliary network (InfoCSE §3.1)."""

import math
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase, set_seed

from cmlmcse.common.distributed import sums_over_processes
from cmlmcse.common.errors import InputError, as_input_error
from cmlmcse.common.locations import check_weights, resolve
from cmlmcse.data.augmentation import build_augmentation
from cmlmcse.data.batches import TrainingSentences, tokenize_sentences
from cmlmcse.data.masking import Masking, continuing_tokens
from cmlmcse.data.pretraining_text import (
    DEV_MASK_RATE,
    MaskedCollator,
    load_documents,
    load_sequences,
    tokenize_documents,
)
from cmlmcse.data.special_tokens import check_around
from cmlmcse.data.tokenizer_training import train_tokenizer
from cmlmcse.models.encoders import load_tokenizer
from modeling_cmlmcse.backbone import load_backbone, max_positions
from modeling_cmlmcse.configuration_cmlmcse import CMLMCSEConfig
from modeling_cmlmcse.distributed import processes, rank
from modeling_cmlmcse.field_checks import in_range
from modeling_cmlmcse.pretrained_auxiliary import PretrainedAuxiliary

from .both_stages import begin
from .build_collator import check_length
from .fields import DataArguments, ModelArguments, RunArguments
from .pretraining_export import finalize_pretraining
from .pretraining_model import AuxiliaryPretraining
from .run_checks import check_checkpointing
from .trainer import LossTrainer

NO_HEAD = (
    "found no masked-language-model head, as in a finished encoder; it starts from the word embeddings and fresh "
    "weights, so the first losses are high"
)


def pretrain(recipe: str, model_args: ModelArguments, data_args: DataArguments, run_args: RunArguments) -> None:
    """Pre-train; write checkpoints, export/, results.json, run.json and plots/ to the run's folder.

    Raises:
        InputError: a wrong field, text or model.
    """
    begun = begin(model_args, data_args, run_args)
    set_seed(run_args.seed)  # the seed determines the fresh weights
    if data_args.model_type is None:
        check_weights(resolve(model_args.model_name_or_path), model_args.model_sha256)
    # The first process of all, not of each machine: the others read the tokenizer that it writes.
    with run_args.main_process_first(local=False, desc="reading the text"):
        joined = data_args.sequences == "documents"
        sources = load_documents(
            data_args.train_file,
            data_args.text_column,
            data_args.train_data_files,
            joined,
            data_args.max_train_samples,
        )
        own = begun.checkpoint or (None if run_args.process_index == 0 else str(begun.folder / "tokenizer"))
        tokenizer = choose_tokenizer(model_args, data_args, sources, own)
        if run_args.process_index == 0 and not begun.checkpoint:
            tokenizer.save_pretrained(begun.folder / "tokenizer")

        def tokenize(rows: Dataset) -> Dataset:
            if joined:
                return tokenize_documents(
                    rows, tokenizer, data_args.max_seq_length, data_args.preprocessing_num_workers
                )
            tokenized = tokenize_sentences(rows, tokenizer, data_args.max_seq_length)
            assert isinstance(tokenized, Dataset)
            return tokenized

        train, dev = load_sequences(tokenize, sources, data_args.validation_split_percentage)
    model = build_pretraining_model(model_args, data_args, tokenizer, begun.checkpoint is not None)
    check_checkpointing(run_args, model)
    tokenizer.model_max_length = min(tokenizer.model_max_length, max_positions(model.backbone))
    masking = Masking(
        data_args.mlm_probability, tokenizer.mask_token_id, len(tokenizer), frozenset(tokenizer.all_special_ids)
    )
    words = continuing_tokens(tokenizer) if data_args.whole_word_mask else None
    shorten = None
    if data_args.augmentation != "none":
        shorten = build_augmentation(data_args.augmentation, tokenizer, deletion_rate=data_args.deletion_rate)
    trainer = PretrainingTrainer(
        model=model,
        args=run_args,
        train_dataset=train,
        eval_dataset=dev,
        data_collator=MaskedCollator(run_args.text_seed, masking, words, shorten),
        dev_collator=MaskedCollator(0, masking._replace(probability=DEV_MASK_RATE)),
        processing_class=tokenizer,
    )
    measured = begun.train(trainer)
    finalize_pretraining(begun.folder, recipe, model_args, data_args, run_args, trainer, measured)


def choose_tokenizer(
    model_args: ModelArguments, data_args: DataArguments, sources: list[Dataset], own: str | None
) -> PreTrainedTokenizerBase:
    """The tokenizer of the run: `own`, else `tokenizer_name`, else the backbone's; a new backbone gets a trained one.

    Args:
        model_args: the fields of the model.
        data_args: the fields of the text.
        sources: the text to train a tokenizer on.
        own: folder of the tokenizer that this run has saved before; None if there is none.

    Raises:
        InputError: there is no such tokenizer, or it has no mask token, or none around a text where RetroMAE's decoder
            needs them.
    """

    def lines() -> Iterator[str]:
        for source in sources:
            for batch in source.iter(batch_size=1000):
                for text in batch["text"]:  # type: ignore[call-overload]
                    yield from text.split("\n")

    name = own or data_args.tokenizer_name or (None if data_args.model_type else model_args.model_name_or_path)
    if name is None:
        assert data_args.model_type is not None
        tokenizer = train_tokenizer(data_args.model_type, lines, data_args.vocab_size, data_args.do_lower_case)
    else:
        tokenizer = load_tokenizer(resolve(name))
    if tokenizer.mask_token_id is None:
        raise InputError(f"pre-training expects a tokenizer with a mask token, found none in {name}; choose another")
    if data_args.auxiliary_decoder == "retromae" and data_args.auxiliary_weight > 0:
        check_around("auxiliary_decoder retromae", tokenizer, str(name or data_args.model_type))
    if data_args.model_type is not None:  # later positions are never trained
        tokenizer.model_max_length = data_args.max_seq_length
    return tokenizer


def new_config(data_args: DataArguments, tokenizer: PreTrainedTokenizerBase) -> PretrainedConfig:
    """The configuration of a new backbone: its model type's defaults, the overrides, and the tokenizer's vocabulary.

    Raises:
        InputError: an unknown model type, or an override of a field that it does not have.
    """
    assert data_args.model_type is not None
    try:
        config = AutoConfig.for_model(data_args.model_type)
    except ValueError as error:
        raise InputError(
            f"model_type must be one that transformers knows, found {data_args.model_type!r}; try bert or roberta"
        ) from error
    if data_args.config_overrides:
        with as_input_error("config_overrides expects fields such as num_hidden_layers=4, found: "):
            config.update_from_string(data_args.config_overrides)
    config.vocab_size = len(tokenizer)
    for name in ("pad", "bos", "eos"):
        setattr(config, f"{name}_token_id", getattr(tokenizer, f"{name}_token_id"))
    return config


def build_pretraining_model(
    model_args: ModelArguments, data_args: DataArguments, tokenizer: PreTrainedTokenizerBase, resumes: bool = False
) -> AuxiliaryPretraining:
    """The model to pre-train: a new backbone (`model_type`), or an existing one (`model_name_or_path`). A run that
    `resumes` gets its weights later.

    Raises:
        InputError: an unsupported backbone, more layers or positions than it has, or a tokenizer larger than its
            vocabulary.
    """
    path = resolve(model_args.model_name_or_path)
    pretrained: PreTrainedModel | None = None
    with as_input_error():
        if data_args.model_type is None:
            pretrained, has_head = load_backbone(path, fresh=model_args.from_scratch)
            if not has_head and not model_args.from_scratch and not resumes and rank() == 0:
                print(f"{model_args.model_name_or_path}: {NO_HEAD}", file=sys.stderr)
        config = new_config(data_args, tokenizer) if pretrained is None else pretrained.config
        names = "lexical_layers", "fusion_layers", "fusion_init", "decoder_hidden_share"
        fields = {name: getattr(model_args, name) for name in names}
        fuses = data_args.auxiliary_weight > 0 and data_args.auxiliary_decoder == "fusion"
        network = PretrainedAuxiliary.choose(fields["fusion_init"], path) if fuses else None
        if network is not None:
            fields |= network.check(fields) | {"fusion_init": "pretrained"}
        if pretrained is None or not fuses:
            fields["fusion_init"] = "random"
        fields["cmlm_weight"] = float(fuses)  # depths are checked where fusion layers are built
        sizes = CMLMCSEConfig(backbone_config=config, **fields)
        dropout = model_args.backbone_dropout
        if dropout is not None:
            in_range("backbone_dropout", dropout, float, 0.0, 1.0)
        depths = sizes.lexical_layers, sizes.fusion_layers
        model = AuxiliaryPretraining(
            config,
            *depths,
            data_args.auxiliary_weight,
            model_args.pooling,
            dropout,
            data_args.auxiliary_decoder,
            sizes.decoder_hidden_share,
        )
        if pretrained is not None:
            model.load_backbone_weights(pretrained, sizes.fusion_init)
        if network is not None:
            network.load_into(model.fusion, model.pooling)
    if len(tokenizer) > config.vocab_size:
        raise InputError(
            f"the tokenizer must fit the model's vocabulary of {config.vocab_size}, found {len(tokenizer)} tokens; use "
            "the tokenizer that belongs to the model"
        )
    check_length(data_args, max_positions(model.backbone))
    return model


class PretrainingTrainer(LossTrainer):
    """Trainer that evaluates the pre-training losses on a development set, with the same masks at every evaluation.

    Raises:
        InputError: sharded weights.
    """

    def __init__(self, *, dev_collator: MaskedCollator, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            raise InputError("stage pretrain expects whole weights on every device, found FSDP or DeepSpeed; use DDP")
        self.dev_collator = dev_collator

    @torch.no_grad()
    def dev_metrics(self) -> dict[str, float]:
        """`mlm_loss`, `perplexity`, `mlm_accuracy`, and the auxiliary network's loss and accuracy if there is one.

        They are means over all predictions in the development set. The processes share the work.
        """
        dev, size = self.eval_dataset, self.args.eval_batch_size
        assert isinstance(dev, TrainingSentences)
        model = self.accelerator.unwrap_model(self.model)
        mode = model.training
        model.eval()
        sums: Counter[str] = Counter()
        for start in range(rank() * size, len(dev), size * processes()):
            rows = list(range(start, min(start + size, len(dev))))
            inputs: Any = self._prepare_inputs(self.dev_collator(dev.__getitems__(rows)))
            masked = inputs["masked"]
            with self.accelerator.autocast():
                found = model.losses(masked)
            terms = model.terms(masked)
            for name, each in found.items():
                sums.update({f"{name} count": terms[name], f"{name}_loss": float(each.total)})
                sums.update({f"{name}_{measure}": float(value) for measure, value in each.sums.items()})
        model.train(mode)
        totals = sums_over_processes(dict(sums))
        counts = {name: max(totals.pop(f"{name} count", 0), 1) for name in ("mlm", "auxiliary")}
        means = {name: total / counts[name.split("_")[0]] for name, total in totals.items()}
        return {**means, "perplexity": math.exp(min(means["mlm_loss"], 100.0))}
