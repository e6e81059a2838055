"""Builds the tokenizer, its templates and the model from the fields of a recipe."""

from pathlib import Path

from transformers import PreTrainedTokenizerBase

from cmlmcse.common.errors import InputError, as_input_error
from cmlmcse.common.locations import check_weights, resolve
from cmlmcse.data.augmentation import add_deletion_token, deletion_token
from cmlmcse.data.special_tokens import check_around, special_tokens
from cmlmcse.data.templates import Templates, read_template, template_texts, without_template
from cmlmcse.models.encoders import load_tokenizer
from cmlmcse.models.folders import recorded_max_length, recorded_prompts, resolve_model
from modeling_cmlmcse.enhanced_decoding import WordsFromVector
from modeling_cmlmcse.modeling_cmlmcse import AUXILIARY_OBJECTIVES, CMLMCSEForSentenceEmbedding
from modeling_cmlmcse.pooling import POOLINGS

from .fields import ModelArguments
from .lora import add_lora


def build_tokenizer(
    model_args: ModelArguments, augmentation: str = "none", max_seq_length: int = 0
) -> PreTrainedTokenizerBase:
    """The backbone's tokenizer, with the token that the augmentation adds.

    Its `model_max_length` is what the backbone records for sentence-transformers, so that the export cuts texts
    where the start does; or `max_seq_length`, the tokens of a training text, if that is more.

    Raises:
        InputError: there is no tokenizer, it lacks the mask token or those around a text that an auxiliary objective
            needs, or the generator has another tokenizer.
    """
    path = resolve(model_args.model_name_or_path)
    if model_args.fusion_init == "pretrained" and path.count("/") > 1 and not Path(path).is_dir():
        raise InputError(
            "model_name_or_path with fusion_init pretrained must be what stage 1 exports, found no folder "
            f"{model_args.model_name_or_path}; run cmlmcse train RECIPE --stage pretrain first, or choose another "
            "folder"
        )
    path = resolve_model(path)
    tokenizer = load_tokenizer(path)
    weights = {f"{name}_weight": getattr(model_args, f"{name}_weight") for name in AUXILIARY_OBJECTIVES}
    used = [f"{name} {weight}" for name, weight in weights.items() if weight > 0]
    if used and tokenizer.mask_token_id is None:
        raise InputError(
            f"{', '.join(used)} expects a tokenizer with a mask token, found none in {model_args.model_name_or_path}; "
            f"choose another backbone or set {', '.join(weights)} to 0"
        )
    for name, weight in weights.items():
        if weight > 0 and issubclass(AUXILIARY_OBJECTIVES[name.removesuffix("_weight")], WordsFromVector):
            check_around(f"{name} {weight}", tokenizer, model_args.model_name_or_path)
    if model_args.rtd_weight > 0 and model_args.rtd_generator is not None:
        generator_vocab = load_tokenizer(resolve(model_args.rtd_generator)).get_vocab()
        if generator_vocab != tokenizer.get_vocab():
            raise InputError(
                f"rtd_generator must have the backbone's tokenizer of {len(tokenizer)} tokens, found another of "
                f"{len(generator_vocab)} in {model_args.rtd_generator}; choose a generator with the same vocabulary"
            )
    tokenizer = without_template(tokenizer)  # that of a model which was trained with one
    add_deletion_token(augmentation, tokenizer)
    recorded = recorded_max_length(path)
    if recorded is not None:
        tokenizer.model_max_length = min(tokenizer.model_max_length, max(recorded, max_seq_length))
    return tokenizer


def build_templates(model_args: ModelArguments, tokenizer: PreTrainedTokenizerBase) -> Templates | None:
    """The templates of the pooling `prompt`; None with another pooling.

    Raises:
        InputError: a template without its {sentence} or {mask}, or a tokenizer without the padding token to use.
    """
    if not POOLINGS[model_args.pooling].reads_mask:
        return None
    templates = [read_template(text, tokenizer) for text in template_texts(model_args)]
    if model_args.prompt_denoising == "pad" and tokenizer.pad_token_id is None:
        raise InputError(
            "prompt_denoising pad expects a tokenizer with a padding token, found none; use prompt_denoising position"
        )
    return Templates(templates, special_tokens(tokenizer), model_args.prompt_denoising, tokenizer.pad_token_id or 0)


def build_model(model_args: ModelArguments, tokenizer: PreTrainedTokenizerBase) -> CMLMCSEForSentenceEmbedding:
    """The model from its backbone.

    Raises:
        InputError: an unsupported backbone, a field beyond its depth, or a tokenizer larger than its vocabulary.
    """
    path = resolve_model(model_args.model_name_or_path)
    check_weights(path, model_args.model_sha256)
    generator = model_args.rtd_generator
    with as_input_error():
        model = CMLMCSEForSentenceEmbedding.from_backbone(
            path,
            new_token_id=deletion_token(tokenizer),
            from_scratch=model_args.from_scratch,
            backbone_dropout=model_args.backbone_dropout,
            rtd_generator=None if generator is None else resolve(generator),
            **model_args.config_fields(),
        )
    rows = len(model.get_input_embeddings().weight)  # type: ignore[arg-type]
    if len(tokenizer) > rows:
        raise InputError(
            f"the tokenizer must fit the model's vocabulary of {rows}, found {len(tokenizer)} tokens; use the "
            "tokenizer that belongs to the model"
        )
    recorded_prompts(path).changed(model_args.query_prompt, model_args.document_prompt).give(model)
    if model_args.lora_r is not None:
        add_lora(model, model_args.lora_r)
    return model
