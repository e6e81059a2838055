"""Builds what stage `pretrain` starts from: the tokenizer, and the model around a new or an existing backbone."""

import sys
from collections.abc import Iterator
from functools import partial

from datasets import Dataset
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from cmlmcse.common.errors import InputError, as_input_error
from cmlmcse.common.locations import resolve
from cmlmcse.data.special_tokens import check_around
from cmlmcse.data.tokenizer_training import train_tokenizer
from cmlmcse.models.encoders import load_tokenizer
from modeling_cmlmcse.backbone import load_backbone, max_positions
from modeling_cmlmcse.configuration_cmlmcse import CMLMCSEConfig
from modeling_cmlmcse.distributed import rank
from modeling_cmlmcse.pretrained_auxiliary import PretrainedAuxiliary

from .build_collator import check_length
from .fields import DataArguments, ModelArguments
from .pretraining_decoders import FusionDecoder, chosen_decoder
from .pretraining_model import AuxiliaryPretraining

NO_HEAD = (
    "found no masked-language-model head, as in a finished encoder; it starts from the word embeddings and fresh "
    "weights, so the first losses are high"
)


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
        InputError: there is no such tokenizer, or it has no mask token, or none around a text where the
            auxiliary network needs them.
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
    decoder = chosen_decoder(data_args.auxiliary_decoder, data_args.auxiliary_weight)
    if decoder is not None and decoder.predicts_all:
        check_around(f"auxiliary_decoder {data_args.auxiliary_decoder}", tokenizer, str(name or data_args.model_type))
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
        decoder = chosen_decoder(data_args.auxiliary_decoder, data_args.auxiliary_weight)
        fuses = decoder is FusionDecoder
        network = PretrainedAuxiliary.choose(fields["fusion_init"], path) if fuses else None
        if network is not None:
            fields |= network.check(fields) | {"fusion_init": "pretrained"}
        if pretrained is None or not fuses:
            fields["fusion_init"] = "random"
        fields["cmlm_weight"] = float(fuses)  # depths are checked where fusion layers are built
        sizes = CMLMCSEConfig(backbone_config=config, **fields)
        build_decoder = None if decoder is None else partial(decoder.build, sizes=sizes)
        model = AuxiliaryPretraining(
            config, build_decoder, data_args.auxiliary_weight, model_args.pooling, model_args.backbone_dropout
        )
        if pretrained is not None:
            model.load_backbone_weights(pretrained, sizes.fusion_init)
        if network is not None and isinstance(model.decoder, FusionDecoder):
            network.load_into(model.decoder.blocks, model.pooling)
    if len(tokenizer) > config.vocab_size:
        raise InputError(
            f"the tokenizer must fit the model's vocabulary of {config.vocab_size}, found {len(tokenizer)} tokens; use "
            "the tokenizer that belongs to the model"
        )
    check_length(data_args, max_positions(model.backbone))
    return model
