"""What a card says of the method: its name by the papers, the labels that it read, and the settings that it used."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cmlmcse.common.names import split_names
from cmlmcse.common.run_files import EXPORT
from cmlmcse.data.searches import LEXICAL
from modeling_cmlmcse.contrast_terms import CONTRAST_TERMS
from modeling_cmlmcse.losses import CONTRASTIVE_LOSSES
from modeling_cmlmcse.modeling_cmlmcse import AUXILIARY_OBJECTIVES
from modeling_cmlmcse.pooling import POOLINGS

from .papers import PAPERS

Fields = Mapping[str, Any]
SHARED = ("mlm_probability", "temp")  # which have lines of their own, once


def is_local(source: str) -> bool:
    """Whether a model or text is a path on somebody's machine, and no Hub name: `NAME` or `OWNER/NAME`."""
    return source.startswith(("/", ".", "~")) or source.count("/") > 1 or Path(source).exists()


def public_name(source: str) -> str:
    """The name of a model or text for a card: only the last part of a path on somebody's machine, and of a run's export
    the name of the run."""
    if not is_local(source):
        return source
    path = Path(source)
    return path.parent.name if path.name == EXPORT and path.parent.name else path.name


def has_contrast(fields: Fields) -> bool:
    """Whether the run had a contrastive loss."""
    return bool(fields.get("contrastive_weight", 1.0))


def used_parts(fields: Fields) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """The terms and objectives beside the contrastive loss that a run used: name, title, and fields that it read."""
    for name, term in CONTRAST_TERMS.items():
        if fields.get(f"{name}_weight", 0) > 0:
            yield name, term.title(fields), term.settings(fields)
    for name, objective in AUXILIARY_OBJECTIVES.items():
        if fields.get(f"{name}_weight", 0) > 0:
            yield name, objective.title, objective.settings(fields)


def supervision(fields: Fields) -> str:
    """Whether the run read labels. Without them each sentence is its own positive."""
    if fields["positive_column"] is not None:
        return "on labelled pairs"
    known = {LEXICAL, fields["model_name_or_path"]}  # the start has a line of its own
    teachers = set(split_names(fields.get("teacher"))) - known
    helpers = ["teacher"] * bool(teachers) + ["mining model"] * bool(fields.get("mining_model"))
    return f"without labels, but for what its {' and '.join(helpers)} has seen," if helpers else "without labels"


def method_of(fields: Fields) -> str:
    """The papers' name of the method that a recipe's fields give, and the objectives added to it."""
    terms = ["PromptBERT's templates"] if POOLINGS[fields["pooling"]].reads_mask else []
    terms += ["CoT-BERT's negated template"] if fields.get("negative_prompt_template") else []
    terms += [title for name, title, _ in used_parts(fields) if name in CONTRAST_TERMS]
    used = [AUXILIARY_OBJECTIVES[name] for name, *_ in used_parts(fields) if name in AUXILIARY_OBJECTIVES]
    if not has_contrast(fields):
        return " and ".join(terms + [objective.title for objective in used]) + ", without a contrastive loss"
    naming = next((objective for objective in used if objective.method(fields)), None)
    contrast = CONTRASTIVE_LOSSES[fields["contrastive_loss"]].method
    method = contrast if naming is None else naming.method(fields)
    if naming is None and fields.get("views", "dropout") != "dropout":
        method = f"{contrast}'s loss on two views of each document"
    if naming is not None and contrast != "SimCSE":
        terms.insert(0, f"{contrast}'s contrastive loss")
    added = terms + [objective.title for objective in used if objective is not naming]
    return " with ".join([str(method), " and ".join(added)] if added else [str(method)])


def citations(*runs: Fields) -> str:
    """The papers of the methods of some runs; SimCSE's too where texts are contrasted with the others of a batch."""
    methods = ""
    for fields in runs:
        on_simcse = has_contrast(fields) and not CONTRASTIVE_LOSSES[fields["contrastive_loss"]].scored
        methods += method_of(fields) + (", SimCSE" if on_simcse else "")
        methods += ", Matryoshka" if fields.get("matryoshka_dims") else ""
    return "\n".join(text for name, text in PAPERS.items() if name in methods)


def method_facts(fields: Fields) -> dict[str, Any]:
    """The settings that the method read, by what they are; None for those that were off."""
    parts = list(used_parts(fields))
    read = {setting for *_, settings in parts for setting in settings}
    contrast, reads_mask = has_contrast(fields), POOLINGS[fields["pooling"]].reads_mask
    option = CONTRASTIVE_LOSSES[fields["contrastive_loss"]].option if contrast else None
    return {
        "views": unless(fields, "views", "dropout"),
        "augmentation": augmentation_text(fields),
        "weight of the contrastive loss": unless(fields, "contrastive_weight", 1.0) if contrast else None,
        **{f"weight of {title}": weight_text(fields, name, settings) for name, title, settings in parts},
        "views with these losses": fields.get("masked_views")
        if any(name in AUXILIARY_OBJECTIVES for name, *_ in parts)
        else None,
        "teachers": names_text(fields.get("teacher")),
        "mined hard negatives": mining_text(fields),
        **(template_facts(fields) if reads_mask else {}),
        "mask rate": fields["mlm_probability"] if "mlm_probability" in read else None,
        "temperature": fields["temp"] if contrast or "temp" in read else None,
        "factor of the positive's cosine": fields.get("positive_ratio") if option == "positive_ratio" else None,
        "added to a hard negative's logit": unless(fields, "hard_negative_weight", 0.0)
        if option == "hard_negative_weight"
        else None,
        "training head": fields.get("projection") if contrast else None,
        "Matryoshka dimensions, a vector can be cut to them": fields.get("matryoshka_dims"),
        "dropout": fields.get("backbone_dropout"),
        "rank of LoRA's matrices": fields.get("lora_r"),
    }


def unless(fields: Fields, name: str, default: Any) -> Any:
    """A field's value, or None if it is the default or in none of the records."""
    value = fields.get(name, default)
    return None if value == default else value


def weight_text(fields: Fields, name: str, settings: tuple[str, ...]) -> str:
    """The weight of a term or objective and, by their names, the other fields that it alone reads."""
    shown = [
        f"`{setting}` {setting_text(fields[setting])}"
        for setting in settings
        if setting not in SHARED and fields.get(setting) is not None
    ]
    return f"{fields[f'{name}_weight']}" + (f" ({', '.join(shown)})" if shown else "")


def setting_text(value: Any) -> str:
    """A setting as a recipe has it; of a path the last part."""
    return str(value).lower() if isinstance(value, bool) else public_name(str(value))


def names_text(models: str | None) -> str | None:
    """Models that are separated by commas, by their public names; None without any."""
    names = [public_name(name) for name in split_names(models)]
    return ", ".join(f"`{name}`" for name in names) or None


def augmentation_text(fields: Fields) -> str | None:
    """How the views' tokens were changed, and those of which view; None if they were not."""
    name = fields.get("augmentation", "none")
    if name == "none":
        return None
    deletes = "delete_tokens" in name.split("+") and "deletion_rate" in fields
    share = f", {fields['deletion_rate']} of the tokens" if deletes else ""
    views = {"both": ", both views", "second": ", second view"}.get(fields.get("augmented_views", ""), "")
    return f"{name}{share}{views}"


def template_facts(fields: Fields) -> dict[str, Any]:
    """The templates of the pooling that reads the mask token. In code quotes: a mask token may look like HTML."""
    names = {
        "template": "prompt_template",
        "template of the second view": "second_prompt_template",
        "template of a hard negative": "negative_prompt_template",
    }
    quoted = {what: f"`{fields[name]}`" for what, name in names.items() if fields.get(name)}
    return {**quoted, "template denoising": fields.get("prompt_denoising")}


def mining_text(fields: Fields) -> str | None:
    """How hard negatives were mined; None without."""
    if not (count := fields.get("mined_negatives", 0)):
        return None
    source = public_name(fields.get("mining_model") or fields["model_name_or_path"])
    return f"{count} of the {fields['mining_candidates']} nearest, margin {fields['mining_margin']}, by `{source}`"
