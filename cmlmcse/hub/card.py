"""The model card of an encoder, written only from the records of its run."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from cmlmcse.common.run_files import RESULTS, RUN
from cmlmcse.evaluation.card_metric import CardMetric

from .card_method import citations, has_contrast, method_of, supervision
from .card_results import results_text
from .card_training import licence_limit, limits_of, text_name, training_text
from .card_usage import Loading
from .card_writer import TEMPLATE, Identity, bullet_list, metadata, write_card
from .run_records import Record, card_metrics, with_public_names
from .start import base_model, start_name

TAGS = ["sentence-embeddings", "cmlmcse", "sentence-transformers", "feature-extraction"]
PLOTS = {  # file → what it shows
    "loss": "The training losses by step",
    "dev_score": "The development score by step",
    "cosine_by_gold": "Cosine similarities by human score",
    "curves": "The score without labels of each setting that was tried, by step",
}
ON_DISK = Loading()  # the card of a folder that nobody has published


def bare_card(use: Loading = ON_DISK, identity: Identity | None = None, name: str | None = None) -> str:
    """README.md of a checkpoint without records of its run; see :func:`model_card`."""
    values = {"name": name, "summary": "A sentence encoder.", "use": use.text()}
    return write_card(encoder_metadata(identity, use=use), values)


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
    run = Record(with_public_names(record), RUN)
    fields, results = run.part("fields"), Record(results, RESULTS)
    source, known = fields["model_name_or_path"], run.get("start")
    name, start = name or run["recipe"], f"`{start_name(source, known)}`"
    if fresh := bool(fields.get("from_scratch")):
        start = f"random weights, in the shape of {start},"
    method = method_of(fields) + ("" if has_contrast(fields) else ",")
    values = {
        "name": name,
        "summary": f"A sentence encoder trained {supervision(fields)} by {method} from {start} on `{text_name(run)}`.",
        "use": use._replace(pooling=fields["pooling"]).text(run.get("example")),
        "results": results_text(name, run, results),
        "plots": card_plots(plots),
        "training": training_text(run),
        "limits": bullet_list([*limits_of(run, results), *licence_limit(identity)]),
        "citation": citations(fields),
    }
    base = None if fresh else base_model(source, known)
    text = (run.get("train_data") or {}).get("dataset")
    described = encoder_metadata(identity, name, base, card_metrics(results), text=text, use=use)
    return write_card(described, values, template)


def encoder_metadata(
    identity: Identity | None = None,
    name: str | None = None,
    base: str | None = None,
    measured: Sequence[CardMetric] = (),
    same: bool = False,
    text: str | None = None,
    use: Loading = ON_DISK,
) -> ModelCardData:
    """The metadata of an encoder's card, with a model-index of all measured numbers.

    Args:
        identity: licence and language.
        name: the model's name.
        base: the Hub name of the model that it was trained from.
        measured: the numbers.
        same: whether these are that model's own weights.
        text: the Hub name of the text that it was trained on.
        use: how to load it. Without code only sentence-transformers knows the pooling.
    """
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
        base_model=base,
        base_model_relation="finetune" if base and not same else None,
        datasets=[text] if text else None,
        library_name="sentence-transformers" if use.trust_free else "transformers",
    )


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
