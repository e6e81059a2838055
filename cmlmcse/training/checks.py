"""Checks of a recipe's fields: each value by itself, and fields that do not fit each other."""

from transformers import PretrainedConfig

from cmlmcse.common.errors import InputError, as_input_error
from cmlmcse.data.augmentation import check_augmentation, uses_deletion_token
from cmlmcse.data.searches import LEXICAL, SEARCH
from cmlmcse.data.views import view_names
from modeling_cmlmcse.configuration_cmlmcse import CMLMCSEConfig
from modeling_cmlmcse.contrast_terms import CONTRAST_TERMS
from modeling_cmlmcse.field_checks import in_range, one_of
from modeling_cmlmcse.losses import CONTRASTIVE_LOSSES
from modeling_cmlmcse.modeling_cmlmcse import AUXILIARY_OBJECTIVES
from modeling_cmlmcse.pooling import POOLINGS

from .fields import CONFIG_DEFAULTS, DataArguments, ModelArguments, Recipe
from .run_checks import check_run
from .stage_checks import check_pretraining

LOSSES = ("contrastive", *CONTRAST_TERMS)  # those beside the auxiliary objectives


def check_values(recipe: Recipe) -> None:
    """Check the values of all fields.

    Raises:
        InputError: a value out of range, or two fields that do not fit each other.
    """
    check_model(recipe.model)
    with as_input_error():
        if recipe.model.backbone_dropout is not None:
            in_range("backbone_dropout", recipe.model.backbone_dropout, float, 0.0, 1.0)
        one_of("augmented_views", recipe.data.augmented_views, ("second", "both"))
        in_range("deletion_rate", recipe.data.deletion_rate, float, 0.0, 0.99)
        one_of("stage", recipe.run.stage, ("train", "pretrain"))
    check_augmentation(recipe.data.augmentation, recipe.data.synonyms)
    check_documents(recipe)
    check_mining(recipe.data)
    if recipe.model.distillation_weight > 0 and recipe.run.stage == "train":
        check_teacher(recipe.model, recipe.data)
    if recipe.data.negative_column is not None and recipe.data.positive_column is None:
        raise InputError("negative_column expects a positive_column, found none; set --positive_column")
    check_contrast(recipe.model, recipe.data)
    if recipe.run.stage == "train":
        check_losses(recipe.model)
    check_scores(recipe.model, recipe.data)
    if not 0.0 < recipe.data.mlm_probability < 1.0:
        raise InputError(
            f"mlm_probability must be between 0 and 1, found {recipe.data.mlm_probability}; fix the recipe"
        )
    check_tokens(recipe.data)
    if recipe.model.lora_r is not None:
        check_lora(recipe.model.lora_r, recipe.data.augmentation)
    if recipe.run.stage == "pretrain":
        check_pretraining(recipe)
    elif recipe.run.per_device_train_batch_size < 2:
        raise InputError(
            "per_device_train_batch_size must be at least 2, because in-batch negatives are other sentences, found "
            f"{recipe.run.per_device_train_batch_size}; raise it"
        )
    check_metric(recipe)
    check_run(recipe.run)


def check_model(model_args: ModelArguments, backbone: PretrainedConfig | None = None) -> None:
    """Check the fields of the model; those that depend on the backbone's depth and width only if it is given.

    Raises:
        InputError: a value out of range, or two fields that do not fit each other.
    """
    fields = model_args.config_fields()
    if fields["fusion_init"] not in ("last", "next", "random"):
        fields["fusion_init"] = "checkpoint"
    if backbone is None:
        fields["lexical_layers"] = fields["fusion_layers"] = fields["matryoshka_dims"] = None
    with as_input_error():
        CMLMCSEConfig(backbone_config=backbone, **fields)


def check_metric(recipe: Recipe) -> None:
    """Check that the score which chooses the best checkpoint is one that is measured.

    Raises:
        InputError: it is not.
    """
    asked = recipe.run.metric_for_best_model
    if recipe.run.stage == "pretrain":
        known = ["mlm_loss", "mlm_accuracy"]
        known += ["auxiliary_loss", "auxiliary_accuracy"] * (recipe.data.auxiliary_weight > 0)
    else:
        known = ["dev_score", *["vector_gain"] * (recipe.model.cmlm_weight > 0)]  # which a conditional MLM has
    if asked is not None and recipe.run.eval_strategy != "no" and asked.removeprefix("eval_") not in known:
        raise InputError(
            f"metric_for_best_model must be one of {', '.join(known)}, found {asked!r}; leave it out for {known[0]}"
        )


def check_tokens(data_args: DataArguments) -> None:
    """Check the number of sentences, and of tokens of a sentence and of a batch.

    Raises:
        InputError: too few.
    """
    if data_args.max_train_samples is not None and data_args.max_train_samples < 1:
        raise InputError(
            f"max_train_samples must be at least 1, found {data_args.max_train_samples}; leave it out for all"
        )
    if data_args.max_seq_length < 3:
        raise InputError(
            f"max_seq_length must be at least 3 tokens, [CLS] word [SEP], found {data_args.max_seq_length}; raise it"
        )
    if data_args.pad_to_multiple_of is not None and data_args.pad_to_multiple_of < 2:
        raise InputError(
            f"pad_to_multiple_of must be at least 2 tokens, found {data_args.pad_to_multiple_of}; leave it out for none"
        )


def check_lora(rank: int, augmentation: str) -> None:
    """Check the fields of LoRA.

    Raises:
        InputError: a rank below 1, or an augmentation whose token [DEL] would keep a random embedding.
    """
    if rank < 1:
        raise InputError(f"lora_r must be at least 1, found {rank}; a usual rank is 8")
    if uses_deletion_token(augmentation):
        raise InputError(
            f"lora_r expects an augmentation without the token [DEL], whose embedding it does not train, found "
            f"{augmentation}; choose one without del_word and del_span, or leave lora_r out"
        )


def check_contrast(model_args: ModelArguments, data_args: DataArguments) -> None:
    """Check that the contrastive loss reads the numbers that are given, and has the hard negatives that it is about.

    Raises:
        InputError: a number that it does not use, no hard negatives, or hard negatives without a contrastive loss.
    """
    loss = CONTRASTIVE_LOSSES[model_args.contrastive_loss]
    for name in {each.option: None for each in CONTRASTIVE_LOSSES.values() if each.option is not None}:
        value = getattr(model_args, name)
        if value != CONFIG_DEFAULTS[name].default and loss.option != name:
            users = " or ".join(known for known, each in CONTRASTIVE_LOSSES.items() if each.option == name)
            raise InputError(
                f"{name} is for contrastive_loss {users}, found {value} with {model_args.contrastive_loss}; leave it "
                "out"
            )
    if model_args.negative_prompt_template and not POOLINGS[model_args.pooling].reads_mask:
        raise InputError(
            f"negative_prompt_template expects pooling prompt, found {model_args.pooling}; set --pooling prompt, or "
            "leave it out"
        )
    needing = [f"hard_negative_weight {model_args.hard_negative_weight}"] * (model_args.hard_negative_weight != 0)
    needing += [f"contrastive_loss {model_args.contrastive_loss}"] * loss.about_hard_negatives
    given = hard_negatives(model_args, data_args)
    if needing and not given:
        raise InputError(
            f"{needing[0]} expects hard negatives, found none; set --negative_column, --mined_negatives or "
            "--negative_prompt_template"
        )
    if model_args.matryoshka_dims and model_args.contrastive_weight == 0:
        raise InputError(
            "matryoshka_dims expects a contrastive loss, which is taken of the cut vectors too, found "
            "contrastive_weight 0; leave one of them out"
        )
    if given and model_args.contrastive_weight == 0:  # the terms beside the contrastive loss read the two views alone
        raise InputError(
            f"{given[0]} expects a contrastive loss to compare hard negatives, found contrastive_weight 0; leave one "
            "of them out"
        )


def check_losses(model_args: ModelArguments) -> None:
    """Check that stage train has a loss.

    Raises:
        InputError: the weight of every loss is 0.
    """
    names = [f"{name}_weight" for name in (*LOSSES, *AUXILIARY_OBJECTIVES)]
    if not any(getattr(model_args, name) > 0 for name in names):
        raise InputError(
            f"stage train expects a loss, found {', '.join(names)} all 0; set one above 0, as --contrastive_weight 1"
        )


def check_scores(model_args: ModelArguments, data_args: DataArguments) -> None:
    """Check that pairs with a score have a contrastive loss that reads it, and no loss that takes every pair for two
    views of one sentence.

    Raises:
        InputError: scores without such a loss, or the reverse; no pairs; or another loss beside it.
    """
    scored = CONTRASTIVE_LOSSES[model_args.contrastive_loss].scored
    if data_args.score_column is None:
        if scored:
            raise InputError(
                f"contrastive_loss {model_args.contrastive_loss} expects pairs with a score, found no score_column; "
                "set --positive_column and --score_column"
            )
        return
    if not scored:
        names = " or ".join(name for name, loss in CONTRASTIVE_LOSSES.items() if loss.scored)
        raise InputError(
            f"score_column expects contrastive_loss {names}, found {model_args.contrastive_loss}, which takes every "
            f"pair for a positive; set --contrastive_loss {names}"
        )
    if data_args.positive_column is None:
        raise InputError("score_column expects a positive_column, the second sentences, found none; set it")
    others = hard_negatives(model_args, data_args)
    others += [name for name in taking_positives(model_args) if name != "contrastive_weight"]
    if others:
        raise InputError(
            f"score_column expects pairs that need not be alike, found {others[0]}, for positives; leave it out"
        )
    if model_args.contrastive_weight == 0:
        raise InputError(
            "score_column expects a contrastive loss to read the scores, found contrastive_weight 0; leave one of "
            "them out"
        )


def taking_positives(model_args: ModelArguments) -> list[str]:
    """The weights that are on of what makes the views of a row alike."""
    names = ["contrastive", *(name for name, term in CONTRAST_TERMS.items() if term.takes_positives)]
    return [f"{name}_weight" for name in names if getattr(model_args, f"{name}_weight") > 0]


def hard_negatives(model_args: ModelArguments, data_args: DataArguments) -> list[str]:
    """The fields that give the rows hard negatives."""
    sources = {
        "negative_column": data_args.negative_column is not None,
        "mined_negatives": data_args.mined_negatives > 0,
        "negative_prompt_template": model_args.negative_prompt_template,
    }
    return [name for name, used in sources.items() if used]


def check_mining(data_args: DataArguments) -> None:
    """Check the fields of mined hard negatives.

    Raises:
        InputError: a number out of range, or text that is not compared beforehand.
    """
    with as_input_error():
        in_range("mined_negatives", data_args.mined_negatives, int, 0, 100)
        # Below 1 a repeated text is never a negative.
        in_range("mining_margin", data_args.mining_margin, float, 1e-3, 2.0)
        in_range("mining_candidates", data_args.mining_candidates, int, 1, 1000)
    if data_args.mined_negatives == 0:
        if data_args.mining_model is not None:
            raise InputError("mining_model expects mined_negatives of at least 1, found 0; set --mined_negatives")
        return
    if data_args.mining_candidates < data_args.mined_negatives:
        raise InputError(
            f"mining_candidates must be at least mined_negatives, {data_args.mined_negatives}, found "
            f"{data_args.mining_candidates}; raise it"
        )
    for name in ("streaming", "positive_column"):
        if getattr(data_args, name):
            raise InputError(f"mined_negatives expects a text without labels, found {name}; leave one of them out")


def check_teacher(model_args: ModelArguments, data_args: DataArguments) -> None:
    """Check the fields of a distillation.

    Raises:
        InputError: no teacher, more than two, an unknown pooling, or a stream, which no teacher can encode beforehand.
    """
    names = model_args.teachers
    if not 1 <= len(names) <= 2:
        raise InputError(
            f"distillation_weight {model_args.distillation_weight} expects one teacher or two, found {len(names)}; set "
            "--teacher to a model's folder or Hub name, two separated by a comma (double quotes around a name that has "
            "one)"
        )
    with as_input_error():
        one_of("teacher_pooling", model_args.teacher_pooling, POOLINGS)
    if LEXICAL in names and data_args.views != SEARCH:
        raise InputError(
            f"teacher {LEXICAL} expects views search, because it compares queries with passages, found views "
            f"{data_args.views}; set --views search, or choose a model"
        )
    if data_args.streaming:
        raise InputError(
            "distillation_weight expects a text that a teacher encodes before training, found streaming; leave one of "
            "them out"
        )


def check_documents(recipe: Recipe) -> None:
    """Check the fields of document views and of the label-free development set.

    Raises:
        InputError: an unknown view, or a field that documents do not have.
    """
    if recipe.data.views != SEARCH:
        view_names(recipe.data.views)
        if recipe.data.max_queries is not None:
            raise InputError(
                f"max_queries expects views search, which make queries, found views {recipe.data.views}; leave it out"
            )
    if not recipe.data.reads_documents:
        for name in ("title_column", "max_documents"):
            if getattr(recipe.data, name) is not None:
                raise InputError(
                    f"{name} expects views of documents or dev_set auto, found views {recipe.data.views} and dev_set "
                    f"{recipe.data.dev_set}; set --views title_body, or leave it out"
                )
        return
    if recipe.data.max_documents is not None and recipe.data.max_documents < 1:
        raise InputError(
            f"max_documents must be at least 1, found {recipe.data.max_documents}; raise it, or leave it out"
        )
    if recipe.data.views == SEARCH:
        check_search(recipe.model, recipe.data)
    named = f"views {recipe.data.views}" if recipe.data.views != "dropout" else "dev_set auto"
    others = {
        "streaming": recipe.data.streaming,
        "positive_column": recipe.data.positive_column,
        "stage": recipe.run.stage == "pretrain",
    }
    for name, used in others.items():
        if used:
            raise InputError(
                f"{named} expects unlabelled documents in stage train, found {name}; leave one of them out"
            )


def check_search(model_args: ModelArguments, data_args: DataArguments) -> None:
    """Check that the views `search` have a teacher that searches, and nothing that takes its finds for positives.

    Raises:
        InputError: no distillation, a contrastive loss or a term that does so, or hard negatives.
    """
    if model_args.distillation_weight == 0:
        raise InputError(
            "views search expects teachers that find the passages, found distillation_weight 0; set "
            "--distillation_weight 1 and --teacher bm25"
        )
    if data_args.max_queries is not None and data_args.max_queries < 1:
        raise InputError(f"max_queries must be at least 1, found {data_args.max_queries}; raise it, or leave it out")
    if taken := taking_positives(model_args) + hard_negatives(model_args, data_args):
        raise InputError(
            f"views search expects that a query's passage need not be its positive, found {taken[0]}; set it to 0, or "
            "choose other views"
        )
