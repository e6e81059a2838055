"""The model card of an encoder, written only from the records of its run."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from cmlmcse.common.errors import InputError
from cmlmcse.data.latent import LSA
from cmlmcse.evaluation.card_metric import CardMetric
from cmlmcse.evaluation.tables import format_all_measures, format_table, with_truncated
from cmlmcse.evaluation.tasks import TASKS
from cmlmcse.models.encoders import Encoder
from modeling_cmlmcse.contrast_terms import CONTRAST_TERMS
from modeling_cmlmcse.losses import CONTRASTIVE_LOSSES
from modeling_cmlmcse.modeling_cmlmcse import AUXILIARY_OBJECTIVES
from modeling_cmlmcse.pooling import POOLINGS

from .card_usage import BACKENDS, NO_BACKENDS, Loading
from .card_writer import TEMPLATE, Identity, bullet_list, bullets, metadata, write_card
from .papers import PAPERS
from .run_records import card_metrics
from .start import start_text

TAGS = ["sentence-embeddings", "cmlmcse", "sentence-transformers", "feature-extraction"]
PLOTS = {  # file → what it shows
    "loss": "The training losses by step",
    "dev_score": "The development score by step",
    "cosine_by_gold": "Cosine similarities by human score",
    "curves": "The score without labels of each setting that was tried, by step",
}
ON_DISK = Loading()  # the card of a folder that nobody has published


class Record(dict[str, Any]):
    """A record of a run. A missing entry is an :class:`InputError` that names the file."""

    def __init__(self, content: Any, name: str) -> None:
        if not isinstance(content, dict):
            raise InputError(f"{name}: expected a JSON object, found {type(content).__name__}; restore the file")
        super().__init__(content)
        self.name = name

    def __missing__(self, key: str) -> Any:
        raise InputError(f"{self.name}: expected the entry {key!r} of a run's record, found none; restore the file")

    def part(self, key: str) -> "Record":
        """An entry that is itself a JSON object."""
        return Record(self[key], f"{self.name}, {key}")


def is_local(source: str) -> bool:
    """Whether a model or text is a path on somebody's machine, and no Hub name: `NAME` or `OWNER/NAME`."""
    return source.startswith(("/", ".", "~")) or source.count("/") > 1 or Path(source).exists()


def public_name(source: str) -> str:
    """The name of a model or text for a card: only the last part of a path on somebody's machine."""
    return Path(source).name if is_local(source) else source


def bare_card(use: Loading = ON_DISK, identity: Identity | None = None) -> str:
    """README.md of a checkpoint without records of its run; see :func:`model_card`."""
    return write_card(encoder_metadata(identity), {"summary": "A sentence encoder.", "use": use.text()})


def model_card(
    record: dict[str, Any],
    results: dict[str, Any],
    use: Loading = ON_DISK,
    plots: Sequence[Path] = (),
    identity: Identity | None = None,
    template: Path = TEMPLATE,
    name: str | None = None,
) -> str:
    """README.md of an export.

    Args:
        record: content of run.json.
        results: content of results.json.
        use: how to load it (default: from a folder with code).
        plots: the run's plots, see :func:`copy_plots`.
        identity: licence and language.
        template: see :func:`write_card`.
        name: the model's name (default: the recipe's).

    Raises:
        InputError: the records lack an entry, or the template names an unknown field.
    """
    run = Record(record, "run.json")
    fields, results = run.part("fields"), Record(results, "results.json")
    method, name = method_of(fields), name or run["recipe"]
    values = {
        "name": name,
        "summary": f"A sentence encoder trained {supervision(fields)} by {method} from "
        f"`{public_name(fields['model_name_or_path'])}` on `{public_name(fields['train_file'])}`.",
        "use": use._replace(pooling=fields["pooling"]).text(run.get("example")) + backends_text(fields["pooling"]),
        "results": results_text(name, run, results),
        "plots": card_plots(plots),
        "training": training_text(run),
        "limits": bullet_list([*limits_of(run, results), *licence_limit(identity)]),
        "citation": "\n".join(text for name, text in PAPERS.items() if name in method or name == "SimCSE"),
    }
    described = identity, name, fields["model_name_or_path"], card_metrics(results)
    return write_card(encoder_metadata(*described), values, template)


def encoder_metadata(
    identity: Identity | None = None,
    name: str | None = None,
    source: str | None = None,
    measured: Sequence[CardMetric] = (),
    same: bool = False,
) -> ModelCardData:
    """The metadata of an encoder's card, with a model-index of all measured numbers.

    Args:
        identity: licence and language.
        name: the model's name.
        source: the model that it was trained from.
        measured: the numbers.
        same: whether these are the source's own weights.
    """
    hub_name = source is not None and not is_local(source) and ":" not in source
    entries = [
        EvalResult(
            task_type=one.kind,
            dataset_type=one.data,
            dataset_name=one.name,
            dataset_config=one.config,
            dataset_split=one.split,
            metric_type=one.metric[0],
            metric_name=one.metric[1],
            metric_value=one.value,
        )
        for one in measured
    ]
    return metadata(
        "sentence-similarity",
        identity,
        tags=TAGS,
        model_name=name,
        eval_results=entries or None,
        base_model=source if hub_name else None,
        base_model_relation="finetune" if hub_name and not same else None,
    )


def supervision(fields: Record) -> str:
    """Whether the run read labels. Without them each sentence is its own positive."""
    if fields["positive_column"] is not None:
        return "on labelled pairs"
    known = {"", LSA, fields["model_name_or_path"]}  # the start has a line of its own
    teachers = {name.strip() for name in (fields.get("teacher") or "").split(",")} - known
    helpers = ["teacher"] * bool(teachers) + ["mining model"] * bool(fields.get("mining_model"))
    return f"without labels, but for what its {' and '.join(helpers)} has seen," if helpers else "without labels"


def method_of(fields: Record) -> str:
    """The papers' name of the method that a recipe's fields give, and the objectives added to it."""
    terms = ["PromptBERT's templates"] if POOLINGS[fields["pooling"]].reads_mask else []
    terms += ["CoT-BERT's negated template"] if fields.get("negative_prompt_template") else []
    terms += [term.title(fields) for name, term in CONTRAST_TERMS.items() if fields.get(f"{name}_weight", 0) > 0]
    used = [objective for name, objective in AUXILIARY_OBJECTIVES.items() if fields.get(f"{name}_weight", 0) > 0]
    naming = next((objective for objective in used if objective.method(fields)), None)
    contrast = CONTRASTIVE_LOSSES[fields["contrastive_loss"]].method
    method = contrast if naming is None else naming.method(fields)
    if naming is not None and contrast != "SimCSE":
        terms.insert(0, f"{contrast}'s contrastive loss")
    added = terms + [objective.title for objective in used if objective is not naming]
    return " with ".join([str(method), " and ".join(added)] if added else [str(method)])


def backends_text(pooling: str) -> str:
    """What a card says of ONNX and OpenVINO."""
    if POOLINGS[pooling].reads_mask:
        return "\n\nThe tokenizer puts the sentence into the template that the model was trained with."
    return NO_BACKENDS if len(POOLINGS[pooling].layers) > 1 else BACKENDS


def results_text(name: str, run: Record, results: Record) -> str:
    """The measured scores, or a sentence that there are none."""
    parts = []
    if "sts" in results:
        parts.append('Spearman × 100, setting "all".\n\n' + format_table(with_truncated(name, results)))
    others = {name: value for name, value in results.items() if name != "dev"}
    if measures := format_all_measures(with_truncated("Value", others)):
        parts.append(measures)
    if "dev" in results:
        dev = results.part("dev")
        role = (
            "which chose the checkpoint"
            if run.part("fields")["load_best_model_at_end"]
            else "which did not choose the checkpoint"
        )
        if "spearman" in dev:
            found = f"{dev['pairs']} pairs, Spearman × 100 = {dev['spearman']:.2f}"
        else:
            found = f"{dev['documents']} documents without labels, nDCG × 100 = {dev['score']:.2f}"
        start = f" ({dev['before']:.2f} before training)" if "before" in dev else ""
        parts.append(f"Development set, {role}: {dev['set']}, {found}{start}.")
    if not parts and "scored" in run:
        return f"These weights were not evaluated. The scores of the run are those of its `{run['scored']}`."
    return "\n\n".join(parts) or "This run was not evaluated."


def training_text(run: Record) -> str:
    """Start, text, recipe, seed, time and hardware in words. Settings that the method does not use are left out."""
    fields, hardware, versions = run.part("fields"), run.part("hardware"), run.part("versions")
    text = run.get("train_data") or {}
    titles = {name: term.title(fields) for name, term in CONTRAST_TERMS.items()}
    titles |= {name: objective.title for name, objective in AUXILIARY_OBJECTIVES.items()}
    used = {name: title for name, title in titles.items() if fields.get(f"{name}_weight", 0) > 0}
    of_contrast = CONTRASTIVE_LOSSES[fields["contrastive_loss"]].option
    masked = any(name in AUXILIARY_OBJECTIVES for name in used)
    teachers = [public_name(name.strip()) for name in (fields.get("teacher") or "").split(",") if name.strip()]
    facts = {
        "start": start_text(public_name(fields["model_name_or_path"]), run.get("start")),
        "text": f"`{public_name(fields['train_file'])}`" + (f", sha256 `{text['sha256']}`" if "sha256" in text else ""),
        "recipe": f"`{run['recipe']}`",
        "views": None if fields.get("views", "dropout") == "dropout" else fields["views"],
        "augmentation": None if fields.get("augmentation", "none") == "none" else fields["augmentation"],
        **{f"weight of {title}": fields[f"{name}_weight"] for name, title in used.items()},
        "teachers": ", ".join(f"`{name}`" for name in teachers) or None,
        "mined hard negatives": mining_text(fields),
        "template": fields.get("prompt_template") if POOLINGS[fields["pooling"]].reads_mask else None,
        "template of a hard negative": fields.get("negative_prompt_template"),
        "mask rate": fields["mlm_probability"] if masked else None,
        "temperature": fields["temp"],
        "factor of the positive's cosine": fields.get("positive_ratio") if of_contrast == "positive_ratio" else None,
        "Matryoshka dimensions, a vector can be cut to them": fields.get("matryoshka_dims"),
        "learning rate": fields.get("learning_rate"),
        "sentences per batch": fields.get("per_device_train_batch_size"),
        "most tokens per sentence": fields.get("max_seq_length"),
        "pooling": fields["pooling"],
        **encoder_facts(run.get("encoder")),
        "steps": run["steps"],
        "tokens seen": run.get("tokens"),
        "seed": run["seed"],
        "training time": f"{run['train_seconds']} s on {hardware['device']}, {hardware['processes']} process(es)",
        "precision": hardware.get("precision"),
        "torch / transformers": f"{versions['torch']} / {versions['transformers']}",
        "commit of the training code": run.get("git_commit"),
    }
    return bullets(facts)


def mining_text(fields: Record) -> str | None:
    """How hard negatives were mined; None without."""
    if not (count := fields.get("mined_negatives", 0)):
        return None
    source = public_name(fields.get("mining_model") or fields["model_name_or_path"])
    return f"{count} of the {fields['mining_candidates']} nearest, margin {fields['mining_margin']}, by `{source}`"


def encoder_record(encoder: Encoder) -> dict[str, Any]:
    """What the records of a run keep of the encoder: its dimension, the tokens that it reads, and its pooling."""
    config, limit = encoder.model.config, int(encoder.settings["max_seq_length"])
    return {"dimension": config.hidden_size, "max_tokens": limit, "pooling": config.pooling}


def encoder_facts(kept: dict[str, Any] | None) -> dict[str, str]:
    """What a card says of :func:`encoder_record`; nothing of records from before there was one."""
    if kept is None:
        return {}
    return {
        "embedding": f"{kept['dimension']} dimensions, compared by cosine",
        "longest text": f"{kept['max_tokens']} tokens; the rest of a longer one is not read",
    }


def limits_of(run: Record, results: Record) -> list[str]:
    """What the records do not show."""
    fields = run.part("fields")
    absent = [name for name in TASKS if name not in results]
    length = fields.get("max_seq_length")
    lines = [
        "This is one run with one seed. Another seed gives other scores.",
        "Use cosines to rank pairs. Their values are not calibrated: choose a threshold on your own data.",
        f"It was trained on the text named above, and not tested on other domains or languages. It keeps what `"
        f"{public_name(fields['model_name_or_path'])}` learned before, biases included.",
    ]
    if length is not None:
        lines.append(
            f"Training sentences were cut to {length} tokens. It encodes longer texts, but saw none in training."
        )
    if absent:
        lines.append(f"Not measured: {', '.join(absent)}.")
    return lines


def licence_limit(identity: Identity | None) -> list[str]:
    """A line for readers of a card without a licence."""
    return [] if identity and identity.license else ["No licence is named: ask the author before you use the weights."]


def card_plots(plots: Sequence[Path]) -> list[dict[str, str]]:
    """A title and a file for each plot."""
    return [
        {"title": PLOTS.get(file.stem, file.stem.replace("_", " ")), "file": f"{file.parent.name}/{file.name}"}
        for file in plots
    ]


def plots_of(run_folder: Path) -> list[Path]:
    """The plots of a run."""
    return sorted((run_folder / "plots").glob("*.png"))


def copy_plots(run_folder: Path, folder: Path) -> None:
    """Copy a run's plots to the folder that the card of its export links to."""
    for file in plots_of(run_folder):
        (folder / file.parent.name).mkdir(exist_ok=True)
        shutil.copy(file, folder / file.parent.name / file.name)
