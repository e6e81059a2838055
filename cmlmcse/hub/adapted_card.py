"""The model card of an encoder that `cmlmcse adapt` handed back."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cmlmcse.common.tables import markdown_table
from cmlmcse.evaluation.tables import cell, labelled_scores

from .card import ON_DISK, card_plots, encoder_metadata
from .card_method import citations, method_facts, method_of
from .card_training import encoder_facts, inherited, licence_limit
from .card_usage import Loading
from .card_writer import TEMPLATE, Identity, bullet_list, bullets, write_card
from .run_records import Record, card_metrics
from .start import base_model, start_name, start_text


def adapted_card(
    results: dict[str, Any],
    use: Loading = ON_DISK,
    plots: Sequence[Path] = (),
    identity: Identity | None = None,
    template: Path = TEMPLATE,
    name: str | None = None,
) -> str:
    """README.md of an encoder that `cmlmcse adapt` handed back. It holds no sentence of the user's text.

    Args:
        results: content of adapt's results.json.
        use, plots, identity, template: as in :func:`model_card`.
        name: the model's name (default: the start's, adapted).

    Raises:
        InputError: the results lack an entry, or the template names an unknown field.
    """
    kept = Record(results, "results.json")
    found, source, known = kept.part("adapt"), kept["model"], kept.get("start")
    start, same = start_name(source, known), found["chosen"] == "start"
    name = name or (start if same else f"{start}, adapted")
    done = (
        "kept as it was: `cmlmcse adapt` found nothing better beyond chance" if same else "adapted by `cmlmcse adapt`"
    )
    if pooling := (kept.get("encoder") or {}).get("pooling"):
        use = use._replace(pooling=pooling)
    values = {
        "name": name,
        "summary": f"A sentence encoder: `{start}`, {done} on unlabelled text.",
        "use": use.text(kept.get("example")),
        "results": measured(kept, same),
        "plots": card_plots(plots),
        "training": bullets(facts_of(kept)),
        "limits": bullet_list([*limits_of(kept, start), *licence_limit(identity)]),
        "citation": "" if same else citations(chosen_fields(kept)),
    }
    described = encoder_metadata(identity, name, base_model(source, known), card_metrics(results), same, use=use)
    return write_card(described, values, template)


def facts_of(kept: Record) -> dict[str, Any]:
    """Start, text, what was tried and chosen, and what it cost, in words."""
    found, text = kept.part("adapt"), kept.part("text")
    adapted = found["chosen"] != "start"
    return {
        "start": start_text(kept["model"], kept.get("start")),
        "documents": f"{text['documents']:,}, {text['held_out']:,} of them held out",
        "settings that were tried": "; ".join(found["arms"]),
        "chosen": found["chosen"],
        "method": method_of(chosen_fields(kept)) if adapted else None,
        **(method_facts(found["settings"]) if adapted and "settings" in found else {}),
        "longest training text": f"{text['training_tokens']} tokens",
        "tokens trained on, of all settings": f"{sum(arm['tokens'] for arm in found['arms'].values()):,}",
        "pooling": (kept.get("encoder") or {}).get("pooling"),
        **encoder_facts(kept.get("encoder")),
        "seed": kept.get("seed"),
        "time of the whole command": f"{kept['seconds']:.0f} s",
        "precision": kept.get("precision"),
    }


def chosen_fields(kept: Record) -> dict[str, Any]:
    """The fields of the best run; of records from before they were kept, the method's of the recipe `adapt`."""
    found = kept.part("adapt")
    names = [name for name in found["arms"] if found["chosen"].startswith(name)] or list(found["arms"])
    own = found["arms"][max(names, key=len)].get("fields", {})
    pooling = (kept.get("encoder") or {}).get("pooling", "avg")
    return dict(found.get("settings") or {"pooling": pooling, "contrastive_loss": "info_nce", **own})


def limits_of(kept: Record, start: str) -> list[str]:
    """What the scores do not show."""
    note = kept.part("text").get("note")
    return [
        "The score without labels takes parts of documents as queries. Your users' queries may be of another kind.",
        "The scores are those of one seed.",
        "Use cosines to rank texts. Their values are not calibrated: choose a threshold on your own data.",
        inherited(start),
        *([note] if note else []),
    ]


def measured(kept: Record, same: bool) -> str:
    """The scores without labels, and those on labelled data if there are any.

    Args:
        kept: results.json.
        same: whether the start was handed back.
    """
    found = kept.part("adapt")
    best, before = found["best_candidate"] if same else found["after"], found["before"]
    change = (f"{best:.2f} with the best setting" if same else f"{best:.2f} after") + f", {before:.2f} before: "
    change += f"{best - before:+.2f} (95 % interval {{:+.2f}} to {{:+.2f}}).".format(*found["interval"])
    if same:
        change += " Nothing was better than the start beyond chance, so these are the start's weights."
    rows = [[data, *map(cell, scores)] for data, scores in sorted(labelled_scores(kept.get("labelled", {})).items())]
    text = f"The score without labels says how well {found['title']}, among {found['candidates']:,} passages of the "
    text += f"same text. It is nDCG × 100 on {found['documents']['confirm']} documents that were not used to choose. "
    text += f"{change} BM25 has {found['bm25']:.2f}."
    if (again := found.get("all_documents")) and again["kept"]:
        text += " The model was then trained once more, on all documents. This score is from before."
    if rows:
        text += "\n\nOn labelled data, which was not used to choose either:\n\n"
        text += markdown_table(["data", "before", "after", "BM25", "after, with BM25"], rows)
    return text
