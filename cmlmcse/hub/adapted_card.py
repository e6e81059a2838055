"""The model card of an encoder that `cmlmcse adapt` handed back."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cmlmcse.common.tables import DASH, markdown_table
from cmlmcse.evaluation.tables import labelled_scores

from .card import ON_DISK, Record, card_plots, encoder_facts, encoder_metadata, licence_limit, public_name
from .card_usage import Loading
from .card_writer import TEMPLATE, Identity, bullet_list, bullets, write_card
from .run_records import card_metrics
from .start import start_text


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
    found, text, start = kept.part("adapt"), kept.part("text"), kept["model"]
    name = name or f"{public_name(start)}, adapted"
    same = found["chosen"] == "start"
    facts = {
        "start": start_text(public_name(start), kept.get("start")),
        "documents": f"{text['documents']:,}, {text['held_out']:,} of them held out",
        "chosen": found["chosen"],
        "settings that were tried": len(found["arms"]),
        "tokens of a training text": text["training_tokens"],
        "tokens trained on": sum(arm["tokens"] for arm in found["arms"].values()),
        "time": f"{kept['seconds']:.0f} s",
        **encoder_facts(kept.get("encoder")),
    }
    limits = ["The label-free score asks with parts of documents. It does not know your users' queries.",
              "The scores are those of one seed.", *([text["note"]] if text.get("note") else [])]  # fmt: skip
    values = {
        "name": name,
        "summary": f"A sentence encoder: `{public_name(start)}`, adapted to unlabelled text by `cmlmcse adapt`.",
        "use": use.text(kept.get("example")),
        "results": measured(kept, same),
        "plots": card_plots(plots),
        "training": bullets(facts),
        "limits": bullet_list([*limits, *licence_limit(identity)]),
    }
    return write_card(encoder_metadata(identity, name, start, card_metrics(results), same), values, template)


def measured(kept: Record, same: bool) -> str:
    """The scores without labels, and those on labelled data if there are any.

    Args:
        kept: results.json.
        same: whether the start was handed back.
    """
    found = kept.part("adapt")
    change = (
        "Nothing was better than the start beyond chance, so these are the start's weights."
        if same
        else f"{found['after']:.2f} after, {found['before']:.2f} before: {found['after'] - found['before']:+.2f} (95 % "
        "interval {:+.2f} to {:+.2f}).".format(*found["interval"])
    )
    rows = [
        [data, f"{before:.2f}", f"{after:.2f}", DASH if bm25 is None else f"{bm25:.2f}"]
        for data, (before, after, bm25) in sorted(labelled_scores(kept.get("labelled", {})).items())
    ]
    text = f"How well {found['title']}, among {found['candidates']:,} passages of the same text, nDCG × 100 "
    text += f"without labels, on {found['documents']['confirm']} documents that chose nothing. {change} "
    text += f"BM25: {found['bm25']:.2f}."
    if (second := found.get("second")) and not same:
        text += f" How well {second['title']}, which training did not practise: {second['best_candidate']:.2f} after, "
        text += f"{second['before']:.2f} before (95 % interval {{:+.2f}} to {{:+.2f}}).".format(*second["interval"])
    if rows:
        text += "\n\nOn labelled data, which chose nothing:\n\n"
        text += markdown_table(["data", "before", "after", "BM25"], rows)
    return text
