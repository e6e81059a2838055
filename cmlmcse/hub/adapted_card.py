"""The model card of an encoder that `cmlmcse adapt` handed back."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cmlmcse.common.run_files import RESULTS
from cmlmcse.common.tables import markdown_table
from cmlmcse.evaluation.labelled import WITH_WORDS, labelled_rows

from .card import ON_DISK, card_plots, encoder_metadata
from .card_method import citations, method_facts, method_of
from .card_training import encoder_facts, inherited, licence_limit
from .card_usage import Loading
from .card_writer import TEMPLATE, Identity, bullet_list, bullets, write_card
from .run_records import Record, card_metrics
from .start import base_model, start_name, start_text

# Of the score without labels, below which users are warned. Of the measured collections TIME alone has so few: 42 of
# its 423 documents confirm on the first split, 106 on both.
ENOUGH_DOCUMENTS, ENOUGH_PASSAGES = 100, 1000


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
    kept = Record(results, RESULTS)
    found, source, known = kept.part("adapt"), kept["model"], kept.get("start")
    start, same = start_name(source, known), found["chosen"] == "start"
    if same and not (identity and identity.license):  # unchanged weights keep their licence
        identity = (identity or Identity())._replace(license=(known or {}).get("license"))
    name = name or (start if same else f"{start}, adapted")
    done = "kept as it was: `cmlmcse adapt` found nothing clearly better" if same else "adapted by `cmlmcse adapt`"
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
        "citation": "" if same else citations(*chosen_runs(kept)),
    }
    described = encoder_metadata(identity, name, base_model(source, known), card_metrics(results), same, use=use)
    return write_card(described, values, template)


def facts_of(kept: Record) -> dict[str, Any]:
    """Start, text, what was tried and chosen, and what it cost, in words."""
    found, text = kept.part("adapt"), kept.part("text")
    adapted = found["chosen"] != "start"
    runs = chosen_runs(kept)
    return {
        "start": start_text(kept["model"], kept.get("start")),
        "documents": f"{text['documents']:,}, {text['held_out']:,} of them held out"
        + (" on each of two splits" if found.get("second_split") else ""),
        "settings that were tried": "; ".join(found["arms"]),
        "chosen": found["chosen"],
        "method": " / ".join(dict.fromkeys(map(method_of, runs))) if adapted else None,
        **(side_by_side([method_facts(fields) for fields in runs]) if adapted and "settings" in found else {}),
        "longest training text": f"{text['training_tokens']} tokens",
        "tokens trained on, of all settings": f"{tokens_trained_on(found):,}",
        "pooling": (kept.get("encoder") or {}).get("pooling"),
        **encoder_facts(kept.get("encoder")),
        "seed": kept.get("seed"),
        "time of the whole command": f"{kept['seconds']:.0f} s",
        "precision": kept.get("precision"),
    }


def tokens_trained_on(found: dict[str, Any]) -> int:
    """The number of tokens that all arms trained on, and the runs on the second split."""
    runs = [*found["arms"].values(), found.get("second_split") or {"tokens": 0}]
    return sum(run["tokens"] for run in runs)


def side_by_side(many: list[dict[str, Any]]) -> dict[str, Any]:
    """The facts of several runs as one: what differs stands side by side, in the order of the runs."""
    merged = {}
    for name in dict.fromkeys(name for facts in many for name in facts):
        values = [facts.get(name) for facts in many]
        same = all(value == values[0] for value in values)
        merged[name] = values[0] if same else " / ".join("none" if value is None else str(value) for value in values)
    return merged


def chosen_runs(kept: Record) -> list[dict[str, Any]]:
    """The fields of the runs whose weights were averaged. An older record has the fields of one run. The oldest
    records have none: then these are the fields of the chosen arm, with the loss of the recipe `adapt`."""
    found = kept.part("adapt")
    settings = found.get("settings")
    if settings and "views" not in settings:
        return list(settings.values())
    names = [name for name in found["arms"] if found["chosen"].startswith(name)] or list(found["arms"])
    own = found["arms"][max(names, key=len)].get("fields", {})
    pooling = (kept.get("encoder") or {}).get("pooling", "avg")
    return [dict(settings or {"pooling": pooling, "contrastive_loss": "info_nce", **own})]


def limits_of(kept: Record, start: str) -> list[str]:
    """What the scores do not show. Older records do not say whether the start is a finished encoder."""
    found, text = kept.part("adapt"), kept.part("text")
    note, similarity = text.get("note"), (kept.get("encoder") or {}).get("similarity", "cosine")
    titled = (
        "A document that has a title was read as the title, a space and the text. Join them so before you encode "
        "(`cmlmcse encode --title_column title`)."
    )
    return [
        *([titled] if text.get("titles") else []),
        "The score without labels takes parts of documents as queries. Your users' queries may be of another kind.",
        *([on_practice(found)] if "finished_encoder" in found else []),
        *filter(None, [few_questions(found)]),
        "The scores are those of one call of the command, and change with its seed.",
        f"Rank texts by {similarity} similarity. Its values are not calibrated: choose a threshold on your own data.",
        inherited(start),
        *([note] if note else []),
    ]


def on_practice(found: dict[str, Any]) -> str:
    """What practice does to the score, and what was done so that practice alone does not count."""
    practice = "A model that trains on the questions of a score gets better at them in any case."
    if found["finished_encoder"]:
        return (
            f"{practice} What was chosen did not train on the questions of this score. The score can confirm a choice. "
            "It cannot find the best step: where labels existed, its rank correlation with them within a run was -0.22 "
            "on average."
        )
    return (
        f"{practice} A model that finds less than BM25 has little to lose by that. Where labels existed, they mostly "
        "rose with this score: from a plain backbone the rank correlation was 0.94 over the settings of a collection, "
        "but only 0.60 within a run (0.38 on the one collection that was not in sight when the score was made). A "
        "smaller backbone of an earlier version was measured."
    )


def few_questions(found: dict[str, Any]) -> str:
    """A sentence where few documents confirm, and one where few passages make their questions easy; else nothing."""
    documents, candidates = found["documents"]["confirm"], found["candidates"]
    said = []
    if documents < ENOUGH_DOCUMENTS:
        said.append(f"Only {documents} documents confirm this score, so its interval is rough.")
    if candidates < ENOUGH_PASSAGES:
        said.append(f"Only {candidates:,} passages are searched for it, so its questions are easy.")
    return " ".join([*said, "More documents help."] if said else [])


def why_kept(found: dict[str, Any]) -> str:
    """Why the start was kept: what the best model that was tried lacks. In records without `least_gain` only chance
    decided."""
    if found["interval"][0] <= 0 or "least_gain" not in found:
        return "Nothing was better than the start beyond chance."
    return (
        f"The best that was tried is better by less than {found['least_gain']:.1%} of the score. That is more than "
        "chance, but too little to expect it in real searches."
    )


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
        change += f" {why_kept(found)} So these are the start's weights."
    rows = [
        [row.data, row.before, row.after, row.interval, row.bm25, row.hybrid]
        for row in labelled_rows(kept.get("labelled", {}))
    ]
    text = f"The score without labels says how well {found['title']}, among {found['candidates']:,} passages of the "
    text += f"same text. It is nDCG × 100 on {found['documents']['confirm']} documents that were not used to choose. "
    text += f"{change} BM25 has {found['bm25']:.2f}."
    if not same and found.get("second_split"):
        text += " Two models were trained, on two splits of the text, and each was scored on documents that it had not "
        text += "seen. These weights are the mean of theirs."
    if rows:
        text += "\n\nOn labelled data, which was not used to choose either:\n\n"
        text += markdown_table(["data", "before", "after", "95 % interval of the change", "BM25", WITH_WORDS], rows)
    return text
